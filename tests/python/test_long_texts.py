"""Logits of texts over several pages of positions, with each instruction set of this build.

The checkpoints of test_golden.py have few tokens. Here Llama's pass in float64 is the reference,
with the frequencies of each way to scale RoPE by its definition; and for other ways to rotate, the
generic kernels are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from circles import pick
from families import golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from test_golden import CASES, F32, ROUNDING, error, logits

from powerinfer_cpp import Llama, UnsupportedModelError

N_TOKENS, N_CTX, TRAINED = 200, 256, 64
HEAD_DIM = 40  # twenty pairs: more than a register's, and a rest
EVERY = ("generic", "avx", "avx2", "avxvnni", "vnni", "avx512", "vbmi", "amx", "neon", "neon_i8mm")
SHORT, LONG = np.linspace(1, 2, HEAD_DIM // 2), np.geomspace(1, 30, HEAD_DIM // 2)


def yarn(base: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
    """arXiv 2309.00071, for a factor of 4."""
    factor, dims = 4.0, HEAD_DIM
    low, high = (
        edge(dims * np.log(TRAINED / (turns * 2 * np.pi)) / (2 * np.log(theta)))
        for turns, edge in ((32.0, np.floor), (1.0, np.ceil))
    )
    slow = np.clip((np.arange(dims // 2) - max(low, 0)) / (min(high, dims - 1) - max(low, 0)), 0, 1)
    return base / factor * slow + base * (1 - slow), 0.1 * np.log(factor) + 1


def llama3(base: np.ndarray, _theta: float) -> tuple[np.ndarray, float]:
    wave, factor, least, most = 2 * np.pi / base, 8.0, 1.0, 4.0
    share = np.clip((TRAINED / wave - least) / (most - least), 0, 1)
    return base / factor * (1 - share) + base * share, 1.0


def dynamic(_base: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
    longer = 4.0 * N_CTX / TRAINED - 3.0
    grown = theta * longer ** (HEAD_DIM / (HEAD_DIM - 2))
    return reference.frequencies(grown, HEAD_DIM), 1.0


def longrope(base: np.ndarray, _theta: float) -> tuple[np.ndarray, float]:
    return base / LONG, float(np.sqrt(1 + np.log(8.0) / np.log(TRAINED)))


# rope_parameters of a config, and their frequencies and magnitude.
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "default": ({}, lambda base, _: (base, 1.0)),
    "linear": ({"factor": 4.0}, lambda base, _: (base / 4, 1.0)),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": TRAINED}, yarn),
    "llama3": (
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": TRAINED,
        },
        llama3,
    ),
    "longrope": (
        {
            "factor": 8.0,
            "original_max_position_embeddings": TRAINED,
            "short_factor": SHORT.tolist(),
            "long_factor": LONG.tolist(),
        },
        longrope,
    ),
    "dynamic": ({"factor": 4.0}, dynamic),
}


def tokens(n_vocab: int, n: int = N_TOKENS) -> np.ndarray:
    return np.random.default_rng(n_vocab).integers(3, n_vocab, n)


@pytest.fixture(params=EVERY)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, model_path: Path) -> None:
    """Kernels of this instruction set are used, by every model that is opened now."""
    monkeypatch.setenv("GGML_ISA", request.param)
    try:
        Llama(model_path, n_ctx=8, verbose=False).close()
    except UnsupportedModelError:
        pytest.skip(f"this build has no ISA {request.param}")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """Models by how they scale RoPE, and their logits."""
    found = {}
    for i, (kind, (values, turns)) in enumerate(KINDS.items()):
        theta = 10000.0 if i % 2 else 500000.0
        cfg = checkpoints.config(
            head_dim=HEAD_DIM,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=TRAINED if kind == "dynamic" else 512,
            rope_parameters={"rope_type": kind, "rope_theta": theta, **values},
        )
        weights = checkpoints.weights(cfg)
        folder = tmp_path_factory.mktemp(kind)
        checkpoints.save(folder, cfg, weights)
        path = convert(folder, outfile=folder / "m.gguf", outtype="f32", log=quiet)
        of = turns(reference.frequencies(theta, HEAD_DIM), theta)
        text = tokens(cfg["vocab_size"])
        found[kind] = path, reference.logits(cfg, weights, text.tolist(), "silu", turns=of)
    return found


def check(ours: np.ndarray, expected: np.ndarray, kind: str) -> None:
    """Over all positions, and at the worst one: another rotation is 1e-2 away there."""
    assert error(ours, expected) <= ROUNDING, kind
    assert max(error(a, b) for a, b in zip(ours, expected, strict=True)) <= 5 * ROUNDING, kind


@pytest.mark.usefixtures("isa")
def test_every_way_to_scale(scaled: dict[str, tuple[Path, np.ndarray]]) -> None:
    for kind, (path, expected) in scaled.items():
        text = tokens(expected.shape[1])
        ours = logits(path, text, at_once=150, kv=F32, n_ctx=N_CTX)
        check(ours, expected, kind)
        # Token by token from the end of a page on.
        few = logits(path, text[:80], at_once=3, kv=F32, n_ctx=N_CTX)
        assert np.array_equal(few, ours[:80]), kind


# Heads in halves, parts of heads, parts without a position, and tables of factors.
ROTATIONS = ("qwen2-yarn", "stablelm-parallel", "phi3-short", "deepseek-v2", "gemma3", "minimax-m2")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("others"), {}
    for name in pick(ROTATIONS, [name for name in CASES if name != "opt"]):  # it learns positions
        path = golden(name, folder / name, max_position_embeddings=512)
        path = convert(path, outfile=folder / f"{name}.gguf", outtype="f32", log=quiet)
        with Gguf(path) as gguf:
            if gguf.n_ctx_train >= N_CTX:  # some count their positions under another name
                found[name] = path
    assert set(ROTATIONS) <= set(found) and len(found) >= pick(len(ROTATIONS), len(CASES) - 4)
    return found


@pytest.fixture(scope="module")
def by_generic(others: dict[str, Path]) -> dict[str, np.ndarray]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GGML_ISA", "generic")
        return {name: long(path) for name, path in others.items()}


def long(path: Path) -> np.ndarray:
    with Llama(path, vocab_only=True, verbose=False) as llm:
        n_vocab = llm.n_vocab()
    return logits(path, tokens(n_vocab), kv=F32, n_ctx=N_CTX)


@pytest.mark.parametrize("isa", EVERY[1:], indirect=True)
@pytest.mark.usefixtures("isa")
def test_other_rotations(others: dict[str, Path], by_generic: dict[str, np.ndarray]) -> None:
    for name, path in others.items():
        check(long(path), by_generic[name], name)
