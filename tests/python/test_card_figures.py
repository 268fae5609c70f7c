"""What is expected of mixtures beside a card: the simulated figures, and the speeds from them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from powerinfer_cpp.placement import Machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import card_experts  # noqa: E402
import predict_mixture  # noqa: E402
import predict_prompts  # noqa: E402
from mixtures.cards import MIXTURES, Prices, read_rows, text  # noqa: E402
from mixtures.routers import KINDS  # noqa: E402

FILE = ROOT / "docs" / "card_experts.csv"
ROWS = read_rows(FILE)


def test_the_document_has_the_tables() -> None:
    document = (ROOT / "docs" / "gpu.md").read_text()
    assert card_experts.table(ROWS) in document
    assert predict_mixture.table(ROWS) in document
    assert predict_prompts.table() in document


def test_following_is_the_default() -> None:
    """No share and router at which another policy is much faster, and none that it slows down."""
    cases = itertools.product(MIXTURES, KINDS, card_experts.SHARES)
    by = {(r.mixture, r.router, r.share, r.policy): r for r in ROWS}
    assert len(by) == len(ROWS) == len(MIXTURES) * len(KINDS) * 6 * 5
    for case in cases:
        static, first, lru, follow, unknown = (by[(*case, p)] for p in card_experts.POLICIES)
        assert follow.ms < 1.01 * static.ms and follow.ms < first.ms, case
        assert follow.ms < 1.04 * lru.ms and follow.ms < 1.01 * unknown.ms, case
        assert follow.copies < 50 and (case[1] == "forgetful") == (follow.copies < 0.1), case


def test_seconds_of_both_sides() -> None:
    """Chances of a use instead of a text: as long as the replay of the text."""
    machine = Machine.bound(vram=Prices().vram, sync=Prices().meeting)
    for row in ROWS:
        if row.policy != "follow":
            continue
        mixture, dense = MIXTURES[row.mixture], predict_mixture.DENSE[row.mixture]
        case = predict_mixture.Case(mixture, dense, 0, machine, Prices(), [])
        assert 1e3 * case.shared(row.hits, row.copies) == pytest.approx(row.ms, rel=0.02), row


def test_speeds() -> None:
    found = list(predict_mixture.cases(ROWS))
    for model, group in itertools.groupby(found, key=lambda case: case[0]):
        cases = [case for _, _, case in group]
        for a, b in itertools.pairwise(cases):
            assert a.share <= b.share and a.here() < b.here(), model
        for case in cases:
            if case.share == 1:  # nothing is left to decide
                assert case.here() == pytest.approx(case.layers()) == pytest.approx(case.uploads())
            else:
                assert case.here() > max(case.layers(), case.uploads(), case.here("uniform"))
                assert case.here(policy="static") > case.layers()
    # Without room for experts all of them are the CPU's.
    _, _, case = found[0]
    none = predict_mixture.Case(case.mixture, case.dense, 0, case.machine, case.prices, case.rows)
    assert none.share == 0 and none.here() == pytest.approx(none.layers(), rel=0.02)


def test_prompts() -> None:
    """Longer prompts and smaller chunks take longer, caches of 8 bits do not."""
    for model, card, chunk in predict_prompts.cases():
        short, long = (
            [predict_prompts.seconds(model, card, n, chunk, cache) for cache in ("F16", "Q8_0")]
            for n in predict_prompts.LENGTHS
        )
        assert short[1] <= short[0] and long[1] <= long[0]
        assert 8 * short[0] < long[0]
        if chunk == 4096:
            assert short[0] < predict_prompts.seconds(model, card, 4096, 512, "F16")


@pytest.mark.slow
def test_replay(tmp_path: Path) -> None:
    """The file is what the engine does: one mixture and router again. Another processor may choose
    other experts where scores are all but equal."""
    build = ROOT / "build" / "cpu"
    command = ["cmake", "--build", build, "--target", "card_replay"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    model, router = "gpt-oss-20b MXFP4", "qwen3"
    chosen = text(MIXTURES[model], router)
    for share in (20, 50):
        found = card_experts.policies(
            build / "tests" / "card_replay", MIXTURES[model], chosen, share, Prices()
        )
        rows = [r for r in ROWS if (r.mixture, r.router, r.share) == (model, router, share)]
        assert len(rows) == len(found)
        for row in rows:
            of = found[row.policy]
            assert of.hits == pytest.approx(row.hits, abs=0.005), row
            assert 1e3 * of.seconds == pytest.approx(row.ms, rel=0.02), row
            assert of.copies == pytest.approx(row.copies, rel=0.05, abs=0.1), row
