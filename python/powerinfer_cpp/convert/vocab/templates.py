"""Chat templates of a model folder: one for every chat, and named ones for special uses."""

import re
from pathlib import Path
from typing import Any

from ...core.errors import ModelFormatError
from ..checkpoint import read_json

_DEFAULT = "default"


def read_templates(folder: Path, settings: dict[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template, None without one, and the others by name.

    settings: of tokenizer_config.json. chat_template.jinja and additional_chat_templates/ count
    before it, as in transformers, and chat_template.json after it. Raises ModelFormatError for
    files that are not UTF-8 or not JSON.
    """
    found = _named(settings.get("chat_template"))
    path = folder / "chat_template.json"
    if not found and path.is_file():
        found = _named(read_json(path).get("chat_template"))
    path = folder / "chat_template.jinja"
    if path.is_file():
        found = {_DEFAULT: _text(path)}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _text(path)
    default = found.pop(_DEFAULT, None)
    # Names of keys, as llama.cpp writes them.
    return default, {re.sub(r"[^A-Za-z0-9]", "_", name): text for name, text in found.items()}


def _named(value: Any) -> dict[str, str]:
    """Templates by name: a text is the default, a list or an object has several."""
    if isinstance(value, str):
        value = {_DEFAULT: value}
    elif isinstance(value, list):
        value = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
    named = value.items() if isinstance(value, dict) else ()
    return {
        name: text
        for name, text in named
        if isinstance(name, str) and name and isinstance(text, str) and text
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelFormatError(f"{path}: not UTF-8") from None
