"""Vectors of encoders as users ask for them: `Llama`'s methods, prompts, limits, and what an
encoder refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import encoder_reference
import numpy as np
import pytest
from families import quiet
from gguf_files import changed
from powerinfer_cpp._native import ffi, lib
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session
from reference import relative_error
from small_encoders import make, write_json
from test_vectors import LIMIT, Converted, converted

from powerinfer_cpp import (
    ContextOverflowError,
    Llama,
    ModelFormatError,
    UnsupportedModelError,
)

TEXTS = ["the small bear", "", "a frog [SEP] and a ball!", "the river " * 30]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="module")
def llm(bert: Converted) -> Iterator[Llama]:
    with bert.open() as opened:
        yield opened


# ---- Opening -------------------------------------------------------------------------------------


def test_embedding_is_implied(bert: Converted, llm: Llama) -> None:
    with Llama(bert.path, verbose=False) as plain:
        assert plain.n_ctx() == 320 and "embeddings" in repr(plain)
        assert relative_error(np.array(plain.embed(TEXTS)), bert.want(TEXTS)) < LIMIT
        assert plain.pooling_type() == 1
    assert llm.n_embd() == 24


def test_the_usual_context(tmp_path: Path) -> None:
    """That of the checkpoint's longest text, with which texts are cut."""
    made = make(tmp_path / "m", "bert")
    write_json(made.folder / "sentence_bert_config.json", {"max_seq_length": 32})
    path = convert(made.folder, outtype="f32", outfile=tmp_path / "m.gguf", log=quiet)
    with Llama(path, embedding=True, verbose=False) as llm:
        assert llm.max_tokens == llm.n_ctx() == 32
        _, n = llm.embed(TEXTS[3], return_count=True)
        assert n == 32
    with Llama(path, embedding=True, n_ctx=100, verbose=False) as llm:
        assert llm.max_tokens == 100
    with Llama(path, embedding=True, n_ctx=0, verbose=False) as llm:
        assert llm.max_tokens in (32, 320)


def test_a_context_beyond_the_table(bert: Converted) -> None:
    """Positions that were learned end with the table."""
    with pytest.raises(ValueError, match="320"):
        bert.open(n_ctx=321)
    with bert.open(n_ctx=320) as llm:
        _, n = llm.embed("a " * 500, return_count=True)
        assert n == 320


@pytest.mark.parametrize("options", [{"n_batch": 16}, {"n_ubatch": 16}, {"n_batch": 7}])
def test_texts_are_never_cut_over_passes(bert: Converted, options: dict[str, Any]) -> None:
    with bert.open(**options) as small, bert.open() as usual:
        assert small.embed(TEXTS) == usual.embed(TEXTS)


def test_keys_and_values_are_exact(bert: Converted) -> None:
    """F16, which they are in other models unless told, would be 1e-4 off."""
    with bert.open(type_k=1, type_v=1) as half, bert.open() as exact:
        assert half.embed(TEXTS) == exact.embed(TEXTS)


def test_memory_of_a_context(bert: Converted, tmp_path: Path) -> None:
    """Keys and values are those of one layer: of 320 positions, and of the pages that the texts of
    a call do not fill."""
    deep = converted(tmp_path, "bert", num_hidden_layers=5)
    with bert.open() as llm, deep.open() as other:
        kept = [opened.plan()["ram"]["kv"] for opened in (llm, other)]
    row = 2 * 24 * 4  # F32
    assert kept[0] == kept[1] < 2 * (320 + 16 * 64) * row


# ---- What an encoder does not do -----------------------------------------------------------------

CALLS: dict[str, Callable[[Llama], Any]] = {
    "create_completion": lambda llm: llm.create_completion("the bear", max_tokens=2),
    "call": lambda llm: llm("the bear", max_tokens=2),
    "stream": lambda llm: list(llm.create_completion("the", max_tokens=2, stream=True)),
    "create_chat_completion": lambda llm: llm.create_chat_completion(
        [{"role": "user", "content": "the bear"}]
    ),
    "generate": lambda llm: next(iter(llm.generate([5, 6]))),
    "eval": lambda llm: llm.eval([5, 6]),
    "sample": lambda llm: llm.sample(),
    "save_state": lambda llm: llm.save_state(),
}


