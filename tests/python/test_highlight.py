"""POST /highlight: the parts of a code, from Pygments in a process of its own."""

from __future__ import annotations

import importlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import serving
from powerinfer_cpp.server import highlight
from powerinfer_cpp.text.worker import Workers

pytest.importorskip("pygments")

# One of its rules goes over the rest of the text again for each "e".
HOSTILE = {"language": "amdgpu", "code": "1e" * 16000}
PYTHON = 'def fire(n: int) -> str:\n    return f"{n} 🔥"  # 7\n'


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_ctx=64) as found:
        yield found


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    made = Workers("colours", ("pygments",), 0.3, 5.0, highlight.NICENESS)
    monkeypatch.setattr(highlight, "_workers", made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def child() -> ModuleType:
    """What the process runs, in this one."""
    folder = str(Path(highlight.__file__).parents[1] / "text" / "children")
    sys.path.append(folder)
    try:
        return importlib.import_module("colours")
    finally:
        sys.path.remove(folder)


def parts(spans: list[list], code: str) -> list[tuple[str, str]]:
    """Kinds with their texts."""
    data, at, found = code.encode("utf-16-le", "surrogatepass"), 0, []
    for kind, n in spans:
        text = data[2 * at : 2 * (at + n)].decode("utf-16-le", "surrogatepass")
        at += n
        found.append((kind, text))
    assert 2 * at == len(data)
    return found


def test_parts_of_a_code(running: serving.InThread) -> None:
    answer = running.post("highlight", {"language": "python", "code": PYTHON}).json()
    found = parts(answer["spans"], PYTHON)
    assert found[0] == ("keyword", "def") and ("name", "fire") in found
    assert ("string", ' 🔥"') in found and ("comment", "# 7") in found
    assert ("type", "int") in found and found[-1] == ("", "\n")


@pytest.mark.parametrize("language", ["Python", "py", "pyi", "{.python}", "python:main.py"])
def test_names_of_languages(child: ModuleType, language: str) -> None:
    assert child.answer(language, PYTHON) == child.answer("python", PYTHON) is not None


@pytest.mark.parametrize("language", ["", "text", "nosuch", "a/../b", "*", "🔥", "\0", "!"])
def test_what_has_no_colours(child: ModuleType, language: str) -> None:
    assert child.answer(language, PYTHON) is None


@pytest.mark.parametrize(
    "code",
    [
        "",
        "\n",
        "\n\n  # only\n\n\n",
        "# no newline",
        "a = 1\r\nb = 2\rc = 3",
        "\ufeff# a mark",
        "'🔥🔥' + '\ud800'",
        "\x00'\x0b\x0c\x85\u2028'",
        "\t\tif x:\n\t\t\treturn",
    ],
)
def test_nothing_is_lost(child: ModuleType, code: str) -> None:
    spans = child.answer("python", code)
    if spans is None:
        assert not code.strip()
        return
    parts(spans, code)
    assert all(n > 0 for _, n in spans)
    assert all(a[0] != b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_kinds_are_those_of_the_page(child: ModuleType) -> None:
    """Each has its colour in style.css, and colours.js takes no others."""
    kinds = set(child._KINDS.values())
    page = Path(highlight.__file__).parent / "page"
    script = (page / "text" / "colours.js").read_text()
    listed = script.split("new Set(")[1].split(";")[0]
    assert set(re.findall(r"'(\w+)'", listed)) == kinds
    style = (page / "style.css").read_text()
    assert {line.split()[0][3:] for line in style.splitlines() if line[:3] == ".k-"} == kinds


def test_bad_bodies_are_refused(running: serving.InThread) -> None:
    long = {"language": "python", "code": "x" * (highlight.MAX_CODE + 1)}
    assert serving.refused(running.post("highlight", long))["message"] == (
        "code has more than 65,536 characters"
    )
    long = {"language": "p" * 65, "code": ""}
    assert (
        "language has more than 64" in serving.refused(running.post("highlight", long))["message"]
    )
    for body in ({}, {"language": "python"}, {"language": 3, "code": ""}, []):
        serving.refused(running.post("highlight", body))


def test_a_lexer_that_takes_too_long(workers: Workers, running: serving.InThread) -> None:
    """Its process is ended, and the next code gets its colours. The server answers meanwhile: the
    lexer's regular expression does not keep this process's lock."""
    done = []
    thread = threading.Thread(target=lambda: done.append(running.post("highlight", HOSTILE).json()))
    thread.start()
    waits = []
    while thread.is_alive():
        began = time.monotonic()
        assert running.get("health").status_code == 200
        waits.append(time.monotonic() - began)
    thread.join()
    assert done == [{"spans": None}] and len(waits) > 5
    again = running.post("highlight", {"language": "python", "code": PYTHON}).json()
    assert again["spans"]


def test_without_pygments(monkeypatch: pytest.MonkeyPatch, running: serving.InThread) -> None:
    monkeypatch.setattr(highlight, "_workers", Workers("colours", ("pygments_is_not_here",)))
    answer = running.post("highlight", {"language": "python", "code": PYTHON})
    assert answer.status_code == 200 and answer.json() == {"spans": None}
