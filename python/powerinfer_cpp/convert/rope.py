"""Rotary positions: from config.json's description to the keys and factors of the GGUF."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .config import Config, section_number
from .tensors import Output, from_values
from .writer import Entry, boolean, float32, string, uint32

# Names of kinds in older checkpoints of Phi-3.
_STILL = 1e30  # the divisor of a frequency that becomes none, as llama.cpp has it
_OLD_NAMES = {"su": "longrope"}


@dataclass(frozen=True)
class Rope:
    """Parameters of rotary positions.

    n_rot: values of a head that rotate, from the first on. kind: "none", "linear", "yarn",
    "longrope" or "dynamic". factor: extension of the context's length. original_ctx: for yarn and
    longrope. beta_fast, beta_slow: for yarn; truncate: whether it rounds the dimensions that turn
    so often. attention_factor: for yarn it multiplies yarn's own 0.1 ln(factor) + 1, for longrope
    it is the factor of cosine and sine. divisors: for llama3, one per frequency. short, long: the
    same for longrope, for contexts up to original_ctx and beyond.
    """

    theta: float
    n_rot: int
    kind: str = "none"
    factor: float = 1.0
    original_ctx: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    divisors: np.ndarray | None = None
    short: np.ndarray | None = None
    long: np.ndarray | None = None

    @property
    def has_factors(self) -> bool:
        """Whether it needs a tensor of factors."""
        return self.divisors is not None or self.kind == "longrope"

    def entries(self, arch: str) -> Iterator[Entry]:
        yield float32(f"{arch}.rope.freq_base", self.theta)
        scaling = f"{arch}.rope.scaling"
        if self.kind == "dynamic":
            # Our own key: other engines compute plain RoPE, which it is within the trained context.
            yield float32("powerinfer.rope.dynamic_factor", self.factor)
        elif self.kind != "none":
            yield string(f"{scaling}.type", self.kind)
        if self.kind in ("linear", "yarn"):
            yield float32(f"{scaling}.factor", self.factor)
        if self.kind in ("yarn", "longrope"):
            yield uint32(f"{scaling}.original_context_length", self.original_ctx)
        if self.kind == "longrope" or (self.kind == "yarn" and self.attention_factor != 1):
            yield float32(f"{scaling}.attn_factor", self.attention_factor)
        if self.kind == "yarn":
            for name, value, default in (
                ("yarn_beta_fast", self.beta_fast, 32.0),
                ("yarn_beta_slow", self.beta_slow, 1.0),
            ):
                if value != default:
                    yield float32(f"{scaling}.{name}", value)
            if not self.truncate:  # our own key: other engines round
                yield boolean("powerinfer.rope.yarn_truncate", False)

    def outputs(self) -> Iterator[Output]:
        """The tensors of factors."""
        for name, values in (
            ("rope_freqs", self.divisors),
            ("rope_factors_long", self.long),
            ("rope_factors_short", self.short),
        ):
            if values is not None:
                yield from_values(f"{name}.weight", values)


def read_rope(
    config: Config,
    head_dim: int,
    n_ctx: int,
    default_theta: float = 10000.0,
    default_part: float = 1.0,
    whole: bool = False,
) -> Rope:
    """Reads rope_parameters (transformers 5) or rope_theta and rope_scaling (transformers 4).

    default_part: the share of a head that rotates if config.json does not say. whole: head_dim
    values rotate, whatever share config.json gives. Raises ModelFormatError for malformed
    descriptions, UnsupportedModelError for unknown kinds.
    """
    new, old = (_section(config, key) for key in ("rope_parameters", "rope_scaling"))
    where = f"{config.path}: {'rope_parameters' if new else 'rope_scaling'}"
    if new and old:
        _refuse_two(config, new, old)
    values = new or old

    def number(key: str, default: float | None = None) -> float:
        return section_number(where, values, key, default)

    theta = config.number("rope_theta", default=default_theta)
    if values.get("rope_theta") is not None:  # transformers 5 has it there under either name
        theta = number("rope_theta")
    part = config.number("partial_rotary_factor", default=default_part)
    if values.get("rope_type") == "proportional":
        # The frequencies of the whole head, of which the last ones do not turn.
        turns = int(head_dim * number("partial_rotary_factor", part)) // 2
        divisors = np.full(head_dim // 2, _STILL)
        divisors[:turns] = number("factor", 1.0)
        return Rope(theta, head_dim, divisors=divisors)
    part = number("partial_rotary_factor", part)
    n_rot = head_dim if whole else int(head_dim * part)
    if n_rot % 2 or not 0 < n_rot <= head_dim:
        raise UnsupportedModelError(
            f"{config.path}: a rotation of {n_rot} of {head_dim} values of a head is not supported"
        )
    kind = values.get("rope_type")
    older = values.get("type")
    kind = (older if older is not None else "default") if kind is None else kind
    kind = _OLD_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if kind in ("default", "none"):
        return Rope(theta, n_rot)
    if kind not in ("linear", "yarn", "llama3", "longrope", "dynamic"):
        raise UnsupportedModelError(f"{config.path}: rope scaling {kind!r} is not supported")
    if kind in ("linear", "dynamic"):
        return Rope(theta, n_rot, kind, number("factor"))
    name = "original_max_position_embeddings"
    own = config.values.get(name)  # wins, as in transformers
    if own is None:
        own = number(name, None if kind == "longrope" else n_ctx)
    original = int(config.number(name, default=own))
    if kind == "longrope":
        factor = number("factor", n_ctx / original)
        return Rope(
            theta,
            n_rot,
            kind,
            original_ctx=original,
            attention_factor=number("attention_factor", _longrope_factor(factor, original)),
            short=_factors(where, values, "short_factor", n_rot // 2),
            long=_factors(where, values, "long_factor", n_rot // 2),
        )
    factor = number("factor", n_ctx / original)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise ModelFormatError(f"{where}: low_freq_factor must be below high_freq_factor")
        divisors = _llama3(theta, n_rot, factor, low, high, original)
        return Rope(theta, n_rot, divisors=divisors)
    truncate = values.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ModelFormatError(f"{where}: truncate must be true or false, not {truncate!r}")
    return Rope(
        theta,
        n_rot,
        "yarn",
        factor,
        original,
        number("beta_fast", 32.0),
        number("beta_slow", 1.0),
        _attention_factor(values, number, factor),
        truncate,
    )


def by_layer_type(config: Config) -> tuple[Config, Config | None]:
    """config.json for layers that see all positions, and for layers with a window.

    transformers 5 has a description of each kind in rope_parameters; None: it has one for all.
    """
    both = config.values.get("rope_parameters")
    if not isinstance(both, dict) or not {"full_attention", "sliding_attention"} & set(both):
        return config, None
    of_kind = [config.completed(), config.completed()]
    for part, kind in zip(of_kind, ("full_attention", "sliding_attention"), strict=True):
        part.values["rope_parameters"] = both.get(kind)
    return of_kind[0], of_kind[1]


def _section(config: Config, key: str) -> dict[str, Any]:
    value = config.values.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelFormatError(f"{config.path}: {key} must be an object")
    return value or {}


def _refuse_two(config: Config, new: dict[str, object], old: dict[str, object]) -> None:
    """Raises ModelFormatError if the two descriptions of a rotation differ."""

    def said(section: dict[str, object]) -> dict[str, object]:
        kind = section.get("rope_type") or section.get("type") or "default"
        rest = {key: section[key] for key in section if key not in ("rope_type", "type")}
        theta = rest.pop("rope_theta", None)
        return {"kind": kind, "theta": theta or config.values.get("rope_theta"), **rest}

    if said(new) != said(old):
        raise ModelFormatError(f"{config.path}: rope_parameters and rope_scaling differ")


def _attention_factor(values: dict[str, object], number, factor: float) -> float:
    """Factor on yarn's own scale of cosine and sine; config.json may have the product of both."""
    scales = [values.get("mscale"), values.get("mscale_all_dim")]

    def own(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if values.get("attention_factor") is not None:
        return number("attention_factor") / own()
    if all(scales):
        return own(number("mscale")) / own(number("mscale_all_dim")) / own()
    return 1.0


def _longrope_factor(factor: float, original: int) -> float:
    """LongRoPE's factor of cosine and sine for a context `factor` times the original one."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0


def _factors(where: str, values: dict[str, object], key: str, n: int) -> np.ndarray:
    """A list of n positive numbers, float32 as the tensor will have them."""
    found = values.get(key)
    if not isinstance(found, list) or len(found) != n:
        raise ModelFormatError(f"{where}: {key} must be a list of {n} numbers")
    return np.array([section_number(where, {key: value}, key) for value in found], dtype=np.float32)


def _llama3(
    theta: float, n_rot: int, factor: float, low: float, high: float, original: int
) -> np.ndarray:
    """llama3's divisor of each frequency: 1 for fast ones, `factor` for slow ones."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, n_rot, 2) / n_rot)
    # 1 if a wave fits `high` times into the training context, 0 if less than `low` times
    fast = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - fast) / factor + fast)
