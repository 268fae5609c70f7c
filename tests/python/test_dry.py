"""DRY subtracts what llama.cpp's does: penalties made by scripts/sampler_counts.py --dry."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.sampler import Breakers, Sampler

ROOT = Path(__file__).resolve().parents[2]
CASES = json.loads((ROOT / "tests" / "golden" / "dry_penalties.json").read_text())


@pytest.fixture(scope="module")
def vocabulary(model_path: Path):
    model = Model(str(model_path), vocab_only=True)
    yield model
    model.close()


def test_penalties(vocabulary: Model) -> None:
    n = vocabulary.n_vocab
    assert sum(len(case["penalties"]) for case in CASES) > 50
    for case in CASES:
        params = {name: value for name, value in case.items() if name.startswith("dry_")}
        breakers = Breakers(vocabulary, params.pop("dry_sequence_breakers"))
        sampler = Sampler(breakers, temperature=0, **params)
        sampler.accept(case["tokens"])
        never = next(i for i in range(n) if i not in case["tokens"])
        for token in set(case["tokens"]):
            penalty = case["penalties"].get(str(token), 0)
            # The token is chosen before another one if its logit is larger by more than that.
            for more, chosen in ((1e-4, token), (-1e-4, never)):
                logits = np.full(n, -np.inf, np.float32)
                logits[never], logits[token] = 0, penalty * (1 + more) + more
                assert sampler.sample(logits, n) == chosen, (case, token)


def test_all_tokens(vocabulary: Model) -> None:
    """-1 looks at all tokens; so do other samplers in any order, and a copy of many."""
    tokens = [*range(100), 7, 8]
    logits = np.zeros(vocabulary.n_vocab, np.float32)
    logits[9] = 1
    for last_n, expected in ((-1, False), (200, False), (50, True)):
        sampler = Sampler(temperature=0, dry_multiplier=2.0, dry_penalty_last_n=last_n)
        sampler.accept(tokens)
        assert (sampler.sample(logits, len(logits)) == 9) == expected, last_n
        sampler.reset()
        assert sampler.sample(logits, len(logits)) == 9
