"""LoRA adapters of an open model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._native import ffi, lib
from ..errors import check, encoded
from ..model import Model
from ..session import Session


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

    def listed(self) -> list[tuple[str, float]]:
        """The paths of those that are used, and their scales."""
        return [(adapter.path, scale) for adapter, scale in self.used.items()]

    def use(self, wanted: Mapping[Any, float], users: Sequence[Any] = ()) -> None:
        """Uses these adapters, {path or LoraAdapter: scale}. Files that are in use are not read
        again. users: contexts and embedders, which get them.

        Raises what opening raises, what users raise, and ValueError for a scale that is no number
        or a file that is given twice. After an error nothing has changed.
        """
        before, self.used = self.used, self._opened(wanted)
        try:
            for user in users:
                user.set_adapters(self)
        except BaseException:
            self.used = before
            for user in users:
                user.set_adapters(self)
            raise

    def _opened(self, wanted: Mapping[Any, float]) -> dict[LoraAdapter, float]:
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
