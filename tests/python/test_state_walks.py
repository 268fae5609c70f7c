"""Sequences of a model whose layers have a state, at random: whatever was computed before, the
logits are those of a fresh session, to the bit. And the programs that are not the package's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small_states
from circles import pick
from powerinfer_cpp.core.errors import OutOfMemoryError, UnsupportedModelError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.sequences.context import Context
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.state import checkpoint_flags, checkpoints_of
from powerinfer_cpp.measure import bench
from powerinfer_cpp.run.sequences import Sequences, fields

STEPS = 120


@pytest.fixture(scope="module", params=pick(small_states.KINDS[1:2], small_states.KINDS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_states.make(tmp_path_factory.mktemp("states"), kind=request.param)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model(str(path))


class Texts:
    """Texts that begin alike, and the logits at their ends."""

    def __init__(self, model: Model, seed: int):
        self.rng = np.random.default_rng(seed)
        self._session = Session(model, n_ctx=512)
        self._known = [self._random(int(n)) for n in self.rng.integers(1, 200, 4)]

    def _random(self, n: int) -> np.ndarray:
        return self.rng.integers(10, 300, n).astype(np.int32)

    def next(self) -> np.ndarray:
        """One that goes on from a text, or from its beginning."""
        of = self._known[self.rng.integers(len(self._known))]
        n = len(of) if self.rng.random() < 0.4 else int(self.rng.integers(len(of) + 1))
        more = 0 if n and self.rng.random() < 0.2 else int(self.rng.integers(1, 60))
        text = np.concatenate([of[:n], self._random(more)])[:400]
        self._known[self.rng.integers(len(self._known))] = text
        return text

    def logits(self, ids: np.ndarray) -> np.ndarray:
        self._session.truncate(0)
        self._session.eval(ids)
        return self._session.logits(len(ids) - 1).copy()


@pytest.mark.parametrize(("n_checkpoints", "n_ubatch"), [(0, 32), (1, 7), (8, 32)])
def test_a_context(model: Model, n_checkpoints: int, n_ubatch: int) -> None:
    texts = Texts(model, n_checkpoints)
    sizes = {"n_ctx": 512, "n_batch": 64, "n_ubatch": n_ubatch, "n_logits": 32}
    context = Context(model, False, n_checkpoints=n_checkpoints, **sizes)
    saved = []
    for _ in range(STEPS):
        kind, ids = texts.rng.integers(6), texts.next()
        if kind == 0 and saved:
            context.load(saved[texts.rng.integers(len(saved))])
            ids = context.input_ids[: context.n_tokens].copy()
        elif kind == 1 and context.n_tokens:  # a draft, of which some are right
            known = context.input_ids[: context.n_tokens].copy()
            guessed = np.resize(ids, texts.rng.integers(2, 17))
            context.eval_ahead(guessed[:1], guessed[1:])
            right = int(texts.rng.integers(len(guessed)))
            assert all(context.advance(int(token)) for token in guessed[1 : 1 + right])
            ids = np.concatenate([known, guessed[: 1 + right]])
            if texts.rng.random() < 0.5:  # and goes on
                np.testing.assert_array_equal(context.last_logits(), texts.logits(ids))
                context.eval(ids[:3])
                ids = np.concatenate([ids, ids[:3]])
        else:
            positions = checkpoints_of(len(ids), texts.rng.integers(0, 400, 2).tolist())
            context.become(ids, np.zeros(len(ids), bool), positions)
        np.testing.assert_array_equal(context.last_logits(), texts.logits(ids))
        if texts.rng.random() < 0.2:
            saved.append(context.save())
        if context.n_tokens > 480 - 64:
            context.truncate(0)
    context.close()


@pytest.mark.parametrize("n_kv", [512, 2048])
def test_several_sequences(model: Model, n_kv: int) -> None:
    texts = Texts(model, n_kv)
    sizes = fields(2, 512, n_kv, 64, has_states=True)
    session = Session(model, n_ctx=512, n_ubatch=24, **sizes)
    sequences = Sequences(session, sizes["n_seq"])
    for _ in range(STEPS):
        ids = texts.next()
        generated = np.zeros(len(ids), bool)
        seq, done = sequences.take("", ids, generated)
        assert session.length(seq) == done < len(ids)
        positions = checkpoints_of(len(ids)) | sequences.partings(seq, done)
        for first in range(done, len(ids), 64):
            part = ids[first : first + 64]
            while session.free_positions() < len(part) + 64 and sequences.forget_one():
                pass
            where = np.full(len(part), seq, np.int32)
            kept_before = checkpoint_flags(first, len(part), positions)
            session.eval(part, None, where, None, kept_before)
        found = session.logits(len(part) - 1)
        np.testing.assert_array_equal(found, texts.logits(ids))
        if texts.rng.random() < 0.8:
            sequences.leave(seq, session.length(seq))
        else:
            sequences.leave(seq, 0)
    session.close()


def test_what_cannot_be_cut(model: Model) -> None:
    session, ids = Session(model, n_ctx=256, n_seq=2), np.arange(10, 110, dtype=np.int32)
    checkpoint = np.arange(100) == 40
    session.eval(ids, checkpoint=checkpoint)
    for cut in (lambda: session.truncate(50), lambda: session.copy(0, 1, 39)):
        with pytest.raises(UnsupportedModelError, match="known at position"):
            cut()
    assert session.length() == 100 and session.length(1) == 0
    assert [session.match(ids[:n]) for n in (100, 99, 40, 39)] == [100, 40, 40, 0]
    session.copy(0, 1, 40)
    session.truncate(40)
    assert session.length() == session.length(1) == 40
    session.close()


def test_the_plan_counts_states(model: Model) -> None:
    plans = [model.plan(n_ctx=256, n_seq=n, n_kv=256)["ram"]["states"] for n in (1, 2)]
    assert 0 < plans[0] < plans[1] < 2 * plans[0] + 1
    assert model.plan(n_ctx=256, n_checkpoints=0)["ram"]["states"] < plans[0]


def test_fewer_checkpoints_are_a_way(model: Model) -> None:
    fields = {"n_ctx": 128, "n_batch": 16, "n_checkpoints": 64}
    needed = sum(model.plan(**fields)["ram"].values())
    small = Model(model.path, ram_budget=needed - 1)
    with pytest.raises(OutOfMemoryError) as caught:
        Session(small, **fields)
    way = {way.what: way for way in caught.value.ways}["n_checkpoints"]
    assert way.value == 0 and way.suffices
    Session(small, **{**fields, "n_checkpoints": 0})


# ---- Programs ----


def test_bench(path: Path, model: Model) -> None:
    """What comes before the tokens that are timed is computed once."""
    for test in (bench.Test(100, 0, 70), bench.Test(0, 20, 70)):
        found = bench.measure(model, test, 3, 0, None, n_batch=64, n_ubatch=64)
        assert len(found.samples_ns) == 3 and found.work.rows == 3 * test.n_tokens


@pytest.fixture
def main(main_path: Path, path: Path) -> Callable[..., str]:
    def run(*args: str, n_prompt: int | None = None) -> str:
        command = [main_path, "-m", path, "-n", "8", "--temp", "0", "-b", "16", *args]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
        )
        lines = result.stderr.decode().splitlines()
        line = next(line for line in lines if "prompt eval time" in line)
        assert n_prompt is None or int(line.split("/")[1].split()[0]) == n_prompt
        return result.stdout.decode("utf-8", "replace")

    return run


def test_prompt_cache(main: Callable[..., str], tmp_path: Path) -> None:
    """It ends before the last token of the prompt."""
    prompt = "the quick brown fox jumps over the lazy dog"
    longer = prompt + "; a small model tells a story"
    use = "--prompt-cache", str(tmp_path / "cache")
    want, want_longer = main("-p", prompt), main("-p", longer)
    assert main("-p", prompt, *use) == want
    for _ in range(2):
        assert main("-p", prompt, *use, n_prompt=1) == want
    assert main("-p", longer, *use, "--prompt-cache-ro") == want_longer
    assert main("-p", prompt, *use, n_prompt=1) == want
    assert main("-p", longer, *use) == want_longer
    assert main("-p", longer, *use, n_prompt=1) == want_longer
    assert main("-p", "a child", *use) == main("-p", "a child")
