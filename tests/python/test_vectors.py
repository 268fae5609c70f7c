"""Vectors of texts of every family of encoders, against float64 numpy (encoder_reference.py).

test_rankers.py has scores, test_vector_api.py what users call, test_convert_encoders.py what is
refused.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import encoder_reference
import numpy as np
import pytest
from families import quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from reference import relative_error
from small_encoders import ALL, RANKERS, Checkpoint, make

from powerinfer_cpp import Llama

# Of several lengths: of one token, around a page of keys (64) and a block of attention (256); with
# special tokens, which become these tokens, with letters in other scripts and not in NFC.
TEXTS = [
    "",
    "a",
    "The small bear, and the frog!",
    "Un été: и да — 中文 かし",
    "cafe\u0301 과 \u1100\u1161 \u212b",
    "one [SEP] two </s> three <|end|> four",
    "the bear " * 7,
    "ab, the river of and " * 9,
    "the small ball. " * 26 + "z",
]
LIMIT = 1e-5  # of F32 arithmetic; GELU by tanh in place of erf is ten times that
NAMES = [name for name in ALL if name not in RANKERS]
KINDS = {"mean": 1, "cls": 2, "lasttoken": 3}


@dataclass
class Converted:
    path: Path
    checkpoint: Checkpoint

    def open(self, **options: Any) -> Llama:
        fields = {"n_threads": 1, "type_k": 0, "type_v": 0, "n_ctx": 320, "verbose": False}
        return Llama(self.path, embedding=True, **{**fields, **options})

    def want(self, texts: list[str], kind: str | None = None) -> np.ndarray:
        ids = [self.checkpoint.ids(text) for text in texts]
        return np.array([encoder_reference.vector(self.checkpoint, of, kind) for of in ids])


def converted(folder: Path, name: str, **changes: Any) -> Converted:
    checkpoint = make(folder / name, name, changes)
    path = convert(folder / name, outtype="f32", outfile=folder / f"{name}.gguf", log=quiet)
    return Converted(path, checkpoint)


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(tmp_path_factory.mktemp("vectors"), request.param)


def texts_of(family: Converted) -> list[str]:
    """TEXTS that have tokens."""
    return [text for text in TEXTS if family.checkpoint.ids(text)]


def test_against_the_reference(family: Converted) -> None:
    texts = texts_of(family)
    with family.open() as llm:
        done = llm.create_embedding(texts)
        units = llm.embed(texts, normalize=True)
    found = np.array([item["embedding"] for item in done["data"]])
    want = family.want(texts)
    assert found.shape == want.shape
    for ours, theirs in zip(found, want, strict=True):
        assert relative_error(ours, theirs) < LIMIT
    lengths = np.linalg.norm(want, axis=1, keepdims=True)
    assert relative_error(np.array(units), want / lengths) < LIMIT
    assert done["usage"]["prompt_tokens"] == sum(len(family.checkpoint.ids(t)) for t in texts)


def test_bits_do_not_depend_on_what_is_beside(family: Converted) -> None:
    texts = [*texts_of(family), *(f"the bear {i}" for i in range(20))]
    with family.open() as llm, family.open(n_threads=2) as two:
        together = llm.embed(texts)
        assert two.embed(texts) == together
        assert [llm.embed(text) for text in texts] == together
        assert llm.embed(texts[::-1]) == together[::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_another_pooling(family: Converted, kind: str) -> None:
    texts = texts_of(family)[1:5]
    with family.open(pooling_type=KINDS[kind]) as llm:
        assert llm.pooling_type() == KINDS[kind]
        assert relative_error(np.array(llm.embed(texts)), family.want(texts, kind)) < LIMIT


def test_rows(family: Converted) -> None:
    """Without pooling, each token has a vector."""
    checkpoint, text = family.checkpoint, TEXTS[7]
    with family.open(pooling_type=0) as llm:
        found = np.array(llm.embed(text))
    want = encoder_reference.rows(checkpoint.config, checkpoint.weights, checkpoint.ids(text))
    assert found.shape == want.shape and relative_error(found, want) < LIMIT


def test_a_long_text_is_cut(family: Converted) -> None:
    """What the tokenizer puts behind a text stays behind what is left of it."""
    checkpoint, n, text = family.checkpoint, 20, TEXTS[7]
    ids = checkpoint.ids(text)
    last = ids[-1:] if ids[-1] != checkpoint.ids(text + " a")[-2] else []
    want = encoder_reference.vector(checkpoint, ids[: n - len(last)] + last)
    with family.open(n_ctx=n) as llm:
        found, count = llm.embed(text, return_count=True)
    assert count == n and relative_error(np.array(found), want) < LIMIT


def test_a_file_of_others(family: Converted, tmp_path: Path) -> None:
    """Without our keys, as llama.cpp's converter writes files, vectors are the same; but for NFC,
    and activations of dense layers, which its keys do not tell."""
    with Gguf(family.path) as file:
        ours = [key for key in file.metadata if key.startswith("powerinfer.")]
    bare = changed(family.path, tmp_path / "bare.gguf", dict.fromkeys(ours))
    texts = [text for text in texts_of(family) if unicodedata.is_normalized("NFC", text)]
    with family.open() as llm, Converted(bare, family.checkpoint).open() as other:
        assert other.pooling_type() == llm.pooling_type()
        same = other.embed(texts) == llm.embed(texts)
        assert other.prompts == {}
    assert same == ("Tanh" not in [act for _, act in family.checkpoint.dense])


def test_half_the_bits(family: Converted, tmp_path: Path) -> None:
    out = tmp_path / "half.gguf"
    convert(family.checkpoint.folder, outtype="f16", outfile=out, log=quiet)
    texts = texts_of(family)
    with Converted(out, family.checkpoint).open() as llm:
        found = np.array(llm.embed(texts))
    assert LIMIT < relative_error(found, family.want(texts)) < 3e-3


# ---- transformers ----------------------------------------------------------------------------

# Not there: NVIDIA's Llama, and published names of Nomic's models and GTE.
KNOWN = [name for name in ALL if name not in ("llama-embed", "nomic", "gte")]


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("name", KNOWN)
def test_what_transformers_computes(name: str, tmp_path: Path) -> None:
    """The reference is right."""
    import torch
    import transformers

    checkpoint = make(tmp_path / name, name)
    model = transformers.AutoModel.from_pretrained(tmp_path / name, attn_implementation="eager")
    for text in TEXTS[2:]:
        ids = checkpoint.ids(text)
        with torch.no_grad():
            found = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        want = encoder_reference.rows(checkpoint.config, checkpoint.weights, ids)
        assert relative_error(found, want) < 2e-5
