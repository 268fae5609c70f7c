"""Sequences of every kind of layer with a state, through the C API: at random they go on, are cut,
copied, saved and loaded, and drafts are rejected. The logits are always those of a text that was
computed at once, to the bit."""

from __future__ import annotations

import guessing
import mamba_models
import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session

KINDS = [
    *("lfm2-moe", "lfm3", "qwen3-next", "qwen3-5", "olmo-hybrid", "kimi-linear", "qwen4-exp"),
    *("nemotron-wide", "granite-moe", "falcon", "guessing"),
]
N_CTX, N_SEQ, STEPS = 256, 3, 60
DRAFT = 16  # rows of a call that can be taken back one by one


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("states")
    if request.param == "guessing":
        return Model(str(guessing.make("dense", folder)[0]), nextn=True)
    if request.param in mamba_models.MODELS:
        checkpoint = mamba_models.checkpoint(request.param, folder / "model")
    else:
        checkpoint = golden(request.param, folder / "model")
    return Model(str(convert(checkpoint, outtype="f16", outfile=folder / "m.gguf", log=quiet)))


class Walk:
    """A session with what its sequences should hold, and one that computes texts at once."""

    def __init__(self, model: Model, n_ubatch: int, n_threads: int):
        sizes = {"n_ctx": N_CTX, "n_batch": N_CTX}
        self.session = Session(
            model, **sizes, n_seq=N_SEQ, n_ubatch=n_ubatch, n_threads=n_threads, n_checkpoints=4
        )
        self.whole = Session(model, **sizes)
        self.guesses = model.guesses
        self.rng = np.random.default_rng(n_ubatch)
        self.texts = [self.random(0) for _ in range(N_SEQ)]

    def random(self, n: int) -> np.ndarray:
        return self.rng.integers(3, 200, n).astype(np.int32)

    def eval(self, seq: int, ids: np.ndarray, checkpoint: np.ndarray | None = None) -> None:
        """Appends ids, and compares the logits of the last one."""
        self.session.eval(ids, sequences=np.full(len(ids), seq, np.int32), checkpoint=checkpoint)
        self.texts[seq] = text = np.concatenate([self.texts[seq], ids])
        self.whole.truncate(0)
        self.whole.eval(text)
        found, want = self.session.logits(len(ids) - 1), self.whole.logits(len(text) - 1)
        assert np.array_equal(found, want)
        if self.guesses and len(text) < N_CTX:
            for of, place in ((self.session, seq), (self.whole, 0)):
                of.guess(int(text[-1]) + 3, place)
            found, want = self.session.guessed_logits(), self.whole.guessed_logits()
            assert np.array_equal(found, want)

    def goes_on(self, seq: int) -> None:
        if len(self.texts[seq]) < N_CTX:
            self.eval(seq, self.random(1))

    def append(self, seq: int) -> None:
        n = min(int(self.rng.integers(1, 70)), N_CTX - len(self.texts[seq]))
        if n > 0:
            self.eval(seq, self.random(n), self.rng.random(n) < 0.05)

    def draft(self, seq: int) -> None:
        """Ids of which only the first ones are right."""
        text = self.texts[seq]
        n = min(int(self.rng.integers(1, DRAFT + 1)), N_CTX - len(text))
        if n <= 0:
            return
        right = int(self.rng.integers(0, n + 1))
        ids = self.random(n)
        self.eval(seq, ids)
        other = np.concatenate([text, ids[:right], ids[right:] + 1])
        assert self.session.match(other, sequence=seq) == len(text) + right
        self.cut(seq, len(text) + right)

    def cut(self, seq: int, n: int) -> None:
        self.session.truncate(n, seq)
        self.texts[seq] = self.texts[seq][:n]

    def some_cut(self, seq: int) -> None:
        text = self.texts[seq]
        asked = int(self.rng.integers(0, len(text) + 1))
        n = self.session.match(text[:asked], sequence=seq)
        if n < asked:
            with pytest.raises(UnsupportedModelError, match=f"known at position {n}$"):
                self.session.truncate(asked, seq)
            assert self.session.length(seq) == len(text)
        self.cut(seq, n)

    def copy(self, seq: int) -> None:
        to, text = int(self.rng.integers(N_SEQ)), self.texts[seq]
        n = self.session.match(text[: int(self.rng.integers(0, len(text) + 1))], sequence=seq)
        self.session.copy(seq, to, n)
        self.texts[to] = text[:n]
        self.goes_on(to)

    def save_and_load(self, seq: int) -> None:
        to, text = (seq + 1) % N_SEQ, self.texts[seq]
        cut = len(text) // 2 // 64 * 64
        parts = [self.session.save_part(seq, *of) for of in ((0, cut), (cut, len(text) - cut))]
        self.session.truncate(0, to)
        for part in parts:
            self.session.load_part(to, part)
        self.texts[to] = text
        self.goes_on(to)


@pytest.mark.parametrize(("n_ubatch", "n_threads"), [(1, 1), (7, 2), (64, 2)])
def test_at_random(model: Model, n_ubatch: int, n_threads: int) -> None:
    walk = Walk(model, n_ubatch, n_threads)
    kinds = [walk.append, walk.append, walk.draft, walk.draft, walk.some_cut, walk.copy]
    kinds.append(walk.save_and_load)
    for _ in range(STEPS):
        seq = int(walk.rng.integers(N_SEQ))
        kinds[int(walk.rng.integers(len(kinds)))](seq)
        for s, text in enumerate(walk.texts):
            assert walk.session.length(s) == len(text)
            assert walk.session.match(text, sequence=s) == len(text)
        walk.goes_on(seq)


def test_every_row_of_a_draft(model: Model) -> None:
    """Whatever of a draft is right, the states are those of a text without it."""
    walk = Walk(model, 5, 1)
    walk.eval(0, walk.random(40))
    for right in range(DRAFT + 1):
        text = walk.texts[0]
        walk.eval(0, walk.random(DRAFT))
        walk.cut(0, len(text) + right)
        walk.session.copy(0, 1, len(text) + right)
        walk.texts[1] = walk.texts[0]
        walk.goes_on(1)
        walk.cut(0, len(text))  # and from there to before it
        walk.goes_on(0)
