"""Models of all families on the device "simt", at three budgets of VRAM: the bits of the CPU.

test_device_families.py runs these tests, because only a test build has this device.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import device_families as families
import numpy as np
import powerinfer_cpp._native
import pytest
from on_simt import ALL, opened
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.plan import memory_plan
from test_docs import cells
from test_golden import ROUNDING, error

from powerinfer_cpp import Llama, OutOfMemoryError

MIB = 1 << 20
# More than the windows of these models, and rows enough for products in tiles.
IDS = [3 + i * i % 200 for i in range(20)]
N_TEXT = 6
OPTIONS: dict[str, Any] = {"n_ubatch": 32, "logits_all": True}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def results(llm: Llama) -> list[np.ndarray]:
    """Logits of a prompt in one batch and row by row, and the tokens of a greedy text."""
    llm.reset()
    llm.eval(IDS)
    found = [llm.scores[: len(IDS)].copy()]
    llm.reset()
    for token in IDS:
        llm.eval([token])
    found.append(llm.scores[: len(IDS)].copy())
    llm.reset()
    found.append(np.array([*itertools.islice(llm.generate(IDS, temp=0), N_TEXT)]))
    return found


def last(path: Path, options: dict[str, Any]) -> list[np.ndarray]:
    """Logits of the last row of a prompt alone, as callers want them."""
    with opened(path, ALL, **{**options, "logits_all": False}) as llm:
        llm.eval(IDS)
        return [llm.scores[len(IDS) - 1].copy()]


def same(got: list[np.ndarray], want: list[np.ndarray], rows: bool) -> bool:
    """The same bits; of neuron rows, whose sums have another order, the same up to rounding."""
    if rows:
        return all(error(a, b) <= ROUNDING for a, b in zip(got, want, strict=True))
    return [a.tobytes() for a in got] == [b.tobytes() for b in want]


def options_of(path: Path) -> dict[str, Any]:
    """Neuron rows: whether they are there, and all computed, with keys and values that are not
    rounded."""
    with Gguf(path) as file:
        if any("ffn_down_t" in tensor.name for tensor in file.tensors):
            return {**OPTIONS, "sparse": "exact", "type_k": 0, "type_v": 0}
    return OPTIONS


def least(path: Path, **options: Any) -> float:
    """MiB that refusals name, which round to hundredths. A session may keep more states where more
    memory may be used, so what the first refusal names need not be enough."""
    budget = 1e-3
    for _ in range(4):
        try:
            opened(path, budget, **options).close()
            return budget
        except OutOfMemoryError as refused:
            words = re.search(r"would take (\d+\.\d+) MiB of VRAM", str(refused))
            budget = float(words[1]) + 0.005
    raise AssertionError(f"{path} is refused with what refusals name")


def check(name: str, folder: Path) -> bool:
    """Compares a model at three budgets. Is it wholly on the device?"""
    path = families.made(name, folder)
    options = options_of(path)
    rows = options is not OPTIONS
    with opened(path, **options) as cpu:
        want = results(cpu)
    with opened(path, ALL, **options) as llm:
        plan = llm.plan()
        why = plan["why_layer"] or plan["why_head"]
        kept = families.KEPT.get(name)
        assert re.search(kept, why) if kept else why == "", (name, why)
        wholly = plan["device_layers"] == plan["layers"] and plan["device_head"]
        assert wholly == (kept is None), name
        assert same(results(llm), want, rows), (name, "everything")
    if not plan["device_layers"]:
        return False
    assert same(last(path, options), [want[0][-1]], rows), name
    takes = sum(plan["gpu"].values()) / MIB
    smallest = least(path, **options)
    for budget in (max(takes / 2, smallest), smallest):
        with opened(path, budget, **options) as llm:
            part = llm.plan()
            assert 0 < part["device_layers"] <= plan["device_layers"]
            assert sum(part["gpu"].values()) <= part["vram_budget"]
            assert same(results(llm), want, rows), (name, budget)
    return wholly


@pytest.mark.parametrize("name", families.QUICK)
def test_some(name: str, folder: Path) -> None:
    check(name, folder)


@pytest.mark.parametrize("name", families.of_operators())
def test_operators(name: str, folder: Path) -> None:
    """One model, at least, for each operator."""
    check(name, folder)


RECORDED = """
import sys
from pathlib import Path

from on_simt_families import ALL, MIB, last, least, opened, options_of, results

path = Path(sys.argv[1])
options = options_of(path)
with opened(path, ALL, **options) as llm:
    results(llm)
    half = max(sum(llm.plan()["gpu"].values()) / MIB / 2, least(path, **options))
