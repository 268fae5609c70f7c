"""Importance matrices: measured inputs against transformers, files against the gguf package, and
their use by `quantize`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.profile import importance
from powerinfer_cpp.profile.text import windows
from powerinfer_cpp.quantize import Choice, quantize
from powerinfer_cpp.quantize.imatrix import Imatrix, Inputs, read, write

from powerinfer_cpp import ModelFormatError

TEXT = b"the quick brown fox jumps over the lazy dog; a small model tells a story. " * 3
N_CTX = 24


def measured(path: Path, **fields: Any) -> Imatrix:
    model = Model(str(path))
    return importance.measure(model, windows(model, TEXT, None, N_CTX), "t.txt", **fields)


def expected(folder: Path, path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sums of squares and counts by transformers, for the parts of a layer that are linear there:
    name in the checkpoint -> [width], rows."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found: dict[str, tuple[np.ndarray, int]] = {}

    def hook(name: str) -> Any:
        def note(_module: Any, inputs: tuple[Any, ...]) -> None:
            x = inputs[0].detach().double().reshape(-1, inputs[0].shape[-1])
            sums, rows = found.get(name, (0, 0))
            found[name] = sums + (x**2).sum(0).numpy(), rows + len(x)

        return note

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(hook(name))
    ours = Model(str(path))
    with torch.no_grad():
        for window in windows(ours, TEXT, None, N_CTX):
            model(torch.from_numpy(window.astype(np.int64))[None])
    return found


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.mark.peer("transformers")
def test_against_transformers(tmp_path: Path) -> None:
    folder = golden("llama-relu-gqa", tmp_path / "model")
    path = convert(folder, outfile=tmp_path / "m.gguf", outtype="f32", log=quiet)
    ours, theirs = measured(path, type_k=0, type_v=0), expected(folder, path)
    assert ours.datasets == ["t.txt"] and ours.chunk == N_CTX and ours.chunks > 3
    assert len(ours.inputs) == 7 * Model(str(path)).n_layer + 1
    for name, (sums, rows) in theirs.items():
        layer, _, part = name.removeprefix("model.layers.").partition(".")
        of = "output.weight" if name == "lm_head" else f"blk.{layer}.{NAMES[part]}.weight"
        found = ours.inputs[of]
        assert found.counts.tolist() == [rows], name
        assert np.linalg.norm(found.sums[0] - sums) <= 1e-4 * np.linalg.norm(sums), name


def test_a_mixture_counts_the_tokens_of_its_experts(tmp_path: Path) -> None:
    folder = golden("mixtral", tmp_path / "model")
    path = convert(folder, outfile=tmp_path / "m.gguf", outtype="f32", log=quiet)
    found = measured(path)
    n = sum(map(len, windows(Model(str(path)), TEXT, None, N_CTX)))
    gates, downs = (found.inputs[f"blk.1.ffn_{p}_exps.weight"] for p in ("gate", "down"))
    assert gates.sums.shape == (4, 32) and downs.sums.shape == (4, 24)
    assert gates.counts.sum() == 2 * n and np.array_equal(gates.counts, downs.counts)
    assert found.inputs["blk.1.attn_q.weight"].counts.tolist() == [n]
    # A token's input is the same for both of its experts.
    everyone = gates.sums.sum(0)
    assert (gates.sums <= everyone).all() and (everyone > 0).all()
    # Neither threads nor batches change a bit.
    for fields in ({"n_threads": 1}, {"n_ubatch": 5, "n_threads": 3, "n_threads_batch": 3}):
        again = measured(path, **fields)
        for name, inputs in found.inputs.items():
            assert np.array_equal(again.inputs[name].sums, inputs.sums), name
            assert np.array_equal(again.inputs[name].counts, inputs.counts), name


def test_neuron_rows_and_tied_heads(tmp_path: Path) -> None:
    """A file with neuron rows has the same inputs, without those of its down rows."""
    folder = golden("llama-relu-gqa", tmp_path / "model")
    dense = convert(folder, outfile=tmp_path / "d.gguf", outtype="f32", log=quiet)
    rows = convert(dense, outfile=tmp_path / "r.gguf", log=quiet)
    one, other = measured(dense).inputs, measured(rows).inputs
    assert set(one) - set(other) == {f"blk.{i}.ffn_down.weight" for i in range(2)}
    for name, inputs in other.items():
        assert np.allclose(inputs.sums, one[name].sums, rtol=1e-3), name
    tied = golden("llama-silu-tied", tmp_path / "tied")
    path = convert(tied, outfile=tmp_path / "t.gguf", outtype="f32", log=quiet)
    head = measured(path).inputs["token_embd.weight"]
    assert (head.sums > 0).all() and head.counts[0] == one["output.weight"].counts[0]


def made_up(path: Path) -> Imatrix:
    """An importance for every matrix of a file, in which a few columns matter."""
    rng, inputs = np.random.default_rng(5), {}
    with Gguf(path) as file:
        for t in file.tensors:
            if len(t.shape) > 1 and t.name != "token_embd.weight":
                n_mat = t.shape[0] if len(t.shape) > 2 else 1
                sums = np.exp(rng.normal(0, 2, (n_mat, t.shape[-1])))
                inputs[t.name] = Inputs(sums * 50, np.full(n_mat, 50.0))
    return Imatrix(["a.txt", "b.txt"], 7, 512, inputs)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense file whose rows are multiples of 256, and W.imatrix beside it."""
    folder = tmp_path_factory.mktemp("imatrix")
    cfg = checkpoints.config(
        hidden_size=256, intermediate_size=256, head_dim=64, num_hidden_layers=1
    )
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    path = convert(folder / "model", outfile=folder / "wide.gguf", outtype="f32", log=quiet)
    write(folder / "wide.imatrix", made_up(path))
    return path


