"""The shipped model with Mamba-2, attention and squared-ReLU experts, which was trained: what it
predicts, what fires, and what its sketches cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import SPARSE_MODES, Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.measure.perplexity import Comparison, compare, scoring_fields
from test_sparse import TEXT

STORY = TEXT.replace("\n", " ").encode()
N_CTX = 64
# transformers 5.23 in float32 with the weights of this file, for the windows of `compare`.
TRANSFORMERS = 7.170620
FIELDS = {"type_k": 0, "type_v": 0, "n_batch": 64, "n_ubatch": 64, "n_logits": 64, "n_threads": 1}


@pytest.fixture(scope="module")
def path() -> Path:
    return Path(__file__).resolve().parents[2] / "models" / "stories-relu2.Q8_0.gguf"


def compared(chosen: tuple[Path, str], reference: tuple[Path, str]) -> Comparison:
    """Two files, each in a mode, on the story."""
    pairs = []
    for path, mode in (chosen, reference):
        model = Model(str(path))
        fields = scoring_fields(N_CTX, {**FIELDS, "sparse": SPARSE_MODES.index(mode)})
        pairs.append((model, Session(model, **fields)))
    return compare(*pairs, STORY, N_CTX, None)


def test_predicts_what_transformers_does(path: Path, tmp_path: Path) -> None:
    """With the same weights in F32 matrices the same; to skip zeros changes no more than the
    rounding of inputs to 8 bits."""
    dense = convert(path, outfile=tmp_path / "dense.gguf", dense=True, outtype="f32", log=quiet)
    found = compared((path, "exact"), (dense, "off"))
    assert found.reference.perplexity == pytest.approx(TRANSFORMERS, rel=2e-5)
    assert found.chosen.perplexity == pytest.approx(TRANSFORMERS, rel=0.003)
    assert found.mean < 5e-4
    fired = [share for share in found.chosen.work.shares()["computed"] if share]
    assert len(fired) == 3
    assert min(fired) > 0.05 and max(fired) < 0.2


def test_sketches_cost_little(path: Path, tmp_path: Path) -> None:
    """With what they propose the text is hardly less likely; with the signs of other neurons it
    is."""
    found = compared((path, "predictor"), (path, "exact"))
    work, exact = found.chosen.work, found.reference.work
    assert work.per_token("ffn") + work.per_token("predictor") < 0.7 * exact.per_token("ffn")
    assert 0 < found.mean < 0.005
    assert abs(np.mean(found.log_ratio)) < 0.01
    wrong = changed(
        path, tmp_path / "wrong.gguf", tensors=lambda n, d: d[::-1] if ".sketch" in n else d
    )
    assert compared((wrong, "predictor"), (path, "exact")).mean > 0.1
