"""Training checkpoints to be sparse: schedule, continuation, results and refusals."""

from __future__ import annotations

import csv
import errno
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from families import TOKENS, golden, logits, quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import ModelFormatError, UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.progress import Progress
from powerinfer_cpp.measure.perplexity import log_likelihoods
from powerinfer_cpp.profile.counters import EngineCounter
from powerinfer_cpp.relufy import data, recipe, relufy, work

pytestmark = [pytest.mark.peer("torch"), pytest.mark.peer("transformers")]
SHORT: dict[str, Any] = {"n_steps": 6, "n_batch": 4, "n_ctx": 16, "every": 3, "lr": 1e-3}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These matrices are small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """silu/, a checkpoint, and text.txt."""
    folder = tmp_path_factory.mktemp("relufy")
    checkpoints.model(folder / "silu", num_key_value_heads=2)
    words = np.random.default_rng(0).choice(checkpoints.TEXT.split(), 1500)
    (folder / "text.txt").write_text(" ".join(words))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_schedules() -> None:
    """The penalty follows ProSparse's sine from stage to stage, the rate rises and falls."""
    start, before = 0.0, 0.0
    for end, factor in recipe._STAGES:
        for t in (0, 0.25, 0.5, 0.999):
            wave = (math.sin(-math.pi / 2 + math.pi * t) + 1) / 2
            want = before + (factor - before) * wave
            assert recipe.penalty_factor(start + t * (end - start)) == pytest.approx(want)
        start, before = end, factor
    assert recipe.penalty_factor(0.2) == 0 and recipe.penalty_factor(1.0) == 1
    rates = [recipe.rate_factor(step, 200) for step in range(200)]
    assert np.argmax(rates) in (3, 4) and max(rates) == 1
    assert rates[0] == 0.25 and rates[-1] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("name", ["prosparse", "turbosparse", "control"])