@pytest.mark.parametrize("call", CALLS)
def test_it_writes_no_texts(call: str, llm: Llama) -> None:
    before = llm.embed(TEXTS[0])
    with pytest.raises(UnsupportedModelError, match="gives vectors of texts, and writes no texts"):
        CALLS[call](llm)
    assert llm.embed(TEXTS[0]) == before


def test_a_session_of_tokens_is_refused(bert: Converted) -> None:
    with pytest.raises(UnsupportedModelError, match="gives vectors of texts, and no tokens"):
        Session(Model(str(bert.path), None, False), n_ctx=32)


# ---- Vectors -------------------------------------------------------------------------------------


def test_create_embedding(bert: Converted, llm: Llama) -> None:
    done = llm.create_embedding(TEXTS, model="mine")
    assert [item["index"] for item in done["data"]] == list(range(len(TEXTS)))
    assert done["object"] == "list" and done["model"] == "mine"
    found = [item["embedding"] for item in done["data"]]
    assert found == llm.embed(TEXTS) and isinstance(found[0][0], float)
    n = sum(len(bert.checkpoint.ids(text)) for text in TEXTS)
    assert done["usage"] == {"prompt_tokens": n, "total_tokens": n}
    one = llm.create_embedding(TEXTS[0])
    assert [item["embedding"] for item in one["data"]] == found[:1]
    assert llm.create_embedding([])["data"] == [] and llm.embed([]) == []


def test_ids(bert: Converted, llm: Llama) -> None:
    """They are taken as they are."""
    ids = [bert.checkpoint.ids(text) for text in TEXTS]
    made = [item["embedding"] for item in llm.create_embedding(ids)["data"]]
    assert made == llm.embed(TEXTS)
    assert llm.create_embedding(ids[0])["data"][0]["embedding"] == made[0]
    some = llm.create_embedding([7, 8, 9])["data"][0]["embedding"]
    want = encoder_reference.vector(bert.checkpoint, [7, 8, 9])
    assert relative_error(np.array(some), want) < LIMIT
    for wrong in ([[7, 100000]], [[-1]], [[7], []]):
        with pytest.raises(ValueError, match="token|tokens"):
            llm.create_embedding(wrong)
    assert llm.embed(TEXTS[0]) == made[0]


def test_the_empty_text(bert: Converted, llm: Llama, tmp_path: Path) -> None:
    vector, n = llm.embed("", return_count=True)
    assert n == 2 and relative_error(np.array([vector]), bert.want([""])) < LIMIT
    qwen = converted(tmp_path, "qwen3")  # whose tokenizer adds one token
    with qwen.open() as other:
        vector, n = other.embed("", return_count=True)
    assert n == 1 and relative_error(np.array([vector]), qwen.want([""])) < LIMIT
    keys = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    bare = changed(bert.path, tmp_path / "bare.gguf", keys)
    with (
        Converted(bare, bert.checkpoint).open() as other,
        pytest.raises(ValueError, match="without tokens"),
    ):
        other.embed(["the", ""])


def test_long_texts(bert: Converted) -> None:
    with bert.open(n_ctx=16) as llm:
        with pytest.raises(ContextOverflowError, match="62 tokens exceeds the 16"):
            llm.embed(TEXTS[3], truncate=False)
        with pytest.raises(ContextOverflowError):
            llm.embed(TEXTS, truncate=False)
        assert len(llm.embed(TEXTS[0], truncate=False)) == 24
        ids = bert.checkpoint.ids(TEXTS[3])
        cut = llm.create_embedding(TEXTS[3])  # cuts
        assert cut["usage"]["prompt_tokens"] == 16
        want = encoder_reference.vector(bert.checkpoint, ids[:15] + ids[-1:])
        assert relative_error(np.array(cut["data"][0]["embedding"]), want) < LIMIT
        # Ids that were given end where the room does.
        given = llm.create_embedding(ids)["data"][0]["embedding"]
        assert (
            relative_error(np.array(given), encoder_reference.vector(bert.checkpoint, ids[:16]))
            < LIMIT
        )


