"""Figures of mixtures whose experts are read from the disk: stats, `./main`, plots, the server."""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.run.requests import Ticket
from powerinfer_cpp.server.view import View
from prometheus_client.parser import text_string_to_metric_families
from test_bench import run_main, shape

from powerinfer_cpp import Llama

ROOT = Path(__file__).resolve().parents[2]
LAYERS, EXPERTS, USED, N_FF = 4, 32, 4, 256  # of make_mixture.py --plain small
FIELDS = {"n_ctx": 128, "n_batch": 16, "n_ubatch": 16}
OPTIONS = ("-c", 128, "-b", 16, "-ub", 16, "--temp", 0, "-n", 40)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A mixture, and tokens that it continues."""
    folder = tmp_path_factory.mktemp("figures")
    path, ids = folder / "mixture.gguf", folder / "mixture.ids"
    line = [ROOT / "scripts" / "make_mixture.py", path, "--plain", "small", "--n", 200]
    line += ["--tokens", ids]
    subprocess.run([sys.executable, *map(str, line)], check=True, capture_output=True)
    return path, np.loadtxt(ids, dtype=int)[:12].tolist()


def half(path: Path) -> float:
    """GiB with room for about half of the experts."""
    ram = memory_plan(str(path), {}, FIELDS)["ram"]
    return (sum(ram.values()) - ram["ffn"] / 2) / (1 << 30)


def opened(path: Path, **options: Any) -> Llama:
    path.with_name(path.name + ".resident").unlink(missing_ok=True)
    return Llama(path, verbose=False, **FIELDS, **options)


def figures(path: Path, ids: list[int], **options: Any) -> dict[str, Any]:
    with opened(path, **options) as llm:
        llm.create_completion(ids, max_tokens=40, temperature=0)
        return llm.stats()


@pytest.fixture(scope="module")
def stats(made: tuple[Path, list[int]]) -> dict[str, Any]:
    return figures(*made, ram_budget=half(made[0]))


def test_stats(made: tuple[Path, list[int]], stats: dict[str, Any]) -> None:
    storage, tiers, n = stats["storage"], stats["tiers"], stats["n_gen"]
    assert n == 39 and storage["unit"] == "experts" and storage["io"] in ("uring", "threads")
    first = storage["first"]
    assert storage["rest"] == {"slots": 0, "used": 0, "needed": 0, "missed": 0}
    assert LAYERS * EXPERTS / 8 < first["slots"] < LAYERS * EXPERTS / 2
    needed, missed = (np.array(storage[f"layer_{name}"]) for name in ("needed", "missed"))
    assert needed.tolist() == [n * USED] * LAYERS and first["needed"] == needed.sum()
    assert (missed > 0).all() and (missed < needed).all() and first["missed"] == missed.sum()
    # An expert has three matrices in Q4_0, which is 18 bytes for 32 weights.
    read = np.array(storage["layer_bytes"])
    assert (read >= missed * 3 * N_FF * 256 * 18 / 32).all()
    assert read.sum() // n == tiers["storage"]["reads"] and storage["reads"] >= first["missed"]
    assert sum(storage["layer_stall_s"]) == pytest.approx(tiers["storage"]["stall_s"])
    assert 0 < storage["guessed_right"] <= storage["guessed"]
    # Neurons are counted as those of their experts.
    assert tiers["storage"]["neurons"] == (LAYERS * EXPERTS - first["used"]) * N_FF
    assert np.allclose(tiers["storage"]["layer_hits"], missed * N_FF / n)
    both = np.add(tiers["storage"]["layer_hits"], tiers["ram"]["layer_hits"])
    assert np.allclose(both, USED * N_FF)
    in_memory = figures(*made)
    assert in_memory["storage"] is None
    assert in_memory["tiers"]["ram"]["layer_hits"] == both.tolist()


def test_only_prompts(made: tuple[Path, list[int]]) -> None:
    """An expert counts once for all rows that are computed together."""
    path, ids = made
    with opened(path, ram_budget=half(path)) as llm:
        llm.create_completion(ids, max_tokens=1)
        stats = llm.stats()
    storage = stats["storage"]
    assert stats["n_gen"] == 0 < stats["n_prompt"] == len(ids)
    assert all(USED <= n <= EXPERTS for n in storage["layer_needed"])
    assert sum(stats["tiers"]["storage"]["layer_hits"]) > 0 < storage["first"]["missed"]


def test_main(
    made: tuple[Path, list[int]], stats: dict[str, Any], main_path: Path, tmp_path: Path
) -> None:
    path, ids = made
    with opened(path) as llm:
        prompt = llm.detokenize(ids).decode()
    path.with_name(path.name + ".resident").unlink(missing_ok=True)
    out = tmp_path / "stats.json"
    line = (main_path, "-m", path, "-p", prompt, *OPTIONS, "--json-stats", out)
    done = run_main(*line, "--ram-budget", half(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert set(found) == set(stats) and shape(found["storage"]) == shape(stats["storage"])
    storage, n = found["storage"], found["n_gen"]
    first = storage["first"]
    assert storage["unit"] == "experts" and storage["layer_needed"] == [n * USED] * LAYERS
    assert sum(storage["layer_missed"]) == first["missed"] > 0
    (said,) = (text for text in done.stderr.splitlines() if text.startswith("         storage ="))
    hits = 100 * (1 - first["missed"] / first["needed"])
    guessed, right = storage["guessed"] / n, 100 * storage["guessed_right"] / storage["guessed"]
    want = (
        rf"         storage = {hits:10.2f} % hits of experts; per token {storage['reads'] / n:.1f}"
    )
    want += rf" reads, {found['tiers']['storage']['reads'] / 1e6:.2f} MB by {storage['io']}, waited"
    end = rf" ms, {guessed:.1f} experts read early ({right:.0f} % of them chosen)"
    assert re.fullmatch(re.escape(want) + r" \d+\.\d\d" + re.escape(end), said), said


def test_plot(stats: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "stats.json", tmp_path / "run.png"
    file.write_text(json.dumps(stats))
    line = ["plot", str(file), "--what", "placement", "--out", str(out)]
    assert main(line) == 0 and out.stat().st_size > 10000
    first, tiers = stats["storage"]["first"], stats["tiers"]
    had = 100 * (1 - first["missed"] / first["needed"])
    here = 100 * first["used"] / (LAYERS * EXPERTS)
    assert capsys.readouterr().out.splitlines()[0] == (
        f"RAM: {here:.1f} % of the experts, {tiers['ram']['bytes'] / (1 << 20):.1f} MiB, "
        f"{had:.1f} % of those needed; storage: {100 - here:.1f} % of the experts, "
        f"{tiers['storage']['bytes'] / (1 << 20):.1f} MiB, {100 - had:.1f} % of those needed"
    )
    needs = "storage needs layer_needed and layer_missed"
    for changed, why in (
        ({"layer_missed": [9**9] * LAYERS}, "missed more than it needed"),
        ({"layer_needed": [1]}, needs),
        ({"layer_needed": "x"}, needs),
    ):
        file.write_text(json.dumps(stats | {"storage": stats["storage"] | changed}))
        assert main(line) == 1
        assert why in capsys.readouterr().err


def test_server(made: tuple[Path, list[int]]) -> None:
    """Its page shows experts, and its metrics count them."""
    path, ids = made
    path.with_name(path.name + ".resident").unlink(missing_ok=True)
    with serving.in_thread(path, n_parallel=1, ram_budget=half(path), **FIELDS) as running:
        shown = running.get("view").json()
        assert shown["unit"] == "experts" and shown["layer_units"] == [EXPERTS] * LAYERS
        tiers = np.frombuffer(base64.b64decode(shown["tiers"]), np.uint8)
        assert tiers.tolist() == [0] * (LAYERS * EXPERTS)
        fired: list[np.ndarray] = []
        view = View(running.model)
        watcher = view._join("")

        def see(ticket: Ticket, token: int, bits: np.ndarray) -> None:
            fired.append(running.model.units.fired(bits))
            view._note(ticket, token, bits)

        running.model.watch(see)
        running.post("v1/completions", {"prompt": ids, "max_tokens": 20, "temperature": 0})
        running.model.watch(None)
        # The frame of a token says where its experts were before it, not some seconds ago.
        ((number, ran),) = watcher.ran.items()
        frame = view._token_frame(number, ran)
        share, disk, ram, gpu = struct.unpack_from("<4f", frame, 13)
        assert share == USED / EXPERTS and gpu == 0 < ram
        assert disk + ram == pytest.approx(share * LAYERS * EXPERTS * shown["bytes_per_unit"])
        chosen = np.array(fired).reshape(-1, LAYERS, EXPERTS)
        assert len(chosen) >= 19 and (chosen.sum(axis=2) == USED).all()
        tiers = running.model.units.tiers()
        assert tiers.shape == (LAYERS * EXPERTS,) and set(tiers) == {0, 1}
        weights = shown["bytes_per_unit"] * LAYERS * EXPERTS
        assert 1 < weights / (LAYERS * EXPERTS * 3 * N_FF * 256 * 18 / 32) < 1.1
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(running.get("metrics").text)
            for sample in family.samples
        }
    needed, missed, guessed, right = (
        found[f"powerinfer:storage_experts_{name}_total"]
        for name in ("needed", "missed", "guessed", "guessed_right")
    )
    assert 0 < missed < needed and 0 <= right <= guessed and needed >= 19 * LAYERS * USED
    assert found["powerinfer:hit_rate"] == pytest.approx(1 - missed / needed)
    assert found["powerinfer:storage_waited_seconds_total"] > 0
    assert "powerinfer:storage_first_needed_total" not in found