def test_interrupted_work_continues_to_the_same_bits(
    name: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (given / "silu", tmp_path / "a", given / "text.txt")
    relufy(*arguments, recipe=name, **SHORT)
    monkeypatch.setattr(work, "_SECONDS", 0.0)
    monkeypatch.setattr(work, "_SHARE", 0)
    update, left = Progress.update, [1]

    def interrupt(self: Progress, n: int, note: str = "") -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        update(self, n, note)

    monkeypatch.setattr(Progress, "update", interrupt)
    out, options = tmp_path / "b", {"recipe": name, **SHORT}
    line = ["relufy", str(given / "silu"), "--text", str(given / "text.txt"), "--out", str(out)]
    line += ["--recipe", name, "--steps", "6", "--batch", "4", "-c", "16", "--curve", "3"]
    for steps in (1, 2, 4):  # before the first step, after one of them, after three more
        left[0] = steps
        assert main([*line, "--lr", "1e-3"]) == 130
        assert not out.exists()
        kept = (tmp_path / "b.relufy").exists()
        assert kept == (steps > 1), "nothing is worth keeping before the first state"
    monkeypatch.setattr(Progress, "update", update)
    with pytest.raises(ValueError, match="unfinished work with another --lr, --seed: finish"):
        relufy(given / "silu", out, given / "text.txt", **{**options, "lr": 1e-4, "seed": 1})
    relufy(given / "silu", out, given / "text.txt", **options)
    assert contents(out) == contents(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_damaged_state(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure at the end keeps the state; a damaged one is refused by name."""
    from powerinfer_cpp.relufy import network

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(work, "_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(network, "save", full)
        with pytest.raises(OSError, match="no space left"):
            relufy(given / "silu", tmp_path / "out", given / "text.txt", **SHORT)
    state = tmp_path / "out.relufy" / "state.pt"
    assert state.exists() and not (tmp_path / "out").exists()
    state.write_bytes(state.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"state.pt: damaged .*: remove its folder"):
        relufy(given / "silu", tmp_path / "out", given / "text.txt", **SHORT)


def test_the_penalty_makes_neurons_zero(given: Path, tmp_path: Path) -> None:
    options = {**SHORT, "n_steps": 40, "lr": 1e-2, "every": 20}
    found = []
    for l1 in (0.0, 10.0, 30.0):
        rows = relufy(given / "silu", tmp_path / f"{l1}", given / "text.txt", l1=l1, **options)
        assert [row.activation for row in rows[:2]] == ["silu", "relu"]
        assert rows[0].sparsity == 0 and rows[0].step == rows[1].step == 0
        found.append(next(row for row in rows if row.step == 40))
    assert found[0].sparsity + 0.02 < found[1].sparsity < found[2].sparsity - 0.1
    assert found[0].penalty > found[1].penalty > found[2].penalty
    # A higher threshold makes more of them zero; the table has one line for each.
    thresholds = [row for row in rows if row.threshold]
    assert [row.threshold for row in thresholds] == [0.005, 0.01, 0.02, 0.03]
    shares = [row.sparsity for row in thresholds]
    assert shares == sorted(shares) and shares[-1] > rows[-5].sparsity
    with (tmp_path / "30.0" / "curve.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(line["zero"]) for line in table] == pytest.approx(
        [r.sparsity for r in rows], 1e-5
    )
    assert table[0]["loss"] == "" and float(table[-5]["loss"]) < float(table[0]["held_out_loss"])


def theirs(folder: Path, activation: str, threshold: float = 0.0) -> np.ndarray:
    """Logits of transformers. Where it does not know the activation, its blocks get it here."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    assert config.hidden_act == ("fatrelu" if threshold else activation)
    config.hidden_act = "relu"
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)

    def forward(block: Any, x: Any) -> Any:
        gate, up = block.gate_proj(x), block.up_proj(x)
        if activation == "drelu":
            up = up.clamp(min=0)
        return block.down_proj(gate * (gate > threshold) * up)

    if activation == "drelu" or threshold:
        for layer in model.model.layers:
            layer.mlp.forward = MethodType(forward, layer.mlp)
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].double().numpy()


@pytest.mark.parametrize(
    ("name", "threshold", "changes"),
    [
        ("prosparse", 0.0, {"hidden_act": "relu"}),
        ("prosparse", 0.3, {"hidden_act": "fatrelu", "hidden_act_param": 0.3}),
        ("turbosparse", None, {"hidden_act": "drelu"}),
    ],
)
def test_the_engine_computes_the_result(
    name: str, threshold: float | None, changes: dict[str, Any], given: Path, tmp_path: Path
) -> None:
    """Logits are transformers', and the curve's figures the engine's."""
    source, out = given / "silu", tmp_path / "out"
    rows = relufy(source, out, given / "text.txt", recipe=name, threshold=threshold, **SHORT)
    before = json.loads((source / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == {**before, **changes}
    assert (out / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()
    path = convert(out, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    activation = "drelu" if name == "turbosparse" else "relu"
    assert Gguf(path).metadata["powerinfer.ffn.activation"] == activation
    want = theirs(out, activation, threshold or 0.0)
    assert reference.relative_error(logits(path), want) < 2e-5
    neurons = convert(path, outfile=tmp_path / "neurons.gguf", log=quiet) if not threshold else path
    assert reference.relative_error(logits(neurons, sparse="exact"), want) < 2e-5
    # The curve was measured with BF16 products.
    text = (given / "text.txt", (given / "text.txt").read_bytes())
    tokens = data.read_tokens(out, tmp_path / "vocabulary.gguf", text, None, None, 16)
    model = Model(str(neurons))
    counter = EngineCounter(model, 16, type_k=0, type_v=0)
    losses = []
    for window in tokens.held_out:
        counter.add(window[:-1])
        scores = logits(neurons, window[:-1].tolist(), sparse="exact")
        losses.append(-log_likelihoods(scores, window[1:]).mean())
    n_rows = len(losses) * 16
    zero = 1 - np.mean(counter.counts(), axis=(1, 2)) / n_rows
    row = next(row for row in rows[::-1] if row.threshold == (threshold or 0.0))
    assert row.zero == pytest.approx(zero.tolist(), abs=0.01)
    assert row.held_out_loss == pytest.approx(np.mean(losses), rel=0.01)


def test_bfloat16_and_biases_stay(given: Path, tmp_path: Path) -> None:
    """A Qwen 2 with biases and BF16 weights keeps both, and its other files."""
    from safetensors import safe_open

    source = golden("qwen2-yarn", tmp_path / "qwen")
    (source / "notes.txt").write_text("x")
    cfg = json.loads((source / "config.json").read_text())
    tensors = {}
    with safe_open(source / "model.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    checkpoints.save_safetensors(source / "model.safetensors", tensors, "BF16")
    (source / "config.json").write_text(json.dumps({**cfg, "dtype": "bfloat16"}))
    out = tmp_path / "out"
    relufy(source, out, given / "text.txt", threshold=0.0, **SHORT)
    assert (out / "notes.txt").exists()
    with safe_open(out / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(tensors)
        kinds = {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
    assert kinds == {"torch.bfloat16"}
    path = convert(out, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    assert reference.relative_error(logits(path), theirs(out, "relu")) < 2e-5


def test_refusals(given: Path, tmp_path: Path) -> None:
    text, source = given / "text.txt", given / "silu"

    def refused(kind: type[Exception], match: str, folder: Path = source, **changes: Any) -> None:
        out = changes.pop("out", tmp_path / "out")
        with pytest.raises(kind, match=match):
            relufy(folder, out, changes.pop("text", text), **{**SHORT, **changes})
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.relufy").exists()

    refused(ValueError, "turbosparse has no threshold", recipe="turbosparse", threshold=0.1)
    refused(ValueError, "--steps or as --tokens", n_tokens=100)
    refused(ValueError, "--steps or as --tokens", n_steps=None)
    refused(ValueError, "--parts 5: a batch has only 4", parts=5)
    refused(ValueError, "silu: exists", out=source)
    refused(ValueError, "--device tpu7:", device="tpu7")
    refused(ValueError, "--ctx-size 300: the model has only 256 positions", n_ctx=300)
    refused(FileNotFoundError, "no such folder", folder=tmp_path / "none")
    refused(FileNotFoundError, "the folder .*none does not exist", out=tmp_path / "none" / "out")
    short = tmp_path / "short.txt"
    short.write_text("a cat")
    refused(ValueError, r"short.txt: too short for windows of 16 tokens", text=short)
    refused(ValueError, r"short.txt: too short for windows of 16 tokens", held_out=short)
    mixture = golden("mixtral", tmp_path / "mixtral")
    refused(UnsupportedModelError, "not model_type 'mixtral'", folder=mixture)
    gelu = checkpoints.model(tmp_path / "gelu", hidden_act="gelu")
    refused(UnsupportedModelError, "not from hidden_act 'gelu'", folder=gelu)
    cfg = checkpoints.config()
    weights = checkpoints.weights(cfg)
    del weights["model.layers.1.mlp.up_proj.weight"]
    lacking = checkpoints.save(tmp_path / "lacking", cfg, weights)
    refused(ModelFormatError, "lacking: missing tensor .*1.mlp.up_proj", folder=lacking)
    other = checkpoints.save(tmp_path / "other", {**cfg, "intermediate_size": 80}, weights)
    refused(ModelFormatError, "other: transformers cannot load it", folder=other)
    damaged = checkpoints.model(tmp_path / "damaged")
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    refused(ModelFormatError, "damaged safetensors file", folder=damaged)
    refused(ValueError, "the loss of step .* is nan: a lower --lr may help", lr=1e30)
    foreign = tmp_path / "mine.relufy"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("x")
    refused(ValueError, "mine.relufy: exists, and is no work of relufy", out=tmp_path / "mine")
    assert (foreign / "thesis.txt").read_text() == "x"


def test_command_line(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["relufy", str(given / "silu"), "--text", str(given / "text.txt"), "-c", "16"]
    line += ["--held-out", str(given / "text.txt"), "--batch", "4", "--parts", "3"]
    assert main([*line, "--out", str(tmp_path / "out"), "--tokens", "100"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == str(tmp_path / "out")
    assert printed[1].split()[:3] == ["0", "silu", "0"] and printed[-2].split()[0] == "2"
    assert main([*line, "--out", str(tmp_path / "x"), "--steps", "1", "--tokens", "5"]) == 2
    assert main([*line, "--out", str(tmp_path / "x"), "--steps", "1", "--l1", "-1"]) == 2
