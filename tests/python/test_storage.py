"""Models that run from storage: the same results as in memory, figures of it, and what is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import profiled
import pytest
from circles import pick
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.plan import from_storage, memory_plan
from test_bench import run_main, shape
from test_bundle_files import cache, read_only  # noqa: F401 (fixtures)

from powerinfer_cpp import Llama, ModelFormatError, OutOfMemoryError

PROMPT = "Once upon a time, there was a"
# Small sessions: what does not fit is the neurons.
FIELDS = {"n_ctx": 80, "n_batch": 16, "n_ubatch": 16}
OPTIONS = ("-c", 80, "-b", 16, "-ub", 16)
GREEDY = ("-p", PROMPT, "-n", 60, "--temp", 0, "-s", 1)

# GiB for sessions of ./main with default batches, with which most neurons stay in memory.
LARGE = 0.009


@pytest.fixture
def model(model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(model_path, tmp_path / "model.gguf"))


def budget(path: Path, share: float = 0.9) -> float:
    """GiB: a share of what the model takes in RAM."""
    return share * memory_plan(str(path), {}, FIELDS)["total"] / (1 << 30)


def opened(path: Path, ram_budget: float | None = None, **options: Any) -> Llama:
    options = {"verbose": False, "logits_all": True, **FIELDS, **options}
    return Llama(path, ram_budget=ram_budget, **options)


def answer(llm: Llama) -> tuple[str, np.ndarray]:
    text = llm(PROMPT, max_tokens=60, temperature=0)["choices"][0]["text"]
    return text, llm.scores[: llm.n_tokens].copy()


# ---- Results and figures ------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", ["auto", "exact", "off"])
def test_same_bits(model: Path, sparse: str) -> None:
    with opened(model, sparse=sparse) as llm:
        text, logits = answer(llm)
        neurons, in_memory = llm.stats()["tiers"]["ram"]["neurons"], llm.stats()["tiers"]["ram"]
        assert llm.stats()["storage"] is None and llm.plan()["storage"] == {}
        assert from_storage(llm.plan()) == ""
    for share in pick((0.82,), (0.82, 0.95)):
        with opened(model, budget(model, share), sparse=sparse) as llm:
            found = answer(llm)
            assert found[0] == text and np.array_equal(found[1], logits)
            stats, plan = llm.stats(), llm.plan()
            assert re.search(r"a token is expected to read for [\d.]+ ms$", from_storage(plan))
            assert plan["total"] <= plan["budget"] < memory_plan(str(model), {}, FIELDS)["total"]
        ram, storage = (stats["tiers"][name] for name in ("ram", "storage"))
        assert 0 < storage["neurons"] == sum(storage["layer_neurons"]) <= neurons
        assert ram["neurons"] + storage["neurons"] == neurons
        assert storage["bytes"] == plan["storage"]["ffn"] > 0 < ram["bytes"]
        # What was computed is the same, wherever it came from.
        both = np.add(ram["layer_hits"], storage["layer_hits"])
        assert np.allclose(both, in_memory["layer_hits"]) and sum(storage["layer_hits"]) > 0
        assert storage["reads"] > 0 and storage["stall_s"] > 0
        figures = stats["storage"]
        assert figures["io"] in ("uring", "threads") and figures["reads"] > 0
        for part in (figures["first"], figures["rest"]):
            assert 0 <= part["missed"] <= part["needed"] and 0 <= part["used"] <= part["slots"]
        assert figures["rest"]["missed"] > 0 and figures["arena_bytes"] > ram["bytes"] / 2


def test_only_prompts(model: Path) -> None:
    """Figures are of the prompt if nothing is generated."""
    with opened(model, budget(model, 0.8)) as llm:
        llm(PROMPT, max_tokens=1, temperature=0)
        stats = llm.stats()
    assert stats["n_gen"] == 0 < stats["n_prompt"]
    assert stats["storage"]["rest"]["missed"] > 0 < stats["tiers"]["storage"]["reads"]
    assert sum(stats["tiers"]["storage"]["layer_hits"]) > 0


def test_another_shape(tmp_path: Path) -> None:
    path = profiled.write(tmp_path / "model.gguf", profiled.uneven(12, 1000), rank=16)
    with opened(path) as llm:
        llm.eval(range(3, 40))
        want = llm.scores[:37].copy()
    with opened(path, budget(path, 0.7)) as llm:
        llm.eval(range(3, 40))
        assert np.array_equal(llm.scores[:37], want)


def test_main(model: Path, main_path: Path, tmp_path: Path) -> None:
    line = (main_path, "-m", model, "-c", 256, *GREEDY)
    out = tmp_path / "stats.json"
    whole = run_main(*line)
    done = run_main(*line, "--ram-budget", LARGE, "--json-stats", out, "-lv", 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole.stdout
    lines = done.stderr.splitlines()
    (said,) = (text for text in lines if "runs from storage" in text)
    assert re.fullmatch(
        rf"main: {model}.bundle.gguf: the model runs from storage: \d+ of 4096 neurons are in "
        r"memory, the others are read by (uring|threads)(, directly)?( \(.*\))?",
        said,
    )
    stats = json.loads(out.read_text())
    ram, storage = (100 * stats["tiers"][name]["neurons"] / 4096 for name in ("ram", "storage"))
    want = f"           tiers = gpu 0.00 %, ram {ram:.2f} %, storage {storage:.2f} %"
    assert want in lines and 0 < storage < 100
    parts = [stats["storage"][part] for part in ("first", "rest")]
    needed, missed = (sum(part[key] for part in parts) for key in ("needed", "missed"))
    (summary,) = (text for text in lines if text.startswith("         storage ="))
    rate = 100 * (1 - missed / needed)
    assert summary.startswith(f"         storage = {rate:10.2f} % hits; per token ")
    assert f"{stats['storage']['reads'] / stats['n_gen']:.1f} reads, " in summary
    assert f"{stats['tiers']['storage']['reads'] / 1e6:.2f} MB by " in summary
    assert "runs from storage" not in whole.stderr and "storage = " not in whole.stderr
    # The same keys as in Python.
    with opened(model, budget(model)) as llm:
        answer(llm)
        want = llm.stats()
    assert set(want) == set(stats) and shape(want["storage"]) == shape(stats["storage"])
    assert {k: set(v) for k, v in want["tiers"].items()} == {
        k: set(v) for k, v in stats["tiers"].items()
    }


def test_plot(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with Llama(model, n_ctx=256, ram_budget=0.0102, verbose=False) as llm:
        answer(llm)
        stats = llm.stats()
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    line = ["plot", str(tmp_path / "stats.json"), "--what", "placement"]
    assert main([*line, "--out", str(tmp_path / "run.png")]) == 0
    storage = stats["tiers"]["storage"]
    share, mib = 100 * storage["neurons"] / 4096, storage["bytes"] / (1 << 20)
    shown = capsys.readouterr().out.splitlines()[0]
    assert f"; storage: {share:.1f} % of the neurons, {mib:.1f} MiB, " in shown


def test_bench(model: Path, capsys: pytest.CaptureFixture) -> None:
    gib = budget(model, 0.8)
    line = ["bench", str(model), "-p", "16", "-n", "8", "-r", "1", "-b", "16", "-d", "96"]
    assert main([*line, "-o", "json", "--ram-budget", str(gib)]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert row["tiers"]["storage"]["neurons"] > 0 < row["storage"]["reads"]
        assert row["model_type"].endswith(" Q8_0") and ", disk (" in row["backends"]
    assert main([*line, "-p", "0", "--ram-budget", str(gib)]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.endswith("| neurons | hits | disk MB/token |") and head.count("|") == row.count("|")


# ---- What is said -------------------------------------------------------------------------------


def test_plan(model: Path, main_path: Path) -> None:
    gib = budget(model, 0.8)

    def last(*more: object) -> str:
        done = run_main(main_path, "-m", model, *OPTIONS, "--plan", *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    assert last() == "80 positions; the model fits"
    form = r"80 positions; the model runs from storage: ([\d.]+) MiB of neurons in memory, "
    form += r"([\d.]+) on the disk, which takes some [\d.]+ ms to read for a token"
    first = re.fullmatch(form + r"; its bundled file of ([\d.]+) MiB would be written first",
                         last("--ram-budget", gib))  # fmt: skip
    assert first
    target = Path(f"{model}.bundle.gguf")
    assert not target.exists()
    forbidden = "MiB is needed, and --no-bundle forbids it"
    assert last("--ram-budget", gib, "--no-bundle").endswith(forbidden)
    opened(model, gib).close()
    again = re.fullmatch(form, last("--ram-budget", gib))
    assert again and again[1] == first[1]
    mib = target.stat().st_size / (1 << 20)
    assert mib - 0.5 < float(first[3]) <= mib
    # Both together are the bundles of all neurons.
    with Gguf(target) as gguf:
        bundles = sum(t.n_bytes for t in gguf.tensors if t.name.endswith(".ffn_bundle"))
    assert sum(map(float, again.groups())) == pytest.approx(bundles / (1 << 20), abs=0.02)


def test_no_bundle(model: Path, main_path: Path, capsys: pytest.CaptureFixture) -> None:
    gib = budget(model, 0.8)
    want = f"{model}: the model does not fit the RAM that may be used, and its bundled file"
    done = run_main(main_path, "-m", model, *OPTIONS, "--ram-budget", gib, "--no-bundle")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(f"main: error: {want}")
    with pytest.raises(OutOfMemoryError, match="may not be written"):
        opened(model, gib, bundle=False)
    line = ["bench", str(model), "-b", "16", "-p", "16", "-n", "0", "-r", "1"]
    line += ["--ram-budget", str(gib * 0.95)]
    assert main([*line, "--no-bundle"]) == 1
    assert want in capsys.readouterr().err
    assert [p.name for p in model.parent.iterdir()] == ["model.gguf"]
    # With one, and for models that fit, it forbids nothing.
    opened(model, bundle=False).close()
    opened(model, gib).close()
    with opened(model, gib, bundle=False) as llm:
        assert llm.stats()["storage"]


def test_log(model: Path, capfd: pytest.CaptureFixture) -> None:
    target = f"{model}.bundle.gguf"
    opened(model, budget(model), verbose=True).close()
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith(f"{target}: writing ")
    assert [line for line in said if line.startswith(f"{target}: the model runs from storage: ")]
    opened(model, budget(model), verbose=True).close()
    assert not capfd.readouterr().err.startswith(f"{target}: writing ")


def test_a_folder_that_cannot_be_written(read_only: Path, cache: Path) -> None:  # noqa: F811
    with opened(read_only, budget(read_only)) as llm:
        text, logits = answer(llm)
        assert llm._model.storage().path == str(next(cache.glob("*.bundle.gguf")))
    with opened(read_only) as llm:
        want = answer(llm)
    assert text == want[0] and np.array_equal(logits, want[1])


# ---- Damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [5, 600, -1])
def test_a_damaged_neuron(model: Path, at: int) -> None:
    gib = budget(model)
    opened(model, gib).close()
    target = Path(f"{model}.bundle.gguf")
    with Gguf(target) as gguf:
        tensor = next(t for t in gguf.tensors if t.name == "blk.1.ffn_bundle")
        stride = tensor.shape[1]
    data = bytearray(target.read_bytes())
    data[tensor.offset + 9 * stride + at % stride] ^= 16
    target.write_bytes(data)
    with pytest.raises(ModelFormatError) as error, opened(model, gib, sparse="off") as llm:
        answer(llm)
    want = f"{target}: neuron 9 of block 1 does not match its checksum"
    assert str(error.value).startswith(want)
    # Without it, the next opening writes another one.
    target.unlink()
    with opened(model, gib) as llm:
        assert answer(llm)[0]


def test_a_bundled_file_of_another_model(model: Path) -> None:
    gib, target = budget(model), Path(f"{model}.bundle.gguf")
    target.write_bytes(b"something else")
    opened(model, gib).close()
    assert target.stat().st_size > 1 << 20  # it was in the way, and is one now
