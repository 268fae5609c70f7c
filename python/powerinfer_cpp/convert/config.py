"""config.json, as transformers 4 and 5 write it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelFormatError, UnsupportedModelError
from .checkpoint import read_json

# hidden_act of transformers -> powerinfer.ffn.activation
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "drelu": "drelu",
    "gelu": "gelu",
}


class Config:
    """Typed access to config.json. Raises ModelFormatError naming file and key."""

    def __init__(self, folder: Path):
        self.path = folder / "config.json"
        self.values = read_json(self.path)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of `keys` that is there and not null, at least `least`."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise ModelFormatError(f"{self.path}: {keys[0]} must be an integer, not {value!r}")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """The first of `keys` that is there and not null: finite and positive."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelFormatError(f"{self.path}: {keys[0]} must be a number, not {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise ModelFormatError(f"{self.path}: {keys[0]} must be positive, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false; null and absent give the default."""
        value = self._first((key,), default)
        if not isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} must be true or false, not {value!r}")
        return value

    def model_type(self) -> str:
        """The family's name, "llama"."""
        value = self.values.get("model_type")
        if not isinstance(value, str):
            raise ModelFormatError(f"{self.path}: no model_type")
        return value

    def activation(self) -> str | None:
        """The activation by our name, None when the file names none."""
        value = self.values.get("hidden_act")
        if value is None:
            return None
        if value not in ACTIVATIONS:
            raise UnsupportedModelError(f"{self.path}: hidden_act {value!r} is not supported")
        return ACTIVATIONS[value]

    def rope_theta(self) -> float:
        """Base of the rotary embedding. Raises UnsupportedModelError for scaled ones."""
        parameters = self.values.get("rope_parameters")  # transformers 5
        scaling = self.values.get("rope_scaling")  # transformers 4
        for values in (parameters, scaling):
            if values is None:
                continue
            if not isinstance(values, dict):
                raise ModelFormatError(f"{self.path}: rope_parameters must be an object")
            kind = values.get("rope_type", values.get("type", "default"))
            if kind not in ("default", "none"):
                raise UnsupportedModelError(f"{self.path}: rope scaling {kind!r} is not supported")
            if values.get("partial_rotary_factor", 1.0) != 1.0:
                raise UnsupportedModelError(f"{self.path}: partial rotation is not supported")
        theta = (parameters or {}).get("rope_theta")
        return self.number("rope_theta", default=10000.0 if theta is None else theta)

    def refuse_sliding_window(self, n_ctx: int) -> None:
        """Raises UnsupportedModelError for a window of attention narrower than the context."""
        window = self.values.get("sliding_window")
        if window is not None and self.values.get("use_sliding_window", True):
            width = self.integer("sliding_window")
            if width < n_ctx:
                raise UnsupportedModelError(
                    f"{self.path}: sliding_window {width} is not supported (context {n_ctx})"
                )

    def _first(self, keys: tuple[str, ...], default: Any) -> Any:
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        if default is None:
            raise ModelFormatError(f"{self.path}: no {keys[0]}")
        return default


@dataclass(frozen=True)
class Hyperparameters:
    """Sizes of a decoder with rotary attention and a gated FFN.

    architecture: GGUF's name. head_dim: elements of a head, not always n_embd / n_head.
    activation: of the FFN; default_activation: what a GGUF without the key means.
    """

    architecture: str
    n_vocab: int
    n_ctx: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    activation: str
    default_activation: str
    tied: bool
    attention_bias: bool
    mlp_bias: bool
