"""Sketches: predictors from the signs of the gates' weights."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import TEXT
from families import TOKENS, golden, quiet, smallthinker
from gguf_files import changed, raw, values
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert, source
from powerinfer_cpp.convert.embed import embed
from powerinfer_cpp.convert.writer import array, string
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import SPARSE_MODES, Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.work import PARTS
from powerinfer_cpp.plot.predictor import figures
from powerinfer_cpp.predictor import judge, search, sketch, train_predictors
from powerinfer_cpp.predictor.work import parts
from powerinfer_cpp.profile.text import windows
from powerinfer_cpp.quantize import quantize

from powerinfer_cpp import Llama, ModelFormatError

FIELDS = {"type_k": 0, "type_v": 0, "n_threads": 1}
THRESHOLD = 1.3


def dense(name: str, folder: Path) -> Path:
    """A checkpoint of a family whose neurons have exact zeros."""
    if name == "smallthinker":
        smallthinker(folder)
    else:
        golden(name, folder, **({"activation": "relu"} if name == "falcon-7b" else {}))
    return folder


def with_sketches(origin: Path, target: Path, threshold: float) -> Path:
    """The file with a sketch in every layer, and one threshold for all."""
    with Gguf(origin) as gguf:
        tensors = {t.name: t for t in source.tensors(gguf)}
        n_layer = source.size(gguf, "block_count")
        sketches = [t for i in range(n_layer) for t in sketch.layer_tensors(tensors, i)]
        keys = [
            string("powerinfer.predictor.kind", "sketch"),
            string("powerinfer.predictor.input", "normed"),
            array("powerinfer.sparse_threshold", "FLOAT32", [threshold] * n_layer),
        ]
        embed(gguf, target, keys, sketches)
    return target


FAMILIES = ("llama-relu-gqa", "bamboo", "opt", "falcon-7b", "smallthinker")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By name of a family: neuron-aware, in F32, with sketches."""
    folder = tmp_path_factory.mktemp("sketch")

    def file(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.exists():
            plain = folder / f"{name}-plain.gguf"
            convert(dense(name, folder / name), outfile=plain, outtype="f32", log=quiet)
            if not any("ffn_down_t" in tensor for tensor in raw(plain)):
                aware = folder / f"{name}-aware.gguf"
                convert(plain, outfile=aware, log=quiet)
                plain = aware
            with_sketches(plain, out, THRESHOLD)
        return out

    return file


def expected_scores(path: Path, x: np.ndarray) -> np.ndarray:
    """float64 [n_expert, t, n_ff] of the first layer, by the formula, from the rows and biases
    that the gguf package reads."""
    tensors = values(path)
    names = ("ffn_gate_exps", "ffn_gate", "ffn_up_exps", "ffn_up")
    name = next(n for n in names if f"blk.0.{n}.weight" in tensors)
    w = tensors[f"blk.0.{name}.weight"].astype(np.float64)
    w = w.reshape(-1, *w.shape[-2:])
    size = np.abs(x)
    unit = 0.45 * size.mean(axis=1, keepdims=True)
    rounded = np.sign(x) * unit * np.minimum(7, np.floor(size / unit + 0.5))
    score = np.einsum("xne,te->xtn", np.where(w < 0, -1.0, 1.0), rounded)
    bias = tensors.get(f"blk.0.{name}.bias", np.zeros(1))
    return score + bias / np.abs(w).mean(axis=-1)[:, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_proposes_what_the_signs_say(family: str, files: Callable[[str], Path]) -> None:
    path = files(family)
    with Llama(
        path, n_ctx=64, verbose=False, sparse="exact", record="fired+input", **FIELDS
    ) as llm:
        llm.eval(TOKENS)
        x = llm.ffn_inputs()[0].astype(np.float64)
        fired = llm.activations()[0].reshape(len(TOKENS), -1, llm.activations().shape[-1])
    score = expected_scores(path, x)
    chosen = fired.any(axis=2) if score.shape[0] > 1 else np.ones((len(TOKENS), 1), bool)
    proposed = (score.transpose(1, 0, 2) >= THRESHOLD)[chosen]
    model = Model(str(path))
    options = {**FIELDS, "n_ctx": 64, "n_batch": 64, "n_ubatch": 64, "n_logits": 1}
    session = Session(model, **options, sparse=SPARSE_MODES.index("predictor"))
    session.eval(np.array(TOKENS, np.int32))
    work = session.work()
    shares = work.shares()
    assert 0.05 < proposed.mean() < 0.95
    assert shares["predicted"][0] == pytest.approx(proposed.mean(), abs=1e-9)
    # Of a mixture the chosen experts, of others all: what is proposed and fires is what is summed.
    found = (proposed & fired[chosen]).mean()
    assert shares["fired"][0] == pytest.approx(found, abs=1e-9)
    tensors = {name: len(data) for name, (_, _, data) in raw(path).items() if ".sketch" in name}
    per_expert = sum(tensors.values()) / score.shape[0]
    read = work.sums[PARTS.index("predictor")]
    assert read == pytest.approx(chosen.sum() * per_expert)
    assert (".sketch.bias" in str(tensors)) == (family == "opt")


@pytest.mark.parametrize("family", FAMILIES)
def test_bits(family: str, files: Callable[[str], Path]) -> None:
    """The same for any threads and splits of the prompt; if all are proposed, as in exact mode."""

    def logits(pieces: list[list[int]], **options: object) -> np.ndarray:
        options = {**FIELDS, "n_ctx": 64, "verbose": False, "logits_all": True, **options}
        with Llama(files(family), **options) as llm:
            for piece in pieces:
                llm.eval(piece)
            return llm.scores[: len(TOKENS)].copy()

    masked = logits([TOKENS], sparse="predictor")
    exact = logits([TOKENS], sparse="exact")
    assert not np.array_equal(masked, exact)
    assert np.array_equal(logits([[t] for t in TOKENS], sparse="predictor"), masked)
    assert np.array_equal(logits([TOKENS], sparse="predictor", n_threads=3), masked)
    everyone = logits([TOKENS], sparse="predictor", sparse_threshold=-1e30)
    assert np.array_equal(everyone, exact)


def test_signs_that_lie_raise_perplexity(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The default model at a threshold with almost no cost; with wrong signs it fails."""
    convert(model_path, outfile=tmp_path / "aware.gguf", log=quiet)
    right = with_sketches(tmp_path / "aware.gguf", tmp_path / "right.gguf", -16.0)
    wrong = changed(
        right, tmp_path / "wrong.gguf", tensors=lambda n, d: d[::-1] if ".sketch" in n else d
    )
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a little dog. He liked to run in the park. " * 12)

    def shown(path: Path, mode: str) -> tuple[float, float]:
        capsys.readouterr()
        line = ["perplexity", str(path), "--text", str(text), "-c", "64", "--sparse", mode]
        assert main(line) == 0
        out = capsys.readouterr().out
        predicted = float(re.search(r"predicted (\d+\.\d\d)%", out)[1]) / 100
        return float(re.search(r"PPL = (\d+\.\d{4})", out)[1]), predicted

    (off, _), (masked, share), (broken, _) = (
        shown(right, "off"),
        shown(right, "predictor"),
        shown(wrong, "predictor"),
    )
    assert share < 0.7 and masked == pytest.approx(off, rel=0.02) and masked != off
    assert broken > 1.3 * off


@pytest.mark.parametrize("family", ["llama-relu-gqa", "opt", "smallthinker"])
def test_whole_way(
    family: str,
    files: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Without torch: thresholds from a text, the target is met, tools handle the file."""
    monkeypatch.setitem(sys.modules, "torch", None)
    words = np.random.default_rng(0).choice(TEXT.split(), 900)
    (tmp_path / "t.txt").write_text(" ".join(words))
    options = {"kind": "sketch", "n_ctx": 32, "target": 0.3, **FIELDS}
    out = tmp_path / "out.gguf"
    report = train_predictors(files(family), out, tmp_path / "t.txt", **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "t.txt"]
    assert report.kind == "sketch"
    # The target is met where sizes were decided; what is said is measured where nothing was.
    opened = Model(str(out))
    pieces = windows(opened, (tmp_path / "t.txt").read_bytes(), None, 32)

    of = parts(len(pieces), 32, True)

    def likelihoods(some: np.ndarray) -> list[judge.Likelihood]:
        chosen = [pieces[i] for i in some]
        modes = ("predictor", "exact")
        return [judge.likelihood(opened, chosen, mode, **FIELDS) for mode in modes]

    judged, both = judge.loss(*likelihoods(of.sizes)), likelihoods(of.tests)
    assert judged.mean < judged.most <= 0.3
    tested = [float(np.exp(each.mean)) for each in both]
    assert tested == pytest.approx([report.perplexity, report.reference])
    assert report.error == pytest.approx(judge.loss(*both).error)
    assert report.n_tested == sum(len(pieces[i]) - 1 for i in of.tests)
    more = any("on windows that decided nothing" in note for note in report.notes)
    assert more == (tested[0] > 1.3 * tested[1])
    stored = raw(out)
    for i, layer in enumerate(report.layers):
        names = [n for n in stored if n.startswith(f"blk.{i}.sketch")]
        assert bool(names) == bool(layer.rank)
        assert layer.n_bytes <= layer.exact_bytes and layer.recall >= search.RECALLS[0]
    with Gguf(out) as gguf:
        assert gguf.value("powerinfer.predictor.kind") == "sketch"
        for key, name in (
            ("sparse_threshold", "threshold"),
            ("predictor.recall", "recall"),
            ("predictor.precision", "precision"),
        ):
            expected = [getattr(n, name) if n.rank else 0.0 for n in report.layers]
            assert np.allclose(gguf.value(f"powerinfer.{key}"), expected)
    assert any(layer.rank for layer in report.layers)
    # From bundles the same sketches; quantize leaves them as they are.
    quantize(files(family), tmp_path / "b.gguf", "F16", bundle=True, log=quiet)
    train_predictors(tmp_path / "b.gguf", tmp_path / "b2.gguf", tmp_path / "t.txt", **options)
    quantize(out, tmp_path / "q.gguf", "F16", predictor_type="F16", log=quiet)
    for other in ("b2.gguf", "q.gguf"):
        found = raw(tmp_path / other)
        assert all(found[n] == stored[n] for n in stored if ".sketch" in n)
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    assert "sketches of layers" in capsys.readouterr().out
    with Gguf(out) as gguf:
        shown = figures(gguf)
    assert set(shown["bytes"]) == {i for i, layer in enumerate(report.layers) if layer.rank}
    assert not shown["rank"]


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "kind": ({"powerinfer.predictor.kind": "oracle"}, "kind is neither mlp nor sketch"),
    "residual": ({"powerinfer.predictor.input": "residual"}, "must be normed for sketches"),
    "input": ({"powerinfer.predictor.input": None}, "must be normed for sketches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_contradict(name: str, files: Callable[[str], Path], tmp_path: Path) -> None:
    keys, message = REFUSED[name]
    bad = changed(files("opt"), tmp_path / "bad.gguf", keys)
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=message):
        Llama(bad, verbose=False)


TENSORS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray | None], str]] = {
    "width": ("weight", lambda d: d[:, :3], r"has shape \[3, 64\], expected \[4, 64\]"),
    "neurons": ("weight", lambda d: d[:60], r"has shape \[4, 60\], expected \[4, 64\]"),
    "type": ("weight", lambda d: d.astype(np.float32), "has type F32"),
    "missing": ("weight", lambda _d: None, "is missing"),
    "offsets": ("bias", lambda d: d[:60], r"has shape \[60\], expected \[64\]"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit(name: str, files: Callable[[str], Path], tmp_path: Path) -> None:
    part, edit, message = TENSORS[name]
    tensor = f"blk.1.sketch.{part}"
    bad = changed(
        files("opt"), tmp_path / "bad.gguf", tensors=lambda n, d: edit(d) if n == tensor else d
    )
    with pytest.raises(ModelFormatError, match=f'bad.gguf: tensor "{tensor}" {message}'):
        Llama(bad, verbose=False)


def test_what_it_does_not_work_for(tmp_path: Path) -> None:
    golden("llama-silu-tied", tmp_path / "m")
    convert(tmp_path / "m", outfile=tmp_path / "d.gguf", outtype="f32", log=quiet)
    convert(tmp_path / "d.gguf", outfile=tmp_path / "a.gguf", log=quiet)
    (tmp_path / "t.txt").write_text(TEXT * 20)
    line = (tmp_path / "a.gguf", tmp_path / "o.gguf", tmp_path / "t.txt")
    with pytest.raises(
        UnsupportedModelError, match="only in models of the ReLU family, not .*silu"
    ):
        train_predictors(*line, kind="sketch", n_ctx=32)
    with pytest.raises(ValueError, match="a sketch stands for gates"):
        train_predictors(*line, kind="sketch", predictor_input="residual")
    assert not (tmp_path / "o.gguf").exists()
