"""Placement of neurons on the GPU, in RAM and in storage: statistics, solver, predicted speed."""

from .machine import CARDS, Card, Machine
from .model import PlacementModel, read_model
from .place import Placement, least_memory, place
from .store import embed_placement, read_placement, sidecar_path, write_gpuidx, write_sidecar

__all__ = [
    "CARDS",
    "Card",
    "Machine",
    "Placement",
    "PlacementModel",
    "embed_placement",
    "least_memory",
    "place",
    "read_model",
    "read_placement",
    "sidecar_path",
    "write_gpuidx",
    "write_sidecar",
]
