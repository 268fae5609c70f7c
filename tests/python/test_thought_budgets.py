"""Budgets of thoughts: tokens are counted, whatever a token is of a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from test_thinking import ASK, GEMMA, INSIDE, QWEN

from powerinfer_cpp import Llama

BEFORE = "\n\n "  # some models write it in front of the opening tag


class Steady:
    """A logits processor that wants one token after another, and notes which were chosen. Where
    the budget's processor leaves another alone, that one is chosen."""

    def __init__(self, begin: list[int], then: list[int]):
        self._begin, self._then = begin, then
        self.chosen: list[int] = []
        self._n_prompt: int | None = None

    def wanted(self, n: int) -> int:
        if n < len(self._begin):
            return self._begin[n]
        return self._then[(n - len(self._begin)) % len(self._then)]

    def __call__(self, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self._n_prompt is None:
            self._n_prompt = len(ids)
        self.chosen = ids[self._n_prompt :].tolist()
        out = np.full_like(scores, -np.inf)
        out[self.wanted(len(self.chosen))] = 0
        return out


@pytest.fixture(scope="module", params=[INSIDE, QWEN, GEMMA], ids=["opened", "tags", "channels"])
def thinker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Llama, str]]:
    """A model, and the opening tag that it has to write itself."""
    opening = {INSIDE: "", QWEN: "<think>", GEMMA: "<|channel>thought"}[request.param]
    path: Path = tiny.make(tmp_path_factory.mktemp("budgets"), request.param)
    with Llama(path, n_ctx=512, verbose=False) as llm:
        yield llm, opening


def spelled(llm: Llama, text: str) -> list[int]:
    """The text as tokens of one byte each."""
    zero = next(token for token in range(16) if llm._model.text(token) == b"\0")
    return [zero + byte for byte in text.encode()]


def kinds(llm: Llama) -> dict[str, list[int]]:
    """Tokens that repeat: of many bytes, of one, and of less than a character."""
    texts = [llm._model.text(token) for token in range(llm.n_vocab())]
    words = [i for i, text in enumerate(texts) if len(text) > 1 and text.strip().isalpha()]
    long = sorted(words, key=lambda i: len(texts[i]))[::-1]
    assert len(texts[long[0]]) == 4 and len(long) > 3
    return {
        "long": long[:3],
        "bytes": spelled(llm, "ab"),
        "parts": spelled(llm, "\u4e2d\U0001f914"),
        "mixed": [long[0], *spelled(llm, "\u4e2d"), long[1]],
    }


@pytest.mark.parametrize("budget", [1, 2, 7, 40])
def test_tokens_are_counted(thinker: tuple[Llama, str], budget: int) -> None:
    llm, opening = thinker
    begin = spelled(llm, opening)
    for kind, tokens in kinds(llm).items():
        steady = Steady(begin, tokens)
        done = llm.create_chat_completion(
            messages=ASK,
            logits_processor=steady,
            reasoning_budget=budget,
            max_tokens=len(begin) + 60,
        )
        # As wanted up to the budget, then the closing tag.
        n = len(begin) + budget
        wanted = [steady.wanted(i) for i in range(n)]
        assert steady.chosen[:n] == wanted, (kind, budget)
        assert steady.chosen[n] != steady.wanted(n), (kind, budget)
        thoughts = done["choices"][0]["message"].get("reasoning_content") or ""
        text = b"".join(map(llm._model.text, wanted[len(begin) :])).decode("utf-8", "ignore")
        assert thoughts.strip() == text.strip(), (kind, budget)


def test_what_is_not_thought_is_not_counted(thinker: tuple[Llama, str]) -> None:
    """Space in front of the tag, and the answer, however long it is."""
    llm, opening = thinker
    long = kinds(llm)["long"]
    if opening:
        begin = spelled(llm, BEFORE + opening)
        steady = Steady(begin, long)
        llm.create_chat_completion(
            messages=ASK, logits_processor=steady, reasoning_budget=3, max_tokens=40
        )
        n = len(begin) + 3
        assert steady.chosen[:n] == [steady.wanted(i) for i in range(n)]
        assert steady.chosen[n] != steady.wanted(n)
    closing = "<channel|>" if "channel" in opening else "</think>"
    steady = Steady(spelled(llm, f"{opening}ab{closing}"), long)
    llm.create_chat_completion(
        messages=ASK, logits_processor=steady, reasoning_budget=len(closing) + 2, max_tokens=80
    )
    assert steady.chosen == [steady.wanted(i) for i in range(len(steady.chosen))]
    assert len(steady.chosen) > 70
