"""Bundled files: the same results, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import golden, quiet
from gguf_files import changed, raw
from powerinfer_cpp.convert import convert
from powerinfer_cpp.gguf import Gguf
from powerinfer_cpp.quantize import quantize

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

TOKENS = [1, 5, 77, 290, 4, 5, 5, 261, 299]


def answers(path: Path, sparse: str, **options: Any) -> np.ndarray:
    """Logits of a prompt, and of two tokens after it, each computed alone."""
    with Llama(path, n_ctx=64, logits_all=True, verbose=False, sparse=sparse, **options) as llm:
        for tokens in (TOKENS, [7], [8]):
            llm.eval(tokens)
        return llm.scores[: len(TOKENS) + 2].copy()


def with_predictors(folder: Path, model: Path, n_ff: int, lead: tuple[int, ...] = ()) -> Path:
    rng = np.random.default_rng(0)
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    (folder / "p").mkdir()
    for layer in range(2):
        part = {
            "fc1.weight": rng.standard_normal((*lead, 8, width)).astype(np.float16),
            "fc2.weight": rng.standard_normal((*lead, n_ff, 8)).astype(np.float16),
        }
        checkpoints.save_torch(folder / "p" / f"model_{layer}.pt", part)
    return convert(model, folder / "p", outtype="f32", outfile=folder / "f32.gguf", log=quiet)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A neuron-aware file whose rows are multiples of 256, so that blocks of 32 fold."""
    folder = tmp_path_factory.mktemp("wide")
    cfg = checkpoints.config(
        hidden_size=256, intermediate_size=160, head_dim=64, hidden_act="relu", mlp_bias=True
    )
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    return with_predictors(folder, folder / "model", 160)


