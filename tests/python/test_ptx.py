"""The PTX of the GPU kernels, executed by an interpreter (tests/gpu/ptx) and compared with the
shim; and its flags in a checker of PTX's memory model (tests/gpu/flags.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builds import GPU

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gpu"))

import sass  # noqa: E402

BUILD = ROOT / "build" / "cpu"
# Kernels whose lanes lie 32 bytes of a row apart or more: a load of 16 bytes uses half of each
# sector, and the other half is in the L1 cache when the next load wants it.
HALVES = {("down_kernel", "F16"), ("down_kernel", "BF16")}
HALVES |= {(f"{name}_kernel", "Q8_0") for name in ("matmul", "fire", "down", "down_rows")}
# Removed without harm: none.
NOT_NEEDED: set[tuple[str, str]] = set()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By test program: a recording of its launches, and the program."""
    found = {}
    # "digests": in one order of threads.
    for name, *arguments in (("test_device_ops", "digests"), ("test_device",)):
        folder, program = tmp_path_factory.mktemp(name), BUILD / "tests" / name
        environment = {**os.environ, "SHIM_RECORD": str(folder)}
        subprocess.run([str(program), *arguments], env=environment, check=True, capture_output=True)
        found[name] = [str(folder), str(program)]
    return found


def python(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/gpu" / script), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def replayed(ptx: dict[str, Path], recorded: dict[str, list[str]]) -> dict[str, Any]:
    """The kernels by name, failures, and kernels that no test launched."""
    found: dict[str, Any] = {"kernels": {}, "failures": [], "missing": set()}
    for name, recording in recorded.items():
        files = ptx.values() if name == "test_device_ops" else [ptx["merge"]]
        said = python("ptx/replay.py", "--json", "--launches=1", *recording, *map(str, files))
        one = json.loads(said)
        found["failures"] += one["failures"]
        found["kernels"].update({k["name"]: k for k in one["kernels"]})
        found["missing"] |= set(one["missing"])
    found["missing"] -= set(found["kernels"])
    return found


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_kernels_leave_the_bits_of_the_shim(replayed: dict[str, Any]) -> None:
    """And accesses only what is there, aligned and written, without races."""
    assert replayed["failures"] == []
    names = set(replayed["kernels"])
    assert {"select_kernel", "publish_kernel", "merge_kernel", "merge_answer_kernel"} <= names
    # Every type as a matrix and as the neurons of a layer.
    for kernel, n in (("matmul_kernel", 30), ("tile_kernel", 15), ("fire_kernel", 15),
                      ("down_kernel", 15), ("down_rows_kernel", 15)):  # fmt: skip
        assert sum(name.startswith(kernel + "<") for name in names) >= n, kernel
    assert all(k["instructions"] > 0 and k["compared"] > 0 for k in replayed["kernels"].values())
    # Not launched: the second half of fire_kernel for types that are like those that are tried.
    # flag_rounds_kernel measures: nothing computes with it.
    families = {m.split("<")[0] for m in replayed["missing"]}
    assert families <= {"up_kernel", "flag_rounds_kernel"}


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_weights_are_read_in_whole_sectors(replayed: dict[str, Any]) -> None:
    """Loads of 16 bytes a lane in the kernels that stream weights: what lanes want is at least 85%
    of the sectors of 32 bytes that their warps ask for (a row's end may cut one), or half."""
    rows = (ROOT / "ggml/src/cuda/ops/rows.h").read_text().splitlines()
    load16 = "    return *in_global_memory(reinterpret_cast<const uint4*>(p));"
    line = rows.index(load16) + 1
    types = sass.types()
    wanted: dict[tuple[str, str], float] = {}
    asked: dict[tuple[str, str], float] = {}
    for name, kernel in replayed["kernels"].items():
        family, _, numbers = name.rstrip(">").partition("<")
        if family not in ("matmul_kernel", "fire_kernel", "down_kernel", "down_rows_kernel"):
            continue
        for load in kernel["traffic"]:
            if load["instruction"].startswith(f"rows.h:{line},"):
                key = (family, types[int(numbers.split(",")[0])])
                wanted[key] = wanted.get(key, 0) + load["bytes"]
                asked[key] = asked.get(key, 0) + 32 * load["pieces"]
    shares = {key: wanted[key] / asked[key] for key in wanted}
    assert len(shares) >= 48
    low = {key: share for key, share in shares.items() if share < 0.85}
    assert set(low) == HALVES, low
    assert min(shares.values()) >= 0.49


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_shared_memory_without_conflicts(replayed: dict[str, Any]) -> None:
    """Wavefronts of the down products and of compaction: no lane waits for another's bank."""
    families = ("down_kernel", "down_rows_kernel", "select_kernel")
    some = [k for k in replayed["kernels"].values() if k["name"].split("<")[0] in families]
    assert len(some) >= 31
    for kernel in some:
        shared = [t for t in kernel["traffic"] if t["shared"]]
        assert shared
        assert [t for t in shared if t["pieces"] > t["least"]] == [], kernel["name"]


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_the_interpreter_objects_to_broken_kernels(
    ptx: dict[str, Path], recorded: dict[str, list[str]]
) -> None:
    """Barriers, stores and guards removed, and sums rounded in another way, one at a time
    (tests/gpu/ptx/mutants.py)."""
    lines = python(
        "ptx/mutants.py", *recorded["test_device_ops"], *map(str, ptx.values())
    ).splitlines()
    found = [json.loads(line) for line in lines]
    survive = {(m["kernel"], m["was"].split(",")[0]) for m in found if not m["says"]}
    assert survive == NOT_NEEDED
    for mutant in found:
        what, says = mutant["was"], mutant["says"]
        if not says:
            continue
        if mutant["instead"] == "add.rz.f32":
            assert "bytes differ from the shim's" in says, mutant
            continue
        if "bar." in what:
            assert says.startswith("race: "), mutant
        elif "st.shared" in what:
            # Or what another part of the row has left there.
            unwritten = says.startswith("a read of what nothing has written")
            assert unwritten or "differ from the shim's" in says, mutant
        else:
            assert says.startswith("out of bounds") or "differ from the shim's" in says, mutant
        where = says + what
        assert "PTX line" in where and (".cu:" in where or ".h:" in where), mutant
    assert len(found) >= 15
    assert sum(m["instead"] == "add.rz.f32" for m in found) == 3


@pytest.mark.slow
@pytest.mark.about(*GPU)
@pytest.mark.timeout(1200)
def test_flags_between_device_and_cpu(ptx: dict[str, Path]) -> None:
    """No bad end of the protocol as nvcc compiled it; a bad end of every weakened one."""
    source = str(ROOT / "powerinfer_cpp/src/forward/device_forward.cpp")
    files = [str(ptx[name]) for name in ("merge", "merge_experts")]
    lines = python("flags.py", *files, "--source", source).splitlines()
    found = [json.loads(line) for line in lines]
    assert [f["program"] for f in found if f["possible"] != f["should"]] == []
    assert sum(f["should"] for f in found) >= 28 and sum(not f["should"] for f in found) >= 10