def test_dimensions(bert: Converted, llm: Llama) -> None:
    made = np.array([item["embedding"] for item in llm.create_embedding(TEXTS)["data"]])
    for n in (1, 7, 24):
        done = llm.create_embedding(TEXTS, dimensions=n)
        found = np.array([item["embedding"] for item in done["data"]])
        want = made[:, :n] / np.linalg.norm(made[:, :n], axis=1, keepdims=True)
        assert found.shape == (len(TEXTS), n) and np.allclose(found, want, atol=1e-6)
    for n in (0, -1, 25):
        with pytest.raises(ValueError, match="dimensions must be 1 to 24"):
            llm.create_embedding(TEXTS, dimensions=n)
    with bert.open(pooling_type=0) as rows:
        for texts in (TEXTS, TEXTS[0]):
            with pytest.raises(ValueError, match="dimensions"):
                rows.create_embedding(texts, dimensions=3)


def test_prompts(bert: Converted, llm: Llama, tmp_path: Path) -> None:
    texts = [TEXTS[0], TEXTS[2]]
    assert dict(llm.prompts) == {"query": "the river ", "document": "frog: "}
    with pytest.raises(TypeError):
        llm.prompts["x"] = "y"  # type: ignore[index]
    for name, prompt in llm.prompts.items():
        want = bert.want([prompt + text for text in texts])
        assert relative_error(np.array(llm.embed(texts, prompt_name=name)), want) < LIMIT
        assert llm.embed(texts, prompt=prompt) == llm.embed(texts, prompt_name=name)
        done = llm.create_embedding(texts, prompt_name=name)
        assert [item["embedding"] for item in done["data"]] == llm.embed(texts, prompt=prompt)
        n = sum(len(bert.checkpoint.ids(prompt + text)) for text in texts)
        assert done["usage"]["prompt_tokens"] == n
    with pytest.raises(ValueError, match=r"\(query, document\), not 'passage'"):
        llm.embed(texts, prompt_name="passage")
    key = "powerinfer.embedding.default_prompt"
    path = changed(bert.path, tmp_path / "d.gguf", {key: "document"})
    with Converted(path, bert.checkpoint).open() as other:
        assert other.embed(texts) == llm.embed(texts, prompt_name="document")
        assert other.embed(texts, prompt="") == llm.embed(texts)
        assert other.embed(texts, prompt_name="query") == llm.embed(texts, prompt_name="query")


def test_one_and_several_texts(llm: Llama) -> None:
    vector, n = llm.embed(TEXTS[0], return_count=True)
    vectors, count = llm.embed(tuple(TEXTS), return_count=True)
    assert vectors[0] == vector and n == 5 and count > n
    units = np.array(llm.embed(TEXTS, normalize=True))
    assert np.allclose(np.linalg.norm(units, axis=1), 1, atol=1e-6)


def test_closed(bert: Converted) -> None:
    llm = bert.open()
    llm.close()
    for call in (lambda: llm.embed("x"), lambda: llm.rank("x", ["y"])):
        with pytest.raises(ValueError, match="closed"):
            call()


# ---- Files that say what cannot be ---------------------------------------------------------------


@pytest.mark.parametrize("value", [4, 9, "mean"])
def test_a_pooling_that_cannot_be(bert: Converted, value: int | str, tmp_path: Path) -> None:
    path = changed(bert.path, tmp_path / "b.gguf", {"bert.pooling_type": None})
    path = changed(path, tmp_path / "c.gguf", {"bert.pooling_type": value})
    made = Converted(path, bert.checkpoint)
    with pytest.raises(UnsupportedModelError, match=r"c\.gguf: bert\.pooling_type is none of"):
        made.open()
    with made.open(pooling_type=1) as llm, bert.open() as usual:
        assert llm.embed(TEXTS) == usual.embed(TEXTS)


def test_no_kind_of_pooling(bert: Converted) -> None:
    for kind in (5, -2):
        with pytest.raises(ValueError, match="pooling_type must be -1"):
            bert.open(pooling_type=kind)


