"""Handles of the engine (core/model.py, core/session.py)."""

from .core.model import Model
from .core.session import Session

__all__ = ["Model", "Session"]
