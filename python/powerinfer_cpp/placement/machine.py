"""How fast a machine is: what reading, kernels and waiting cost."""

from dataclasses import dataclass

import numpy as np

GB = 1e9
GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet. memory: bytes. bandwidth: bytes per second."""

    memory: int
    bandwidth: float


CARDS = {
    "2080ti": Card(11 * GIB, 616 * GB),
    "3090": Card(24 * GIB, 936 * GB),
    "4090": Card(24 * GIB, 1008 * GB),
    "5090": Card(32 * GIB, 1792 * GB),
}

# Kernels per layer and token on the GPU, as the engine launches them (tests/gpu/test_nodes.cpp):
# norm, product of q, k and v, heads (norms, rotation, storing), attention in two, output; for a
# predictor quantising, two products and the activation; for neurons norm, selection, and merging.
# Firing and down of the neurons that the GPU has run beside the CPU.
ATTENTION_KERNELS = 6
PREDICTOR_KERNELS = 4
FFN_KERNELS = 3
NEURON_KERNELS = 2
HEAD_KERNELS = 2


@dataclass(frozen=True)
class Machine:
    """Costs per byte in bytes per second, the others in seconds. docs/gpu.md names the sources.

    vram: the card's data sheet, default a GeForce RTX 4090. efficiency: share of it that kernels
    reach. node: a kernel in a graph, besides its bytes. launch: of a graph.
    ram: a plain read; `powerinfer doctor` measures it. scattered: share of it that reads of single
    neurons reach; 18.5 of 28.5 GB/s were measured at a density of 0.10. storage: random reads of
    whole neurons, many in flight. sync: flags and halves of a layer that CPU and GPU share, both
    ways. dispatch: what the CPU's half of such a layer takes besides its bytes.
    """

    vram: float = 1008 * GB
    ram: float = 30 * GB
    storage: float = 1 * GB
    scattered: float = 0.65
    sync: float = 6e-6
    efficiency: float = 0.89
    node: float = 1.9e-6
    launch: float = 10e-6
    dispatch: float = 10e-6

    @classmethod
    def bound(cls, **fields: float) -> "Machine":
        """A machine that only reads: all of the bandwidths, no waits."""
        free = {"scattered": 1.0, "efficiency": 1.0}
        free |= dict.fromkeys(("sync", "node", "launch", "dispatch"), 0.0)
        return cls(**{**free, **fields})

    @property
    def gpu(self) -> float:
        """Bytes per second that the GPU's kernels read."""
        return self.vram * self.efficiency

    @property
    def neurons_in_ram(self) -> float:
        """Bytes per second of neurons that are read one by one from RAM."""
        return self.ram * self.scattered

    def ffn_seconds(self, gpu: float, ram: float, storage: float = 0.0) -> tuple[float, float]:
        """Seconds of the neurons of a layer, and of waiting for the other side.

        gpu, ram, storage: bytes that each reads of them; all three work at the same time.
        """
        shared = gpu > 0 and ram + storage > 0
        seconds = max(
            gpu / self.gpu + NEURON_KERNELS * self.node * (gpu > 0),
            ram / self.neurons_in_ram + self.dispatch * shared,
            storage / self.storage,
        )
        return seconds, self.sync if shared else 0.0

    def dense_seconds(self, gpu: float, ram: float, kernels: int) -> float:
        """Seconds of a token of a dense model that reads so many bytes from VRAM, then from RAM."""
        return gpu / self.gpu + kernels * self.node + self.launch * (gpu > 0) + ram / self.ram

    def ram_value(self) -> float:
        """Value of a firing served by RAM; GPU is 1, storage is 0."""
        slow, ram, fast = 1 / self.storage, 1 / self.neurons_in_ram, 1 / self.gpu
        return float(np.clip((slow - ram) / (slow - fast), 0.0, 1.0)) if slow > fast else 0.0

    def least_neurons(self, neuron_bytes: float, reads: np.ndarray, instead: float = 0.0) -> int:
        """C_l: number of neurons on the GPU that save as much time as the waiting costs.

        reads: [n] how often a token reads each neuron, in the order in which neurons move to the
        GPU. If every entry is 1, the result is the paper's C_l = T_sync / (T_CPU - T_GPU).
        instead: how often a token reads the neuron that moves from storage to the freed place in
        RAM. Returns n + 1 if even all neurons save less than the waiting costs.
        """
        in_ram = 1 / self.neurons_in_ram
        saved = reads * (in_ram - 1 / self.gpu) + instead * max(0.0, 1 / self.storage - in_ram)
        if not np.all(saved >= 0):
            return len(reads) + 1
        needed = self.sync / neuron_bytes * (1 - 1e-12)  # an equal sum is enough
        return int(np.searchsorted(np.cumsum(saved, dtype=np.float64), needed)) + 1
