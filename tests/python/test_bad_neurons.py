"""Inconsistent neuron-aware files and PWRI files: a one-sentence error names the place."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.quantize import quantize

from powerinfer_cpp import Llama, ModelFormatError

Edit = Callable[[str, np.ndarray], "np.ndarray | None"]


@pytest.fixture(scope="module")
def aware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aware")
    cfg = checkpoints.config(hidden_act="relu")
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(folder / "p", cfg)
    out = folder / "aware.gguf"
    convert(folder / "model", folder / "p", outtype="f32", outfile=out, log=quiet)
    return out


def of(tensor: str, edit: Callable[[np.ndarray], np.ndarray | None]) -> Edit:
    return lambda name, data: edit(data) if name == tensor else data


def refused(path: Path, message: str, main_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=message) as caught:
        Llama(path, verbose=False)
    assert path.name in str(caught.value) and "\n" not in str(caught.value)
    done = subprocess.run([main_path, "-m", path, "-p", "x", "-n", "2"], capture_output=True)
    assert done.returncode == 1 and done.stdout == b""
    assert path.name.encode() in done.stderr and done.stderr.count(b"\n") == 1


PREDICTORS: dict[str, tuple[Edit, str]] = {
    "input": (
        of("blk.0.fc1.weight", lambda d: d[:, :32]),
        r'"blk.0.fc1.weight" has shape \[32, 32\], expected \[64, 32\]',
    ),
    "rank": (
        of("blk.0.fc2.weight", lambda d: d[:, :16]),
        r'"blk.0.fc2.weight" has shape \[16, 96\], expected \[32, 96\]',
    ),
    "neurons": (
        of("blk.1.fc2.weight", lambda d: d[:90]),
        r'"blk.1.fc2.weight" has shape \[24, 90\], expected \[24, 96\]',
    ),
    "half": (of("blk.1.fc1.weight", lambda _d: None), '"blk.1.fc1.weight" is missing'),
    "down": (
        of("blk.0.ffn_down_t.weight", lambda d: d[:90]),
        r'"blk.0.ffn_down_t.weight" has shape \[64, 90\], expected \[64, 96\]',
    ),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_shapes(name: str, aware: Path, tmp_path: Path, main_path: Path) -> None:
    edit, message = PREDICTORS[name]
    refused(changed(aware, tmp_path / "bad.gguf", tensors=edit), message, main_path)


THRESHOLDS: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"powerinfer.sparse_threshold": float("nan")}, "sparse_threshold is not finite"),
    "infinite": ({"powerinfer.sparse_threshold": float("-inf")}, "sparse_threshold is not finite"),
    "of a layer": ({"powerinfer.sparse_threshold": [0.0, float("nan")]}, "is not finite"),
    "of the activation": ({"powerinfer.ffn.threshold": float("inf")}, "threshold is not finite"),
    "layers": ({"powerinfer.sparse_threshold": [0.0] * 3}, "neither a number nor one for each"),
    "text": ({"powerinfer.ffn.threshold": "0.5"}, "neither a number nor one for each"),
    "activation": ({"powerinfer.ffn.activation": "tanh"}, '"tanh" is not known'),
    "input": ({"powerinfer.predictor.input": "raw"}, "neither residual nor normed"),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_keys(name: str, aware: Path, tmp_path: Path, main_path: Path) -> None:
    keys, message = THRESHOLDS[name]
    refused(changed(aware, tmp_path / "bad.gguf", keys), message, main_path)


def test_thresholds_of_the_command_line(aware: Path, main_path: Path) -> None:
    for value in ("nan", "inf", "-inf"):
        command = [main_path, "-m", aware, "-p", "x", "--sparse-threshold", value]
        done = subprocess.run(command, capture_output=True)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1
        assert b"--sparse-threshold" in done.stderr
    with pytest.raises(ValueError, match="threshold"):
        Llama(aware, sparse_threshold=float("inf"), verbose=False)


def test_statistics_of_another_model(aware: Path, tmp_path: Path, main_path: Path) -> None:
    rates = np.linspace(0, 1, 96, dtype=np.float32)
    name = "blk.1.ffn_rate"
    both = {"blk.0.ffn_rate": rates, name: rates}
    with Llama(changed(aware, tmp_path / "good.gguf", added=both), verbose=False) as llm:
        llm.eval([1, 5, 7])
    bad = changed(aware, tmp_path / "bad.gguf", added={name: rates})
    refused(bad, "blk.0.ffn_rate is missing, though other layers have statistics", main_path)
    bad = changed(aware, tmp_path / "bad.gguf", added={**both, name: rates[:90]})
    refused(bad, r'"blk.1.ffn_rate" has shape \[90\], expected \[96\]', main_path)
    bad = changed(aware, tmp_path / "bad.gguf", added={**both, name: rates.astype(np.float16)})
    refused(bad, r'"blk.1.ffn_rate" has type F16', main_path)


@pytest.mark.parametrize(
    "tensor", ["fc1.weight", "fc2.weight", "ffn_up.weight", "ffn_gate.weight", "attn_q.weight"]
)
def test_pwri_without_a_tensor(tensor: str, aware: Path, tmp_path: Path, main_path: Path) -> None:
    bad = changed(aware, tmp_path / "bad.gguf", tensors=of(f"blk.1.{tensor}", lambda _d: None))
    bad.write_bytes(b"PWRI" + bad.read_bytes()[4:])
    refused(bad, f'"blk.1.{tensor}" is missing', main_path)


def test_pwri_with_neither_down_projection(aware: Path, tmp_path: Path, main_path: Path) -> None:
    bad = changed(
        aware, tmp_path / "bad.gguf", tensors=of("blk.1.ffn_down_t.weight", lambda _d: None)
    )
    bad.write_bytes(b"PWRI" + bad.read_bytes()[4:])
    refused(bad, '"blk.1.ffn_down_t.weight" is missing', main_path)
    with pytest.raises(ValueError, match="layer 1 has none"):
        quantize(bad, tmp_path / "out.gguf", "F16", bundle=True, log=quiet)
