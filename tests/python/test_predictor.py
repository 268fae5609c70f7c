"""Training of predictors: recording, learning, the choice of ranks, and the resulting file."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import quiet
from gguf_files import values
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.embed import embed
from powerinfer_cpp.convert.writer import float32
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.options import SPARSE_MODES
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.work import PARTS
from powerinfer_cpp.measure.perplexity import log_likelihoods
from powerinfer_cpp.predictor import judge, mlps, search, solve, train_predictors
from powerinfer_cpp.predictor import train as training
from powerinfer_cpp.predictor.pairs import Pairs, bytes_per_token
from powerinfer_cpp.predictor.train import Curve, curve
from powerinfer_cpp.predictor.work import parts
from powerinfer_cpp.profile import profile
from powerinfer_cpp.profile.text import windows

from powerinfer_cpp import Llama

CFG = checkpoints.config(hidden_act="relu", hidden_size=96, num_attention_heads=6)
FIELDS = {"type_k": 0, "type_v": 0, "n_threads": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.gguf with neuron rows, dense.gguf without, and a text of random words."""
    folder = tmp_path_factory.mktemp("predictor")
    weights = checkpoints.weights({**CFG, "num_key_value_heads": 6})
    for i in range(2):  # biases make neurons of which some fire seldom
        weights[f"model.layers.{i}.mlp.gate_proj.bias"] = np.linspace(-4, 0, 96, dtype=np.float32)
        weights[f"model.layers.{i}.mlp.up_proj.bias"] = np.zeros(96, np.float32)
        weights[f"model.layers.{i}.mlp.down_proj.bias"] = np.zeros(96, np.float32)
    cfg = {**CFG, "num_key_value_heads": 6, "mlp_bias": True}
    checkpoints.save(folder / "model", cfg, weights)
    options = {"outtype": "f32", "log": quiet}
    convert(folder / "model", outfile=folder / "dense.gguf", **options)
    convert(folder / "dense.gguf", outfile=folder / "model.gguf", log=quiet)
    words = np.random.default_rng(0).choice(checkpoints.TEXT.split(), 900)
    (folder / "t.txt").write_text(" ".join(words))
    words = np.random.default_rng(7).choice(checkpoints.TEXT.split(), 90)
    (folder / "unseen.txt").write_text(" ".join(words))
    return folder


def test_pairs_are_what_the_engine_shows(files: Path, tmp_path: Path) -> None:
    model = Model(str(files / "model.gguf"))
    pieces = windows(model, (files / "t.txt").read_bytes(), None, 32)[:5]
    pairs = Pairs(tmp_path, model, 5 * 32)
    pairs.record(model, pieces, **FIELDS)
    options = {"record": "fired+input", "sparse": "exact", "type_k": 0, "type_v": 0}
    with Llama(str(files / "model.gguf"), n_ctx=32, verbose=False, **options) as llm:
        for i, piece in enumerate(pieces):
            llm.reset()
            llm.eval(piece)
            rows = np.arange(32 * i, 32 * i + 32)
            for layer in range(2):
                own, theirs = pairs.layers[layer], llm.ffn_inputs()[layer]
                assert np.array_equal(own.fired(rows), llm.activations()[layer])
                assert np.array_equal(own.inputs[rows], theirs.astype(np.float16))


def test_curve_counts_what_a_threshold_does(files: Path, tmp_path: Path) -> None:
    model = Model(str(files / "model.gguf"))
    pairs = Pairs(tmp_path, model, 64)
    pairs.record(model, windows(model, (files / "t.txt").read_bytes(), None, 32)[:2], **FIELDS)
    rng = np.random.default_rng(1)
    fc1, fc2 = rng.standard_normal((32, 96)), rng.standard_normal((96, 32))
    rows = np.arange(10, 64)

    def scores(_expert: int, x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ fc1.T, 0) @ fc2.T

    own = pairs.layers[1]
    found = curve(own, rows, scores, search.RECALLS)
    score = scores(0, own.inputs[rows].astype(np.float32))
    fired = own.fired(rows)
    for i, wanted in enumerate(search.RECALLS):
        proposed = score >= found.threshold[i]
        recall = (proposed & fired).sum() / fired.sum()
        assert recall >= wanted and math.isclose(recall, found.recall[i])
        assert math.isclose(proposed.mean(), found.predicted[i])
        assert math.isclose((proposed & fired).mean(), found.hit[i])
        higher = score >= np.nextafter(found.threshold[i], np.inf)
        assert (higher & fired).sum() / fired.sum() < found.recall[i]
    assert math.isclose(fired.mean(), found.fired)