def same_answers(one: Path, other: Path) -> None:
    for sparse in ("off", "exact", "predictor", "auto"):
        want = answers(one, sparse)
        assert np.isfinite(want).all()
        assert np.array_equal(answers(other, sparse), want), sparse
    assert np.array_equal(answers(other, "exact", use_mmap=False), answers(one, "exact"))


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q5_1", "Q4_K"])
def test_formats(name: str, wide: Path, tmp_path: Path) -> None:
    plain, bundled, back = (tmp_path / f"{n}.gguf" for n in ("plain", "bundled", "back"))
    quantize(wide, plain, name, log=quiet)
    quantize(wide, bundled, name, bundle=True, log=quiet)
    held = {t.name: t for t in Gguf(bundled).tensors}
    up_down = held["blk.1.ffn_up_down_rows"]
    assert up_down.type_name == "I8" and up_down.shape[0] == 160
    assert not any("ffn_up.weight" in n or "ffn_down_t.w" in n for n in held)
    keys = Gguf(bundled).metadata
    assert keys["powerinfer.bundle.version"] == 1
    assert keys["powerinfer.bundle.down_type"] == [name, name]
    same_answers(plain, bundled)
    quantize(bundled, back, name, log=quiet)
    assert raw(back) == raw(plain) and Gguf(back).metadata == Gguf(plain).metadata
    sizes = [sum(t.n_bytes for t in Gguf(p).tensors) for p in (plain, bundled)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("name", "width"),
    [("mixtral", "intermediate_size"), ("falcon-7b", "ffn_hidden_size"), ("opt", "ffn_dim")],
)
def test_families(name: str, width: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    n_ff = json.loads((folder / "config.json").read_text())[width]
    plain = with_predictors(tmp_path, folder, n_ff, (4,) if name == "mixtral" else ())
    bundled = convert(
        folder,
        tmp_path / "p",
        outtype="f32",
        bundle=True,
        outfile=tmp_path / "bundled.gguf",
        log=quiet,
    )
    same_answers(plain, bundled)
    quantized = tmp_path / "again.gguf"
    convert(plain, bundle=True, outfile=quantized, log=quiet)
    assert raw(quantized) == raw(bundled)
    gates = [t.name for t in Gguf(bundled).tensors if "ffn_gate_rows" in t.name]
    assert gates == ([f"blk.{i}.ffn_gate_rows_exps" for i in range(2)] if name == "mixtral" else [])


def test_where_the_bytes_lie(wide: Path, tmp_path: Path) -> None:
    """The layout in docs/formats.md, implemented again."""
    plain, bundled = tmp_path / "plain.gguf", tmp_path / "bundled.gguf"
    for name, row in (("F16", 512), ("Q8_0", 272)):
        quantize(wide, plain, name, log=quiet)
        quantize(wide, bundled, name, bundle=True, log=quiet)
        stored, packed = raw(plain), raw(bundled)
        rows = {
            part: np.frombuffer(stored[f"blk.0.{part}.weight"][2], np.uint8).reshape(160, row)
            for part in ("ffn_gate", "ffn_up", "ffn_down_t")
        }
        if name == "Q8_0":
            # Eight blocks of a row: their scales, then four weights of each in turn.
            for part, data in rows.items():
                blocks = data.reshape(160, 8, 34)
                scales, weights = blocks[:, :, :2], blocks[:, :, 2:].reshape(160, 8, 8, 4)
                scales, weights = scales.reshape(160, -1), weights.swapaxes(1, 2).reshape(160, -1)
                rows[part] = np.concatenate([scales, weights], 1)
        up_down = np.concatenate([rows["ffn_up"], rows["ffn_down_t"]], 1)
        assert packed["blk.0.ffn_gate_rows"][2] == rows["ffn_gate"].tobytes()
        assert packed["blk.0.ffn_up_down_rows"][2] == up_down.tobytes()


def test_inspect(wide: Path, tmp_path: Path) -> None:
    plain, bundled = tmp_path / "plain.gguf", tmp_path / "bundled.gguf"
    quantize(wide, plain, "Q4_0", log=quiet)
    quantize(wide, bundled, "Q4_0", bundle=True, log=quiet)
    seen = []
    for path in (plain, bundled):
        command = [sys.executable, "-m", "powerinfer_cpp.cli", "inspect", "--json", str(path)]
        seen.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    assert [found["bundled"] for found in seen] == [False, True]
    for key in ("formats", "n_params", "n_bytes", "predictor_ranks"):
        assert seen[0][key] == seen[1][key], key
    with Llama(plain, verbose=False) as a, Llama(bundled, verbose=False) as b:
        assert a.plan()["ram"] == b.plan()["ram"]


def test_check_tensors_looks_into_bundles(wide: Path, tmp_path: Path, main_path: Path) -> None:
    bundled = tmp_path / "bundled.gguf"
    quantize(wide, bundled, "F16", bundle=True, log=quiet)

    def infinite(name: str, data: np.ndarray) -> np.ndarray:
        if name != "blk.1.ffn_up_down_rows":
            return data
        data = data.copy()
        data[7, 512 + 12 : 512 + 14] = np.frombuffer(np.float16(np.inf).tobytes(), np.int8)
        return data

    bad = changed(bundled, tmp_path / "bad.gguf", tensors=infinite)
    for path, status in ((bundled, 0), (bad, 1)):
        command = [main_path, "-m", path, "--check-tensors", "-n", "1", "-p", "the"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    assert '"blk.1.ffn_up_down_rows" holds a value that is not finite in row 7' in done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"powerinfer.bundle.version": 2}, "bundles of version 2 are not supported"),
    "no version": ({"powerinfer.bundle.version": None}, "powerinfer.bundle.version. is missing"),
    "no format": ({"powerinfer.bundle.up_type": None}, "powerinfer.bundle.up_type"),
    "unknown": ({"powerinfer.bundle.up_type": "Q99"}, "powerinfer.bundle.up_type"),
    "integers": ({"powerinfer.bundle.up_type": 8}, "powerinfer.bundle.up_type"),
    "too few": ({"powerinfer.bundle.gate_type": ["Q8_0"]}, "powerinfer.bundle.gate_type"),
    "other": ({"powerinfer.bundle.down_type": "F16"}, "blk.0.ffn_up_down_rows"),
    "blocks": ({"powerinfer.bundle.gate_type": "I8"}, "powerinfer.bundle.gate_type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str, wide: Path, tmp_path: Path) -> None:
    keys, message = REFUSED[name]
    quantize(wide, tmp_path / "good.gguf", "Q8_0", bundle=True, log=quiet)
    bad = changed(tmp_path / "good.gguf", tmp_path / "bad.gguf", keys)
    with pytest.raises(ModelFormatError, match=message) as caught:
        Llama(bad, verbose=False)
    assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_misplaced_rows(wide: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    quantize(wide, good, "Q8_0", bundle=True, log=quiet)

    def without(name: str, data: np.ndarray) -> np.ndarray | None:
        return None if name == "blk.1.ffn_gate_rows" else data

    changed(good, bad, tensors=without)
    with pytest.raises(ModelFormatError, match=r'"blk.1.ffn_gate_rows" is missing'):
        Llama(bad, verbose=False)

    def short(name: str, data: np.ndarray) -> np.ndarray:
        return data[:-1] if name == "blk.1.ffn_gate_rows" else data

    changed(good, bad, tensors=short)
    with pytest.raises(ModelFormatError, match=r"has shape \[272, 159\], expected \[272, 160\]"):
        Llama(bad, verbose=False)
    changed(good, bad, {"powerinfer.bundle.version": 7})
    with pytest.raises(ModelFormatError, match=r"bad.gguf: bundles of version 7"):
        quantize(bad, tmp_path / "out.gguf", "Q8_0", log=quiet)
    dense = convert(wide, dense=True, outfile=tmp_path / "dense.gguf", log=quiet)
    with pytest.raises(ValueError, match="layer 0 has none"):
        quantize(dense, tmp_path / "out.gguf", "Q8_0", bundle=True, log=quiet)
    with pytest.raises(ValueError, match="has no bundles"):
        convert(wide, dense=True, bundle=True, log=quiet)
    with pytest.raises(UnsupportedModelError, match="already Q8_0"):
        quantize(good, tmp_path / "out.gguf", "Q4_0", log=quiet)
    assert not (tmp_path / "out.gguf").exists()
