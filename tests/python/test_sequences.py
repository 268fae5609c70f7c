"""Sequences of a session in Python: shared pages, and the pool that they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from powerinfer_cpp._native import lib
from powerinfer_cpp.core.errors import ContextOverflowError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.sampler import Sampler
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.work import NEURON_COUNTS

MODEL = Path(__file__).resolve().parents[2] / "models" / "stories-relu.Q8_0.gguf"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(str(MODEL))


def append(session: Session, tokens: np.ndarray, sequence: int) -> None:
    session.eval(tokens, sequences=np.full(len(tokens), sequence, np.int32))


def test_a_pool_of_pages(model: Model) -> None:
    tokens = np.arange(3, 153, dtype=np.int32)
    session = Session(model, n_ctx=256, n_seq=256, n_kv=256)
    assert session.free_positions() == 256
    append(session, tokens[:100], 7)
    assert session.length(7) == 100 and session.length() == 0 and session.free_positions() == 128
    assert session.match(tokens, sequence=7) == 100 and session.match(tokens) == 0
    session.copy(7, 255, 70)
    assert session.match(tokens, sequence=255) == 70 and session.free_positions() == 128
    append(session, tokens[70:128], 255)  # in a copy of the second page
    assert session.match(tokens, sequence=255) == 128 and session.free_positions() == 64
    append(session, tokens[128:], 255)
    with pytest.raises(ContextOverflowError, match="n_kv"):
        append(session, tokens[100:130], 7)
    assert session.length(7) == 100 and session.free_positions() == 0
    session.truncate(0, 255)
    append(session, tokens[100:], 7)
    assert session.match(tokens, sequence=7) == 150 and session.free_positions() == 64
    with pytest.raises(ValueError, match="there is no sequence 256"):
        session.match(tokens, sequence=256)
    session.close()


def test_the_plan_counts_the_pool(model: Model) -> None:
    all_pages = model.plan(n_ctx=256, n_seq=64)["ram"]["kv"]
    assert model.plan(n_ctx=256, n_seq=64, n_kv=64 * 256)["ram"]["kv"] == all_pages
    assert model.plan(n_ctx=256, n_seq=64, n_kv=16 * 256)["ram"]["kv"] < all_pages / 3.9
    with pytest.raises(ValueError, match="n_kv"):
        model.plan(n_kv=-1)


def test_bits_of_fired_neurons(model: Model) -> None:
    tokens = np.arange(3, 43, dtype=np.int32)
    generated = np.arange(40) >= 30
    session = Session(model, n_ctx=64, record=lib.PI_RECORD_BITS)
    session.eval(tokens, generated=generated)
    rows = [session.fired_bits(row) for row in range(40)]
    flags = np.unpackbits(np.array(rows), axis=-1, bitorder="little", count=model.n_ff)
    assert flags.shape == (40, model.n_layer, 1, model.n_ff)
    fired = session.work().neurons[:, NEURON_COUNTS.index("fired")]
    assert (flags.sum(axis=(0, 2, 3)) == fired).all()
    # A prompt is computed as in exact mode.
    exact = Session(model, n_ctx=64, sparse=lib.PI_SPARSE_EXACT, record=lib.PI_RECORD_FIRED)
    exact.eval(tokens[:30])
    assert (flags[:30] == exact.activations().swapaxes(0, 1)).all()
    session.record(False)
    session.eval(tokens[:3])
    with pytest.raises(ValueError, match="does not record bits"):
        session.fired_bits(0)
    session.record(True)
    session.eval(tokens[:3])
    assert session.fired_bits(2).any()
    with pytest.raises(ValueError, match="records nothing"):
        Session(model, n_ctx=64).record(True)
    assert (model.tiers(0) == 1).all() and model.tiers(1).shape == (1, model.n_ff)
    with pytest.raises(ValueError, match="no such layer"):
        model.tiers(model.n_layer)


def test_rows_are_sampled_together(model: Model) -> None:
    session = Session(model, n_ctx=64)
    keep = np.arange(20) % 2 == 0
    session.eval(np.arange(3, 23, dtype=np.int32), keep=keep)
    rows = [0, 18, 4, 10]
    many, one = ([Sampler(seed=i, temperature=i) for i in range(4)] for _ in range(2))
    for _ in range(5):
        expected = [
            s.sample(session.logits_pointer(r), model.n_vocab)
            for s, r in zip(one, rows, strict=True)
        ]
        assert session.sample_rows(many, rows) == expected
    assert session.sample_rows([], []) == []
    for samplers, chosen, why in (
        (many, [0, 18, 4, 9], "row 9 was not kept"),
        (many, rows[:3], "4 samplers for 3 rows"),
        ([many[0], many[0]], rows[:2], "two rows"),
    ):
        with pytest.raises(ValueError, match=why):
            session.sample_rows(samplers, chosen)
    assert session.sample_rows(one, rows) == session.sample_rows(many, rows)
    session.close()
