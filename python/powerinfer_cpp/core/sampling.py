"""Sampling parameters by name, with the engine's defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from .._native import lib
from .checks import number, whole

_ENGINE = lib.pi_sampler_default_params()


def _default(name: str) -> Any:
    value = getattr(_ENGINE, name)
    # The engine has 32-bit floats: return 0.95, not 0.949999988.
    return float(str(np.float32(value))) if isinstance(value, float) else value


# llama.cpp's letters for samplers.
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}


_OF_TEXTS = ("dry_sequence_breakers", "samplers")


@dataclass(frozen=True)
class Sampling:
    """Fields of pi_sampler_params that callers choose for each text; powerinfer.h describes them.
    The seed and repeat_last_n are not included: `Llama` has one value for all texts. Raises
    ValueError for values of wrong types."""

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
    dry_multiplier: float = _default("dry_multiplier")
    dry_base: float = _default("dry_base")
    dry_allowed_length: int = _default("dry_allowed_length")
    dry_penalty_last_n: int = _default("dry_penalty_last_n")
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")  # llama.cpp's
    samplers: Sequence[str] | None = None  # names in order; None: the engine's order

    def __post_init__(self) -> None:
        for name in ("top_k", "mirostat_mode", "dry_allowed_length", "dry_penalty_last_n"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name, value in vars(self).items():
            if name not in _OF_TEXTS:
                number(name, value)
        for name in _OF_TEXTS:
            if (texts := getattr(self, name)) is not None:
                object.__setattr__(self, name, _texts(name, texts))

    @property
    def looks_back(self) -> int:
        """How many of the last tokens DRY needs; -1: all."""
        return self.dry_penalty_last_n if self.dry_multiplier else 0

    def keywords(self) -> dict[str, Any]:
        """The fields as arguments of `Llama.create_completion` and fields of pi_sampler_params."""
        return dict(vars(self))  # none of them is a dataclass, and requests come in thousands


def by_letters(letters: str) -> list[str]:
    """Names of samplers by llama.cpp's letters, in their order. Raises ValueError."""
    wrong = next((letter for letter in letters if letter not in _LETTERS), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is none of {', '.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in letters]


# Arguments of llama-cpp-python whose meaning llama.cpp has forgotten.
_FORGOTTEN = ("tfs_z", "penalize_nl")
# What other programs call arguments of the same meaning.
_ELSEWHERE = {
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "temp": "temperature",
    "json_schema": "response_format",
    "stop_sequences": "stop",
}
_FIELDS = {field.name for field in fields(Sampling)}
_NAMES = (*sorted(_FIELDS), "max_tokens", "stop", "seed", "stream", "grammar", "logprobs")


def further(
    call: str, given: Mapping[str, Any], instead: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Fields of Sampling that a call was given by further names. instead: those that have another
    name in this call. Raises TypeError that names the call, and what was probably meant, for other
    names."""
    found = {name: given[name] for name in given if name not in _FORGOTTEN}
    named = {**_ELSEWHERE, **(instead or {})}
    for name in found:
        if name in _FIELDS and name not in named:
            continue
        near = named.get(name) or next(iter(get_close_matches(name, _NAMES, 1)), None)
        hint = f"; did you mean {near}?" if near else ""
        raise TypeError(f"{call}() has no argument {name!r}{hint}")
    return found


def _texts(name: str, given: Any) -> tuple[str, ...]:
    """Texts as a tuple, which can be compared. Raises ValueError for anything else."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if several and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ValueError(f"{name} must be a list of texts, not {given!r}")
