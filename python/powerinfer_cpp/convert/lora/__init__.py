"""Adapters of the package peft: low-rank changes of a model's weights."""

from .adapter import CONFIG, convert_adapter

__all__ = ["CONFIG", "convert_adapter"]
