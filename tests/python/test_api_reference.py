"""docs/api.md is what scripts/api_reference.py makes of the docstrings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal, TypedDict

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "api_reference.py")
assert _SPEC and _SPEC.loader
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


class Base(TypedDict):
    """A base."""

    kind: Literal["a", "b"]


class Dict(Base):
    """A dict."""

    other: list[Later]


class Later:
    """A class."""

    def __init__(self, a: Later | None, /, b: int = 3, *rest: str, c: float = 0.5, **more: bytes):
        """Not shown."""

    @property
    def silent(self) -> int:
        return 1

    def _hidden(self) -> None: ...


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert text == reference.page(), "run: python scripts/api_reference.py"


def test_signatures_are_as_written() -> None:
    line = "Later(a: Later | None, /, b: int = 3, *rest: str, c: float = 0.5, **more: bytes)"
    node = reference._node(Later.__init__)
    assert reference.call("Later", reference.arguments(node)) == line
    assert reference.a_dict("Dict", Dict) == (
        "- **Dict**: A dict. Keys: those of Base, `other: list[Later]`.\n"
    )
    assert "`kind: Literal['a', 'b']`" in reference.a_dict("Base", Base)


def test_names_without_docstrings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "members", lambda kind: [("silent", kind, kind.silent)])
    monkeypatch.setattr(Later, "silent", property(Later.silent.fget, doc=None))
    with pytest.raises(reference.Undocumented, match="Later.silent has no docstring"):
        reference.a_class("Later", Later)
    monkeypatch.setattr(reference.powerinfer_cpp, "__all__", ["Llama"])
    with pytest.raises(reference.Undocumented, match="SECTIONS and __all__ differ"):
        reference.page()
