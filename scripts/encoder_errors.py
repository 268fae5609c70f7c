#!/usr/bin/env python3
"""The error of llama.cpp's quantisers on a few arrays.

The reference of tests/python/test_encoders.py:

    scripts/encoder_errors.py > tests/golden/encoder_errors.json

It needs llama-cpp-python and gguf. For each format and array: the sum of squared errors divided by
that of squares, and the same with both sums weighted by an importance of the columns.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
FORMATS += ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
ROWS, COLUMNS = 24, 512


def arrays() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """float32 [ROWS, COLUMNS] each, and an importance, [COLUMNS]."""
    rng = np.random.default_rng(11)
    normal = rng.normal(0, 1, (ROWS, COLUMNS))
    found = {
        "normal": normal,
        "heavy tails": np.sign(normal) * np.abs(rng.normal(0, 1, (ROWS, COLUMNS))) ** 2,
        "shifted": normal + 1,
        "columns differ": normal * np.exp(rng.normal(0, 0.5, COLUMNS)),
    }
    importance = np.exp(rng.normal(0, 1.5, COLUMNS))
    return {k: v.astype(np.float32) for k, v in found.items()}, importance.astype(np.float32)


def error(x: np.ndarray, back: np.ndarray, importance: np.ndarray | None) -> float:
    """The relative squared error."""
    weights = np.ones(x.shape[-1]) if importance is None else importance.astype(np.float64)
    exact = x.astype(np.float64)
    return float((weights * (back - exact) ** 2).sum() / (weights * exact**2).sum())


def main() -> None:
    import llama_cpp

    lib = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    xs, importance = arrays()
    found: dict[str, dict[str, list[float]]] = {}
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        for case, x in xs.items():
            errors = []
            for weights in (None, importance):
                out = np.zeros((ROWS, COLUMNS // block * n_bytes), np.uint8)
                given = None if weights is None else weights.ctypes.data
                pointers = x.ctypes.data, out.ctypes.data
                lib.ggml_quantize_chunk(kind, *pointers, 0, ROWS, COLUMNS, given)
                errors.append(error(x, gguf.quants.dequantize(out, kind), weights))
            found.setdefault(name, {})[case] = errors
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
