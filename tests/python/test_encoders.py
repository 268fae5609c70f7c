"""Encoders, against the errors of llama.cpp's (scripts/encoder_errors.py)."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import gguf
import numpy as np
import pytest
from powerinfer_cpp.convert import formats
from powerinfer_cpp.convert.formats import encode, format_by_name

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "encoder_errors.json").read_text())
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "encoder_errors.py"))
ARRAYS, IMPORTANCE = SCRIPT["arrays"]()


@pytest.mark.parametrize("name", GOLDEN)
def test_as_good_as_llama_cpps(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    for case, x in ARRAYS.items():
        for weights, theirs in zip((None, IMPORTANCE), GOLDEN[name][case], strict=True):
            data = encode(format_by_name(name), x, weights).reshape(len(x), -1)
            ours = SCRIPT["error"](x, gguf.quants.dequantize(data, kind), weights)
            assert ours <= 1.02 * theirs, (case, weights is not None)


@pytest.mark.parametrize("name", GOLDEN)
def test_threads_do_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt, x = format_by_name(name), ARRAYS["heavy tails"]
    found = []
    for piece in (1 << 30, 700):
        monkeypatch.setattr(formats, "_PIECE", piece)
        found.append([encode(fmt, x).tobytes(), encode(fmt, x, IMPORTANCE).tobytes()])
    assert found[0] == found[1]
    rows = [encode(fmt, row, IMPORTANCE).tobytes() for row in x]
    assert b"".join(rows) == found[0][1]


@pytest.mark.parametrize("name", GOLDEN)
def test_importance_without_information(name: str) -> None:
    """All columns alike, or none important: as good as without; columns of importance 0 among
    others keep their values."""
    kind, fmt, x = gguf.GGMLQuantizationType[name], format_by_name(name), ARRAYS["normal"]
    size = (len(x), -1)
    plain = gguf.quants.dequantize(encode(fmt, x).reshape(size), kind)
    limit = 1.01 * SCRIPT["error"](x, plain, None)
    some = IMPORTANCE.copy()
    some[64:96] = 0
    for weights in (np.ones(512, np.float32), np.zeros(512, np.float32), some):
        back = gguf.quants.dequantize(encode(fmt, x, weights).reshape(size), kind)
        columns = slice(64, 96) if weights is some else slice(None)
        most = 4 * limit if weights is some else limit
        assert SCRIPT["error"](x[:, columns], back[:, columns], None) <= most


def test_bad_importance() -> None:
    fmt, x = format_by_name("Q4_K"), ARRAYS["normal"]
    for value in (-1.0, np.nan, np.inf):
        weights = IMPORTANCE.copy()
        weights[7] = value
        with pytest.raises(ValueError, match="importance must be finite and not negative"):
            encode(fmt, x, weights)
    with pytest.raises(ValueError, match="row must be a multiple of the block that divides n"):
        encode(fmt, x, IMPORTANCE[:384])
    assert encode(fmt, x[:0], IMPORTANCE).size == 0
