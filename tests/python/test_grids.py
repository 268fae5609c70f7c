"""IQ1, IQ2, IQ3 and NVFP4: formats that are read and computed, but not written."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
import reference
from circles import pick
from families import GOLDEN, TOKENS, falcon_weights, quiet, smallthinker
from gguf_files import changed, raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.formats import decode, encode, format_by_name
from powerinfer_cpp.quantize import quantize

from powerinfer_cpp import Llama, OutOfMemoryError

GRIDS = ("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M")
UNWRITTEN = (*GRIDS, "NVFP4")


def gguf_decode(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])


def set_scales(name: str, blocks: np.ndarray, d: float) -> None:
    """Blocks with this scale, [..., bytes of a block]."""
    if name == "NVFP4":  # four of each block, of eight bits: 2 d or less
        most = (int(np.float16(2 * d).view(np.uint16)) >> 7 & 255) - 64
        blocks[..., :4] = np.maximum(most - (blocks[..., :4] % 16).astype(int), 0)
        return
    if name != "IQ1_M":
        blocks[..., :2] = np.array([d], dtype=np.float16).view(np.uint8)
        return
    for i in range(4):  # four bits in the upper byte of each word
        nibble = int(np.float16(d).view(np.uint16)) >> 4 * i & 15
        blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | nibble << 4


def random_rows(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Rows of random blocks, whose weights have a standard deviation of 0.05."""
    format = format_by_name(name)
    n = int(np.prod(shape)) // format.block
    blocks = np.random.default_rng(seed).integers(0, 256, (n, format.block_bytes), dtype=np.uint8)
    set_scales(name, blocks, 1)
    set_scales(name, blocks, 0.05 / gguf_decode(name, blocks).std())
    return blocks.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("name", UNWRITTEN)
def test_decoder(name: str) -> None:
    format = format_by_name(name)
    blocks = np.random.default_rng(3).integers(0, 256, (3000, format.block_bytes), dtype=np.uint8)
    ours = decode(format.type, blocks.reshape(-1), 3000 * format.block)
    theirs = gguf_decode(name, blocks).reshape(-1)
    assert ((ours.view(np.uint32) == theirs.view(np.uint32)) | np.isnan(ours)).all()
    assert (np.isnan(ours) == np.isnan(theirs)).all()


@pytest.mark.parametrize("name", UNWRITTEN)
def test_no_encoder(name: str, in_f32: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} can be read, but not written"):
        encode(format_by_name(name), np.zeros(256, dtype=np.float32))
    with pytest.raises(ValueError, match=f"type must be one of .*, not '{name}'"):
        quantize(in_f32["falcon"], tmp_path / "q.gguf", name, log=quiet)


