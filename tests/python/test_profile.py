"""Profiles: counts against a forward pass of our own in numpy and against transformers, files that
keep everything else, killed work, import and export of PowerInfer's files."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
from families import GOLDEN, golden, quiet
from gguf_files import values
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert, statistics
from powerinfer_cpp.convert.embed import embed
from powerinfer_cpp.convert.statistics import activation_files
from powerinfer_cpp.convert.writer import string
from powerinfer_cpp.core.errors import ModelFormatError, UnsupportedModelError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import LayerSizes, Model
from powerinfer_cpp.profile import from_gguf, profile, state
from powerinfer_cpp.profile import text as profile_text

from powerinfer_cpp import Llama
from powerinfer_cpp import profile as profiling

CFG = checkpoints.config(hidden_act="relu")
WEIGHTS = checkpoints.weights(CFG)
N_CTX = 32
FIELDS = {"type_k": 0, "type_v": 0, "n_ctx": N_CTX}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu.gguf and silu.gguf of the same weights, small.gguf with fewer neurons, texts a and b."""
    folder = tmp_path_factory.mktemp("profile")
    changes = {"relu": {}, "silu": {"hidden_act": "silu"}, "small": {"intermediate_size": 64}}
    for name, change in changes.items():
        cfg = {**CFG, **change}
        checkpoints.save(folder / name, cfg, checkpoints.weights(cfg))
        convert(folder / name, outfile=folder / f"{name}.gguf", outtype="f32", log=quiet)
    (folder / "a.txt").write_text(checkpoints.TEXT * 3)
    (folder / "b.txt").write_text("a child tells the dog a story. " * 4)
    return folder


def expected_counts(windows: list[np.ndarray]) -> np.ndarray:
    counts = np.zeros((2, 1, 96), np.int64)
    for window in windows:
        blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        reference.logits(CFG, WEIGHTS, window.tolist(), "relu", blocks)
        counts[:, 0] += np.array([(h != 0).sum(0) for _, _, h in blocks])
    return counts


def test_against_a_numpy_forward(files: Path, tmp_path: Path) -> None:
    model, out = Model(str(files / "relu.gguf")), tmp_path / "out.gguf"
    found = profile(model, out, files / "a.txt", **FIELDS)
    windows = profiling.windows(model, (files / "a.txt").read_bytes(), None, N_CTX)
    assert len(windows) > 3 and {len(w) for w in windows[:-1]} == {N_CTX}
    assert all(w[0] == 1 for w in windows) and found.tokens == sum(map(len, windows))
    # In float32 a value that is all but zero may come out on its other side.
    assert np.abs(found.counts.astype(int) - expected_counts(windows)).sum() <= 2
    assert found.corpus == "a.txt"

    with Gguf(out) as gguf, Gguf(files / "relu.gguf") as before:
        again = from_gguf(gguf)
        assert np.array_equal(again.counts, found.counts) and again.tokens == found.tokens
        assert gguf.value("powerinfer.version") == 1
        new = {"powerinfer.version", statistics.TOKENS, statistics.CORPUS}
        assert gguf.metadata == before.metadata | {k: gguf.value(k) for k in new}
        assert {k: v for k, v in gguf.types.items() if k not in new} == before.types
        tensors = {t.name: t for t in gguf.tensors}
        assert len(tensors) == len(before.tensors) + 2
        assert tensors["blk.1.ffn_rate"].shape == (96,)
        for tensor in before.tensors:
            assert np.array_equal(gguf.data(tensors[tensor.name]), before.data(tensor))
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_tokens_and_separators(files: Path) -> None:
    model = Model(str(files / "relu.gguf"))
    text = b"the dog|  |a child tells|the fox"
    ids = np.concatenate(profiling.windows(model, text, b"|", 8))
    assert np.count_nonzero(ids == 2) == 3  # an end per document that is not empty
    for n in (1, 8, 11):
        some = np.concatenate(profiling.windows(model, text, b"|", 8, n))
        assert np.array_equal(some, ids[:n])


