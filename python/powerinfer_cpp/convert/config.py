"""config.json, as transformers 4 and 5 write it, and peft's adapter_config.json."""

import math
from copy import copy
from pathlib import Path
from typing import Any

from ..core.errors import ModelFormatError, UnsupportedModelError
from .activations import NAMES
from .checkpoint import read_json

# hidden_act of transformers -> powerinfer.ffn.activation
_ACTIVATIONS = {
    **{name: name for name in NAMES},
    "swish": "silu",
    "relu_squared": "relu2",
    # The same formula under several names; quick_gelu is another one.
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
}


_SMALLEST, _LARGEST = 1e-37, 3e38  # of what a GGUF stores as float32
_DEPTH = 4  # of objects in objects that are recorded; deeper ones count as a value


class Asked(dict[str, Any]):
    """A JSON object that notes which of its keys were asked for: these are known to whoever asked.

    Objects inside note theirs. asked: shared with the object that this one is a copy of.
    """

    def __init__(self, values: dict[str, Any], asked: set[str] | None = None, depth: int = _DEPTH):
        super().__init__(
            {
                key: Asked(value, depth=depth - 1) if type(value) is dict and depth else value
                for key, value in values.items()
            }
        )
        self.asked: set[str] = set() if asked is None else asked

    def know_all(self) -> None:
        """Marks all keys, also those of the objects inside."""
        self.asked.update(self)
        for value in self.values():
            if isinstance(value, Asked):
                value.know_all()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def peek(self, key: str) -> Any:
        """The value, None without one, for somebody who may not want it: the key stays unknown."""
        return super().get(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


class Config:
    """Typed access to config.json. Raises ModelFormatError naming file and key.

    Whatever is read counts as known; `unread` (module unread) judges the rest.
    """

    def __init__(self, folder: Path, name: str = "config.json"):
        self.path = folder / name
        self.values = Asked(read_json(self.path))

    @classmethod
    def made(cls, path: Path, values: dict[str, Any]) -> "Config":
        """One with these values; path: of the file that they come from."""
        self = cls.__new__(cls)
        self.path, self.values = path, Asked(values)
        return self

    def known(self, *keys: str) -> None:
        """Marks keys that mean nothing for this model, and all inside them, so that nobody has to
        read them."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, Asked):
                value.know_all()

    def section(self, key: str) -> "Config":
        """The object in `key` as a configuration of its own; this one if there is none."""
        value = self.values.get(key)
        if value is None:
            return self
        if not isinstance(value, Asked):
            raise ModelFormatError(f"{self.path}: {key} must be an object")
        return self._with(value)

    def completed(self, **defaults: Any) -> "Config":
        """The same with other values where a key is missing."""
        return self._with(Asked({**defaults, **self.values}, self.values.asked))

    def _with(self, values: Asked) -> "Config":
        other = copy(self)
        other.values = values
        return other

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The value of the first of `keys` that is present and not null, at least `least`."""
        return self._whole(keys[0], self._first(keys, default), least)

    def integer_of_layers(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The same where a key may have a list with one for each layer, all alike."""
        value = self._first(keys, default)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        return self._whole(keys[0], value, least)

    def _whole(self, key: str, value: Any, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise ModelFormatError(f"{self.path}: {key} must be an integer, not {value!r}")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """The value of the first of `keys` that is present and not null, finite and positive."""
        value = self._first(keys, default)
        return section_number(str(self.path), {keys[0]: value}, keys[0])

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean; the default if the key is null or missing."""
        value = self._first((key,), default)
        if not isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} must be true or false, not {value!r}")
        return value

    def model_type(self) -> str:
        """The family's name, for example "llama"."""
        value = self.values.get("model_type")
        if not isinstance(value, str):
            raise ModelFormatError(f"{self.path}: no model_type")
        return value

    def activation(self, key: str, default: str) -> str:
        """Our name of the activation in config.json's `key`.

        Raises UnsupportedModelError for unknown ones.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise UnsupportedModelError(f"{self.path}: {key} {value!r} is not supported")
        return _ACTIVATIONS[value]

    def layer_switches(self, key: str, n_layer: int) -> list[Any] | None:
        """A list with one value per layer, or None if the key is missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < n_layer:
            raise ModelFormatError(f"{self.path}: {key} must have a value for each layer")
        return value[:n_layer]

    def _first(self, keys: tuple[str, ...], default: Any) -> Any:
        found = [value for value in map(self.values.get, keys) if value is not None]
        if not found and default is None:
            raise ModelFormatError(f"{self.path}: no {keys[0]}")
        return found[0] if found else default


def section_number(
    where: str, values: dict[str, Any], key: str, default: float | None = None
) -> float:
    """values[key], finite and positive. Raises ModelFormatError, which begins with `where`."""
    value = values.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelFormatError(f"{where}: {key} must be a number, not {value!r}")
    if not (math.isfinite(value) and value > 0):
        raise ModelFormatError(f"{where}: {key} must be positive, not {value!r}")
    if not _SMALLEST <= value <= _LARGEST:
        raise ModelFormatError(f"{where}: {key} {value!r} is beyond a float32")
    return float(value)
