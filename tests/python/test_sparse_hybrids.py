"""Profiles, sketches, placements and storage of models whose layers differ in kind and size:
Nemotron-H and Nemotron 3, with and without experts, a shared one, and narrow ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mamba_models as models
import numpy as np
import pytest
from checkpoints import TEXT
from circles import pick
from families import quiet
from gguf_files import raw, values
from powerinfer_cpp.bundle import bundle, check_bundle
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert, source
from powerinfer_cpp.convert.statistics import from_gguf
from powerinfer_cpp.core.errors import OutOfMemoryError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import SPARSE_MODES, Model
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.measure import bench
from powerinfer_cpp.placement import Machine, embed_placement, place, read_model, read_placement
from powerinfer_cpp.predictor import train as training
from powerinfer_cpp.predictor import train_predictors
from powerinfer_cpp.predictor.pairs import Pairs
from powerinfer_cpp.profile import profile
from powerinfer_cpp.profile.text import windows
from test_sketch import with_sketches

from powerinfer_cpp import Llama

# Sizes for which sketches have whole bytes, and the disk more than a few neurons.
SIZES: dict[str, dict[str, Any]] = {
    "nemotron": {},
    "nemotron-moe": {"moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 64},
    "nemotron-groups": {"moe_intermediate_size": 72, "intermediate_size": 48},
    "nemotron-narrow": {"moe_latent_size": 24, "moe_intermediate_size": 80},
}
TOKENS = [1, *(int(t) for t in np.random.default_rng(0).integers(3, 300, 39))]
FIELDS: dict[str, Any] = {"type_k": 0, "type_v": 0}
QUIET: dict[str, Any] = {"n_ctx": 64, "verbose": False, **FIELDS}


def config_of(name: str) -> dict[str, Any]:
    return {**models.MODELS[name], **SIZES[name]}


def layers_of(name: str) -> list[int]:
    """The layers that have neurons."""
    kinds = models.kinds_of(config_of(name))
    return [i for i, kind in enumerate(kinds) if kind in ("mlp", "moe")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By name of a model: neuron rows in F32, beside its checkpoint."""
    folder = tmp_path_factory.mktemp("hybrids")

    def file(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.exists():
            models.checkpoint(name, folder / name, 3, **SIZES[name])
            plain = convert(
                folder / name, outfile=folder / f"{name}-plain.gguf", outtype="f32", log=quiet
            )
            convert(plain, outfile=out, log=quiet)
        return out

    return file


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(TEXT.split(), 900)))
    return path


