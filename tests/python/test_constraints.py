"""A constraint holds whatever a model thinks: under every budget, dialect and kind of template."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from circles import pick
from powerinfer_cpp.text.masks import going_past
from powerinfer_cpp.text.thought_limit import ThoughtLimit, ThoughtProcessor, Waiting
from powerinfer_cpp.text.tools import ThoughtParser, Thoughts, message

# ---- One text, of a model that says anything ----

# Parts of tags, tags with what does not belong to them, and characters in pieces.
PIECES = [
    *(b"a", b" ", b"\n", b"\n\n", b"<", b"</", b"/", b"think", b"thi", b"nk", b">", b">\n", b">1"),
    *(b"ink>2", b"</think>", b"</think>\n\n", b"</think>3", b">>", b"\xe2", b"\x82\xac", b"4"),
    *(b"567", b"<|im_end|>", b"", b"", b""),
]
CONTROL, END, OTHER_END = len(PIECES) - 3, len(PIECES) - 2, len(PIECES) - 1
DIGITS = [token for token, data in enumerate(PIECES) if data.isdigit()]
KNOWN = SimpleNamespace(
    ends=np.array([END, OTHER_END]),
    going_past=lambda mark, left: going_past(PIECES, mark, left),
)


class Digits:
    """Stands for the processor of a grammar: some digits."""

    def __init__(self) -> None:
        self.from_: int | None = None

    def begin(self, n: int) -> None:
        assert self.from_ is None
        self.from_ = n

    def begin_mask(self, ids: np.ndarray) -> None:
        assert self.from_ is not None

    def __call__(self, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        said = ids[self.from_ :].tolist()
        assert set(said) <= set(DIGITS)
        allowed = DIGITS + [END, OTHER_END] * bool(said)
        out = np.full_like(scores, -np.inf)
        out[allowed] = scores[allowed]
        return out


def encode(text: str) -> list[int]:
    """The longest pieces first, but for those that have all of the closing tag."""
    ids, data = [], text.encode()
    known = [token for token in range(CONTROL) if b"</think>" not in PIECES[token]]
    while data:
        token = max(known, key=lambda i: len(PIECES[i]) * data.startswith(PIECES[i]))
        ids.append(token)
        data = data[len(PIECES[token]) :]
    return ids


def closer(ids: Sequence[int]) -> np.ndarray:
    """1 for each token with which a text goes on towards the closing tag."""
    said = b"".join(PIECES[token] for token in ids[-9:])
    begins = [n for n in range(8) if said.endswith(b"</think>"[:n])]
    left = b"</think>"[max(begins) :]
    on = [left.startswith(data) or data.startswith(left) for data in PIECES]
    return np.array([bool(data) and good for data, good in zip(PIECES, on, strict=True)])


def made(opened: bool, budget: int | None, tags: Thoughts, control: bool) -> Any:
    shown = {tags.closing: CONTROL} if control else {}

    def encoded(text: str) -> list[int]:
        before, found, after = text.partition(tags.closing)
        if control and found:
            return [*encode(before), CONTROL, *encode(after)]
        return encode(text)

    waiting = Waiting(Digits(), KNOWN)  # type: ignore[arg-type]
    limit = ThoughtLimit(tags, opened, budget, shown)
    return ThoughtProcessor(limit, waiting, PIECES.__getitem__, encoded), waiting.grammar


def read(tags: Thoughts, opened: bool, ids: Sequence[int], control: bool) -> dict[str, Any]:
    shown = {CONTROL: tags.closing.encode()} if control else {}
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    parser = ThoughtParser(tags, opened, quotes=opened)
    events = [e for t in ids for e in parser.push(decoder.decode(shown.get(t, PIECES[t])))]
    return message(events + parser.finish())


@pytest.mark.parametrize("control", [False, True], ids=["text", "token"])
@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened"])
def test_any_tokens(opened: bool, control: bool) -> None:
    """Random ones, with ends among them: what follows the thoughts is the grammar's."""
    n_ended = 0
    for seed in range(pick(150, 3000)):
        rng = np.random.default_rng(seed)
        tags = Thoughts("<think>", "</think>", end=("", "\n</think>", " </think>\n")[seed % 3])
        budget = (None, 0, 5)[seed // 3 % 3]
        processor, grammar = made(opened, budget, tags, control)
        late, late_grammar = made(opened, budget, tags, control)  # sees several ids at once
        ids, every = [7, 7], int(rng.integers(1, 5))
        late.begin_mask(np.array(ids))
        for n in range(80):
            now = np.array(ids)
            processor.begin_mask(now)
            wanted = rng.normal(0, 3, len(PIECES)) + 4 * closer(ids[2:])
            scores = processor(now, wanted.astype(np.float32))
            token = int(np.argmax(scores + rng.gumbel(size=len(PIECES))))
            if n % every == 0 and not processor._ends_here:
                late.begin_mask(now)
            if token in (END, OTHER_END):
                break
            ids.append(token)
        found = read(tags, opened, ids[2:], control)
        said, ended = found["content"], token in (END, OTHER_END)
        n_ended += ended
        assert re.fullmatch(r"\s*\d+" if ended else r"\s*\d*", said), (seed, said)
        if not opened:
            assert "reasoning_content" not in found
        if late_grammar.from_ is not None:
            assert late_grammar.from_ == grammar.from_
    assert n_ended > 20


@pytest.mark.parametrize("budget", [None, 9])
@pytest.mark.parametrize("control", [False, True], ids=["text", "token"])
def test_an_end_closes_thoughts(control: bool, budget: int | None) -> None:
    """Each of a model's, and one that is forbidden none."""
    tags = Thoughts("<think>", "</think>")
    for end, forbidden in ((END, False), (OTHER_END, False), (END, True)):
        processor, grammar = made(True, budget, tags, control)
        ids = [7, 0]
        for _ in range(8):
            scores = np.zeros(len(PIECES), dtype=np.float32)
            scores[0] = 20
            scores[end] = -np.inf if forbidden else 50
            ids.append(int(np.argmax(processor(np.array(ids), scores))))
            if grammar.from_ is not None and len(ids) > grammar.from_:
                break
        tail = [CONTROL, *encode("\n\n")] if control else encode("</think>\n\n")
        if forbidden:
            assert ids[2:] == [0] * 8
        else:
            assert ids[2 : 2 + len(tail)] == tail and grammar.from_ == 2 + len(tail)


def test_tokens_that_go_past_a_tag() -> None:
    found = going_past([b">{", b"</a>x", b">\n", b">", b"a>>", b">\n{"], "</a>", "\n\n")
    assert {before: ids.tolist() for before, ids in found.items()} == {
        "": [1],
        "</": [4],
        "</a": [0, 5],
    }
