"""scripts/make_mixture.py at small size: what it promises, and that mixtures run from storage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.server.served import ServedModel

from powerinfer_cpp import Llama

ROOT = Path(__file__).resolve().parents[2]
SHAPE = ["--embd", 256, "--layers", 3, "--ff", 1024, "--experts", 4, "--heads", 4, "--kv", 2]
FIELDS = {"n_ctx": 256, "n_batch": 16, "n_ubatch": 16}
N_FF = 1024


def make(folder: Path, *options: object) -> tuple[Path, list[int]]:
    """A mixture, and 160 tokens for it."""
    path, ids = folder / "mixture.gguf", folder / "mixture.ids"
    line = [ROOT / "scripts" / "make_mixture.py", path, *SHAPE, "--vocab", 2000, "--rank", 128]
    line += ["--tokens", ids, "--density", 0.08, "--skew", 1, *options]
    subprocess.run([sys.executable, *map(str, line)], check=True, capture_output=True)
    return path, np.loadtxt(ids, dtype=int)[:160].tolist()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    return make(tmp_path_factory.mktemp("mixture"))


def opened(path: Path, **options: Any) -> Llama:
    return Llama(path, verbose=False, logits_all=True, **FIELDS, **options)


def test_density_and_routing(made: tuple[Path, list[int]]) -> None:
    path, ids = made
    with opened(path, sparse="exact", record="fired") as llm:
        llm.eval(ids)
        fired = llm.activations()  # [layers, tokens, experts, neurons]
    chosen = fired.any(-1)
    assert (chosen.sum(-1) == 2).all()
    density = fired.sum((1, 2, 3)) / (2 * len(ids) * N_FF)
    assert density == pytest.approx([0.04, 0.08, 0.12], rel=0.1)
    # Some experts are much more popular than others, and not the same ones in all layers.
    share = np.sort(chosen.mean(1))
    assert (share[:, 0] < 0.3).all() and (share[:, -1] > 0.7).all()


def test_predictors(made: tuple[Path, list[int]], tmp_path: Path) -> None:
    """Exact ones find all firings but for their rounding; those that err miss some."""

    def recall(path: Path, ids: list[int]) -> float:
        with opened(path) as llm:
            llm.create_completion(ids[:20], max_tokens=150, temperature=1)
            audit = llm.stats()["audit"]
        assert audit["fired"] > 200
        return audit["found"] / audit["fired"]

    exact = recall(*make(tmp_path, "--type", "F16"))
    rounded = recall(*made)
    errs = recall(*make(tmp_path, "--type", "F16", "--corr", 0.8, "--rho", 0.5))
    assert exact > 0.99 and rounded > 0.88 and 0.75 < errs < 0.96, (exact, rounded, errs)


def test_from_storage(made: tuple[Path, list[int]]) -> None:
    path, ids = made
    assert main(["bundle", str(path), "--check"]) == 0

    def logits(**options: Any) -> np.ndarray:
        with opened(path, **options) as llm:
            llm.eval(ids[:40])
            for token in ids[40:80]:
                llm.eval([token], generated=True)
            if options:
                assert llm.stats()["tiers"]["storage"]["neurons"] > 0
            return llm.scores[:80].copy()

    want = logits()
    whole = memory_plan(str(path), {}, FIELDS)["total"] / (1 << 30)
    for share in (0.65, 0.8, 0.95):
        assert np.array_equal(logits(ram_budget=share * whole), want)


@pytest.mark.parametrize("share", [0.2, 0.23, 0.26])
def test_sessions_that_are_planned(made: tuple[Path, list[int]], share: float) -> None:
    """What a plan leaves is what sessions take: the server's, and those of an embedding model."""
    path, ids = made
    ram = memory_plan(str(path), {}, {"n_ctx": 64, "n_seq": 33, "n_kv": 128})["ram"]
    gib = share * sum(ram.values()) / (1 << 30)
    options = {"n_ctx": 64, "verbose": False, "ram_budget": gib}
    for n_parallel, n_kv in ((1, None), (2, 90)):
        with ServedModel(path, lambda _: None, n_parallel=n_parallel, n_kv=n_kv, **options) as llm:
            assert (
                llm.records
                and (plan := llm.runtime.plan())["storage"]
                and plan["total"] <= plan["budget"]
            )
    with Llama(path, embedding=True, n_batch=32, **options) as llm:
        assert llm.plan()["storage"] and len(llm.embed("a b")) > 0
        llm.eval(ids[:4])  # in a session of its own
        assert llm.n_tokens == 4
