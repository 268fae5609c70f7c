"""Counts of a session's work."""

from dataclasses import dataclass

import numpy as np

from .._native import ffi

# Attention, predictor, ffn, head, kv, and what concerns a device and storage; and
# rows, predicted, computed, fired, audited, found, and what concerns a device and storage.
PARTS = tuple(name for name, _ in ffi.typeof("pi_work").fields[2:])  # after size and rows
READS = PARTS[:5]  # of weights and cache
NEURON_COUNTS = tuple(name for name, _ in ffi.typeof("pi_neuron_counts").fields[1:])
_SHARES = ("predicted", "computed", "fired")


@dataclass(frozen=True)
class Work:
    """Work for rows of a session; powerinfer.h defines the counts (pi_work).

    sums: int64 [PARTS], bytes of weights and cache that were read, and figures of a device and of
    storage.
    neurons: int64 [n_layer, NEURON_COUNTS].
    """

    rows: int
    sums: np.ndarray
    neurons: np.ndarray

    def __add__(self, other: "Work") -> "Work":
        return Work(self.rows + other.rows, self.sums + other.sums, self.neurons + other.neurons)

    def __sub__(self, other: "Work") -> "Work":
        return Work(self.rows - other.rows, self.sums - other.sums, self.neurons - other.neurons)

    def bytes_per_token(self) -> dict[str, int]:
        """Mean bytes per row, by part; 0 if no row was computed."""
        return {name: self.per_token(name) for name in READS}

    def sum(self, name: str) -> int:
        """One of the sums (PARTS)."""
        return int(self.sums[PARTS.index(name)])

    def by_layer(self, name: str) -> np.ndarray:
        """One of the counts of layers (NEURON_COUNTS): int64 [n_layer]."""
        return self.neurons[:, NEURON_COUNTS.index(name)]

    def per_token(self, name: str) -> int:
        """A sum as the mean per row."""
        return self.sum(name) // max(1, self.rows)

    def read_by_tier(self) -> tuple[int, int, int]:
        """Mean bytes per row that the disk brought, that the CPU read, and that a device read: by
        the numbers of tiers."""
        device = self.per_token("device")
        cpu = sum(self.bytes_per_token().values()) - device
        return self.per_token("storage_bytes"), cpu, device

    def computed_by_tier(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Neurons that were computed after the disk had brought a part of them, those that RAM had,
        and those that a device computed: int64 [n_layer] each, summed over the rows."""
        total = dict(zip(NEURON_COUNTS, self.neurons.T, strict=True))
        device, storage = total["device_computed"], total["storage_computed"]
        return storage, total["computed"] - device - storage, device

    def chosen_by_tier(self) -> tuple[int, int, int]:
        """Pairs of a row and an expert that it chose: those whose expert the disk had to bring,
        those that RAM had, and those that a device computed."""
        names = ("pairs", "device_pairs", "storage_pairs")
        pairs, device, storage = (int(self.by_layer(name).sum()) for name in names)
        return storage, pairs - device - storage, device

    def computed_of_all(self) -> tuple[int, int]:
        """Neurons that were computed, and those that would have been without sparsity."""
        return int(self.by_layer("computed").sum()), int(self.by_layer("neurons").sum())

    def waits(self) -> tuple[float, float, float]:
        """Seconds that the CPU waited for the disk, a device for the CPU, and the CPU for a
        device."""
        names = ("waited_for_storage_ns", "waited_for_cpu_ns", "waited_for_device_ns")
        storage, cpu, device = (self.sum(name) * 1e-9 for name in names)
        return storage, cpu, device

    def shares(self) -> dict[str, list[float]]:
        """Shares of predicted, computed and fired neurons, per layer; 0 if no row was computed."""
        all_neurons = np.maximum(1, self.by_layer("neurons"))
        return {name: (self.by_layer(name) / all_neurons).tolist() for name in _SHARES}

    def audit(self) -> dict[str, int]:
        """In audited segments: neurons that fired, and how many of them the predictors found."""
        total = dict(zip(NEURON_COUNTS, self.neurons.sum(axis=0).tolist(), strict=True))
        return {"fired": total["audited"], "found": total["found"]}

    def mean_shares(self) -> dict[str, float]:
        """The same over all layers."""
        all_neurons = max(1, int(self.by_layer("neurons").sum()))
        return {name: int(self.by_layer(name).sum()) / all_neurons for name in _SHARES}
