"""Plots: their numbers, that they are drawn, and their refusals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import profiled
import pytest
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.placement import (
    Machine,
    embed_placement,
    place,
    read_model,
    sidecar_path,
    write_sidecar,
)
from powerinfer_cpp.plot import activation, overlap, placement, predictor

N_LAYER, N_FF = 4, 1000
TIERS, EMPTY = ("gpu", "ram", "storage"), {"bytes": 0, "layer_neurons": [0], "layer_hits": [0]}


def write(path: Path, noise: float = 0.0, seed: int = 0, **options: object) -> Path:
    """Profiles of one model on texts that differ by `noise`."""
    rng = np.random.default_rng(seed)
    layers = profiled.uneven(N_LAYER, N_FF)
    noisy = [np.clip(r * rng.lognormal(0, noise, r.shape), 0, 1) for r in layers]
    return profiled.write(path, noisy, **options)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("plot") / "model.gguf")


def drawn(out: Path) -> np.ndarray:
    """The picture, checked to be large, and neither blank nor grey."""
    from matplotlib import image

    pixels = image.imread(out)
    height, width = pixels.shape[:2]
    assert width > 800 and height > 400
    colours = np.ptp(pixels[..., :3], axis=2)
    assert (colours > 0.2).mean() > 0.001 and (pixels[..., :3] > 0.99).mean() > 0.05
    return pixels


# ---- activation ----


def test_power_law_in_numbers() -> None:
    law = np.exp(-profiled.SKEW * (np.arange(100_000) + 0.5) / 100_000)
    share = -np.log(1 - 0.8 * (1 - np.exp(-profiled.SKEW))) / profiled.SKEW  # the integral's
    assert activation.share_for(np.random.default_rng(0).permutation(law)) == pytest.approx(
        share, abs=1e-4
    )
    assert activation.share_for(np.full(10, 0.3)) == pytest.approx(0.8)
    assert activation.share_for(np.array([0.0, 0.0, 0.9, 0.0])) == 0.25
    curve = activation.cumulative(np.array([0.1, 0.4, 0.0]))
    assert np.allclose(curve, [0, 0.8, 1, 1])


def test_activation(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "a.png"
    assert main(["plot", str(path), "--what", "activation", "--out", str(out)]) == 0
    whole = activation.share_for(np.concatenate(profiled.uneven(N_LAYER, N_FF)))
    assert f"{100 * whole:.1f} % of all neurons make 80 %" in capsys.readouterr().out
    drawn(out)


# ---- placement ----


def test_tier_map() -> None:
    rates = np.array([0.1, 0.9, 0.5, 0.2], np.float32)
    tier = np.array([0, 2, 1, 0], np.int8)
    assert list(placement.tier_map(tier, rates, 4)) == [2, 1, 0, 0]
    assert list(placement.tier_map(tier, rates, 2)) in ([1, 0], [2, 0])
    assert list(placement.tier_map(tier, rates, 8)) == [2, 2, 1, 1, 0, 0, 0, 0]
    assert np.allclose(placement.shares(tier, rates), np.array([0.3, 0.5, 0.9]) / 1.7)


def test_placement(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with Gguf(path) as gguf:
        model = read_model(gguf, n_ubatch=1)
        found = place(model, Machine(sync=1e-8), 700_000, 500_000)
        embed_placement(gguf, tmp_path / "placed.gguf", found)
    assert all(np.array(found.neuron_bytes()) > 0)
    out = tmp_path / "t.png"
    assert (
        main(["plot", str(tmp_path / "placed.gguf"), "--what", "placement", "--out", str(out)]) == 0
    )
    storage, ram, gpu = (100 * share for share in found.shares())
    shown = capsys.readouterr().out
    assert f"GPU {gpu:.1f} %, RAM {ram:.1f} %, storage {storage:.1f} %" in shown
    pixels = drawn(out)
    for colour in ("b30000", "fc8d59", "e3e3ee"):  # all three tiers can be seen
        rgb = np.array([int(colour[k : k + 2], 16) for k in (0, 2, 4)]) / 255
        assert (np.abs(pixels[..., :3] - rgb).max(axis=2) < 0.01).mean() > 0.01
    # The one beside the model is taken where it holds none.
    write_sidecar(sidecar_path(path), found)
    beside = tmp_path / "beside.png"
    assert main(["plot", str(path), "--what", "placement", "--out", str(beside)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == shown.splitlines()[0]
    sidecar_path(path).unlink()


def statistics(**changed: Any) -> dict[str, Any]:
    """Those of a run, as far as a plot reads them: two layers, on the GPU and in RAM."""
    tiers = {
        "gpu": {"bytes": 3 << 20, "layer_neurons": [75, 25], "layer_hits": [6.5, 1]},
        "ram": {"bytes": 9 << 20, "layer_neurons": [25, 75], "layer_hits": [0.5, 2.0]},
        "storage": {"bytes": 0, "layer_neurons": [0, 0], "layer_hits": [0, 0.0]},
    }
    tiers["gpu"] |= changed
    return {"n_gen": 9, "tiers": tiers}


def test_placement_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "stats.json", tmp_path / "r.png"
    file.write_text(json.dumps(statistics()))
    assert main(["plot", str(file), "--what", "placement", "--out", str(out)]) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown == (
        "GPU: 50.0 % of the neurons, 3.0 MiB, 75.0 % of those computed; "
        "RAM: 50.0 % of the neurons, 9.0 MiB, 25.0 % of those computed"
    )
    pixels = drawn(out)
    for colour in ("b30000", "fc8d59"):
        rgb = np.array([int(colour[k : k + 2], 16) for k in (0, 2, 4)]) / 255
        assert (np.abs(pixels[..., :3] - rgb).max(axis=2) < 0.01).mean() > 0.1
    # Nothing was computed: only where the neurons were.
    idle = statistics(layer_hits=[0, 0])
    idle["tiers"]["ram"]["layer_hits"] = [0, 0]
    file.write_text(json.dumps(idle))
    assert main(["plot", str(file), "--what", "placement", "--out", str(out)]) == 0
    assert "3.0 MiB, 0.0 % of those computed; RAM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "has no statistics of a run (--json-stats)"),
        ("{" + '"a":[' * 100_000, "has no statistics of a run"),
        ("{}", "has no statistics of a run"),
        ('{"tiers": 3}', "tiers needs layer_neurons, layer_hits, bytes of gpu, ram, storage"),
        ('{"tiers": {"gpu": {}}}', "tiers needs"),
        (json.dumps(statistics(layer_hits=[1])), "tiers needs"),
        (json.dumps(statistics(layer_hits="ab")), "tiers needs"),
        (json.dumps(statistics(bytes=[1])), "tiers needs"),
        (json.dumps(statistics(bytes=10**400)), "tiers needs"),
        (json.dumps(statistics(layer_hits=[float("nan"), 1])), "not finite, or below 0"),
        (json.dumps(statistics(layer_neurons=[-25, 25])), "not finite, or below 0"),
        (json.dumps({"tiers": dict.fromkeys(TIERS, EMPTY)}), "a layer without neurons"),
    ],
)
def test_statistics_that_are_none(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "stats.json"
    file.write_text(text)
    line = ["plot", str(file), "--what", "placement", "--out", str(tmp_path / "x.png")]
    assert main(line) == 1
    error = capsys.readouterr().err
    assert str(file) in error and message in error and len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [file]


# ---- overlap ----


def test_overlap_in_numbers() -> None:
    rng = np.random.default_rng(0)
    a = rng.random(10_000)
    assert overlap.overlap(a, 2 * a) == 1
    assert overlap.overlap(a, -a) == 0
    assert overlap.overlap(a, rng.random(10_000)) == pytest.approx(0.2, abs=0.02)
    assert overlap.overlap(np.arange(10), np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 8])) == 1
    assert overlap.overlap(np.arange(10), np.array([0, 1, 2, 3, 4, 5, 6, 9, 8, 7])) == 0.5


def test_overlap(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    near = write(tmp_path / "near.gguf", 0.1, 1, keys={"powerinfer.profile.corpus": "near.txt"})
    far = write(tmp_path / "far.gguf", 2.0, 2, keys={"powerinfer.profile.corpus": "far.txt"})
    shown = []
    for files in ([path, near], [path, near, far]):
        out = tmp_path / f"{len(files)}.png"
        line = ["plot", *map(str, files), "--what", "overlap", "--out", str(out)]
        assert main(line) == 0
        drawn(out)
        shown.append(capsys.readouterr().out)
    shares = [float(re.search(r"all neurons ([\d.]+) %", text)[1]) for text in shown]
    assert shares[0] > 90 > shares[1] > 20
    assert "near.txt" in shown[0] and "far.txt" in shown[1]


# ---- predictors ----


def test_predictor(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    recall, precision = [0.9, 0.95, 0.99, 0.85], [0.5, 0.6, 0.45, 0.5]
    arrays = {
        "powerinfer.predictor.recall": recall,
        "powerinfer.predictor.precision": precision,
        "powerinfer.sparse_threshold": [0.0, -0.5, 0.25, 1.0],
    }
    file, out = write(tmp_path / "p.gguf", rank=16, arrays=arrays), tmp_path / "p.png"
    with Gguf(file) as gguf:
        found = predictor.figures(gguf)
    assert list(found["rank"].values()) == [16] * 4
    assert list(found["bytes"].values()) == [2 * 16 * (64 + N_FF)] * 4
    assert np.allclose(list(found["recall"].values()), recall)
    assert found["threshold"][2] == 0.25
    density = [float(r.mean()) for r in profiled.uneven(N_LAYER, N_FF)]
    expected = np.array(density) * np.array(recall) / np.array(precision)
    assert np.allclose(list(found["proposed"].values()), expected)
    assert main(["plot", str(file), "--what", "predictor", "--out", str(out)]) == 0
    assert "at least 0.850 (layer 3)" in capsys.readouterr().out
    all_panels = drawn(out)
    # Without the figures that training leaves the sizes are still there.
    plain = write(tmp_path / "q.gguf", rank=16)
    assert main(["plot", str(plain), "--what", "predictor", "--out", str(out)]) == 0
    assert drawn(out).shape[0] < all_panels.shape[0]


# ---- refusals ----


@pytest.mark.parametrize(
    ("what", "copies", "message"),
    [
        ("placement", 1, "model.gguf: holds no placement"),
        ("predictor", 1, "model.gguf: holds no predictors"),
        ("overlap", 1, "overlap needs two or more profiled files"),
        ("activation", 2, "a plot of activation shows one file, not 2"),
    ],
)
def test_refuses(
    path: Path,
    tmp_path: Path,
    what: str,
    copies: int,
    message: str,
    capsys: pytest.CaptureFixture,
) -> None:
    out = tmp_path / "x.png"
    assert main(["plot", *[str(path)] * copies, "--what", what, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_overlap_of_different_models(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = profiled.write(tmp_path / "other.gguf", profiled.uneven(N_LAYER, 96))
    line = ["plot", str(path), str(other), "--what", "overlap", "--out", str(tmp_path / "x.png")]
    assert main(line) == 1
    assert "other.gguf: has other layers or neurons than" in capsys.readouterr().err


def test_without_matplotlib(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(path), "--what", "activation", "--out", str(tmp_path / "x.png")]) == 1
    assert "pip install 'powerinfer_cpp[plot]'" in capsys.readouterr().err
