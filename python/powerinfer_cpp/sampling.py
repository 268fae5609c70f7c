"""Sampling parameters by name, with the engine's defaults."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ._native import lib
from .options import whole

_ENGINE = lib.pi_sampler_default_params()


def _default(name: str) -> Any:
    value = getattr(_ENGINE, name)
    # The engine has 32-bit floats: return 0.95, not 0.949999988.
    return float(str(np.float32(value))) if isinstance(value, float) else value


@dataclass(frozen=True)
class Sampling:
    """Fields of pi_sampler_params that callers choose for each text; powerinfer.h describes them.
    The seed and repeat_last_n are not included: `Llama` has one value for all texts."""

    temperature: float = _default("temperature")
    top_k: int = _default("top_k")
    top_p: float = _default("top_p")
    min_p: float = _default("min_p")
    typical_p: float = _default("typical_p")
    repeat_penalty: float = _default("repeat_penalty")
    frequency_penalty: float = _default("frequency_penalty")
    presence_penalty: float = _default("presence_penalty")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Sampling":
        """The fields in a function's arguments, e.g. `locals()`; `temp` is temperature."""
        if "temp" in given:
            given = {**given, "temperature": given["temp"]}
        found = {f.name: given[f.name] for f in fields(cls) if f.name in given}
        if "top_k" in found:
            found["top_k"] = whole("top_k", found["top_k"])
        return cls(**found)

    def keywords(self) -> dict[str, Any]:
        """The fields as arguments of `Llama.create_completion` and fields of pi_sampler_params."""
        return asdict(self)