class Stopped(Exception):
    pass


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_killed_and_taken_up(
    error: type[BaseException], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out, text = Model(str(files / "relu.gguf")), tmp_path / "out.gguf", files / "a.txt"
    whole = profile(model, None, text, export=tmp_path / "whole", **FIELDS)
    add, calls = profiling.EngineCounter.add, []

    def counting(at_most: int) -> Callable[..., None]:
        def counted(self: profiling.EngineCounter, window: np.ndarray) -> None:
            if len(calls) == at_most:
                raise error
            calls.append(window)
            add(self, window)

        return counted

    if error is Stopped:  # Ctrl-C saves at once; other kills lose the work since the last save
        monkeypatch.setattr(state, "_SECONDS", 0.0)
    monkeypatch.setattr(profiling.EngineCounter, "add", counting(2))
    with pytest.raises(error):
        profile(model, out, text, **FIELDS)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out.gguf.state", "whole"]
    notes: list[str] = []
    monkeypatch.setattr(profiling.EngineCounter, "add", counting(-1))
    found = profile(model, out, text, log=notes.append, **FIELDS)
    assert np.array_equal(found.counts, whole.counts) and found.tokens == whole.tokens
    assert sum(map(len, calls)) == whole.tokens  # nothing twice
    assert not notes and not (tmp_path / "out.gguf.state").exists()


def test_a_state_of_other_work_is_left_alone(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = Model(str(files / "relu.gguf")), tmp_path / "out.gguf"
    own = profile(model, None, files / "b.txt", export=tmp_path / "x", **FIELDS)
    for spoil in (lambda path: None, lambda path: path.write_bytes(b"PK\3\4 nonsense")):
        monkeypatch.setattr(state, "_SECONDS", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(profiling, "embed_statistics", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                profile(model, out, files / "a.txt", **FIELDS)
        spoil(tmp_path / "out.gguf.state")
        notes: list[str] = []
        found = profile(model, out, files / "b.txt", log=notes.append, **FIELDS)
        assert np.array_equal(found.counts, own.counts)
        assert len(notes) == 1 and "starting from the beginning" in notes[0]


def test_merging(files: Path, tmp_path: Path) -> None:
    model = Model(str(files / "relu.gguf"))
    a, b = (
        profile(model, tmp_path / f"{name}.gguf", files / f"{name}.txt", **FIELDS) for name in "ab"
    )
    both = profile(
        model, tmp_path / "ab.gguf", files / "a.txt", merge=[tmp_path / "b.gguf"], **FIELDS
    )
    alone = profile(model, tmp_path / "c.gguf", merge=[tmp_path / "a.gguf", tmp_path / "b.gguf"])
    for found in (both, alone):
        assert np.array_equal(found.counts, a.counts + b.counts)
        assert found.tokens == a.tokens + b.tokens and found.corpus == "a.txt + b.txt"
    weighted = (a.rates() * a.tokens + b.rates() * b.tokens) / (a.tokens + b.tokens)
    with Gguf(tmp_path / "ab.gguf") as gguf:
        assert np.allclose(from_gguf(gguf).rates(), weighted, atol=1e-6)
    # A file that has statistics gets others instead of them.
    again = Model(str(tmp_path / "a.gguf"))
    profile(again, tmp_path / "d.gguf", files / "b.txt", **FIELDS)
    with Gguf(tmp_path / "d.gguf") as gguf:
        assert np.array_equal(from_gguf(gguf).counts, b.counts)
        assert len({t.name for t in gguf.tensors}) == len(gguf.tensors)


def test_powerinfers_files(files: Path, tmp_path: Path) -> None:
    model, folder = Model(str(files / "relu.gguf")), tmp_path / "activation"
    a = profile(model, None, files / "a.txt", export=folder, **FIELDS)
    assert sorted(p.name for p in folder.iterdir()) == ["activation_0.pt", "activation_1.pt"]
    back = profile(model, tmp_path / "b.gguf", imported=folder, imported_tokens=a.tokens)
    assert np.array_equal(back.counts, a.counts) and back.tokens == a.tokens
    guessed = profile(model, tmp_path / "c.gguf", imported=folder)
    assert guessed.tokens == a.counts.max() and guessed.rates().max() == 1
    path = convert(
        files / "relu", outfile=tmp_path / "d.gguf", outtype="f32", profile=folder, log=quiet
    )
    with Gguf(path) as gguf:
        assert np.array_equal(from_gguf(gguf).counts, a.counts)

    with pytest.raises(ValueError, match="more than on 3 tokens"):
        profile(model, tmp_path / "e.gguf", imported=folder, imported_tokens=3)
    other = Model(str(files / "small.gguf"))
    with pytest.raises(ModelFormatError, match=r"activation_0\.pt: shape \[96\].* 64 neurons"):
        profile(other, tmp_path / "e.gguf", imported=folder)
    (folder / "activation_1.pt").rename(folder / "activation_2.pt")
    with pytest.raises(ModelFormatError, match="layers 0 to 2 with gaps; the model has 2"):
        profile(model, tmp_path / "e.gguf", imported=folder)
    (folder / "activation_1.pt").write_bytes(b"x")
    (folder / "activation_2.pt").unlink()
    with pytest.raises(ModelFormatError, match=r"activation_1\.pt: not a torch zip"):
        profile(model, tmp_path / "e.gguf", imported=folder)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="no statistics"):
        profile(model, tmp_path / "e.gguf", imported=folder)
    assert not (tmp_path / "e.gguf").exists()


@pytest.mark.peer("torch")
def test_torch_reads_and_writes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    counts = np.arange(3 * 40, dtype=np.uint64).reshape(3, 1, 40) * 10**8
    activation_files.write(tmp_path, statistics.Statistics(counts, 1, ""))
    for layer in range(3):
        found = torch.load(tmp_path / f"activation_{layer}.pt", weights_only=True)
        assert found.dtype == torch.int64 and np.array_equal(found.numpy(), counts[layer, 0])
        kind = (torch.int32, torch.float32, torch.int64)[layer]
        torch.save((found // 10**8).to(kind), tmp_path / f"activation_{layer}.pt")
    back = activation_files.read(tmp_path, [LayerSizes(40, 0)] * 3)
    assert np.array_equal(back.counts * np.uint64(10**8), counts)
    experts = statistics.Statistics(counts.reshape(1, 3, 40), 1, "")
    activation_files.write(tmp_path / "experts", experts)
    assert torch.load(tmp_path / "experts" / "activation_0.pt").shape == (3, 40)
    back = activation_files.read(tmp_path / "experts", [LayerSizes(40, 3)])
    assert np.array_equal(back.counts, experts.counts)


@pytest.mark.peer("transformers")
def test_against_transformers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checkpoint = tmp_path / "model"
    shutil.copytree(GOLDEN / "llama-relu-gqa", checkpoint)
    shutil.copy(GOLDEN / "tokenizer.model", checkpoint)
    path = convert(checkpoint, outfile=tmp_path / "m.gguf", outtype="f32", log=quiet)
    (tmp_path / "t.txt").write_text(
        "The bear liked to play with his friend, a small green frog. " * 4
    )
    model = Model(str(path))
    ours = profile(model, tmp_path / "a.gguf", tmp_path / "t.txt", **FIELDS)
    theirs = profile(
        model, tmp_path / "b.gguf", tmp_path / "t.txt", checkpoint=checkpoint, **FIELDS
    )
    assert ours.tokens == theirs.tokens > 60 and 0.1 < ours.rates().mean() < 0.9
    assert np.abs(ours.counts.astype(int) - theirs.counts.astype(int)).sum() <= 3


def test_refusals(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = Model(str(files / "relu.gguf")), tmp_path / "out.gguf"
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"empty\.txt: the text is empty"):
        profile(model, out, tmp_path / "empty.txt")
    with pytest.raises(ValueError, match="silu.*every neuron fires"):
        profile(Model(str(files / "silu.gguf")), out, files / "a.txt")
    with pytest.raises(ValueError, match="relu can be exactly zero"):
        profile(model, out, files / "a.txt", cats=0.5)
    silu = Model(str(files / "silu.gguf"))
    with pytest.raises(UnsupportedModelError, match=r"silu\.gguf: has no neuron rows"):
        profile(silu, out, files / "a.txt", cats=0.5)
    with pytest.raises(ValueError, match="--cats needs --text and --out"):
        profile(silu, out, files / "a.txt", cats=0.5, merge=[files / "relu.gguf"])
    with pytest.raises(ValueError, match="input and output are the same file"):
        profile(model, files / "relu.gguf", files / "a.txt")
    with pytest.raises(ModelFormatError, match=r"relu\.gguf: holds no statistics"):
        profile(model, out, merge=[files / "relu.gguf"])
    with pytest.raises(ValueError, match="nothing to profile"):
        profile(model, out)
    small = tmp_path / "small.gguf"
    profile(Model(str(files / "small.gguf")), small, files / "b.txt")
    with pytest.raises(ValueError, match=r"small\.gguf: statistics of another model, 2 layers"):
        profile(model, out, files / "a.txt", merge=[small])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        with pytest.raises(ImportError, match="needs the package"):
            profile(model, out, files / "a.txt", checkpoint=tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(OSError, match="only 0.0 MiB free"):
        profile(model, out, files / "a.txt")
    assert not out.exists()


@pytest.mark.parametrize("name", ["llama-silu-tied", "falcon-7b", "mixtral"])
def test_cats(name: str, tmp_path: Path) -> None:
    """Thresholds below which half of what the blocks compute lies, by a gate of our own: with
    SiLU, with GELU and no gate, and of experts."""
    golden(name, tmp_path / "model")
    convert(tmp_path / "model", outfile=tmp_path / "dense.gguf", outtype="f32", log=quiet)
    path = convert(tmp_path / "dense.gguf", outfile=tmp_path / "aware.gguf", log=quiet)
    (tmp_path / "t.txt").write_text(checkpoints.TEXT * 8)
    out, lines = tmp_path / "out.gguf", []
    options = {"cats": 0.5, "log": lines.append, **FIELDS}
    found = profile(Model(str(path)), out, tmp_path / "t.txt", **options)
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out.gguf"]
    with Gguf(out) as gguf:
        thresholds = gguf.value("powerinfer.ffn.threshold")
        assert np.array_equal(from_gguf(gguf).counts, found.counts)
    assert len(thresholds) == 2 and thresholds[0] != thresholds[1] and len(lines) == 1
    rates = found.rates()
    share = rates.mean(axis=(1, 2)) * (2 if name == "mixtral" else 1)  # 2 of 4 experts
    # Inputs of later layers change with what is dropped before them.
    assert share == pytest.approx([0.5, 0.5], abs=0.08) and share[0] == pytest.approx(0.5, abs=0.02)
    normed, weights = tmp_path / "normed.gguf", values(out)
    with Gguf(out) as gguf:
        embed(gguf, normed, [string("powerinfer.predictor.input", "normed")], [])
    options = {"sparse": "exact", "record": "fired+input", "n_ctx": 64, "type_k": 0, "type_v": 0}
    with Llama(str(normed), verbose=False, **options) as llm:
        llm.eval(llm.tokenize((checkpoints.TEXT * 2).encode())[:40])
        fired, x = llm.activations()[0], llm.ffn_inputs()[0].astype(np.float64)
    end = "_exps" if name == "mixtral" else ""
    part = "up" if name == "falcon-7b" else "gate"
    gate = x @ weights[f"blk.0.ffn_{part}{end}.weight"].astype(np.float64).swapaxes(-1, -2)
    if name == "falcon-7b":
        size = np.abs(gate) * np.vectorize(math.erfc)(-gate / 2**0.5) / 2
    else:
        size = np.abs(gate / (1 + np.exp(-gate)))
    expected = size >= thresholds[0]
    if name == "mixtral":
        expected = expected.transpose(1, 0, 2)
        expected &= fired.any(axis=-1, keepdims=True)
    assert np.count_nonzero(fired != expected) <= 2


def test_a_silu_model_by_the_commands_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/powerinfer-ready.md: rows, thresholds with statistics, and what exact mode then costs.
    A higher share means fewer computed neurons and a larger distance from the dense model."""
    golden("llama-silu-tied", tmp_path / "model")
    dense, neurons, text = (str(tmp_path / n) for n in ("dense.gguf", "neurons.gguf", "t.txt"))
    Path(text).write_text(checkpoints.TEXT * 8)
    assert main(["convert", "--outfile", dense, str(tmp_path / "model")]) == 0
    assert main(["convert", "--outtype", "q8_0", "--outfile", neurons, dense]) == 0
    assert main(["profile", neurons, "--text", text, "--out", str(tmp_path / "o.gguf")]) == 1
    assert "--cats" in capsys.readouterr().err
    found = []
    for share in ("10%", "50%", "0.8"):
        out = str(tmp_path / f"{share}.gguf")
        command = ["profile", neurons, "--text", text, "-c", "64", "--cats", share, "--out", out]
        assert main(command) == 0
        capsys.readouterr()
        command = ["perplexity", out, "--text", text, "-c", "64", "--sparse", "exact"]
        assert main([*command, "--compare", "off"]) == 0
        shown = capsys.readouterr().out
        computed = float(re.search(r"computed (\d+\.\d+)%", shown)[1])
        divergence = float(re.search(r"Mean +KLD: +(\d+\.\d+)", shown)[1])
        found.append((computed, divergence))
    assert [c for c, _ in found] == pytest.approx([90, 50, 20], abs=6)
    assert 0 < found[0][1] < found[1][1] < found[2][1]


def test_command(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["profile", str(files / "relu.gguf"), "--text", str(files / "a.txt"), "-c", "32"]
    assert main([*command, "--out", str(tmp_path / "o.gguf"), "--tokens", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "50 tokens of a.txt" and len(lines) == 5
    assert main(command) == 1
    assert "--out F, --export DIR, --imatrix F or --trace F" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["perplexity", "profile", "train-predictor"])
def test_a_text_without_an_end(
    command: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(profile_text, "MOST_PIPED", 1 << 20)
    model, out = tmp_path / "neurons.gguf", tmp_path / "out.gguf"
    convert(files / "relu.gguf", outfile=model, outtype="q8_0", log=quiet)
    options = [] if command == "perplexity" else ["--out", str(out)]
    options += ["--kind", "sketch"] if command == "train-predictor" else []
    assert main([command, str(model), "--text", "/dev/zero", *options]) == 1
    assert "/dev/zero: no file, and more than 1 MiB come out of it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize("cats", [None, 0.5])
def test_a_text_from_a_pipe(cats: float | None, files: Path, tmp_path: Path) -> None:
    path = files / "relu.gguf"
    if cats:
        path = tmp_path / "neurons.gguf"
        convert(files / "silu.gguf", outfile=path, outtype="q8_0", log=quiet)
    model, found = Model(str(path)), []
    for text in (files / "a.txt", tmp_path / "pipe"):
        if text.name == "pipe":
            os.mkfifo(text)
            data = (files / "a.txt").read_bytes()
            threading.Thread(target=text.write_bytes, args=(data,), daemon=True).start()
        found.append(profile(model, tmp_path / "out.gguf", text, cats=cats, **FIELDS))
    assert np.array_equal(found[0].counts, found[1].counts) and found[0].counts.any()


def test_only_the_tokens_that_count_are_made(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long text a part is tokenised; its tokens are those of the whole."""
    model = Model(str(files / "relu.gguf"))
    text = ("".join(f"{i} {checkpoints.TEXT}" for i in range(400))).encode()
    whole = profile_text.windows(model, text, None, N_CTX)
    sizes: list[int] = []
    tokenize = model.token_array
    monkeypatch.setattr(
        model, "token_array", lambda part: sizes.append(len(part)) or tokenize(part)
    )
    for n_tokens in (1, 100, 1000):
        for of in (text, text.replace(b" ", b"_").replace(b"\n", b"_")):
            found = profile_text.windows(model, of, None, N_CTX, n_tokens)
            assert sum(map(len, found)) == n_tokens
            if of is text:
                assert [w.tolist() for w in found[:-1]] == [
                    w.tolist() for w in whole[: len(found) - 1]
                ]
    assert max(sizes) < len(text) / 4
    few = profile_text.windows(model, text[:300], None, N_CTX, 10**6)
    assert sizes[-1] == 300 and sum(map(len, few)) < 300
