"""What is said where a model does not fit: how much it needs, and ways that really help."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import serving
from families import quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from test_bench import run_main

from powerinfer_cpp import Llama, OutOfMemoryError

MIB = 1 / 1024  # in GiB


@pytest.fixture(scope="module")
def dense(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ways") / "a dense.gguf"
    assert main(["convert", "--dense", "--outfile", str(path), str(model_path)]) == 0
    return path


def planned(main_path: Path, *arguments: object) -> tuple[int, list[str]]:
    done = run_main(main_path, "--plan", *arguments)
    assert "total" in done.stdout and not done.stderr
    return done.returncode, done.stdout.splitlines()


def ways(lines: list[str]) -> list[str]:
    """Those of a plan's last lines."""
    at = next(i for i, line in enumerate(lines) if line.endswith("does not fit"))
    assert lines[at + 1] in ("Each of these suffices:", "These help, but not alone:")
    return [line.strip() for line in lines[at + 2 :]]


def test_plan_that_fits(dense: Path, main_path: Path) -> None:
    status, lines = planned(main_path, "-m", dense)
    assert status == 0 and lines[-1].endswith("the model fits")


@pytest.mark.parametrize("mib", [30, 20, 12])
@pytest.mark.parametrize("options", [(), ("-c", 1000), ("-c", 700, "-ctk", "f32", "-ctv", "f32")])
def test_options_suffice(
    dense: Path, main_path: Path, mib: float, options: tuple[object, ...]
) -> None:
    base = ("-m", dense, *options, "--ram-budget", mib * MIB)
    status, lines = planned(main_path, *base)
    if status == 0:
        return
    assert status == 3
    said = ways(lines)
    assert said
    alone = "Each of these suffices:" in lines
    for way in said:
        what, _, needs = way.rpartition(": ")
        if not way.startswith("-") or what.startswith("--ram-budget"):
            continue
        status, lines = planned(main_path, *base, *shlex.split(what))
        if alone:
            assert status == 0, way
        total = next(float(line.split()[1]) for line in lines if line.split()[:1] == ["total"])
        need = float(needs.split()[0])
        if what == "--mmap-anyway":  # which takes all that it may
            assert total >= need - 0.06
        else:
            assert total == pytest.approx(need, abs=0.06)


def test_budget_that_suffices(dense: Path, main_path: Path) -> None:
    status, lines = planned(main_path, "-m", dense, "--ram-budget", 3 * MIB)
    (last,) = (way for way in ways(lines) if way.startswith("--ram-budget"))
    assert status == 3 and last.endswith(": so much is free")
    status, lines = planned(main_path, "-m", dense, *last.partition(":")[0].split())
    assert status == 0 and lines[-1].endswith("the model fits")


def test_commands(dense: Path, main_path: Path) -> None:
    """A command that is named makes a file that fits."""
    line = ("-m", dense, "-p", "Once", "-n", 3, "-c", 64, "-ub", 16, "--ram-budget", 4 * MIB)
    failed = run_main(main_path, *line)
    assert failed.returncode == 1 and not failed.stdout
    error, *said = failed.stderr.splitlines()
    assert error.startswith("main: error: ") and "MiB may be used" in error
    found = re.search(r"powerinfer ((?:quantize|convert) .*), then -m that file", "\n".join(said))
    assert found, said
    words = shlex.split(found[1])
    assert words[1] == str(dense) and main(words) == 0
    (made,) = set(dense.parent.glob("*-*.gguf"))
    done = run_main(main_path, *line, "-m", made)
    assert done.returncode == 0, done.stderr


def test_main_keeps_one_row(dense: Path, main_path: Path) -> None:
    _, lines = planned(main_path, "-m", dense, "-b", 1000)
    assert any(line.split()[1:] == ["results", "0.01"] for line in lines)


