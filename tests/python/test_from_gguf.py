"""convert with a GGUF or PWRI file as its model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import checkpoints
import gguf
import numpy as np
import pytest
import reference
from families import golden, logits, quiet
from gguf_files import changed, raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.activations import SMOOTH
from powerinfer_cpp.convert.from_gguf import PROMPT, SMOOTH_COST
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.quantize import quantize
from small_mixtures import Mixture

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

ACTIVATIONS = {
    "llama-relu-gqa": "relu",
    "llama-silu-tied": "silu",
    "bamboo": "drelu",
    "falcon-7b": "gelu",
    "falcon-40b": "relu",
    "opt": "relu",
    "qwen3": "silu",
    "mixtral": "silu",
    "qwen3-moe": "silu",
    "glm4-moe": "silu",
    "granite-moe": "silu",
    "stablelm-parallel": "silu",
    "gemma3": "gelu_tanh",
    "gpt2": "gelu_tanh",
    "gpt-oss": "swiglu_oai",
    "cohere2": "silu",
    "gemma4": "gelu_tanh",
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_family_there_and_back(name: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    dense = convert(folder, outtype="f32", outfile=tmp_path / "dense.gguf", log=quiet)
    lines: list[str] = []
    aware = convert(dense, log=lines.append)
    assert aware == tmp_path / "dense-neurons.gguf"
    assert lines == ([SMOOTH_COST] if ACTIVATIONS[name] in SMOOTH else [])
    before, after = raw(dense), values(aware)
    assert len(before) == len(after)
    for key, want in values(dense).items():
        # Experts that every token computes stay matrices.
        turns = "ffn_down" in key and "shexp" not in key and key.endswith(".weight")
        found = after[key.replace("ffn_down", "ffn_down_t") if "shexp" not in key else key]
        assert np.array_equal(found, want.swapaxes(-1, -2) if turns else want), key
    old, new = Gguf(dense), Gguf(aware)
    added = {"powerinfer.version": 1, "powerinfer.ffn.activation": ACTIVATIONS[name]}
    assert new.metadata == {**old.metadata, **added}
    # The same products in another order.
    assert reference.relative_error(logits(aware, sparse="off"), logits(dense)) < 2e-5
    back = convert(aware, dense=True, outfile=tmp_path / "back.gguf", log=quiet)
    assert raw(back) == before and "powerinfer.version" not in Gguf(back).metadata


@pytest.mark.parametrize(("name", "rows"), [("phi3-short", 80), ("glm4", 40)])
def test_gates_and_ups_in_one_matrix(name: str, rows: int, tmp_path: Path) -> None:
    """Dense files as llama.cpp has them, and the two matrices of a neuron-aware file."""
    folder = golden(name, tmp_path / "model")
    dense = convert(folder, outtype="f32", outfile=tmp_path / "dense.gguf", log=quiet)
    aware = convert(dense, outfile=tmp_path / "aware.gguf", log=quiet)
    direct = convert(folder, bundle=True, outtype="f32", outfile=tmp_path / "b.gguf", log=quiet)
    before, after = values(dense), values(aware)
    for layer in ("blk.0", "blk.1"):
        both = before.pop(f"{layer}.ffn_up.weight")
        parts = [after.pop(f"{layer}.ffn_{part}.weight") for part in ("gate", "up")]
        assert len(both) == rows and np.array_equal(both, np.concatenate(parts))
    assert {name.replace("down", "down_t") for name in before} == set(after)
    want = logits(dense)
    assert reference.relative_error(logits(aware, sparse="off"), want) < 2e-5
    assert reference.relative_error(logits(direct, sparse="off"), want) < 2e-5
    for path in (aware, direct):
        back = convert(path, dense=True, outfile=tmp_path / "back.gguf", log=quiet)
        assert raw(back) == raw(dense)
    # The two may have been stored in different formats.
    mixed = changed(
        aware,
        tmp_path / "mixed.gguf",
        tensors=lambda name, data: data.astype(np.float16) if "ffn_gate" in name else data,
    )
    assert reference.relative_error(logits(mixed, sparse="off"), want) < 1e-2
    with pytest.raises(UnsupportedModelError, match="is F16 and blk.0.ffn_up.weight is F32"):
        convert(mixed, dense=True, outfile=tmp_path / "bad.gguf", log=quiet)
    assert not (tmp_path / "bad.gguf").exists()
    half = convert(mixed, dense=True, outtype="f16", outfile=tmp_path / "half.gguf", log=quiet)
    assert raw(half)["blk.0.ffn_up.weight"][:2] == ("F16", (32, rows))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-relu-gqa", "llama.cpp runs this file with silu in the place of relu"),
        ("falcon-40b", "llama.cpp runs this file with gelu in the place of relu"),
        ("llama-silu-tied", ""),
        ("falcon-7b", ""),
        ("qwen3", ""),
        ("opt", ""),  # llama.cpp refuses these two
        ("bamboo", ""),
    ],
)
def test_a_dense_file_that_other_engines_misread(name: str, words: str, tmp_path: Path) -> None:
    """The activation is our own key, which other engines ignore."""
    folder, lines = golden(name, tmp_path / "model"), []

    def log(line: str) -> None:
        if "llama.cpp" in line:
            lines.append(line)

    dense = convert(folder, outfile=tmp_path / "dense.gguf", log=log)
    aware = convert(dense, outfile=tmp_path / "aware.gguf", log=log)
    assert len(lines) == (1 if words else 0)
    convert(aware, dense=True, outfile=tmp_path / "back.gguf", log=log)
    assert len(lines) == (2 if words else 0) and all(words in line for line in lines)
    convert(folder, vocab_only=True, outfile=tmp_path / "vocab.gguf", log=log)
    convert(dense, vocab_only=True, outfile=tmp_path / "vocab.gguf", log=log)
    assert len(lines) == (2 if words else 0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense file whose rows are multiples of 256."""
    folder = tmp_path_factory.mktemp("wide")
    cfg = checkpoints.config(
        hidden_size=256, intermediate_size=512, head_dim=64, num_hidden_layers=1, hidden_act="relu"
    )
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    return convert(folder / "model", outfile=folder / "wide.gguf", outtype="f32", log=quiet)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_K", "Q8_0"])
def test_a_quantised_down_projection(name: str, wide: Path, tmp_path: Path) -> None:
    source, lines = tmp_path / "source.gguf", []
    quantize(wide, source, name, log=quiet)
    out = convert(source, outfile=tmp_path / "out.gguf", log=lines.append)
    old, new, down = raw(source), raw(out), "blk.0.ffn_down.weight"
    turned = new.pop("blk.0.ffn_down_t.weight")
    assert turned[:2] == ("Q8_0", (256, 512)) and old.pop(down)[0] == name and new == old
    # What is said about the loss is what the gguf package and the two files' logits say.
    was, now = values(source)[down].T, values(out)["blk.0.ffn_down_t.weight"]
    rms = np.linalg.norm(now - was) / np.linalg.norm(was)
    assert 0.001 < rms < 0.01 and f"RMS error {rms:.2%}" in lines[0]
    found = []
    for path in (source, out):
        with Llama(path, n_ctx=64, logits_all=True, verbose=False, sparse="off") as llm:
            tokens = llm.tokenize(PROMPT)[:48]
            llm.eval(tokens)
            found.append(llm.scores[: len(tokens)].astype(np.float64))
    error = reference.relative_error(found[1], found[0])
    assert 0 < error < 0.05 and f"relative error {error:.2%}" in lines[1]
    # F16 loses less, another format what it is asked to lose.
    more: list[str] = []
    convert(source, outtype="f16", outfile=out, log=more.append)
    assert {kind for kind, sizes, _ in raw(out).values() if len(sizes) > 1} == {"F16"}
    assert float(re.search(r"RMS error ([\d.]+)%", more[0])[1]) < 100 * rms / 10
    if name == "Q4_0":
        convert(source, outtype="q4_0", outfile=out, log=quiet)
        new = raw(out)
        assert new.pop("blk.0.ffn_down_t.weight")[0] == "Q4_0" and new == old


