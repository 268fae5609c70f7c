"""Values in place of those in a file, and other scalings of RoPE: the same bits as from a file that
says so, and the logits of llama.cpp (made by scripts/rope_logits.py)."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.cli import main as command
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import ModelFormatError

from powerinfer_cpp import Llama

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("rope", ROOT / "scripts" / "rope_logits.py")
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)
LOGITS = json.loads((ROOT / "tests" / "golden" / "rope_logits.json").read_text())


def made(name: str, folder: Path, **changes: Any) -> Path:
    source = golden(name, folder, **changes)
    return convert(source, outfile=folder / "model.gguf", outtype="f32", log=quiet)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("llama-silu-tied", tmp_path_factory.mktemp("plain") / "model")


def opened(path: Path, **options: Any) -> Llama:
    options = {"n_ctx": 128, "type_k": 0, "type_v": 0, "verbose": False, **options}
    return Llama(path, **options)


def last_logits(path: Path, **options: Any) -> np.ndarray:
    with opened(path, **options) as llm:
        llm.eval(reference.TOKENS)
        return llm.scores[len(reference.TOKENS) - 1].copy()


@pytest.mark.parametrize("name", reference.CASES)
def test_logits_are_those_of_llama_cpp(plain: Path, name: str) -> None:
    expected = np.array(LOGITS[name])
    found = last_logits(plain, **reference.CASES[name])[: len(expected)]
    assert np.linalg.norm(found - expected) < 2e-5 * np.linalg.norm(expected)
    if name not in ("none", "no scaling"):
        assert np.linalg.norm(np.array(LOGITS["none"]) - expected) > 1e-2


@pytest.mark.parametrize(
    ("name", "without", "options"),
    [
        ("llama-linear", {"rope_scaling": None}, {"rope_scaling_type": 1, "rope_freq_scale": 0.25}),
        (
            "qwen2-yarn",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 32},
        ),
    ],
)
def test_the_same_bits_as_from_the_file(
    tmp_path: Path, name: str, without: dict[str, Any], options: dict[str, Any]
) -> None:
    scaled = last_logits(made(name, tmp_path / "scaled"))
    path = made(name, tmp_path / "plain", **without)
    assert (last_logits(path) != scaled).any()
    assert (last_logits(path, **options) == scaled).all()
    kind = "linear" if "linear" in name else "yarn"
    keys = {
        f"{name[:5].rstrip('-')}.rope.scaling.type": kind,
        f"{name[:5].rstrip('-')}.rope.scaling.factor": 4.0,
        f"{name[:5].rstrip('-')}.rope.scaling.original_context_length": 32,
    }
    assert (last_logits(path, kv_overrides=keys) == scaled).all()


def test_values(plain: Path) -> None:
    def tokens(**values: Any) -> list[int]:
        with opened(plain, kv_overrides=values, vocab_only=True) as llm:
            return llm.tokenize(b"the quick")

    assert tokens()[0] == 1 and tokens(**{"tokenizer.ggml.add_bos_token": False})[0] != 1
    values = {
        "llama.attention.layer_norm_rms_epsilon": 0.1,
        "general.name": "other",
        "llama.context_length": 77,
    }
    with opened(plain, n_ctx=0, kv_overrides=values) as llm:
        assert llm.n_ctx() == 77
        assert llm.metadata["general.name"] == "other"
        assert "epsilon': 0.1" in repr(pickle.loads(pickle.dumps(llm))._arguments)
    eps = {"llama.attention.layer_norm_rms_epsilon": 0.1}
    assert (last_logits(plain, kv_overrides=eps) != last_logits(plain)).any()


def test_refusals(plain: Path) -> None:
    for key, value, message in (
        ("llama.context_lengh", 5, "override of llama.context_lengh: the file has no such key"),
        ("opt.context_length", 5, "the file has no such key, and the model reads none"),
        ("llama.context_length", 5.0, "the file's value has type u32, not a number"),
        ("llama.context_length", "5", "the file's value has type u32, not a string"),
        ("llama.context_length", True, "the file's value has type u32, not a truth value"),
        ("llama.context_length", -1, "llama.context_length"),
        ("llama.rope.freq_base", 1e300, "override of llama.rope.freq_base: the number is not fin"),
        ("llama.rope.freq_base", float("nan"), "the number is not finite"),
        ("tokenizer.ggml.tokens", "x", "the file's value is an array"),
        ("general.alignment", 64, "this key says how the file is laid out"),
        ("split.count", 2, "this key says how the file is laid out"),
        ("llama.block_count", 1 << 64, "no bool, int of 64 bits, float or str"),
        ("llama.block_count", 1, "blk.1"),
        ("", 1, "an override has an empty key"),
    ):
        with pytest.raises((ValueError, ModelFormatError), match=message):
            opened(plain, kv_overrides={key: value}).close()
    for options, message in (
        ({"kv_overrides": [1]}, "kv_overrides must map keys to values"),
        ({"rope_scaling_type": 3}, "rope_scaling must be a pi_rope_scaling"),
        ({"rope_scaling_type": 1.5}, "rope_scaling must be a whole number"),
        ({"rope_freq_scale": float("nan")}, "rope_freq_scale must be between"),
        ({"rope_freq_base": 0.5}, "rope_freq_base must be between"),
        ({"yarn_ext_factor": 2.0}, "yarn_ext_factor must be between 0 and 1, not 2"),
        ({"yarn_orig_ctx": -1}, "yarn_orig_ctx must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(plain, **options).close()


def test_a_model_without_rope(tmp_path: Path) -> None:
    path = made("opt", tmp_path / "opt")
    with pytest.raises(ValueError, match="the model has no RoPE that could be scaled"):
        opened(path, rope_freq_scale=0.5).close()
    opened(path, rope_freq_scale=1.0, rope_freq_base=10000.0).close()  # LangChain's


def test_a_model_with_a_scaling_of_its_own(tmp_path: Path) -> None:
    path = made("llama-dynamic", tmp_path / "dynamic")
    with pytest.raises(ValueError, match="in a way of its own; rope_scaling says what is in its"):
        opened(path, rope_freq_scale=0.5).close()
    # In place of it: what a file without it gives.
    plain = made("llama-dynamic", tmp_path / "plain", rope_scaling=None, rope_parameters=None)
    assert (last_logits(path) != last_logits(plain)).any()
    linear = {"rope_scaling_type": 1, "rope_freq_scale": 0.5}
    assert (last_logits(path, **linear) == last_logits(plain, **linear)).all()
    assert (last_logits(path, rope_scaling_type=0) == last_logits(plain)).all()


def test_states_know_their_overrides(plain: Path) -> None:
    with opened(plain) as llm:
        llm.eval(reference.TOKENS[:9])
        state = llm.save_state()
    eps = {"llama.attention.layer_norm_rms_epsilon": 1e-3}
    for options in ({"rope_freq_scale": 0.5}, {"kv_overrides": eps}):
        with opened(plain, **options) as llm:
            with pytest.raises(ModelFormatError, match="to other overrides of its keys or RoPE"):
                llm.load_state(state)
            llm.eval(reference.TOKENS[:9])
            own = llm.save_state()
        with opened(plain, **options) as llm:
            llm.load_state(own)
    with opened(plain, rope_scaling_type=1, rope_freq_base=10000.0) as llm:  # what the file says
        llm.load_state(state)


def test_commands(plain: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)

    def perplexity(*options: str) -> str:
        given = ["perplexity", str(plain), "--text", str(text), "-c", "64", *options]
        assert command(given) == 0
        return capsys.readouterr().out

    scaled = perplexity("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-beta-fast", "8")
    assert scaled != perplexity()
    keys = ("scaling.type=str:yarn", "scaling.factor=float:4", "scaling.yarn_beta_fast=float:8")
    given = [part for key in keys for part in ("--override-kv", f"llama.rope.{key}")]
    assert perplexity(*given) == scaled
    bad = ["perplexity", str(plain), "--text", str(text), "--override-kv", "a=int:x"]
    assert command(bad) == 2
    assert "a=int:x is not KEY=TYPE:VALUE" in capsys.readouterr().err
