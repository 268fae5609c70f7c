"""scripts/make_shape.py: from a configuration alone the keys and tensors that `convert` writes of
its checkpoint, with random weights that a model computes with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["gemma3", "gemma4", "gpt-oss", "mistral-window", "qwen3-5", "lfm2-moe", "deepseek-v3"]


def made(config: Path, out: Path, *options: object) -> gguf.GGUFReader:
    line = [ROOT / "scripts" / "make_shape.py", config, out, *options]
    subprocess.run([sys.executable, *map(str, line)], check=True)
    return gguf.GGUFReader(out)


def tensors(reader: gguf.GGUFReader) -> dict[str, list[int]]:
    return {t.name: [int(n) for n in t.shape] for t in reader.tensors}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_convert_writes(name: str, tmp_path: Path) -> None:
    checkpoint = golden(name, tmp_path / "model")
    whole = convert(checkpoint, outtype="f16", outfile=tmp_path / "whole.gguf", log=quiet)
    shape = made(checkpoint / "config.json", tmp_path / "shape.gguf", "--type", "F16")
    want = gguf.GGUFReader(whole)
    # Scores of biases and the like that only the checkpoint tells of are left out.
    assert tensors(shape).items() <= tensors(want).items()
    missing = tensors(want).keys() - tensors(shape).keys()
    assert all(t.endswith(".bias") or "rope_freqs" in t for t in missing), missing
    keys = {key for key in want.fields if not key.startswith(("tokenizer.", "general.", "GGUF."))}
    for key in keys:
        assert shape.fields[key].contents() == want.fields[key].contents(), key


def test_fewer_layers_compute(tmp_path: Path) -> None:
    config = golden("gemma3", tmp_path / "model") / "config.json"
    reader = made(config, tmp_path / "shape.gguf", "--layers", 1, "--type", "Q8_0")
    assert not any(name.startswith("blk.1.") for name in tensors(reader))
    model = Model(str(tmp_path / "shape.gguf"))
    assert model.n_layer == 1
    session = Session(model, n_ctx=64)
    session.eval(np.arange(3, 40, dtype=np.int32))
    logits = session.logits(36)
    assert np.isfinite(logits).all() and logits.std() > 0
    again = made(config, tmp_path / "again.gguf", "--layers", 1, "--type", "Q8_0")
    for a, b in zip(reader.tensors, again.tensors, strict=True):
        assert np.array_equal(a.data, b.data)