def test_search_takes_the_fewest_bytes() -> None:
    costs, ranks = search.Costs(first=1000.0, rest=2000.0, per_rank=1.0), search.ladder(1024)
    assert ranks == [32, 64, 128, 256, 512] and search.ladder(20) == [32]

    def shares(predicted: dict[int, float], recall: float = 0.95) -> dict[int, Curve]:
        n = len(search.RECALLS)
        return {
            rank: Curve(*(np.full(n, v) for v in (recall, 0.0, p, 0.1 * recall)), fired=0.1)
            for rank, p in predicted.items()
        }

    tried: list[int] = []
    # 32 + 900, 64 + 500, 128 + 300, 256 + 250 ... : 128 reads least, wherever the search begins.
    curves = shares({32: 0.9, 64: 0.5, 128: 0.3, 256: 0.25, 512: 0.24})
    for start in ranks:
        found = search.choose(2, start, ranks, costs, lambda r: tried.append(r) or curves[r])
        assert (found.rank, found.at) == (128, 2) and math.isclose(found.n_bytes, 128 + 300 + 190)
        assert found.exact_bytes == 1200
    tried.clear()
    search.choose(0, 128, ranks, costs, lambda r: tried.append(r) or curves[r])
    assert set(tried) == {64, 128, 256}
    useless = shares(dict.fromkeys(ranks, 1.0))
    found = search.choose(0, 64, ranks, costs, useless.__getitem__)
    found = search.cheapest([found] * len(search.RECALLS), np.zeros(len(search.RECALLS)), 1.0)
    assert found.rank == 0 and found.n_bytes == found.exact_bytes == 1200
    uneven, even = np.linspace(0, 1, 100) ** 8, np.full(100, 0.5)
    assert search.start_rank(uneven, 1024) < search.start_rank(even, 1024)


def test_search_trades_recall_between_layers() -> None:
    """A layer whose misses cost perplexity gets a higher recall than others, at every price."""
    n, missed = len(search.RECALLS), 1 - np.array(search.RECALLS)
    at = list(search.PROBES)
    lost = search.losses(0.3 * missed[at] ** 1.5)
    assert np.allclose(lost, 0.3 * missed**1.5)
    assert (np.diff(search.losses([1e-9, 2e-3])) < 0).all()  # noise: a lower recall loses less
    curve = Curve(*(np.zeros(n) for _ in range(4)), fired=0.1)
    options = [search.Choice(32, i, 900 + 100 * i / n, 1200.0, 1200.0, curve) for i in range(n)]
    chosen = [
        [search.cheapest(options, harm * lost, price) for harm in (1, 20)]
        for price in np.geomspace(1, 1e7, 29)
    ]
    assert all(a.rank >= b.rank and (not b.rank or a.at <= b.at) for a, b in chosen)
    assert any(a.at < b.at for a, b in chosen) and [c.rank for c in chosen[-1]] == [32, 0]
    assert [c.at for c in chosen[0]] == [0, 0]
    for first in range(n):
        within = search.first_within(lambda i, at=first: 0.0 if i >= at else 1.0, n, 0.1)
        assert within == first
    assert search.first_within(lambda _i: 1.0, n, 0.1) is None


def test_judge_is_the_models_likelihood(files: Path) -> None:
    model = Model(str(files / "model.gguf"))
    pieces = windows(model, (files / "t.txt").read_bytes(), None, 32)[:3]
    total = []
    session = Session(model, n_ctx=32, n_batch=1, sparse=SPARSE_MODES.index("off"), **FIELDS)
    for piece in pieces:
        session.truncate(0)
        for token, following in zip(piece, piece[1:], strict=False):
            session.eval(np.array([token]))
            total.append(log_likelihoods(session.logits(0)[None], np.array([following]))[0])
    found = judge.likelihood(model, pieces, "exact", **FIELDS)
    assert math.isclose(found.mean, -np.mean(total)) and found.counts.tolist() == [31, 31, 31]
    assert math.isclose(found.sums[1], -np.sum(total[31:62]))


