"""What has one obvious meaning is read, with a note: ids of no token, arrays of equal numbers,
vocabularies without scores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import TOKENS, golden, logits, quiet
from gguf_files import Spliced
from powerinfer_cpp.convert import convert, source
from powerinfer_cpp.core.errors import ModelFormatError, UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan

from powerinfer_cpp import Llama

IDS = "tokenizer.ggml."


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Spliced:
    folder = tmp_path_factory.mktemp("lenient")
    checkpoint = golden("mixtral", folder / "in")
    return Spliced(convert(checkpoint, outfile=folder / "m.gguf", outtype="f32", log=quiet))


def vocabulary(path: Path) -> Llama:
    return Llama(path, vocab_only=True, verbose=False)


def warnings(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Model(str(path), vocab_only=True).close()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("value", [4294967295, 300, -2])
@pytest.mark.parametrize("key", ["bos", "eos", "unknown", "eot", "eom", "fim_sep"])
def test_an_id_of_no_token(
    key: str, value: int, mixture: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{IDS}{key}_token_id"
    without = mixture.write(tmp_path / "without.gguf", {name: None})
    path = mixture.write(tmp_path / "m.gguf", {name: value})
    (told,) = warnings(path, caplog)
    assert str(path) in told and name in told and f"no token {value}" in told
    assert warnings(without, caplog) == []
    with vocabulary(path) as llm, vocabulary(without) as other:
        assert llm.token_bos() == other.token_bos() and llm.token_eos() == other.token_eos()
        ids = range(other.n_vocab())
        assert [llm._model.ends(i) for i in ids] == [other._model.ends(i) for i in ids]


def test_an_id_that_is_no_integer(mixture: Spliced, tmp_path: Path) -> None:
    name = IDS + "eot_token_id"
    for value in ("2", [2], 2.0):
        path = mixture.write(tmp_path / "m.gguf", {name: value})
        with pytest.raises(ModelFormatError, match=name):
            Model(str(path), vocab_only=True)


# Sizes that llama.cpp, too, reads as one number or as one for each layer, and some others; and what
# is wrong with a last layer of another size: its tensors do not fit that.
SIZES = {
    "attention.head_count": "cannot share",
    "attention.head_count_kv": "cannot share",
    "attention.key_length": r"blk\.1\.attn_q\.weight",
    "attention.value_length": r"blk\.1\.attn_v\.weight",
    "rope.dimension_count": "is 9 in layer 1, outside 2..8",
    "feed_forward_length": r"blk\.1\.ffn_gate_exps\.weight",
    "expert_count": r"blk\.1\.ffn_gate_inp\.weight",
}


@pytest.mark.parametrize("key", [*SIZES, "expert_used_count"])
def test_arrays_of_equal_numbers(key: str, mixture: Spliced, tmp_path: Path) -> None:
    with Gguf(mixture.path) as gguf:
        n_layer = gguf.value("llama.block_count")
        head = gguf.value("llama.embedding_length") // gguf.value("llama.attention.head_count")
        size = gguf.value(f"llama.{key}", head)
    assert isinstance(size, int) and n_layer > 1

    def of(value: Any) -> Path:
        return mixture.write(tmp_path / "m.gguf", {f"llama.{key}": value})

    assert (logits(of([size] * n_layer)) == logits(mixture.path)).all()
    with Gguf(of([size] * n_layer)) as gguf:
        assert source.size(gguf, key) == size
    for wrong in ([size] * (n_layer + 1), [], [float(size)] * n_layer, [str(size)] * n_layer):
        if wrong:
            with pytest.raises(ModelFormatError, match=key):
                memory_plan(str(of(wrong)), {}, {})
    other = of([size] * (n_layer - 1) + [size + 1])
    if key in SIZES:
        with pytest.raises(ModelFormatError, match=SIZES[key]):
            memory_plan(str(other), {}, {})
    else:  # a layer whose rows choose one expert more
        assert (logits(other) != logits(mixture.path)).any()
    with pytest.raises(ModelFormatError, match=key):
        memory_plan(str(of([0xFFFFFFFF] * n_layer)), {}, {})


def test_layers_rotate_alike(mixture: Spliced, tmp_path: Path) -> None:
    key = "llama.rope.dimension_count"
    path = mixture.write(tmp_path / "m.gguf", {key: [8, 6]})
    with pytest.raises(UnsupportedModelError, match=f"{key} is 8 in layer 0 and 6 in layer 1"):
        memory_plan(str(path), {}, {})


def test_scores(mixture: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = IDS + "scores"
    path = mixture.write(tmp_path / "m.gguf", {key: None})
    (told,) = warnings(path, caplog)
    assert f"{key}: is missing" in told
    with Llama(path, n_ctx=32, verbose=False) as llm:
        llm.eval(TOKENS)
        assert np.isfinite(llm.scores[len(TOKENS) - 1]).all()
        assert llm.detokenize(llm.tokenize(b"the cat")) == b"the cat"
    with Gguf(mixture.path) as gguf:
        scores, types = gguf.metadata[key], gguf.metadata[IDS + "token_type"]
    for name, values in ((key, scores), (IDS + "token_type", types)):
        path = mixture.write(tmp_path / "m.gguf", {name: [*values, *values[:2]]})
        (told,) = warnings(path, caplog)
        assert f"{name}: has 302 elements for 300 tokens" in told
        with vocabulary(path) as llm, vocabulary(mixture.path) as other:
            assert llm.tokenize(b"a small story") == other.tokenize(b"a small story")
        path = mixture.write(tmp_path / "m.gguf", {name: values[:-1]})
        with pytest.raises(ModelFormatError, match="299 elements for 300 tokens"):
            Model(str(path), vocab_only=True)


def test_a_size_of_the_vocabulary(
    mixture: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for value in (301, "x"):
        path = mixture.write(tmp_path / "m.gguf", {"llama.vocab_size": value})
        with caplog.at_level(logging.WARNING):
            assert (logits(path) == logits(mixture.path)).all()
        assert f"vocab_size is {value}, but there are 300 tokens" in caplog.text.replace('"', "")


def test_a_family_without_mixtures(tmp_path: Path) -> None:
    """A count of experts in a family that has none is no reason to compute something else."""
    path = convert(golden("gemma", tmp_path / "in"), outfile=tmp_path / "m.gguf", log=quiet)
    keys = {"gemma.expert_count": 4, "gemma.expert_used_count": 2}
    with pytest.raises(UnsupportedModelError, match=r"gemma\.expert_count"):
        memory_plan(str(Spliced(path).write(tmp_path / "n.gguf", keys)), {}, {})
