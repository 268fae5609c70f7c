"""Drafts of a served model: each text is what it is without them, whatever is guessed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from powerinfer_cpp.run.drafts import DraftFile, Drafts, FileDraft
from powerinfer_cpp.run.requests import Request
from powerinfer_cpp.server.served import ServedModel
from test_scheduler import Desk

from powerinfer_cpp import Llama, LlamaGrammar

PROMPTS = (
    "Once upon a time, there was a",
    "red blue red blue red blue red",
    "Tom had a ball. Tom had a ball. Tom had",
    "The dog",
    "One day, a big bear went into the forest and saw a small bird. The bird said",
    "Lily and Ben and Lily and Ben and Lily and",
)
N_CTX = 128


class Written(LlamaDraftModel):
    """Guesses how the texts go on, of which it knows the ids; every so many guesses have an error,
    and some are no tokens."""

    def __init__(self, texts: Sequence[list[int]]):
        self.texts, self.n_calls, self.rng = texts, 0, np.random.default_rng(3)

    def __call__(self, input_ids: np.ndarray, /, most: int, **_: Any) -> np.ndarray:
        self.n_calls += 1
        n = len(input_ids)
        known = next((t for t in self.texts if t[:n] == input_ids.tolist()), [])
        found = np.array(known[n : n + most], dtype=np.intc)
        if len(found) and self.n_calls % 3 == 0:
            found[self.rng.integers(len(found))] = self.rng.choice([7, -1, 1 << 30])
        return found


def texts_of(desk: Desk, served: ServedModel, requests: Sequence[Request]) -> list[Any]:
    """The text and the reason of its end, of each request."""
    tickets = served.engine.submit_all(requests)
    desk.wait(tickets)
    return [(desk.text(ticket), desk.of(ticket)[-1].piece.reason) for ticket in tickets]


def wanted(path: Path, i: int, **options: Any) -> tuple[str, Any]:
    with Llama(path, n_ctx=N_CTX, verbose=False) as llm:
        found = llm(PROMPTS[i], **options)["choices"][0]
    return found["text"], found["finish_reason"]


def ids_of(path: Path, i: int, n: int) -> list[int]:
    with Llama(path, n_ctx=N_CTX, verbose=False) as llm:
        ids = llm._prompts.ids(PROMPTS[i])
        steps = llm.generate(ids, temp=0.0)
        return [*ids, *(next(steps) for _ in range(n))]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """No draft is left out because it does not pay."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)


@pytest.mark.parametrize("kind", ["right", "lookup", "model"])
def test_texts_are_the_same(model_path: Path, kind: str) -> None:
    surest = Sampling(temperature=0.0)
    choices: list[dict[str, Any]] = [
        {"max_tokens": 60, "temperature": 0.0},
        {"max_tokens": 60, "temperature": 0.0},
        {"max_tokens": 60, "temperature": 0.0, "stop": ["ball."]},
        {"max_tokens": 60, "temperature": 1.1, "seed": 4},
        {"max_tokens": 7, "temperature": 0.0},
        {"max_tokens": 200, "temperature": 0.0},  # until the context is full
    ]
    want = [wanted(model_path, i, **each) for i, each in enumerate(choices)]
    draft: Any = {
        "right": Written([ids_of(model_path, i, 80) for i in range(len(PROMPTS))]),
        "lookup": LlamaPromptLookupDecoding(),
        "model": DraftFile(model_path, p_min=0.0),
    }[kind]
    desk = Desk()
    with ServedModel(
        model_path, desk.deliver, n_ctx=N_CTX, n_parallel=3, draft_model=draft, verbose=False
    ) as served:
        requests = [
            served.request(
                prompt,
                max_tokens=each["max_tokens"],
                params=surest if not each["temperature"] else Sampling(temperature=1.1),
                stop=each.get("stop"),
                seed=each.get("seed"),
            )
            for prompt, each in zip(PROMPTS, choices, strict=True)
        ]
        for _ in range(2):  # the second time the prompts are known
            tickets = len(desk.updates)
            assert texts_of(desk, served, requests) == want
        found = {id(u.ticket): u.ticket for u in desk.updates[tickets:]}.values()
        assert sum(t.n_accepted for t in found) > (20 if kind != "lookup" else 0)
        assert all(t.n_accepted <= t.n_drafted for t in found)


def test_with_a_grammar_and_with_little_room(model_path: Path) -> None:
    """A mask belongs to one position, and a text that gives up its place writes the same."""
    grammar = LlamaGrammar.from_string('root ::= " " [a-z ]{10,60}', verbose=False)
    texts = [ids_of(model_path, i, 80) for i in range(3)]
    want = [wanted(model_path, i, max_tokens=50, temperature=0.0) for i in range(3)]
    held = wanted(model_path, 0, max_tokens=30, temperature=0.0, grammar=grammar)
    desk, surest = Desk(), Sampling(temperature=0.0)
    with ServedModel(
        model_path,
        desk.deliver,
        n_ctx=N_CTX,
        n_kv=N_CTX,
        n_parallel=4,
        draft_model=Written(texts),
        verbose=False,
    ) as served:
        requests = [served.request(prompt, max_tokens=50, params=surest) for prompt in PROMPTS[:3]]
        requests.append(served.request(PROMPTS[0], max_tokens=30, params=surest, grammar=grammar))
        assert texts_of(desk, served, requests) == [*want, held]


def test_a_draft_model_takes_long_prompts_in_parts(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerinfer_cpp.run.drafts.N_BATCH", 8)
    draft = FileDraft(DraftFile(model_path, num_pred_tokens=4, p_min=0.0), N_CTX, 0, n_texts=2)
    texts = [np.array(ids_of(model_path, i, 30), dtype=np.intc) for i in (4, 5)]
    known = [ids[:-6] for ids in texts]
    for ids, all_of_it in zip(known, texts, strict=True):
        n_parts = 1
        while not len(guess := draft(ids, most=4)):
            n_parts += 1
        assert n_parts == -(-len(ids) // 8)
        assert guess.tolist() == all_of_it[len(ids) : len(ids) + 4].tolist()
    for ids in texts:  # each goes on where it was, though they took turns
        assert len(draft(ids, most=4)) == 4
    draft.close()
