"""The routers of scripts/make_mixture.py --plain: what is stated of them, and that the engine keeps
the right experts of each."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from mixtures.routers import KINDS, Uses, describe, tokens  # noqa: E402

LAYERS, EXPERTS, USED, WIDTH = 6, 128, 8, 256


@pytest.fixture(scope="module")
def stated() -> dict[str, Uses]:
    """What is true of each kind's choices."""
    found = {}
    for name, kind in KINDS.items():
        rng = np.random.default_rng(5)
        x = tokens(kind, 1200, WIDTH, rng)
        routers = rng.standard_normal((LAYERS, WIDTH, EXPERTS), np.float32)
        scores = np.stack([x @ router for router in routers], 1)
        chosen = np.argpartition(-scores, USED - 1, -1)[..., :USED]
        found[name] = describe(chosen, EXPERTS, 400)
    return found


def test_kinds_are_what_they_are_called(stated: dict[str, Uses]) -> None:
    like, uniform, forgetful = (stated[name] for name in ("qwen3", "uniform", "forgetful"))
    assert 0.4 < like.again[1] < 0.55 and like.again[64] < 0.6 * like.again[1]
    assert 0.7 < like.within_8 < 0.85 and 0.4 < like.gini < 0.65
    assert uniform.gini < 0.8 * like.gini and uniform.again[1] > 2 * uniform.again[64]
    assert abs(forgetful.again[1] - forgetful.again[64]) < 0.05


def test_the_engine_keeps_what_the_better_policy_keeps(stated: dict[str, Uses]) -> None:
    for name, uses in stated.items():
        for share, hits in uses.hits.items():
            better = max(hits["lru"], hits["static"])
            assert hits["powerinfer"] > better - 0.02, (name, share, hits)
            assert hits["powerinfer"] < hits["belady"], (name, share, hits)
    # Neither alone is the better one.
    assert stated["qwen3"].hits[0.25]["lru"] > stated["qwen3"].hits[0.25]["static"] + 0.2
    assert stated["forgetful"].hits[0.25]["static"] > stated["forgetful"].hits[0.25]["lru"] + 0.05