@pytest.fixture(scope="module")
def in_f32(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense model and a mixture, whose rows blocks of 256 divide."""
    folder = tmp_path_factory.mktemp("f32")
    cfg = {"hidden_size": 256, "moe_ffn_hidden_size": 256, "head_dim": 64, "num_hidden_layers": 2}
    cfg |= {"rope_layout": [1] * 2, "sliding_window_layout": [0] * 2}
    # All experts, so that no rounding changes the choice.
    cfg |= {"moe_num_active_primary_experts": 6}
    smallthinker(folder / "smallthinker", **cfg)
    cfg = json.loads((GOLDEN / "falcon-40b" / "config.json").read_text())
    cfg |= {"hidden_size": 256, "ffn_hidden_size": 512}
    checkpoints.save(folder / "falcon", cfg, falcon_weights(cfg))
    (folder / "falcon" / "tokenizer.model").write_bytes((GOLDEN / "tokenizer.model").read_bytes())
    made = {
        path.name: convert(path, outtype="f32", outfile=folder / f"{path.name}.gguf", log=quiet)
        for path in sorted(folder.iterdir())
    }
    matrices = folder / "matrices.gguf"
    options: dict[str, Any] = {"outtype": "f32", "dense": True, "log": quiet}
    return made | {"matrices": convert(folder / "smallthinker", outfile=matrices, **options)}


def in_format(name: str, source: Path, target: Path) -> Path:
    """The model with random blocks for all its matrices, also embeddings and experts."""
    types = gguf.GGMLQuantizationType[name]

    def blocks(tensor: str, data: np.ndarray) -> np.ndarray | tuple[np.ndarray, int]:
        if data.ndim == 1 or "gate_inp" in tensor:
            return data
        assert data.shape[-1] % 256 == 0
        return random_rows(name, data.shape, len(tensor)), types

    return changed(source, target, tensors=blocks, added=factors(source) if name == "NVFP4" else {})


def factors(source: Path) -> dict[str, np.ndarray]:
    """NAME.scale for matrices that are no rows of neurons: a number, or one for each expert."""
    held, rng = values(source), np.random.default_rng(2)
    by_rows = any("ffn_down_t" in name for name in held)
    found = {}
    for name, data in held.items():
        if data.ndim == 1 or "token_embd" in name or (by_rows and "ffn" in name):
            continue
        n = len(data) if data.ndim == 3 else 1
        found[name.removesuffix("weight") + "scale"] = rng.uniform(0.5, 2, n).astype(np.float32)
    return found


def decoded(path: Path) -> dict[str, np.ndarray]:
    """Every tensor, with the factors of products in the matrices."""
    held = values(path)
    for name in [name for name in held if name.endswith(".scale")]:
        factor, weight = held.pop(name), name.removesuffix("scale") + "weight"
        held[weight] = held[weight] * factor.reshape(-1, *[1] * (held[weight].ndim - 1))
    return held


OPTIONS: dict[str, Any] = {
    "n_ctx": 64,
    "logits_all": True,
    "verbose": False,
    "type_k": 0,
    "type_v": 0,
}


def logits(path: Path, n_threads: int = 2, **more: Any) -> np.ndarray:
    with Llama(path, n_threads=n_threads, n_threads_batch=n_threads, **OPTIONS, **more) as llm:
        llm.eval(TOKENS)
        return llm.scores[: len(TOKENS)].copy()


# In the quick circle one of both for each format.
MODELS = pick(
    list(zip(UNWRITTEN, itertools.cycle(("smallthinker", "falcon")))),
    list(itertools.product(UNWRITTEN, ("falcon", "smallthinker"))),
)
MODELS.append(("NVFP4", "matrices"))


@pytest.mark.parametrize(("name", "model"), MODELS)
def test_models(name: str, model: str, in_f32: dict[str, Path], tmp_path: Path) -> None:
    path = in_format(name, in_f32[model], tmp_path / "q.gguf")
    held = decoded(path)
    plain = changed(path, tmp_path / "f32.gguf", tensors=lambda tensor, _data: held.get(tensor))
    found, want = logits(path), logits(plain).astype(np.float64)
    # Products round their inputs to 8 bits, as in test_family_formats.py.
    assert reference.relative_error(found.astype(np.float64), want) < 5e-2
    assert np.array_equal(found, logits(path, n_threads=1))
    code = "import sys, test_grids as t, numpy; numpy.save(sys.argv[2], t.logits(sys.argv[1]))"
    out = tmp_path / "generic.npy"
    environment = {**os.environ, "GGML_ISA": "generic", "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", code, str(path), str(out)], check=True, env=environment)
    assert reference.relative_error(found.astype(np.float64), np.load(out)) < 2e-2


def test_factors_of_nvfp4_are_converted(in_f32: dict[str, Path], tmp_path: Path) -> None:
    """Matrices stay as they are; rows of neurons have them in their weights, in Q8_0."""
    path = in_format("NVFP4", in_f32["matrices"], tmp_path / "q.gguf")
    same = convert(path, outfile=tmp_path / "same.gguf", dense=True, log=quiet)
    assert raw(same) == raw(path)
    rows = convert(path, outfile=tmp_path / "rows.gguf", log=quiet)
    types = {name: kind for name, (kind, _, _) in raw(rows).items()}
    assert not any(name.endswith("_exps.scale") for name in types)
    assert types["blk.0.ffn_up_exps.weight"] == types["blk.0.ffn_down_t_exps.weight"] == "Q8_0"
    assert types["blk.0.attn_q.weight"] == "NVFP4" and types["blk.0.attn_q.scale"] == "F32"
    assert reference.relative_error(logits(rows).astype(np.float64), logits(path)) < 5e-2


@pytest.mark.parametrize("name", pick(["IQ1_M", "NVFP4"], ["IQ2_XXS", "IQ3_S", "IQ1_M", "NVFP4"]))
def test_experts_from_disk(name: str, tmp_path: Path) -> None:
    cfg = {"hidden_size": 256, "moe_ffn_hidden_size": 512, "head_dim": 64, "num_hidden_layers": 4}
    cfg |= {"rope_layout": [1] * 4, "sliding_window_layout": [0] * 4}
    smallthinker(tmp_path / "model", **cfg, moe_num_primary_experts=16)
    dense = convert(
        tmp_path / "model", outtype="f32", outfile=tmp_path / "f32.gguf", dense=True, log=quiet
    )
    path = in_format(name, dense, tmp_path / "q.gguf")
    with Llama(path, **OPTIONS) as llm:
        whole = llm.plan()["total"]
    with pytest.raises(OutOfMemoryError, match="with the experts on the disk") as error:
        Llama(path, **OPTIONS, ram_budget=1e-6)
    least = int(re.search(r"at least (\d+) bytes", str(error.value))[1])
    budget = (least + 0.4 * (whole - least)) / (1 << 30)
    with Llama(path, **OPTIONS, ram_budget=budget) as llm:
        assert llm.plan()["storage"]
    assert np.array_equal(logits(path, ram_budget=budget), logits(path))
