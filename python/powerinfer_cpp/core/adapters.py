"""LoRA adapters of an open model."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._native import ffi, lib
from .errors import check, encoded
from .model import Model
from .session import Session


class LoraAdapter:
    """A LoRA adapter, read from a GGUF for one model. `Llama.open_adapter` makes it.

    It keeps its memory, from the model's budget, until it is no longer referenced.
    """

    def __init__(self, model: Model, path: str | Path):
        self.path = str(path)
        out = ffi.new("pi_adapter **")
        check(lib.pi_adapter_open(model.handle, encoded(self.path), out), self.path)
        self.handle = ffi.gc(out[0], lib.pi_adapter_free)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class Adapters:
    """The adapters that a model's sessions use, with their scales."""

    def __init__(self, model: Model):
        self._model = model
        self.used: dict[LoraAdapter, float] = {}

    def opened(self, wanted: Mapping[Any, float]) -> dict[LoraAdapter, float]:
        """Adapters and scales; files that are in use are not read again.

        Raises what opening raises, and ValueError for a scale that is no number or a file that is
        given twice.
        """
        known = {adapter.path: adapter for adapter in self.used}
        found: dict[LoraAdapter, float] = {}
        for given, scale in wanted.items():
            if isinstance(scale, bool) or not isinstance(scale, int | float):
                raise ValueError(f"the scale of adapter {given} must be a number, not {scale!r}")
            adapter = given
            if not isinstance(given, LoraAdapter):
                adapter = known.get(str(given)) or LoraAdapter(self._model, given)
            if adapter in found:
                raise ValueError(f"adapter {adapter.path} is given twice")
            found[adapter] = float(scale)
        return found

    def apply(self, session: Session) -> None:
        """Makes a session use them; if that changes something, its sequences become empty."""
        session.set_adapters([a.handle for a in self.used], list(self.used.values()))


class UsesAdapters:
    """The methods of `Llama` that choose adapters."""

    _lock: threading.RLock
    _model: Model
    _adapters: Adapters

    def _require_open(self) -> None:
        """Raises ValueError if the model is closed."""
        raise NotImplementedError

    def _use_adapters(self) -> None:
        """Makes everything that computes use the chosen adapters."""
        raise NotImplementedError

    def open_adapter(self, path: str | Path) -> LoraAdapter:
        """Reads a LoRA adapter (GGUF) of this model, for `set_adapters`.

        Raises OSError, ModelFormatError, UnsupportedModelError, OutOfMemoryError.
        """
        with self._lock:
            self._require_open()
            return LoraAdapter(self._model, path)

    def adapters(self) -> list[tuple[str, float]]:
        """The paths of the adapters that are used, and their scales."""
        with self._lock:
            return [(adapter.path, scale) for adapter, scale in self._adapters.used.items()]

    def set_adapters(self, adapters: Mapping[Any, float]) -> None:
        """Computes with these LoRA adapters from now on: {path or LoraAdapter: scale}; {}: none.

        A path is read again unless it is in use. Computed tokens are dropped if anything changes; a
        stream that goes on computes its text again, with the new ones. Raises what open_adapter
        raises, ValueError for other models' adapters, bad scales, or with sparse="predictor";
        UnsupportedModelError with a device or a model that runs from storage. After an error
        nothing has changed.
        """
        with self._lock:
            self._require_open()
            before, self._adapters.used = self._adapters.used, self._adapters.opened(adapters)
            try:
                self._use_adapters()
            except BaseException:
                self._adapters.used = before
                self._use_adapters()
                raise