last(path, options)
with opened(path, half, **options) as llm:
    results(llm)
"""


def launched(path: Path, record: Path) -> set[str]:
    """Names of the kernels that a model launches, wholly on the device and with half of it."""
    record.mkdir()
    environment = {**os.environ, "SHIM_RECORD": str(record)}
    line = [sys.executable, "-c", RECORDED, str(path)]
    subprocess.run(line, env=environment, cwd=Path(__file__).parent, check=True)
    symbols = ["nm", "-C", powerinfer_cpp._native.__file__]
    text = subprocess.run(symbols, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) \w (.*)$", text, re.MULTILINE)
    table = {int(at, 16): name for at, name in found}
    (anchor,) = (at for at, name in table.items() if name == "shim_anchor")
    lines = map(json.loads, (record / "launches.jsonl").read_text().splitlines())
    kernels = {table[anchor + line["kernel"]] for line in lines if "kernel" in line}
    return {re.search(r"(\w+)_kernel\b", kernel)[1] for kernel in kernels}


@pytest.mark.parametrize("name", sorted({*families.OPERATORS.values()} - families.TESTS))
def test_models_have_their_operators(name: str, folder: Path, tmp_path: Path) -> None:
    """Those that the table says."""
    operators = {op for op, of in families.OPERATORS.items() if of == name}
    kernels = {families.KERNELS.get(op, op) for op in operators}
    assert kernels <= launched(families.made(name, folder), tmp_path / "record")


@pytest.mark.parametrize("name", families.everything())
def test_all(name: str, folder: Path) -> None:
    check(name, folder)


@pytest.mark.parametrize("kind", families.STATES)
def test_states(kind: str, folder: Path) -> None:
    """What the CPU has computed goes on on the device, and back; and so does a text that begins as
    one before."""
    path = families.made(families.STATES[kind], folder)
    half = len(IDS) // 2
    with opened(path, **OPTIONS) as cpu, opened(path, ALL, **OPTIONS) as device:
        assert device.plan()["device_layers"] == device.plan()["layers"]
        want = results(cpu)[0]
        for first, second in ((cpu, device), (device, cpu), (device, device)):
            first.reset()
            first.eval(IDS[:half])
            state = first.save_state()
            second.reset()
            second.eval(IDS[::-1])
            second.load_state(state)
            assert second.n_tokens == half
            second.eval(IDS[half:])
            assert second.scores[half : len(IDS)].tobytes() == want[half:].tobytes()
        # Of a text that goes on in another way, the beginning is kept where that can be.
        other = [*IDS[:half], *IDS[:half]]
        texts = []
        for llm in (cpu, device):
            llm.reset()
            llm.eval(IDS)
            texts.append([*itertools.islice(llm.generate(other, temp=0), N_TEXT)])
            llm.reset()
            texts.append([*itertools.islice(llm.generate(other, temp=0), N_TEXT)])
        assert texts == texts[:1] * 4


def wholly(path: Path) -> bool:
    """Does the engine plan to have all of a model on the device?"""
    plan = memory_plan(str(path), {"device": "simt", "vram_budget": ALL * MIB}, {"n_ctx": 64})
    return plan["device_layers"] == plan["layers"] and plan["device_head"]


def test_the_table_of_families(folder: Path) -> None:
    """docs/compatibility.md says of each family what the engine says of its models."""
    plain: dict[tuple[str, str], set[bool]] = {}  # by model_type and architecture
    rows: dict[tuple[str, str], set[bool]] = {}  # the same of files with neuron rows
    for name in families.everything():
        if "/" in name:
            continue
        path = families.made(name, folder)
        with Gguf(path) as file:
            key = (
                families.model_type(name.removeprefix("rows:")),
                str(file.value("general.architecture")),
            )
        of = rows if name.startswith("rows:") or name == "turbosparse" else plain
        of.setdefault(key, set()).add(wholly(path))
    heads = ("config.json's model_type", "GGUF architecture", "on a GPU")
    # Files of Llama's kind, with another activation; and of GLM-4.5's.
    alike = {"sparsellama": "llama", "llama_sparse_relu": "llama", "solar_open": "glm4_moe"}
    columns = [cells("compatibility.md", head, heads[-1]) for head in heads]
    for types, architecture, words in zip(*columns, strict=True):
        keys = [(alike.get(kind, kind), architecture) for kind in types.split(", ")]
        assert any(key in of for of in (plain, rows) for key in keys), types
        assert all(plain[key] == {words != "no"} for key in keys if key in plain), types
        if words == "no":
            continue
        kept = any(False in rows[key] for key in keys if key in rows)
        assert words == ("wholly, but not in neuron rows" if kept else "wholly"), types