@pytest.fixture(scope="module")
def profiled(
    files: Callable[[str], Path], text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("profiled")

    def file(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.exists():
            profile(Model(str(files(name))), out, text, n_ctx=32, n_tokens=320, **FIELDS)
        return out

    return file


def scores(path: Path, at_once: int = 64, **options: Any) -> np.ndarray:
    with Llama(path, logits_all=True, **QUIET, **options) as llm:
        for i in range(0, len(TOKENS), at_once):
            llm.eval(TOKENS[i : i + at_once])
        return llm.scores[: len(TOKENS)].copy()


class Counting(models.Reference):
    """The forward pass in float64, which counts the rows for which each neuron fires."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.fired: dict[str, np.ndarray] = {}

    def squared(self, y: np.ndarray, name: str) -> np.ndarray:
        rows = (self.linear(y, f"{name}.up_proj") > 0).reshape(-1, len(self.w_up(name)))
        self.fired[name] = self.fired.get(name, 0) + rows.sum(0)
        return super().squared(y, name)

    def w_up(self, name: str) -> np.ndarray:
        return self.w[f"{name}.up_proj.weight"]


@pytest.mark.parametrize("name", SIZES)
def test_profile_counts_what_fires(name: str, files: Callable[[str], Path], text: Path) -> None:
    """By the float64 forward pass, but for neurons that are zero up to rounding."""
    model = Model(str(files(name)))
    found = profile(model, None, text, n_ctx=32, n_tokens=64, export=None, **FIELDS)
    counting = Counting(*models.read(files(name).with_suffix("")))
    for window in windows(model, text.read_bytes(), None, 32, 64):
        counting.logits(window.tolist())
    cfg, kinds = config_of(name), models.kinds_of(config_of(name))
    assert found.tokens == 64 and len(found.layers) == len(kinds)
    for i, (kind, counts) in enumerate(zip(kinds, found.layers, strict=True)):
        mixer = f"backbone.layers.{i}.mixer"
        if kind == "mlp":
            expected = counting.fired[mixer][None]
        elif kind == "moe":
            n, width = cfg["n_routed_experts"], cfg["moe_intermediate_size"]
            none = np.zeros(width, int)
            expected = [counting.fired.get(f"{mixer}.experts.{e}", none) for e in range(n)]
            expected = np.stack(expected)
        else:
            assert counts.shape == (1, 0)
            continue
        assert counts.shape == expected.shape and expected.any()
        assert np.abs(counts.astype(int) - expected).sum() <= 2


@pytest.mark.parametrize("name", SIZES)
def test_statistics_in_the_file(
    name: str, files: Callable[[str], Path], profiled: Callable[[str], Path], tmp_path: Path
) -> None:
    """One tensor for each layer with neurons; they come back from it, and from PowerInfer's folder;
    another profile adds to them."""
    path, layers = profiled(name), layers_of(name)
    kinds = models.kinds_of(config_of(name))
    rates = {n: v for n, v in values(path).items() if "ffn_rate" in n}
    ends = {i: "_exps" if kinds[i] == "moe" else "" for i in layers}
    assert set(rates) == {f"blk.{i}.ffn_rate{end}" for i, end in ends.items()}
    with Gguf(path) as gguf:
        found = from_gguf(gguf)
    assert found.tokens == 320
    for i, end in ends.items():
        rate = rates[f"blk.{i}.ffn_rate{end}"]
        assert np.allclose(found.layer_rates(i).reshape(rate.shape), rate, atol=1e-6)
        assert 0 < rate.mean() < 1
    model, folder = Model(str(files(name))), tmp_path / "activations"
    again = profile(model, None, merge=[path, path], export=folder)
    assert again.tokens == 640
    assert sorted(int(p.stem.split("_")[1]) for p in folder.iterdir()) == layers
    back = profile(model, None, imported=folder, imported_tokens=640)
    for a, b, c in zip(again.layers, back.layers, found.layers, strict=True):
        assert np.array_equal(a, b) and np.array_equal(a, 2 * c)
    out = convert(files(name), outfile=tmp_path / "a.gguf", profile=folder, log=quiet)
    most = max(int(counts.max()) for counts in again.layers if counts.size)  # tokens, at least
    written = {n: v for n, v in values(out).items() if "ffn_rate" in n}
    assert set(written) == set(rates)
    assert all(np.allclose(v, rates[n] * 640 / most, atol=1e-5) for n, v in written.items())


def test_profile_says_which_layers(
    profiled: Callable[[str], Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    options = ["--text", str(text), "-c", "32", "--tokens", "64", "--out", str(tmp_path / "a.gguf")]
    assert main(["profile", str(profiled("nemotron-groups")), *options]) in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines[2:5]] == layers_of("nemotron-groups")


# ---- Predictors ----


@pytest.mark.parametrize("name", ["nemotron-groups", "nemotron-narrow"])
def test_pairs_are_what_the_engine_computes(
    name: str, files: Callable[[str], Path], text: Path, tmp_path: Path
) -> None:
    """The sign of up . x says which neurons fire, for the inputs that were recorded."""
    path = with_sketches(files(name), tmp_path / "m.gguf", 0.0)
    model = Model(str(path))
    pairs = Pairs(tmp_path, model, 64)
    pairs.record(model, windows(model, text.read_bytes(), None, 32, 64), **FIELDS)
    assert list(pairs.layers) == layers_of(name)
    tensors, rows = values(path), np.arange(64)
    for layer, own in pairs.layers.items():
        end = "_exps" if own.mixture else ""
        up = tensors[f"blk.{layer}.ffn_up{end}.weight"].reshape(own.n_expert, own.n_ff, own.width)
        chosen = 0
        for expert in range(own.n_expert):
            mine = own.chose(rows, expert)
            chosen += len(mine)
            gate = own.inputs[mine].astype(np.float32) @ up[expert].T
            sure = np.abs(gate) > 0.02  # inputs are kept in half precision
            assert sure.any() and np.array_equal(own.fired(mine, expert)[sure], (gate > 0)[sure])
        assert chosen == own.used * 64


@pytest.mark.parametrize("name", SIZES)
def test_sketches(name: str, files: Callable[[str], Path], tmp_path: Path) -> None:
    """Each layer with neurons has one; the bits do not depend on threads or cuts; and if all
    neurons are proposed, they are those of exact mode."""
    path = with_sketches(files(name), tmp_path / "m.gguf", 3.0)
    layers = layers_of(name)
    found = sorted(n for n in raw(path) if ".sketch" in n)
    assert [int(n.split(".")[1]) for n in found] == layers
    masked, exact = (scores(path, sparse=mode) for mode in ("predictor", "exact"))
    assert not np.array_equal(masked, exact)
    for options in ({"at_once": 1}, {"at_once": 7}, {"n_threads": 3}):
        assert np.array_equal(scores(path, sparse="predictor", **options), masked)
    assert np.array_equal(scores(path, sparse="predictor", sparse_threshold=-1e30), exact)
    model = Model(str(path))
    session = Session(model, n_ctx=64, n_batch=64, sparse=SPARSE_MODES.index("predictor"), **FIELDS)
    session.eval(np.array(TOKENS, np.int32))
    predicted, fired = (session.work().by_layer(part) for part in ("predicted", "fired"))
    assert all(predicted[i] >= fired[i] > 0 for i in layers)
    assert not any(predicted[i] for i in range(model.n_layer) if i not in layers)


@pytest.mark.parametrize("name", pick(["nemotron", "nemotron-narrow"], list(SIZES)))
def test_sketches_from_a_text(
    name: str, profiled: Callable[[str], Path], text: Path, tmp_path: Path
) -> None:
    """The whole way of `powerinfer train-predictor --kind sketch`, and perplexity with them."""
    out, options = tmp_path / "out.gguf", {"n_ctx": 32, "target": 20.0, **FIELDS}
    report = train_predictors(profiled(name), out, text, kind="sketch", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    layers = layers_of(name)
    assert [layer.layer for layer in report.layers] == layers
    assert all(0 < layer.fired < 1 for layer in report.layers)
    predicted = [layer.layer for layer in report.layers if layer.rank]
    assert sorted(int(n.split(".")[1]) for n in raw(out) if ".sketch" in n) == predicted
    with Gguf(out) as gguf:
        recall = gguf.value("powerinfer.predictor.recall")
    if predicted:
        assert [i for i, value in enumerate(recall) if value] == predicted
    short = tmp_path / "short.txt"
    short.write_bytes(text.read_bytes()[:400])
    args = ["--text", str(short), "-c", "32", "--sparse", "predictor", "--compare", "off"]
    assert main(["perplexity", str(out), *args]) in (0, None)


@pytest.mark.peer("torch")
@pytest.mark.parametrize("name", ["nemotron-groups", "nemotron-narrow"])
def test_mlps_from_a_text(
    name: str,
    profiled: Callable[[str], Path],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    monkeypatch.setattr(training, "BATCH", 128)
    out, options = tmp_path / "out.gguf", {"n_ctx": 32, "target": 20.0, "epochs": 8, **FIELDS}
    report = train_predictors(profiled(name), out, text, torch_device="cpu", **options)
    assert [layer.layer for layer in report.layers] == layers_of(name)
    assert any(layer.rank for layer in report.layers)
    scores(out, sparse="predictor")


# ---- Placements ----


@pytest.mark.parametrize("name", SIZES)
def test_placement(name: str, profiled: Callable[[str], Path], tmp_path: Path) -> None:
    """Its bytes are the plan's; the file has it for each layer with neurons, and runs."""
    path = profiled(name)
    with Gguf(path) as gguf:
        model = read_model(gguf, 64, 16)
        assert [layer.statistics.layer for layer in model.layers] == layers_of(name)
        ours: dict[str, int] = {}
        for part in model.parts:
            ours[part.kind] = ours.get(part.kind, 0) + part.n_bytes
        session = {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16, "n_logits": 1}
        plan = memory_plan(str(path), {}, session)["ram"]
        rows = sum(layer.statistics.n_bytes for layer in model.layers)
        kinds = ("norms", "attention", "shared")
        assert sum(ours.get(kind, 0) for kind in kinds) + rows == sum(
            plan[part] for part in ("norms", "attention", "ffn")
        )
        fixed = sum(ours.values())
        found = place(model, Machine(ram=30e9), 0, fixed + rows // 2, group=8)
        out = tmp_path / "out.gguf"
        embed_placement(gguf, out, found)
    storage, ram, gpu = found.neuron_bytes()
    assert storage > 0 and ram > 0 and gpu == 0 and storage + ram == rows
    with Gguf(out) as gguf:
        for own, tier in zip(read_placement(gguf), found.tiers(), strict=True):
            assert np.array_equal(own, tier)
    assert np.array_equal(scores(out, sparse="exact"), scores(path, sparse="exact"))


# ---- Storage ----


def with_less_memory(path: Path, shares: np.ndarray, **options: Any) -> list[np.ndarray]:
    """Logits with falling budgets, as long as the model runs."""
    total = sum(memory_plan(str(path), {}, {"n_ctx": 64, "n_batch": 16})["ram"].values())
    found = []
    for share in shares:
        budget = {"ram_budget": total * share / (1 << 30), "n_batch": 16}
        try:
            with Llama(path, **budget, **QUIET) as llm:
                assert sum(llm.plan()["storage"].values()) > 0
        except OutOfMemoryError:
            break
        found += [scores(path, at_once, **budget, **options) for at_once in (1, 16)]
    return found


# Rows of 512 bytes, a unit of the disk, and so many of them that most of a model is neurons.
LARGE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 1536,
    "n_routed_experts": 12,
    "moe_intermediate_size": 160,
    "moe_shared_expert_intermediate_size": 320,
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By name of a model: neuron rows in F32, with sketches."""
    folder = tmp_path_factory.mktemp("large")

    def file(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.exists():
            latent = {"moe_latent_size": 64} if "narrow" in name else {}
            known = config_of(name)
            sizes = {key: value for key, value in LARGE.items() if key in known}
            models.checkpoint(name, folder / name, 3, **sizes, **latent)
            plain, rows = folder / f"{name}-plain.gguf", folder / f"{name}-rows.gguf"
            convert(folder / name, outfile=plain, outtype="f32", log=quiet)
            with_sketches(convert(plain, outfile=rows, log=quiet), out, 3.0)
        return out

    return file


@pytest.mark.parametrize(
    ("name", "sparse"),
    pick(
        [("nemotron", "predictor"), ("nemotron-groups", "off"), ("nemotron-narrow", "exact")],
        list(itertools.product(SIZES, ("exact", "off", "predictor"))),
    ),
)
def test_from_storage(name: str, sparse: str, large: Callable[[str], Path]) -> None:
    """The bits are those of memory."""
    path = large(name)
    want = scores(path, 16, sparse=sparse, n_batch=16)
    stored = with_less_memory(path, np.array([0.9, 0.7, 0.5]), sparse=sparse)
    assert stored and all(np.array_equal(found, want) for found in stored)


@pytest.mark.parametrize("used", pick([3, 8, 9], [1, 3, 8, 9, 12]))
def test_experts_of_a_row(used: int, tmp_path: Path) -> None:
    """They are computed together, eight at a time as rows. The bits are those of many rows."""
    folder, plain, rows = (tmp_path / name for name in ("checkpoint", "plain.gguf", "rows.gguf"))
    models.checkpoint("nemotron-moe", folder, 3, **LARGE, num_experts_per_tok=used)
    convert(folder, outfile=plain, outtype="q8_0", log=quiet)
    convert(plain, outfile=rows, log=quiet)
    for path, together in ((plain, "matmul"), (rows, "whole_ffns")):
        want = scores(path)
        for n_threads in (1, 2, 3):
            found = scores(path, 1, n_threads=n_threads)
            assert np.array_equal(found, want), (path, n_threads)
        (test,) = bench.tests([0], [4], [0])
        ops = {op.op for op in bench.measure(Model(str(path)), test, 1, 0, None, ops=True).ops}
        assert together in ops and "gather_rows" not in ops  # which goes before a single expert


@pytest.mark.parametrize("name", SIZES)
def test_bundles(name: str, profiled: Callable[[str], Path], tmp_path: Path) -> None:
    """Written by the converter and by the engine, they have the same neurons."""
    path, want = profiled(name), scores(profiled(name), sparse="exact")
    by_engine, by_converter = tmp_path / "engine.gguf", tmp_path / "converter.gguf"
    bundle(path, by_engine)
    convert(path, outfile=by_converter, bundle=True, log=quiet)
    tensors = [raw(file) for file in (by_engine, by_converter)]
    bundled = [{n: t[2] for n, t in own.items() if "ffn_bundle" in n} for own in tensors]
    assert bundled[0] and bundled[0] == bundled[1]
    for file in (by_engine, by_converter):
        check_bundle(file)
        assert np.array_equal(scores(file, sparse="exact"), want)
        plain = convert(file, dense=True, outfile=tmp_path / "plain.gguf", log=quiet)
        assert {n for n in raw(plain) if "ffn_down" in n} == {
            n.replace("_t.", ".").replace("_t_", "_") for n in raw(path) if "ffn_down_t" in n
        }
    with Gguf(by_engine) as gguf:
        assert {t.name for t in source.tensors(gguf)} == set(raw(path))
