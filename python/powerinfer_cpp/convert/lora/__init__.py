"""Adapters, low-rank changes of a model's weights: those of the package peft, and of checkpoints
that hold one for each task."""

from .adapter import CONFIG, convert_adapter
from .tasks import task_adapters

__all__ = ["CONFIG", "convert_adapter", "task_adapters"]
