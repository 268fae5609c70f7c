"""Speeds of a machine, and from when on the GPU is worth waiting for."""

from dataclasses import dataclass

import numpy as np

GB = 1e9


@dataclass(frozen=True)
class Machine:
    """Bytes per second that are read from each tier, and what waiting for the other side costs.

    vram: a GeForce RTX 4090's 1,008 GB/s unless given. ram: a plain read; `powerinfer doctor`
    measures it. storage: random reads of whole neurons, many in flight. scattered: share of `ram`
    that reads of single neurons reach; 18.5 of 28.5 GB/s were measured at a density of 0.10.
    sync: seconds that a layer loses when CPU and GPU both have neurons of it.
    """

    vram: float = 1008 * GB
    ram: float = 30 * GB
    storage: float = 1 * GB
    scattered: float = 0.65
    sync: float = 20e-6

    @property
    def neurons_in_ram(self) -> float:
        """Bytes per second of neurons that are read one by one from RAM."""
        return self.ram * self.scattered

    def ram_value(self) -> float:
        """What a firing served by RAM is worth when one on the GPU is worth 1, from storage 0."""
        slow, ram, fast = 1 / self.storage, 1 / self.neurons_in_ram, 1 / self.vram
        return float(np.clip((slow - ram) / (slow - fast), 0.0, 1.0)) if slow > fast else 0.0

    def least_neurons(self, neuron_bytes: float, reads: np.ndarray, instead: float = 0.0) -> int:
        """C_l: how many neurons save a layer as much time on the GPU as its waiting costs.

        reads: [n] how often each neuron is read per token, in the order in which the GPU takes
        them. All ones gives the paper's C_l = T_sync / (T_CPU - T_GPU), where every neuron costs
        one read. instead: how often the neuron is read that gets its place in RAM and would be in
        storage otherwise. n + 1 where all neurons are not enough.
        """
        in_ram = 1 / self.neurons_in_ram
        saved = reads * (in_ram - 1 / self.vram) + instead * max(0.0, 1 / self.storage - in_ram)
        if not np.all(saved >= 0):
            return len(reads) + 1
        needed = self.sync / neuron_bytes * (1 - 1e-12)  # a sum that just reaches it does
        return int(np.searchsorted(np.cumsum(saved, dtype=np.float64), needed)) + 1
