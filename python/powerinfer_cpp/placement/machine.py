"""Bandwidths of a machine, and the communication threshold of the GPU."""

from dataclasses import dataclass

import numpy as np

GB = 1e9


@dataclass(frozen=True)
class Machine:
    """Read bandwidth of each tier in bytes per second, and the waiting time of split layers.

    vram: default 1,008 GB/s, a GeForce RTX 4090. ram: a plain read; `powerinfer doctor` measures
    it. storage: random reads of whole neurons, many in flight. scattered: share of `ram` that reads
    of single neurons reach; 18.5 of 28.5 GB/s were measured at a density of 0.10. sync: seconds
    lost in a layer that CPU and GPU share.
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
        """Value of a firing served by RAM; GPU is 1, storage is 0."""
        slow, ram, fast = 1 / self.storage, 1 / self.neurons_in_ram, 1 / self.vram
        return float(np.clip((slow - ram) / (slow - fast), 0.0, 1.0)) if slow > fast else 0.0

    def least_neurons(self, neuron_bytes: float, reads: np.ndarray, instead: float = 0.0) -> int:
        """C_l: number of neurons on the GPU that save as much time as the waiting costs.

        reads: [n] reads of each neuron per token, in the order in which the GPU takes them. All
        ones gives the paper's C_l = T_sync / (T_CPU - T_GPU), where every neuron costs one read.
        instead: reads of the neuron that takes its place in RAM and would be in storage otherwise.
        Returns n + 1 if all neurons are not enough.
        """
        in_ram = 1 / self.neurons_in_ram
        saved = reads * (in_ram - 1 / self.vram) + instead * max(0.0, 1 / self.storage - in_ram)
        if not np.all(saved >= 0):
            return len(reads) + 1
        needed = self.sync / neuron_bytes * (1 - 1e-12)  # an equal sum is enough
        return int(np.searchsorted(np.cumsum(saved, dtype=np.float64), needed)) + 1
