"""Whole sessions of agents: no turn of them is refused, and one session is one prompt in every
dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import serving
from agents import SESSIONS, Made, Session, Step
from powerinfer_cpp.server.dialects.histories import of_messages
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.text.chat import TemplateFormat
from powerinfer_cpp.text.tool_chat import prepare
from test_template_customs import ALTERNATING, AS_IT_IS, BESIDE_CALLS, FIRST_ONLY, NO_SYSTEM

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
        if i % 10 == 9 or steps is every[-1]:
            for dialect in DIALECTS:
                if dialect != session.dialect:
                    assert prompts(dialect, session.body(dialect, steps)) == own
        # Nothing of an earlier prompt changes, so it is known already.
        kept = last.removesuffix("<|im_start|>assistant\n")
        assert own.startswith(kept)
        last = own
    said = [step for step in session.steps if isinstance(step, Made) and step.text]
    assert all(step.text in last for step in said)


REFUSING = {
    "neighbours": ALTERNATING,
    "arguments as they are": AS_IT_IS,
    "the user behind results": BESIDE_CALLS,
    "a later system message": FIRST_ONLY,
    "every system message": NO_SYSTEM,
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_session_suits_templates_that_refuse_much(name: str) -> None:
    made = TemplateFormat(REFUSING[name], "", "")
    for session in SESSIONS.values():
        body = session.body("chat/completions", session.steps)
        text = prepare(made, of_messages(body["messages"]).messages, None, lambda _texts: {}).text
        said = [message["content"] for message in body["messages"]]
        assert all(each in text for each in said if isinstance(each, str))
