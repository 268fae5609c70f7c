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
    top_n_sigma: float = _default("top_n_sigma")
    xtc_probability: float = _default("xtc_probability")
    xtc_threshold: float = _default("xtc_threshold")
    dynatemp_range: float = _default("dynatemp_range")
    dynatemp_exponent: float = _default("dynatemp_exponent")
    mirostat_mode: int = _default("mirostat_mode")
    mirostat_tau: float = _default("mirostat_tau")
    mirostat_eta: float = _default("mirostat_eta")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Sampling":
        """The fields in a function's arguments, e.g. `locals()`; `temp` is temperature.

        `samplers` holds further arguments: raises TypeError for those that are no fields.
        """
        more = given.get("samplers", {})
        if "temp" in given:
            given = {**given, "temperature": given["temp"]}
        names = [f.name for f in fields(cls)]
        for name in more:
            if name not in names or name in given:
                raise TypeError(f"unexpected keyword argument {name!r}")
        given = {**given, **more}
        found = {name: given[name] for name in names if name in given}
        for name in ("top_k", "mirostat_mode"):
            if name in found:
                found[name] = whole(name, found[name])
        return cls(**found)

    def keywords(self) -> dict[str, Any]:
        """The fields as arguments of `Llama.create_completion` and fields of pi_sampler_params."""
        return asdict(self)