def test_a_loss_has_the_error_that_it_says() -> None:
    """Of 2,000 texts the true loss is below the bound for 95%, however few the windows are."""
    random, true, size, outside = np.random.default_rng(0), 0.01, 255, {}
    for n in (6, 12, 60):
        means, errors, below = [], [], 0
        for _ in range(2000):
            # Tokens of a window have something in common, and few of them differ much.
            of_window = random.normal(0, 0.01, (n, 1))
            of_token = random.normal(0, 0.5, (n, size)) * (random.random((n, size)) < 0.05)
            exact = judge.Likelihood(random.normal(600, 90, n), np.full(n, float(size)))
            more = (math.log(1 + true) + of_window + of_token).sum(axis=1)
            loss = judge.loss(judge.Likelihood(exact.sums + more, exact.counts), exact)
            means.append(loss.mean)
            errors.append(loss.error)
            below += true <= loss.most
        assert np.mean(means) == pytest.approx(true, abs=0.0005)
        assert np.std(means) == pytest.approx(np.mean(errors), rel=0.1)
        outside[n] = 1 - below / 2000
    assert all(0.035 < share < 0.065 for share in outside.values()), outside
    same = judge.loss(exact, exact)
    assert (same.mean, same.error, same.most) == (0, 0, 0) and str(same) == "+0.000% ± 0.000%"