def test_python(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has keywords in Python, and options in a command."""
    with pytest.raises(OutOfMemoryError, match=r"n_ctx=\d+") as raised:
        Llama(dense, n_ctx=1024, n_ubatch=16, ram_budget=7 * MIB, verbose=False)
    assert raised.value.ways and raised.value.path == str(dense)
    way = next(way for way in raised.value.ways if way.what == "n_ctx")
    if way.suffices:
        Llama(dense, n_ctx=way.value, n_ubatch=16, ram_budget=7 * MIB, verbose=False).close()
    line = ["complete", "-m", str(dense), "-c", "1024", "-ub", "16", "-p", "x", "-n", "1"]
    assert main([*line, "--ram-budget", str(7 * MIB)]) == 1
    assert re.search(r"-c \d+ \(", capsys.readouterr().err)


# ---- Dense models that run all the same --------------------------------------------------------

FIELDS = {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16, "seed": 1}
LINE = ("-p", "the quick", "-n", 4, "-c", 64, "-b", 16, "-ub", 16, "--temp", 0)
BUDGET = 12 * MIB  # of 19: some of its blocks fit
READS = r"each token reads (\d+\.\d) MiB from the disk"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model of twelve layers with 1.2 MB of feed-forward weights each."""
    folder = tmp_path_factory.mktemp("deep")
    config = checkpoints.config(num_hidden_layers=12, intermediate_size=1536)
    checkpoints.save(folder, config, checkpoints.weights(config))
    return convert(folder, outfile=folder / "deep.gguf", outtype="f32", log=quiet)


def test_main_anyway(deep: Path, main_path: Path) -> None:
    line = ("-m", deep, *LINE, "--ram-budget", BUDGET)
    refused = run_main(main_path, *line)
    assert refused.returncode == 1 and not refused.stdout
    last = refused.stderr.splitlines()[-1].strip()
    assert re.fullmatch(rf"--mmap-anyway: \d+\.\d MiB, but {READS}", last), refused.stderr
    assert "powerinfer quantize" in refused.stderr
    whole, done = (
        run_main(main_path, "-m", deep, *LINE),
        run_main(main_path, *line, "--mmap-anyway"),
    )
    assert done.returncode == 0 and done.stdout == whole.stdout
    (said,) = re.findall(rf"deep\.gguf: the model does not fit .*: {READS}", done.stderr)
    assert not re.search(READS, whole.stderr)
    assert f"but each token reads {said} MiB" in refused.stderr
    status, lines = planned(main_path, *line, "--mmap-anyway")
    assert status == 0 and "the model runs from storage" in lines[-1]


def test_llama_anyway(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [1, *range(40, 80)]
    found = []
    said = rf"mmap_anyway=True \(\d+\.\d MiB, but {READS}\)$"
    with pytest.raises(OutOfMemoryError, match=said):
        Llama(deep, ram_budget=BUDGET, verbose=False, **FIELDS)
    for budget in ({}, {"ram_budget": BUDGET, "mmap_anyway": True}):
        with Llama(deep, verbose=False, logits_all=True, **FIELDS, **budget) as llm:
            llm.eval(ids)
            llm.eval([90])
            found.append(llm.scores[: llm.n_tokens].copy())
            if budget:
                llm("x", max_tokens=3)
                plan, counts = llm.plan(), llm.stats()["storage"]["first"]
                assert plan["total"] <= plan["budget"] and plan["storage"]["ffn"] > 0
                assert llm.stats()["storage"]["unit"] == "blocks"
                assert 0 < counts["used"] == counts["slots"] < 12
                share = counts["missed"] / counts["needed"]
                assert share == pytest.approx((12 - counts["slots"]) / 12)
    assert np.array_equal(*found)
    line = ["complete", "-m", str(deep), "-c", "64", "-b", "16", "-p", "x", "-n", "1"]
    line += ["--ram-budget", str(BUDGET)]
    assert main(line) == 1
    assert "--mmap-anyway (" in capsys.readouterr().err
    assert main([*line, "--mmap-anyway"]) == 0
    assert len(re.findall(READS, capsys.readouterr().err)) == 1


@pytest.mark.parametrize(("n", "mib"), [(16, 16.5), (4, 9.5)])
def test_fewer_texts(n: int, mib: float, dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` names -np: with that the model fits; as an error, and with --plan."""
    line = ["serve", str(dense), "-c", "512", "-ub", "16", "--ram-budget", str(mib * MIB)]
    assert main([*line, "-np", str(n), "--plan"]) == 3
    planned = capsys.readouterr().out
    assert main([*line, "-np", str(n), "--port", "0"]) == 1
    for said in (planned.splitlines()[-1], capsys.readouterr().err):
        assert "each of these suffices: -np " in said
        found = re.search(r"-np (\d+) \((\d+\.\d) MiB\)", said)
        assert 1 <= int(found[1]) < n
        assert main([*line, "-np", found[1], "--plan"]) == 0
        total = re.search(r"total +([\d.]+) MiB", capsys.readouterr().out)[1]
        assert float(total) == pytest.approx(float(found[2]), abs=0.06)


def test_server_anyway(deep: Path) -> None:
    with serving.in_thread(deep, ram_budget=BUDGET, mmap_anyway=True, **FIELDS) as running:
        assert running.model.runtime.plan()["storage"]["ffn"] > 0
        body = {"prompt": "x", "max_tokens": 2, "temperature": 0}
        assert running.post("v1/completions", body).status_code == 200
