"""Whole sessions of agents: no turn of them is refused, and one session is one prompt in every
dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import serving
from agents import SESSIONS, Made, Session, Step
from powerinfer_cpp.server.served import ServedModel

DIALECTS = ("messages", "chat/completions", "responses")


class Prompts:
    """A server that tells the prompts of its requests."""

    def __init__(self, running: serving.InThread, seen: list[str]):
        self._running, self._seen = running, seen

    def __call__(self, dialect: str, body: dict[str, Any]) -> str:
        self._seen.clear()
        found = self._running.post(f"v1/{dialect}", body)
        assert found.status_code == 200, found.text
        (prompt,) = self._seen
        return prompt

    def refused(self, dialect: str, body: dict[str, Any]) -> str:
        return serving.refused(self._running.post(f"v1/{dialect}", body))["message"]


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> Iterator[Prompts]:
    seen: list[str] = []
    original = ServedModel.request

    def request(self: ServedModel, prompt: Any, **options: Any) -> Any:
        seen.append(prompt)
        return original(self, prompt, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServedModel, "request", request)
        options = {"n_ctx": 8192, "n_parallel": 1, "chat_format": "chatml"}
        with serving.in_thread(model_path, **options) as running:
            yield Prompts(running, seen)


def turns(session: Session) -> list[Sequence[Step]]:
    """What is sent with each turn: all that was before an answer."""
    return [session.steps[:i] for i, step in enumerate(session.steps) if isinstance(step, Made)] + [
        session.steps
    ]


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_is_one_prompt_in_every_dialect(prompts: Prompts, name: str) -> None:
    session = SESSIONS[name]
    every = turns(session)
    assert len(every) >= 20
    last = ""
    for i, steps in enumerate(every):
        own = prompts(session.dialect, session.body(session.dialect, steps))
        if i % 5 == 4 or steps is every[-1]:
            for dialect in DIALECTS:
                if dialect != session.dialect:
                    assert prompts(dialect, session.body(dialect, steps)) == own
        # Nothing of an earlier prompt changes, so it is known already.
        kept = last.removesuffix("<|im_start|>assistant\n")
        assert own.startswith(kept)
        last = own
    said = [step for step in session.steps if isinstance(step, Made) and step.text]
    assert all(step.text in last for step in said)