def test_a_file_that_is_causal(bert: Converted, tmp_path: Path) -> None:
    path = changed(bert.path, tmp_path / "b.gguf", {"bert.attention.causal": True})
    with pytest.raises(UnsupportedModelError, match=r"bert\.attention\.causal"):
        Converted(path, bert.checkpoint).open()
    without = changed(bert.path, tmp_path / "w.gguf", {"bert.attention.causal": None})
    with Converted(without, bert.checkpoint).open() as llm, bert.open() as usual:
        assert llm.embed(TEXTS) == usual.embed(TEXTS)


def test_activations_of_files(tmp_path: Path) -> None:
    modern = converted(tmp_path, "modernbert")
    key = "modern-bert.hidden_activation"
    bad = changed(modern.path, tmp_path / "b.gguf", {key: "relu"})
    with pytest.raises(ModelFormatError, match=r"modern-bert\.hidden_activation.*relu"):
        Converted(bad, modern.checkpoint).open()
    gemma = converted(tmp_path, "embeddinggemma")
    key = "powerinfer.dense.activations"
    for value in (["relu", "identity"], ["tanh"], "tanh"):
        bad = changed(gemma.path, tmp_path / "b.gguf", {key: None})
        bad = changed(bad, tmp_path / "c.gguf", {key: value})
        with pytest.raises(UnsupportedModelError, match=r"powerinfer\.dense\.activations"):
            Converted(bad, gemma.checkpoint).open()


# ---- The C API -----------------------------------------------------------------------------------


def test_pooled_results(bert: Converted) -> None:
    model = Model(str(bert.path), None, False)
    assert model.is_encoder and not model.ranks
    out = ffi.new("float const **")

    def fails(words: str, status: int) -> None:
        assert status != lib.PI_OK
        assert words in ffi.string(lib.pi_last_error()).decode(), words

    session = Session(model, n_ctx=64, n_seq=3, embedding=True, pooling=1)
    handle = session.handle
    assert session.pooled_width == 24 and session.n_batch >= 64
    fails("made no vector of sequence 0", lib.pi_pooled(handle, 0, out))
    tokens = np.array([2, 7, 8, 3, 2, 3], np.int32)
    where = np.array([2, 2, 2, 2, 0, 0], np.int32)
    session.eval(tokens, sequences=where)
    alone = session.pooled(2).copy()
    fails("made no vector of sequence 1", lib.pi_pooled(handle, 1, out))
    for sequence in (3, -1):
        fails("sequence", lib.pi_pooled(handle, sequence, out))
    fails("NULL", lib.pi_pooled(handle, 0, ffi.NULL))
    fails("NULL", lib.pi_pooled(ffi.NULL, 0, out))
    fails("the session pools", lib.pi_embedding(handle, 0, out))
    assert lib.pi_sequence_length(handle, 2) == 0  # nothing is kept
    for kind in (2, -1):
        types = np.array([0, 0, 1, kind, 0, 0], np.int32)
        with pytest.raises(ValueError, match=f"token type {kind} is outside the model's 2"):
            session.eval(tokens, sequences=where, types=types)
    types = np.array([0, 0, 1, 1, 0, 0], np.int32)
    session.eval(tokens, sequences=where, types=types)
    assert (session.pooled(2) != alone).any()
    # In any order of rows; and a call that fails leaves no vectors.
    order = np.array([4, 0, 1, 5, 2, 3])
    session.eval(tokens[order], sequences=where[order])
    assert (session.pooled(2) == alone).all()
    with pytest.raises(ValueError, match="token"):
        session.eval(np.array([2, 99999], np.int32))
    with pytest.raises(ContextOverflowError):
        session.eval(np.full(65, 7, np.int32))
    session.close()
    rows = Session(model, n_ctx=64, embedding=True)
    assert rows.pooled_width == 0
    rows.eval(tokens[:4], keep=np.ones(4, bool))
    fails("made no vector", lib.pi_pooled(rows.handle, 0, out))
    found = np.array([rows.embedding(i) for i in range(4)])
    assert relative_error(found.mean(0), alone) < LIMIT
    rows.close()
    for fields, words in (
        ({"pooling": 5, "embedding": True}, "pooling"),
        ({"pooling": -1, "embedding": True}, "pooling"),
        ({"pooling": 4, "embedding": True}, "does not rank"),
        ({"pooling": 1}, "embedding"),
    ):
        with pytest.raises(ValueError, match=words):
            Session(model, n_ctx=64, **fields)