@pytest.mark.parametrize("untrained", [False, True])
@pytest.mark.parametrize(("n", "size"), [(20, 16), (33, 256), (200, 32), (800, 512), (9000, 512)])
def test_parts_of_a_text(n: int, size: int, untrained: bool) -> None:
    of = parts(n, size, untrained)
    every = (of.tests, of.sizes, of.learnt, of.stops)
    tests, sizes, learnt, stops = (set(part.tolist()) for part in every)
    assert tests | sizes | learnt == set(range(n)) and stops <= learnt
    assert not tests & (sizes | learnt) and (sizes <= learnt if untrained else not sizes & learnt)
    assert all((np.diff(part) > 0).all() for part in every)
    assert min(len(tests), len(sizes), len(stops)) >= n // 10 and len(learnt - stops) > n // 2
    for part in (of.tests, of.sizes):
        # Enough tokens, or a good part of the text; and from all over it.
        assert len(part) * size >= min(16384, n * size // 6 - size)
        assert np.diff(part).max() <= 2 * -(-n // len(part)) + 1
    if n * size > 10 * 16384:
        assert len(tests) == -(-n // 10)


@pytest.mark.peer("torch")
@pytest.mark.parametrize("predictor_input", ["normed", "residual"])
def test_whole_way(
    predictor_input: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose neurons can be told: predictors save bytes, within the target, in the engine
    that runs them; killed in the middle, the file is the same."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # for matrices as small as these
    options = {
        "n_ctx": 32,
        "epochs": 12,
        "target": 0.2,
        "predictor_input": predictor_input,
        "predictor_type": "Q8_0",
        "torch_device": "cpu",
        **FIELDS,
    }
    monkeypatch.setattr(training, "BATCH", 128)
    out = tmp_path / "out.gguf"
    report = train_predictors(files / "model.gguf", out, files / "t.txt", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert any(layer.rank for layer in report.layers)
    assert report.perplexity <= report.reference * 1.2
    assert any("tokens are few" in note for note in report.notes)
    with Gguf(out) as gguf, Gguf(files / "model.gguf") as before:
        names = {t.name: t for t in gguf.tensors}
        for i, layer in enumerate(report.layers):
            assert (f"blk.{i}.fc1.weight" in names) == (layer.rank > 0)
            if layer.rank:
                assert names[f"blk.{i}.fc1.weight"].shape == (layer.rank, 96)
                assert names[f"blk.{i}.fc2.weight"].shape == (96, layer.rank)
                assert layer.n_bytes < layer.exact_bytes
        thresholds = gguf.value("powerinfer.sparse_threshold")
        assert np.allclose(thresholds, [layer.threshold for layer in report.layers])
        assert gguf.value("powerinfer.predictor.input") == predictor_input
        for tensor in before.tensors:
            assert np.array_equal(gguf.data(names[tensor.name]), before.data(tensor))

    calls = []
    train = training.train

    def killed(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*args, **kwargs)

    monkeypatch.setattr(training, "train", killed)
    again = tmp_path / "again.gguf"
    with pytest.raises(KeyboardInterrupt):
        train_predictors(files / "model.gguf", again, files / "t.txt", **options)
    assert not again.exists()
    assert train_predictors(files / "model.gguf", again, files / "t.txt", **options) == report
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.peer("torch")
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_bytes_are_those_that_the_engine_reads(
    activation: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with SiLU and a threshold, where what is proposed is computed whole."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    monkeypatch.setattr(training, "BATCH", 128)
    model, out, text = tmp_path / "model.gguf", tmp_path / "out.gguf", files / "t.txt"
    if activation == "relu":
        model = files / "model.gguf"
    else:
        aware = tmp_path / "aware.gguf"
        convert(files / "dense.gguf", outfile=aware, activation=activation, log=quiet)
        profile(Model(str(aware)), model, text, n_ctx=32, cats=0.8, **FIELDS)
    options = {"n_ctx": 32, "epochs": 6, "torch_device": "cpu", "target": 0.9}
    report = train_predictors(model, out, text, **options, **FIELDS)
    assert any(layer.rank for layer in report.layers)
    opened = Model(str(out))
    pieces = windows(opened, text.read_bytes(), None, 32)
    judged = [pieces[i] for i in parts(len(pieces), 32, False).sizes]
    expected = {"predictor": "n_bytes", "exact": "exact_bytes"}
    for mode, name in expected.items():
        session = Session(opened, n_ctx=32, sparse=SPARSE_MODES.index(mode), **FIELDS)
        for window in judged:
            session.truncate(0)
            for token in window:  # alone, so that rows are not shared
                session.eval(np.array([token]))
        work = session.work()
        read = sum(work.sums[PARTS.index(part)] for part in ("ffn", "predictor"))
        per_token = read / sum(map(len, judged))
        assert per_token == pytest.approx(sum(getattr(x, name) for x in report.layers), rel=0.05)


N_EXPERT, USED = 4, 2


@pytest.fixture(scope="module")
def mixture(files: Path) -> Path:
    """A Mixtral with ReLU and a threshold, so that few neurons fire."""
    folder, width, n_ff = files / "mixture", 96, 96
    cfg = {
        **CFG,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_key_value_heads": 6,
        "num_local_experts": N_EXPERT,
        "num_experts_per_tok": USED,
    }
    weights, rng = checkpoints.weights(cfg), np.random.default_rng(1)
    weights = {name: w for name, w in weights.items() if ".mlp." not in name}
    for i in range(2):
        moe = f"model.layers.{i}.block_sparse_moe"
        shapes = {f"{moe}.gate": (N_EXPERT, width)}
        for expert in range(N_EXPERT):
            own = {"w1": (n_ff, width), "w2": (width, n_ff), "w3": (n_ff, width)}
            shapes |= {f"{moe}.experts.{expert}.{part}": shape for part, shape in own.items()}
        for name, shape in shapes.items():
            values = 2 * rng.standard_normal(shape) / shape[1] ** 0.5
            weights[f"{name}.weight"] = values.astype(np.float32)
    checkpoints.save(folder, cfg, weights)
    convert(folder, outfile=folder / "dense.gguf", outtype="f32", log=quiet)
    convert(folder / "dense.gguf", outfile=folder / "aware.gguf", log=quiet)
    with Gguf(folder / "aware.gguf") as gguf:
        embed(gguf, folder / "model.gguf", [float32("powerinfer.ffn.threshold", 2.5)], [])
    return folder / "model.gguf"


def recorded(path: Path, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """activations() and ffn_inputs() of tokens."""
    options = {"record": "fired+input", "sparse": "exact", **FIELDS}
    with Llama(str(path), n_ctx=64, verbose=False, **options) as llm:
        llm.eval(ids)
        return llm.activations(), llm.ffn_inputs()


def test_pairs_of_experts(mixture: Path, files: Path, tmp_path: Path) -> None:
    model = Model(str(mixture))
    ids = windows(model, (files / "t.txt").read_bytes(), None, 64)[0]
    pairs = Pairs(tmp_path, model, 64)
    pairs.record(model, [ids], **FIELDS)
    assert sum(p.stat().st_size for p in tmp_path.glob("*.pairs")) == 64 * bytes_per_token(model)
    fired, inputs = recorded(mixture, ids.tolist())
    for layer, own in pairs.layers.items():
        assert np.array_equal(own.inputs, inputs[layer].astype(np.float16))
        for expert in range(N_EXPERT):
            rows = own.chose(np.arange(64), expert)
            assert np.array_equal(rows, np.flatnonzero(fired[layer, :, expert].any(-1)))
            assert np.array_equal(own.fired(rows, expert), fired[layer, rows, expert])
        assert sum(len(own.chose(np.arange(64), e)) for e in range(N_EXPERT)) > USED * 50


@pytest.mark.peer("torch")
@pytest.mark.parametrize("starved", [False, True])
def test_mixture(
    starved: bool, mixture: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predictor per expert: on text that none has seen, each finds most of what fires among a
    part of the neurons, and the engine proposes the same. Where few tokens chose an expert, it
    proposes all neurons."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    monkeypatch.setattr(training, "BATCH", 128)
    rows_of = mlps.Mlps._rows_of

    def of_few(self: mlps.Mlps, layer: int, expert: int) -> tuple[np.ndarray, np.ndarray]:
        rows, held_out = rows_of(self, layer, expert)
        return (rows[:9], held_out) if starved and expert == 2 else (rows, held_out)

    monkeypatch.setattr(mlps.Mlps, "_rows_of", of_few)
    out, options = tmp_path / "out.gguf", {"n_ctx": 32, "epochs": 12, "torch_device": "cpu"}
    report = train_predictors(mixture, out, files / "t.txt", target=0.5, **options, **FIELDS)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    predicted = [i for i, layer in enumerate(report.layers) if layer.rank]
    assert predicted and report.perplexity <= report.reference * 1.5
    note = "experts that fewer than 256 tokens chose propose all of their neurons: 2 of layer"
    assert any(note in n for n in report.notes) == starved

    ids = windows(Model(str(mixture)), (files / "unseen.txt").read_bytes(), None, 64)[0].tolist()
    fired, inputs = recorded(out, ids)
    tensors = values(out)
    with Gguf(out) as gguf:
        thresholds = gguf.value("powerinfer.sparse_threshold")
    for layer in predicted:
        first, second = (tensors[f"blk.{layer}.{n}_exps.weight"] for n in ("fc1", "fc2"))
        rank = report.layers[layer].rank
        assert first.shape == (N_EXPERT, rank, 96) and second.shape == (N_EXPERT, 96, rank)
        router = inputs[layer] @ tensors[f"blk.{layer}.ffn_gate_inp.weight"].T
        chosen = np.argsort(-router, axis=-1)[:, :USED]
        truth, masks = [], []
        for expert in range(N_EXPERT):
            rows = np.flatnonzero((chosen == expert).any(axis=-1))
            score = np.maximum(inputs[layer, rows] @ first[expert].T, 0) @ second[expert].T
            masks.append(score >= thresholds[layer])
            truth.append(fired[layer, rows, expert])
            if starved and expert == 2:
                assert len(rows) and masks[-1].all()
                continue
            # Chance finds as large a share of the firings as it proposes of all neurons.
            found = masks[-1][truth[-1]].mean()
            assert found > masks[-1].mean() + 0.3
        mask, fires = np.concatenate(masks), np.concatenate(truth)
        assert fires.sum() == fired[layer].sum() and fires[mask].mean() > 1.5 * fires.mean()
        assert mask[fires].mean() > report.layers[layer].recall - 0.1
        if layer == predicted[0]:  # those behind it see what it left out
            share = mask.mean()
    model = Model(str(out))
    one = {**FIELDS, "n_ctx": 64, "n_batch": 64, "n_ubatch": 64, "n_logits": 1}
    session = Session(model, **one, sparse=SPARSE_MODES.index("predictor"))
    session.eval(np.array(ids, np.int32))
    found = session.work().shares()["predicted"][predicted[0]]
    assert found == pytest.approx(share, abs=1e-3)  # inputs are rounded to Q8_0 there


def test_windows_decide_about_one_thing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is learnt from, what stops training, what chooses sizes, what is reported."""
    found = {}

    def solved(work: Any, *_: Any) -> None:
        found["judged"], found["tested"] = (
            [window.tobytes() for window in part] for part in (work.judged, work.tested)
        )
        found["rows"], found["stops"] = len(work.rows), len(work.held_out)
        assert not np.isin(work.rows, work.held_out).any()

    monkeypatch.setattr(solve, "_solve", solved)
    text = files / "t.txt"
    options = {"kind": "sketch", "n_ctx": 32, **FIELDS}
    train_predictors(files / "model.gguf", tmp_path / "o.gguf", text, **options)
    pieces = [
        w.tobytes() for w in windows(Model(str(files / "model.gguf")), text.read_bytes(), None, 32)
    ]
    of = parts(len(pieces), 32, True)
    assert found["judged"] == [pieces[i] for i in of.sizes]
    assert found["tested"] == [pieces[i] for i in of.tests]
    stops = sum(len(pieces[i]) // 4 for i in of.stops)
    rest = sum(len(pieces[i]) // 4 for i in of.learnt) - stops
    assert (found["rows"], found["stops"]) == (rest, stops) and min(rest, stops) > 0


def test_a_corpus_is_no_list_of_integers(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes nine times the memory: a corpus of a gigabyte took tens."""
    model, text = Model(str(files / "model.gguf")), (files / "t.txt").read_bytes()
    ids = {
        b: model.tokenize(b) for b in (text, b"", "\U0001f600 \ufffd".encode() * 50, b"\xff" * 99)
    }
    want = {n: windows(model, text, None, 32, n) for n in (None, 100)}

    def called(*_: Any) -> list[int]:
        raise AssertionError("a list")

    monkeypatch.setattr(Model, "tokenize", called)
    for data, expected in ids.items():
        found = model.token_array(data)
        assert found.dtype == np.int32 and found.tolist() == expected
    for n, expected in want.items():
        found = windows(model, text, None, 32, n)
        assert all(map(np.array_equal, found, expected)) and len(found) == len(expected)


def test_refusals(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "o.gguf", files / "t.txt"
    monkeypatch.setitem(sys.modules, "torch", None)
    command = ["train-predictor", str(files / "model.gguf"), "--text", str(text)]
    assert main([*command, "--out", str(out)]) == 1
    assert "needs torch: pip install 'powerinfer_cpp[train]'" in capsys.readouterr().err
    monkeypatch.setattr(solve, "require_torch", lambda: None)
    with pytest.raises(UnsupportedModelError, match=r"dense\.gguf: has no neuron rows"):
        train_predictors(files / "dense.gguf", out, text)
    (tmp_path / "short.txt").write_text("the dog")
    with pytest.raises(ValueError, match=r"short\.txt: 1 windows .* too few"):
        train_predictors(files / "model.gguf", out, tmp_path / "short.txt")
    (tmp_path / "short.txt").write_text("")
    with pytest.raises(ValueError, match=r"short\.txt: the text is empty"):
        train_predictors(files / "model.gguf", out, tmp_path / "short.txt")
    with pytest.raises(ValueError, match="kind must be one of"):
        train_predictors(files / "model.gguf", out, text, kind="oracle")
    assert not list(tmp_path.glob("o.gguf*"))  # nor what it works in
    (tmp_path / "o2.gguf.train").mkdir()
    (tmp_path / "o2.gguf.train" / "mine").touch()
    with pytest.raises(ValueError, match=r"o2\.gguf\.train: exists, and is no work of"):
        train_predictors(files / "model.gguf", tmp_path / "o2.gguf", text)
