"""Rotary positions: from config.json's description to the keys and factors of the GGUF."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import ModelFormatError, UnsupportedModelError
from .config import Config, section_number
from .writer import Entry, float32, string, uint32


@dataclass(frozen=True)
class Rope:
    """Parameters of rotary positions.

    kind: "none", "linear" or "yarn". factor: extension of the context's length. original_ctx,
    beta_fast, beta_slow: for yarn. attention_factor: multiplies yarn's own 0.1 ln(factor) + 1.
    divisors: for llama3, one per frequency.
    """

    theta: float
    kind: str = "none"
    factor: float = 1.0
    original_ctx: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    divisors: np.ndarray | None = None

    def entries(self, arch: str) -> Iterator[Entry]:
        yield float32(f"{arch}.rope.freq_base", self.theta)
        if self.kind == "none":
            return
        yield string(f"{arch}.rope.scaling.type", self.kind)
        yield float32(f"{arch}.rope.scaling.factor", self.factor)
        if self.kind == "yarn":
            yield uint32(f"{arch}.rope.scaling.original_context_length", self.original_ctx)
            for name, value, default in (
                ("yarn_beta_fast", self.beta_fast, 32.0),
                ("yarn_beta_slow", self.beta_slow, 1.0),
                ("yarn_attn_factor", self.attention_factor, 1.0),
            ):
                if value != default:
                    yield float32(f"{arch}.rope.scaling.{name}", value)


def read_rope(config: Config, head_dim: int, n_ctx: int, default_theta: float = 10000.0) -> Rope:
    """Reads rope_parameters (transformers 5) or rope_theta and rope_scaling (transformers 4).

    Raises ModelFormatError for malformed descriptions, UnsupportedModelError for unknown kinds.
    """
    new, old = (_section(config, key) for key in ("rope_parameters", "rope_scaling"))
    where = f"{config.path}: {'rope_parameters' if new else 'rope_scaling'}"
    values = new or old
    theta = config.number("rope_theta", default=default_theta)
    if "rope_theta" in new:
        theta = section_number(where, new, "rope_theta")
    kind = values.get("rope_type", values.get("type", "default"))
    partial = values.get("partial_rotary_factor", config.values.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModelError(f"{config.path}: partial rotation is not supported")
    if kind in ("default", "none"):
        return Rope(theta)
    if kind not in ("linear", "yarn", "llama3"):
        raise UnsupportedModelError(f"{config.path}: rope scaling {kind!r} is not supported")

    def number(key: str, default: float | None = None) -> float:
        return section_number(where, values, key, default)

    if kind == "linear":
        return Rope(theta, "linear", number("factor"))
    original = int(number("original_max_position_embeddings", n_ctx))
    factor = number("factor", n_ctx / original)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise ModelFormatError(f"{where}: low_freq_factor must be below high_freq_factor")
        return Rope(theta, divisors=_llama3(theta, head_dim, factor, low, high, original))
    if not values.get("truncate", True):
        raise UnsupportedModelError(f"{where}: yarn with truncate off is not supported")
    return Rope(
        theta,
        "yarn",
        factor,
        original,
        number("beta_fast", 32.0),
        number("beta_slow", 1.0),
        _attention_factor(values, number, factor),
    )


def _section(config: Config, key: str) -> dict[str, object]:
    value = config.values.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelFormatError(f"{config.path}: {key} must be an object")
    return value or {}


def _attention_factor(values: dict[str, object], number, factor: float) -> float:
    """Factor on yarn's own scale of cosine and sine; config.json may have the product of both."""

    def own(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if values.get("attention_factor") is not None:
        return number("attention_factor") / own()
    if values.get("mscale") and values.get("mscale_all_dim"):
        return own(number("mscale")) / own(number("mscale_all_dim")) / own()
    return 1.0


def _llama3(
    theta: float, head_dim: int, factor: float, low: float, high: float, original: int
) -> np.ndarray:
    """llama3's divisor of each frequency: 1 for fast ones, `factor` for slow ones."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    # 1 if a wave fits `high` times into the training context, 0 if less than `low` times
    fast = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - fast) / factor + fast)
