"""The documents say what is so: links lead somewhere, and a linked symbol stands in its file."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("models/*.md")])
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links(document: Path) -> None:
    for text, target in LINK.findall(document.read_text()):
        if "://" in target:
            continue
        path = (document.parent / target).resolve()
        assert path.exists(), f"{document.name}: {target} does not exist"
        symbol = re.fullmatch(r"`([^`]+)`", text)
        if symbol and path.is_file():
            name = symbol.group(1)
            # A method is named Class::method in C++ sources and stands alone inside its class.
            candidates = (name, name.split("::")[-1])
            found = any(re.search(rf"\b{re.escape(n)}\b", path.read_text()) for n in candidates)
            assert found, f"{document.name}: {name} does not stand in {target}"


def test_token_walk_links_every_stage() -> None:
    """The walk passes through each part of the engine; a part that moves must be found again."""
    text = (ROOT / "docs" / "token.md").read_text()
    stages = "tokenizer budget session sequence kv_pages forward workspace ffn audit sampler"
    for part in (*stages.split(), "ops.cpp", "rows.cpp", "kernels.inc", "llama.py"):
        assert part in text


def test_density_curve_is_the_table() -> None:
    """The plot is drawn from a file; each of its figures stands in the table for readers."""
    document = (ROOT / "docs" / "sparsity.md").read_text()
    table = document.split("| density | predictor | exact |")[1].split("\n\n")[0]
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    with (ROOT / "docs" / "sparsity.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] != "llama.cpp"]
    found = {("dense", ""): lines[-1][1]}
    for density, predictor, exact, *ratios in lines[2:-1]:
        found |= {("predictor", density): predictor, ("exact", density): exact}
        dense = float(lines[-1][1])
        assert ratios == [f"{float(speed) / dense:.2f}" for speed in (predictor, exact)]
    assert {(row["run"], row["density"]): row["tokens_per_s"] for row in rows} == found