def test_files_are_llama_cpps(wide: Path, tmp_path: Path) -> None:
    reader, made = gguf.GGUFReader(wide.with_suffix(".imatrix")), made_up(wide)
    fields = {key: field.contents() for key, field in reader.fields.items() if "." in key}
    keys = {
        "general.type": "imatrix",
        "imatrix.datasets": ["a.txt", "b.txt"],
        "imatrix.chunk_count": 7,
        "imatrix.chunk_size": 512,
    }
    assert {k: v for k, v in fields.items() if not k.startswith("GGUF.")} == keys
    tensors = {t.name: t for t in reader.tensors}
    assert len(tensors) == 2 * len(made.inputs)
    for name, inputs in made.inputs.items():
        sums, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"]
        assert sums.shape.tolist() == [inputs.sums.shape[1], 1] and counts.shape.tolist() == [1, 1]
        assert np.array_equal(sums.data, inputs.sums.astype(np.float32))
        assert counts.data.reshape(-1).tolist() == [50.0]
    again = read(wide.with_suffix(".imatrix"))
    assert (again.datasets, again.chunks, again.chunk) == (made.datasets, 7, 512)
    # The older format: means times the number of windows.
    parts = [struct.pack("<i", len(made.inputs))]
    for name, inputs in made.inputs.items():
        values = (inputs.sums / 50 * 3).astype("<f4").reshape(-1)
        parts += [struct.pack("<i", len(name)), name.encode()]
        parts += [struct.pack("<ii", 3, len(values)), values.tobytes()]
    parts += [struct.pack("<ii", 3, 5), b"a.txt"]
    (tmp_path / "old.dat").write_bytes(b"".join(parts))
    old = read(tmp_path / "old.dat")
    assert old.datasets == ["a.txt"] and old.chunks == 3
    for name, inputs in made.inputs.items():
        row = inputs.sums.shape[1]
        assert np.allclose(old.importance(name, 1, row), again.importance(name, 1, row))
    for cut in (2, 30, 400):
        (tmp_path / "cut.dat").write_bytes(b"".join(parts)[:cut])
        with pytest.raises(ModelFormatError, match=r"cut\.dat: no importance matrix, or cut off"):
            read(tmp_path / "cut.dat")


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K_M", "IQ4_XS", "Q4_0", "Q5_1"])
def test_important_columns_become_more_exact(name: str, wide: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    quantize(wide, tmp_path / "a.gguf", name, choice=Choice(pure=True), log=lines.append)
    path = wide.with_suffix(".imatrix")
    out = tmp_path / "b.gguf"
    quantize(wide, out, name, choice=Choice(pure=True), imatrix=path, log=lines.append)
    assert lines == [f"{path}: no entry for token_embd.weight: written without importance"]
    exact = {t.name: t.data for t in gguf.GGUFReader(wide).tensors}
    errors: dict[str, list[float]] = {}
    for file in ("a.gguf", "b.gguf"):
        for t in gguf.GGUFReader(tmp_path / file).tensors:
            if len(t.shape) == 2 and t.name != "token_embd.weight":
                back = gguf.quants.dequantize(t.data, t.tensor_type)
                weights = made_up(wide).inputs[t.name].sums
                error = float((weights * (back - exact[t.name]) ** 2).sum())
                errors.setdefault(t.name, []).append(error)
    assert len(errors) == 8
    for tensor, (without, with_it) in errors.items():
        assert with_it < 0.9 * without, tensor
    keys = Gguf(out).metadata
    assert keys["quantize.imatrix.file"] == "wide.imatrix"
    assert keys["quantize.imatrix.dataset"] == "a.txt, b.txt"
    assert keys["quantize.imatrix.entries_count"] == 8
    assert keys["quantize.imatrix.chunks_count"] == 7


def test_experts_have_their_own_importance(tmp_path: Path) -> None:
    folder = golden("mixtral", tmp_path / "model")
    path = convert(folder, outfile=tmp_path / "m.gguf", outtype="f32", log=quiet)
    found = made_up(path)
    name = "blk.1.ffn_gate_exps.weight"
    inputs = found.inputs[name]
    found.inputs[name] = Inputs(inputs.sums, np.array([50.0, 50.0, 0.0, 50.0]))
    write(tmp_path / "i.gguf", found)
    quantize(path, tmp_path / "q.gguf", "Q4_1", imatrix=tmp_path / "i.gguf", log=quiet)
    quantize(path, tmp_path / "p.gguf", "Q4_1", log=quiet)
    files = (path, tmp_path / "q.gguf", tmp_path / "p.gguf")
    exact, with_it, without = (
        next(t for t in gguf.GGUFReader(file).tensors if t.name == name) for file in files
    )
    kind = gguf.GGMLQuantizationType.Q4_1
    for expert in (0, 1, 3):
        weights = inputs.sums[expert]
        errors = [
            (
                weights * (gguf.quants.dequantize(t.data, kind)[expert] - exact.data[expert]) ** 2
            ).sum()
            for t in (with_it, without)
        ]
        assert errors[0] < errors[1], expert


def test_commands(wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "t.txt", tmp_path / "i.gguf"
    text.write_bytes(TEXT)
    profile = ["profile", str(wide), "--text", str(text), "-c", str(N_CTX)]
    assert main([*profile, "--imatrix", str(out)]) == 0
    assert "inputs of 8 tensors" in capsys.readouterr().out
    model = str(tmp_path / "q.gguf")
    assert main(["quantize", str(wide), model, "Q3_K_M", "--imatrix", str(out)]) == 0
    assert Gguf(model).value("quantize.imatrix.chunks_count") == read(out).chunks
    capsys.readouterr()
    for wrong, message in (
        ([*profile, "--imatrix", str(out), "--out", model], "--imatrix needs --text"),
        ([*profile, "--imatrix", str(wide)], "same file"),
        (["quantize", str(wide), model, "Q4_0", "--imatrix", str(wide)], "no importance matrix"),
        (["quantize", str(wide), model, "Q4_0", "--imatrix", str(text)], "no importance matrix"),
    ):
        assert main(wrong) == 1
        assert message in capsys.readouterr().err


def test_refusals(wide: Path, tmp_path: Path) -> None:
    path, name = tmp_path / "i.gguf", "blk.0.attn_q.weight"

    def refused(inputs: Inputs, error: type[Exception], match: str) -> None:
        write(path, Imatrix(["t"], 1, 8, {name: inputs}))
        with pytest.raises(error, match=match):
            quantize(wide, tmp_path / "q.gguf", "Q4_K", imatrix=path, log=quiet)
        assert not (tmp_path / "q.gguf").exists()

    ones = np.ones(1)
    refused(Inputs(np.ones((1, 64)), ones), ValueError, r"attn_q\.weight has 64 values.*and 256")
    refused(Inputs(-np.ones((1, 256)), ones), ModelFormatError, "values below 0")
    refused(Inputs(np.ones((1, 256)), ones * np.nan), ModelFormatError, "not finite")
    refused(Inputs(np.ones((2, 128)), np.ones(3)), ModelFormatError, "256 values for 3 matrices")
    with pytest.raises(ValueError, match="not finite numbers"):
        write(path, Imatrix(["t"], 1, 8, {name: Inputs(np.full((1, 4), 1e39), ones)}))