@pytest.mark.parametrize("columns", [1, 31, 256, 300])
def test_slabs_of_turned_blocks(
    columns: int, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(wide, tmp_path / "q.gguf", "Q4_K", log=quiet)
    whole = convert(tmp_path / "q.gguf", outfile=tmp_path / "whole.gguf", log=quiet)
    monkeypatch.setattr("powerinfer_cpp.convert.stored.SLAB", 256 * columns)
    slabs = convert(tmp_path / "q.gguf", outfile=tmp_path / "slabs.gguf", log=quiet)
    assert whole.read_bytes() == slabs.read_bytes()


def test_experts_are_turned_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = convert(golden("mixtral", tmp_path / "m"), outfile=tmp_path / "d.gguf", log=quiet)
    want = values(dense)["blk.1.ffn_down_exps.weight"].swapaxes(-1, -2)
    for rows in (1, 7, 24, 25, 60):
        monkeypatch.setattr("powerinfer_cpp.convert.stored.SLAB", 32 * rows)
        found = values(convert(dense, outfile=tmp_path / "a.gguf", log=quiet))
        assert np.array_equal(found["blk.1.ffn_down_t_exps.weight"], want)


def test_with_a_predictor_folder(tmp_path: Path) -> None:
    """The same file as from the checkpoint itself; a second folder takes the first one's place."""
    cfg = checkpoints.config(hidden_act="relu")
    folder = checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(tmp_path / "p", cfg)
    direct = convert(folder, tmp_path / "p", outfile=tmp_path / "direct.gguf", log=quiet)
    dense = convert(folder, outfile=tmp_path / "dense.gguf", log=quiet)
    out = convert(dense, tmp_path / "p", outfile=tmp_path / "out.gguf", log=quiet)
    assert raw(out) == raw(direct) and Gguf(out).metadata == Gguf(direct).metadata
    other = checkpoints.predictors(tmp_path / "q", cfg, ranks=(8, 16), threshold=None)
    again = convert(out, tmp_path / "q", outfile=tmp_path / "again.gguf", log=quiet)
    found = values(again)
    assert all(np.array_equal(found[name], want) for name, want in other.items())
    assert len(found) == len(raw(out)) and not Gguf(again).value("powerinfer.sparse_threshold")


@pytest.mark.shared
@pytest.mark.parametrize(("name", "activation"), [("llama-relu", "relu"), ("bamboo", "drelu")])
def test_powerinfers_files(name: str, activation: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "fixtures" / "pwri" / f"{name}.powerinfer.gguf"
    out = convert(source, outfile=tmp_path / "out.gguf", log=quiet)
    ours, theirs = Gguf(out), Gguf(source)
    assert not ours.is_pwri and ours.metadata["powerinfer.ffn.activation"] == activation
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert (a.name, a.type) == (b.name, b.type) and np.array_equal(ours.data(a), theirs.data(b))
    dense = convert(source, dense=True, outfile=tmp_path / "dense.gguf", log=quiet)
    assert reference.relative_error(logits(dense), logits(source, sparse="off")) < 2e-5
    assert not any(".fc" in t.name for t in Gguf(dense).tensors)


@pytest.mark.parametrize("experts", ["fused", "single"])
def test_experts_together_and_apart(experts: str, tmp_path: Path) -> None:
    """Gates and ups of experts in one tensor, and a tensor for each expert."""
    small = {"type": "F32", "down": "F32", "width": 64, "n_ff": 48, "n_layer": 2, "n_expert": 5}
    source = Mixture(experts=experts, **small).write(tmp_path / "source.gguf")
    out = convert(source, outfile=tmp_path / "out.gguf", log=quiet)
    shapes = {t.name: t.shape for t in Gguf(out).tensors if "ffn_" in t.name}
    for name in ("gate", "up", "down_t"):
        assert shapes[f"blk.1.ffn_{name}_exps.weight"] == (5, 48, 64)
    assert len(shapes) == 2 * 5  # with the norms and routers
    assert reference.relative_error(logits(out), logits(source)) < 2e-5


def test_experts_that_differ(tmp_path: Path) -> None:
    source = Mixture("llama", experts="single", n_layer=1, n_expert=4).write(tmp_path / "a.gguf")

    def one(name: str, data: np.ndarray) -> np.ndarray:
        return np.zeros((256, 256), np.float32) if name == "blk.0.ffn_up.2.weight" else data

    bad = changed(source, tmp_path / "bad.gguf", tensors=one)
    with pytest.raises(UnsupportedModelError, match=r"ffn_up.0.weight is Q4_K .* and .*ffn_up.2"):
        convert(bad, outfile=tmp_path / "out.gguf", log=quiet)


@pytest.mark.parametrize("expert", [0, 1, 3])
def test_an_expert_is_missing(expert: int, tmp_path: Path) -> None:
    source = Mixture("llama", experts="single", n_layer=1, n_expert=4).write(tmp_path / "a.gguf")
    gone = f"blk.0.ffn_up.{expert}.weight"
    bad = changed(source, tmp_path / "b.gguf", tensors=lambda n, data: None if n == gone else data)
    with pytest.raises(ModelFormatError, match=f"{gone} is missing: .* 4 experts"):
        convert(bad, outfile=tmp_path / "out.gguf", log=quiet)
    bad = changed(source, tmp_path / "c.gguf", {"llama.expert_count": 3})
    with pytest.raises(ModelFormatError, match=r"ffn_gate.3.weight is one too many: .* 3 experts"):
        convert(bad, outfile=tmp_path / "out.gguf", log=quiet)


def test_layers_with_other_numbers_of_experts(tmp_path: Path) -> None:
    source = Mixture(n_layer=2, n_expert=4, n_ff=64, width=64, type="F32", down="F32")
    path = source.write(tmp_path / "a.gguf")

    def three(name: str, data: np.ndarray) -> np.ndarray:
        experts = name.startswith("blk.1.ffn_") and "norm" not in name
        return data[:3] if experts else data

    counts = {"qwen3moe.expert_count": None}
    fewer = changed(path, tmp_path / "b.gguf", counts, three)
    fewer = changed(fewer, tmp_path / "c.gguf", {"qwen3moe.expert_count": [4, 3]})
    out = convert(fewer, outfile=tmp_path / "out.gguf", log=quiet)
    shapes = {t.name: t.shape for t in Gguf(out).tensors}
    assert shapes["blk.0.ffn_down_t_exps.weight"] == (4, 64, 64)
    assert shapes["blk.1.ffn_down_t_exps.weight"] == (3, 64, 64)


def test_activation_and_vocabulary(tmp_path: Path) -> None:
    dense = convert(golden("llama-silu-tied", tmp_path / "m"), outfile=tmp_path / "d", log=quiet)
    out, lines = tmp_path / "out.gguf", []
    convert(dense, activation="relu", outfile=out, log=lines.append)
    assert Gguf(out).value("powerinfer.ffn.activation") == "relu" and not lines
    convert(dense, vocab_only=True, outfile=out, log=quiet)
    with Llama(out, vocab_only=True, verbose=False) as a, Llama(dense, verbose=False) as b:
        assert a.tokenize(PROMPT) == b.tokenize(PROMPT)
    assert Gguf(out).tensors == []


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    cfg = checkpoints.config(hidden_act="relu")
    folder = checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    dense = convert(folder, outtype="f32", outfile=tmp_path / "dense.gguf", log=quiet)
    out = tmp_path / "out.gguf"

    def refused(kind: type, message: str, source: Path, *args: Path, **options: object) -> None:
        with pytest.raises(kind, match=message) as caught:
            convert(source, *args, outfile=out, log=quiet, **options)
        assert "\n" not in str(caught.value) and not out.exists()

    def narrow(name: str, data: np.ndarray) -> np.ndarray:
        return data[:, :80] if name == "blk.1.ffn_down.weight" else data

    bad = changed(dense, tmp_path / "bad.gguf", tensors=narrow)
    refused(ModelFormatError, r"bad.gguf: tensor blk.1.ffn_down.weight has shape \[64, 80\]", bad)
    bad = changed(dense, tmp_path / "bad.gguf", {"llama.feed_forward_length": None})
    refused(ModelFormatError, r"bad.gguf: llama.feed_forward_length is missing", bad)
    unknown = gguf.GGUFWriter(tmp_path / "unknown.gguf", "gpt9")
    for step in (unknown.write_header_to_file, unknown.write_kv_data_to_file):
        step()
    unknown.write_tensors_to_file()
    unknown.close()
    refused(UnsupportedModelError, "architecture 'gpt9' is not known", tmp_path / "unknown.gguf")
    checkpoints.predictors(tmp_path / "p", {**cfg, "hidden_size": 60})
    refused(ModelFormatError, r"fc1.weight has shape \[32, 60\], expected \[32, 64\]", dense,
            tmp_path / "p")  # fmt: skip
    cut = changed(dense, tmp_path / "cut.gguf", {"powerinfer.ffn.threshold": 0.01})
    refused(UnsupportedModelError, "cut.gguf: powerinfer.ffn.threshold is part", cut, dense=True)
    shutil.copy(dense, tmp_path / "same.gguf")
    with pytest.raises(ValueError, match="same file"):
        convert(tmp_path / "same.gguf", outfile=tmp_path / "same.gguf", log=quiet)
