"""The hot loops of the GPU kernels in machine code: load widths, and the issue slots they need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Kernels = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CARDS = ("3090", "4090")
TILES = "tile_kernel"
READERS = ("matmul_kernel", "fire_kernel", "down_kernel", "attention_kernel")

EIGHT_ROWS = "a weight that is read is multiplied with eight rows: bound by arithmetic"
WIDENED = "every weight becomes a float and is multiplied by h: 6 to 8 instructions a weight"
QUERIES = "what is read is multiplied with 8 queries or more; copies of its loop count, too"
ODD = "heads of a size that is no multiple of 8; no model that is known has them"
# Kernels with a loop that needs more than half of the issue slots of a 3090 (which has fewer slots
# per byte than a 4090) to read at memory speed: the share, and why.
SLOW = {
    "matmul_kernel<Q4_0, 8>": (0.70, EIGHT_ROWS),
    "matmul_kernel<Q4_1, 8>": (0.63, EIGHT_ROWS),
    "matmul_kernel<Q5_0, 8>": (0.64, EIGHT_ROWS),
    "matmul_kernel<Q5_1, 8>": (0.59, EIGHT_ROWS),
    "matmul_kernel<Q2_K, 8>": (1.43, EIGHT_ROWS),
    "matmul_kernel<Q3_K, 8>": (1.14, EIGHT_ROWS),
    "matmul_kernel<Q4_K, 8>": (0.71, EIGHT_ROWS),
    "matmul_kernel<Q5_K, 8>": (0.67, EIGHT_ROWS),
    "matmul_kernel<Q6_K, 8>": (0.59, EIGHT_ROWS),
    "matmul_kernel<IQ4_NL, 8>": (0.80, EIGHT_ROWS),
    "matmul_kernel<IQ4_XS, 8>": (0.86, EIGHT_ROWS),
    "matmul_kernel<MXFP4, 8>": (0.85, EIGHT_ROWS),
    "down_kernel<Q4_0>": (0.55, WIDENED),
    "down_kernel<Q5_0>": (0.55, WIDENED),
    "down_kernel<Q2_K>": (1.03, WIDENED),
    "down_kernel<Q3_K>": (0.88, WIDENED),
    "down_kernel<Q4_K>": (0.57, WIDENED),
    "down_kernel<Q5_K>": (0.56, WIDENED),
    "down_kernel<IQ4_NL>": (0.73, WIDENED),
    "down_kernel<IQ4_XS>": (0.79, WIDENED),
    "down_kernel<MXFP4>": (0.78, WIDENED),
    "attention_kernel<F16, 8, 0>": (0.58, QUERIES),
    "attention_kernel<F16, 16, 0>": (0.62, QUERIES),
    "attention_kernel<F16, 8, 1>": (0.85, ODD),
}
# Kernels with a loop whose widest load is narrower than 128 bits, by what they begin with: the
# width, and why.
EIGHT_BYTES = "32 weights have 8 bytes of quants"
NARROW = {
    "matmul_kernel<Q2_K": (64, EIGHT_BYTES),
    "matmul_kernel<Q3_K": (64, EIGHT_BYTES),
    "fire_kernel<Q2_K": (64, EIGHT_BYTES),
    "fire_kernel<Q3_K": (64, EIGHT_BYTES),
    "down_kernel<Q2_K": (64, EIGHT_BYTES),
    "down_kernel<Q3_K": (64, EIGHT_BYTES),
    "attention_kernel<F16, 8, 1": (16, ODD),
    "attention_kernel<F32, 8, 1": (32, ODD),
}


@pytest.fixture(scope="module")
def all_kernels(nvcc: str) -> Kernels:
    """The kernels that read weights, keys and values, by name."""
    command = [sys.executable, str(ROOT / "tests/gpu/sass.py"), "--json"]
    command += ["matmul.cu", "ffn.cu", "attention.cu", "tiles.cu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("no nvdisasm, which the extra test-all brings")  # a failure with --all
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {k["name"]: k for k in found if k["name"].split("<")[0] in (*READERS, TILES)}


@pytest.fixture(scope="module")
def kernels(all_kernels: Kernels) -> Kernels:
    """Those that have a few rows for a weight, and should be bound by memory."""
    return {name: k for name, k in all_kernels.items() if not name.startswith(TILES)}


@pytest.mark.nightly
def test_every_hot_loop_is_found(kernels: Kernels) -> None:
    """Two a kernel of fire and attention (keys and values), with whole groups of weights."""
    for name, kernel in kernels.items():
        twice = name.startswith(("fire", "attention"))
        n = len(kernel["loops"])
        # The compiler may use one loop for gate and up.
        assert n == (2 if twice else 1) or (name.startswith("fire") and n == 1), name
        for loop in kernel["loops"]:
            assert loop["loaded"] > 0 and loop["loaded"] % (32 * loop["group"][0]) == 0, name
    families = {r: [n for n in kernels if n.startswith(r)] for r in READERS}
    assert [len(families[r]) for r in READERS[:3]] == [32, 16, 16]
    assert len(families["attention_kernel"]) == 9


@pytest.mark.nightly
def test_hot_loops_leave_half_of_the_issue_slots(kernels: Kernels) -> None:
    shares = {
        name: max(loop["shares"][card] for loop in kernel["loops"] for card in CARDS)
        for name, kernel in kernels.items()
    }
    slow = {name: share for name, share in shares.items() if share > 0.5}
    assert sorted(slow) == sorted(SLOW), slow  # an exception that is not needed goes
    for name, share in slow.items():
        assert share == pytest.approx(SLOW[name][0], abs=0.03), name


@pytest.mark.nightly
def test_hot_loops_load_128_bits_at_a_time(kernels: Kernels) -> None:
    used = set()
    for name, kernel in kernels.items():
        widest = min(max(map(int, loop["loads"])) for loop in kernel["loops"])
        begin = next((begin for begin in NARROW if name.startswith(begin)), "")
        used.add(begin)
        assert widest == (NARROW[begin][0] if begin else 128), name
    assert used == {"", *NARROW}


@pytest.mark.nightly
def test_tiles_mostly_multiply(all_kernels: Kernels) -> None:
    """Instructions of a warp for a chunk: of floats, 16,384 products, which take 512 of them; of
    quants 65,536, which take 16 on tensor cores, or 32 where a scale is for 16 weights."""
    tiles = {name: k for name, k in all_kernels.items() if name.startswith(TILES)}
    assert len(tiles) == 16
    for name, kernel in tiles.items():
        (loop,) = kernel["loops"]
        floats = any(t in name for t in ("F32", "F16"))
        halves = any(t in name for t in ("Q2_K", "Q3_K", "Q6_K"))
        assert loop["instructions"] <= (660 if floats else 820 if halves else 600), name
