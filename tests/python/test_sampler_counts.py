"""Samplers draw as llama.cpp's do: counts of 20,000 tokens, made by scripts/sampler_counts.py."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from powerinfer_cpp.core.sampler import Sampler

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("counts", ROOT / "scripts" / "sampler_counts.py")
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)
COUNTS = json.loads((ROOT / "tests" / "golden" / "sampler_counts.json").read_text())


@pytest.mark.parametrize("name", reference.CASES)
def test_counts(name: str) -> None:
    expected = np.zeros(reference.N_VOCAB)
    for token, n in COUNTS[name].items():
        expected[int(token)] = n
    sampler = Sampler(seed=1, **reference.CASES[name])
    sampler.accept(reference.HISTORY)
    logits = reference.logits()
    found = np.zeros(reference.N_VOCAB)
    for _ in range(reference.DRAWS):
        found[sampler.sample(logits, len(logits))] += 1
    assert expected.sum() == found.sum() == reference.DRAWS
    # Both are samples: the chi-square statistic of their difference, with rare tokens together.
    rare = expected + found < 20
    a, b = (np.append(n[~rare], n[rare].sum()) for n in (expected, found))
    statistic = ((a - b) ** 2 / np.maximum(a + b, 1)).sum()
    freedom = np.count_nonzero(a + b) - 1
    # Wilson and Hilferty's approximation: 4 standard deviations.
    limit = freedom * (1 - 2 / (9 * freedom) + 4 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, (statistic, freedom)
    # What a filter leaves out is never chosen.
    often = expected.sum() * 0.002
    assert not ((found == 0) & (expected > often)).any()
    assert not ((expected == 0) & (found > often)).any()
