"""The server, used with OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import serving


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=3) as found:
        yield found


def test_starts(running: serving.InThread) -> None:
    done = running.openai().completions.create(model="x", prompt="Once", max_tokens=4)
    assert done.choices[0].text


def test_program(model_path: Path) -> None:
    with serving.program("-m", model_path, "-c", "128") as found:
        assert found.get("health").json() == {"status": "ok"}
