"""Embeddings against float64 numpy, and their shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
import tiny
from gguf_files import Spliced
from powerinfer_cpp.cli import main as command
from powerinfer_cpp.server import run
from powerinfer_cpp.server.served import ServedModel

from powerinfer_cpp import ContextOverflowError, Llama, UnsupportedModelError

TEXTS = ["the quick brown fox", "a small model", "jumps over the lazy dog; a short story"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("embedding"))


def opened(path: Path, **options) -> Llama:
    fields = {"n_ctx": 64, "type_k": 0, "type_v": 0, **options}
    return Llama(path, embedding=True, verbose=False, **fields)


@pytest.fixture(scope="module")
def llm(path: Path):
    with opened(path, pooling_type=0) as model:
        yield model


def states(ids: list[int]) -> np.ndarray:
    """float64 [n, n_embd]: logits with the head taken off."""
    weights = checkpoints.weights(tiny.CONFIG)
    weights["lm_head.weight"] = np.eye(tiny.CONFIG["hidden_size"], dtype=np.float32)
    return reference.logits(tiny.CONFIG, weights, ids, "silu")


@pytest.mark.parametrize("n_batch", [512, 4])
def test_a_vector_per_token(path: Path, n_batch: int) -> None:
    with opened(path, n_batch=n_batch, pooling_type=0) as llm:
        found, n = llm.embed(TEXTS, return_count=True)
        ids = [llm.tokenize(text.encode()) for text in TEXTS]
    assert n == sum(map(len, ids)) and len(found) == len(TEXTS)
    for vectors, tokens in zip(found, ids, strict=True):
        assert isinstance(vectors[0][0], float)
        assert reference.relative_error(np.array(vectors), states(tokens)) < 2e-5


@pytest.mark.parametrize("pooling", [-1, 1, 2, 3])
def test_one_vector(path: Path, pooling: int) -> None:
    with opened(path, pooling_type=pooling) as llm:
        assert llm.pooling_type() == abs(pooling)
        found = llm.embed(TEXTS[0])
        unit = llm.embed(TEXTS[0], normalize=True)
        rows = states(llm.tokenize(TEXTS[0].encode()))
    want = {1: rows.mean(axis=0), 2: rows[0], 3: rows[-1]}[abs(pooling)]
    assert reference.relative_error(np.array(found), want) < 2e-5
    assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-5)
    assert np.allclose(np.array(found) / np.linalg.norm(found), unit, atol=1e-5)


def test_openai_shape(llm: Llama, path: Path) -> None:
    done = llm.create_embedding(TEXTS)
    assert done["object"] == "list" and done["model"] == str(path)
    assert [d["index"] for d in done["data"]] == [0, 1, 2]
    assert {d["object"] for d in done["data"]} == {"embedding"}
    assert done["data"][1]["embedding"] == llm.embed(TEXTS[1])
    n = sum(len(llm.tokenize(t.encode())) for t in TEXTS)
    assert done["usage"] == {"prompt_tokens": n, "total_tokens": n}
    one = llm.create_embedding(TEXTS[1], model="mine")
    assert len(one["data"]) == 1 and one["model"] == "mine"


def test_long_texts(llm: Llama) -> None:
    long = "a small model " * 40
    vectors, n = llm.embed(long, return_count=True)
    assert len(vectors) == n == 64
    with pytest.raises(ContextOverflowError, match="64"):
        llm.embed(long, truncate=False)
    assert len(llm.embed("")) == 1  # BOS


def test_unit_vectors_of_tokens(llm: Llama) -> None:
    vectors = np.array(llm.embed(TEXTS[0], normalize=True))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_completions_beside(llm: Llama, path: Path) -> None:
    before = llm.embed(TEXTS[0])
    with Llama(path, n_ctx=64, type_k=0, type_v=0, verbose=False) as plain:
        want = plain(TEXTS[1], max_tokens=5, temperature=0)["choices"]
        with pytest.raises(ValueError, match="embedding=True"):
            plain.embed("x")
    assert llm(TEXTS[1], max_tokens=5, temperature=0)["choices"] == want
    assert llm.embed(TEXTS[0]) == before and llm.n_ctx() == 64


def test_closed(path: Path) -> None:
    llm = opened(path)
    llm.close()
    with pytest.raises(ValueError, match="closed"):
        llm.embed("x")


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_pooled_as_the_file_says(path: Path, tmp_path: Path, kind: int) -> None:
    says = Spliced(path).write(tmp_path / "m.gguf", {"llama.pooling_type": kind})
    other = kind % 3 + 1
    with opened(says) as llm, opened(path, pooling_type=kind) as told:
        assert llm.pooling_type() == kind
        assert llm.embed(TEXTS) == told.embed(TEXTS)
    with opened(says, pooling_type=other) as llm, opened(path, pooling_type=other) as told:
        assert llm.pooling_type() == other and llm.embed(TEXTS[0]) == told.embed(TEXTS[0])
    with opened(says, pooling_type=0) as llm, opened(path, pooling_type=0) as plain:
        assert llm.embed(TEXTS[0]) == plain.embed(TEXTS[0])


@pytest.mark.parametrize(("value", "kind"), [(0, 0), (-1, 1)])
def test_a_file_that_asks_for_no_pooling(path: Path, tmp_path: Path, value: int, kind: int) -> None:
    says = Spliced(path).write(tmp_path / "m.gguf", {"llama.pooling_type": value})
    with opened(says) as llm, opened(path, pooling_type=kind) as plain:
        assert llm.pooling_type() == kind and llm.embed(TEXTS[0]) == plain.embed(TEXTS[0])


@pytest.mark.parametrize("value", [4, 9, "mean"])
def test_a_pooling_that_cannot_be(path: Path, tmp_path: Path, value: int | str) -> None:
    says = Spliced(path).write(tmp_path / "m.gguf", {"llama.pooling_type": value})
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf: llama\.pooling_type is none"):
        opened(says)
    with opened(says, pooling_type=1) as llm:
        assert len(llm.embed(TEXTS[0])) == llm.n_embd()
    with Llama(says, n_ctx=32, verbose=False) as llm:  # texts are none of its business
        assert llm("the", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_the_server_takes_a_pooling(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(run, "run", lambda _paths, options, *_rest: given.append(options))
    for more in ([], ["--pooling", "last", "--allow-unknown"]):
        assert command(["serve", "-m", str(path), *more]) == 0
    found = [(options["pooling_type"], options["allow_unknown"]) for options in given]
    assert found == [(-1, False), (3, True)]
    served = ServedModel(path, lambda _updates: None, **{**given[1], "n_ctx": 64})
    with served:
        assert served.vectors.pooling == "last"
