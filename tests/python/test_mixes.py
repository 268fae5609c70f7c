"""Mixes of formats, against those that llama.cpp chose (scripts/mix_types.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from powerinfer_cpp.convert.formats import format_by_name
from powerinfer_cpp.convert.stored import Fitting
from powerinfer_cpp.quantize.mixes import MIXES, Shape, chosen

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mix_types.json").read_text())


def matrices(model: dict[str, Any]) -> dict[str, int]:
    """Names that llama.cpp quantises, and the elements of a row."""
    names = ["token_embd"] if model.get("tied") else ["token_embd", "output"]
    parts = [part for part in model["tensors"] if part != "ffn_gate_inp"]
    names += [f"blk.{i}.{part}" for i in range(model["n_layer"]) for part in parts]
    return {f"{name}.weight": model.get("row", 256) for name in names}


def wanted(types: dict[str, str]) -> dict[str, str]:
    """The reference's formats by name: "Q6_K*3 Q4_K" are those of layers 0 to 3."""
    found = {}
    for part, runs in types.items():
        kinds = []
        for run in runs.split():
            kind, _, n = run.partition("*")
            kinds += [kind] * int(n or 1)
        for i, kind in enumerate(kinds):
            whole = part in ("token_embd", "output")
            found[f"{part}.weight" if whole else f"blk.{i}.{part}.weight"] = kind
    return found


@pytest.mark.parametrize("case", GOLDEN)
@pytest.mark.parametrize("turned", [False, True])
def test_equals_llama_cpps_choice(case: str, turned: bool) -> None:
    model = GOLDEN[case]["model"]
    assert {*GOLDEN[case]["types"], "MXFP4_MOE"} == set(MIXES)  # that one has one rule
    # In files with neuron rows, ffn_down_t takes ffn_down's place.
    shapes = matrices(model)
    renamed = {n.replace("ffn_down", "ffn_down_t") if turned else n: n for n in shapes}
    rows = {n: shapes[old] for n, old in renamed.items()}
    for name, types in GOLDEN[case]["types"].items():
        shape = Shape(
            model.get("arch", "llama"),
            model["n_layer"],
            model.get("n_expert", 0),
            model["n_head"],
            model["n_head_kv"],
            model.get("imatrix", False),
        )
        found = chosen(MIXES[name], shape, rows)
        fits = {
            renamed[n]: Fitting()(format_by_name(kind), rows[n], n).name
            for n, kind in found.items()
        }
        expected = wanted(types)
        assert fits == {n: expected[n] for n in fits}, name
        left = set(expected) - set(fits)
        assert all("ffn_gate_inp" in n for n in left)
