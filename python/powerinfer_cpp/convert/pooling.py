"""How a checkpoint of the package sentence-transformers makes one vector of a text's rows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ModelFormatError, UnsupportedModelError
from .checkpoint import read_json_value
from .unread import WAY

_MODULES = "modules.json"
# The names of its settings, and the numbers of a GGUF's pooling_type.
_KINDS = {"mean": 1, "cls": 2, "lasttoken": 3}
_OLD = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}
# Modules that change no vector, or only its length, which whoever computes embeddings decides.
_HARMLESS = ("Transformer", "Pooling", "Normalize", "Dropout")


@dataclass
class Pooling:
    """kind: pooling_type of the GGUF; None: the checkpoint does not say, or says another kind."""

    kind: int | None = None
    notes: list[str] = field(default_factory=list)


def read_pooling(folder: Path, allow_unknown: bool = False) -> Pooling:
    """Reads the pooling's config.json in the folder that modules.json names, else in 1_Pooling.

    Raises ModelFormatError for malformed files; UnsupportedModelError for modules that change the
    vectors and are not known here, which are a note with allow_unknown.
    """
    path, pooling = folder / "1_Pooling", Pooling()
    if (folder / _MODULES).is_file():
        for name, where in _modules(folder / _MODULES):
            if name == "Pooling":
                path = where
            elif name not in _HARMLESS:
                what = f"{folder / _MODULES}: module {name} changes embeddings"
                if not allow_unknown:
                    raise UnsupportedModelError(f"{what} and is not supported here; {WAY}")
                pooling.notes.append(f"{what} and is left out")
    path = path / "config.json"
    if not path.is_file():
        return pooling
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise ModelFormatError(f"{path}: not a JSON object")
    modes = _modes(values)
    if len(modes) == 1 and modes[0] in _KINDS:
        pooling.kind = _KINDS[modes[0]]
    elif modes:
        pooling.notes.append(
            f"{path}: pooling by {' and '.join(modes)} is not supported: the GGUF names no pooling"
        )
    return pooling


def _modes(values: dict[str, Any]) -> list[str]:
    """The kinds of pooling that are on."""
    named = values.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in (named if isinstance(named, list) else [named])]
    known = {key: mode for mode, key in _OLD.items()}
    return [
        known.get(key, key.removeprefix("pooling_mode_"))
        for key, value in values.items()
        if key.startswith("pooling_mode_") and value is True
    ]


def _modules(path: Path) -> list[tuple[str, Path]]:
    """The kind of each module, and its folder."""
    found = read_json_value(path)
    if not isinstance(found, list) or not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) and isinstance(m.get("path"), str)
        for m in found
    ):
        raise ModelFormatError(f"{path}: not a list of modules")
    modules = [(m["type"].rpartition(".")[2], path.parent / m["path"]) for m in found]
    for name, where in modules:
        if where != path.parent and where.parent != path.parent:
            raise ModelFormatError(f"{path}: module {name} is outside the folder")
    return modules
