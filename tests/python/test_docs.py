"""The documents agree with the code: links, paths, commands, options and lists."""

from __future__ import annotations

import csv
import math
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from powerinfer_cpp.cli import COMMANDS
from powerinfer_cpp.cli.completion import words
from powerinfer_cpp.convert import activations
from powerinfer_cpp.convert.families import FAMILIES
from powerinfer_cpp.text import chat

from powerinfer_cpp import convert, quantize

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("models/*.md")])
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
SCRIPT = re.compile(r"scripts/[\w/]+(?:\.py)?")
COMMAND = re.compile(r"(?:\./)?powerinfer ([a-z][a-z-]*)(.*)|(?:\./)?(convert\.py|main)\b(.*)")
# Options of programs that are not ours, and of ./run and pytest.
OTHERS = {"--seconds", "--seed", "--only", "--preset", "--build", "--all", "--nightly", "--record"}
OTHERS |= {"--tasks", "--include", "--from", "--no-install-recommends"}  # lm_eval, containers
OTHERS |= {"--toolchain", "--target", "--local-dir", "--moe-cache-mib"}  # cmake, hf, llama.cpp
FOLDERS = ("ggml/", "powerinfer_cpp/", "python/", "tests/", "docs/", "scripts/", "models/", ".ci/")


def code(document: Path) -> list[str]:
    """The lines of a document's code blocks, and its code spans."""
    text = document.read_text()
    return [*"\n".join(BLOCK.findall(text)).splitlines(), *CODE.findall(BLOCK.sub("", text))]


def cells(document: str, column: str, beside: str = "") -> list[str]:
    """The cells of the columns with this heading, in all tables of a document, or in those that
    have the column `beside` too."""
    found: list[str] = []
    at = None
    for line in (ROOT / "docs" / document).read_text().splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if not row:
            at = None
        elif at is not None:
            found += [row[at]] if not row[at].startswith("---") else []
        elif column in row and (not beside or beside in row):
            at = row.index(column)
    return found


def names(listed: list[str]) -> set[str]:
    """The names in cells with lists separated by commas or spaces."""
    return {name for cell in listed for name in re.split(r"[,\s]+", cell)}


def engine_formats() -> set[str]:
    """Formats of weights in the engine's table: the rows with a decoder."""
    table = (ROOT / "ggml" / "src" / "formats" / "dtype.cpp").read_text()
    single = re.findall(r'\{DType::\w+, "(\w+)", [^}]*decode', table)
    return {*single, *re.findall(r"^ +ROW\((\w+),", table, re.MULTILINE)}


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
            assert found, f"{document.name}: {name} is not in {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_anchors(document: Path) -> None:
    for target, anchor in ANCHOR.findall(document.read_text()):
        path = document.parent / target if target else document
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
        assert anchor in slugs, f"{document.name}: {target}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_paths(document: Path) -> None:
    """Paths in code exist, seen from the repository or, for headers, from ggml/include."""
    for text in code(document):
        for word in text.split():
            if word.startswith(FOLDERS) and re.fullmatch(r"[\w./-]+", word):
                found = (ROOT / word).exists() or (ROOT / "ggml" / "include" / word).exists()
                assert found, f"{document.name}: {word}"


def script_options(text: str) -> set[str]:
    """Options of the scripts that a text names, by their files or, of a package, by its folder."""
    named = (ROOT / name for name in SCRIPT.findall(text))
    programs = (path / "__main__.py" if path.is_dir() else path for path in named)
    return {o for path in programs if path.is_file() for o in OPTION.findall(path.read_text())}


@cache
def main_options(program: Path) -> set[str]:
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(OPTION.findall(text))


# options.md names options of llama.cpp, too; test_options_page.py reads it.
@pytest.mark.parametrize(
    "document",
    [d for d in DOCUMENTS if d.name != "options.md"],
    ids=lambda d: str(d.relative_to(ROOT)),
)
def test_commands_and_options(document: Path, main_path: Path) -> None:
    ours = {command: set(words(command)[0]) for command in COMMANDS}
    ours |= {"convert.py": ours["convert"], "main": main_options(main_path)}
    known = set().union(*ours.values(), OTHERS, script_options(document.read_text()))
    for text in code(document):
        for option in OPTION.findall(text):
            assert option in known, f"{document.name}: {option}"
        for subcommand, after, program, rest in COMMAND.findall(text):
            name = subcommand or program
            assert name in ours, f"{document.name}: {text}"
            for option in OPTION.findall(re.split(r"[|>;]", after or rest)[0]):
                assert option in ours[name], f"{document.name}: {name} has no {option}"


def test_lists_are_those_of_the_code() -> None:
    formats = engine_formats()
    assert names(cells("formats.md", "format")) == formats
    assert names(cells("compatibility.md", "format")) == formats
    written = cells("formats.md", "formats of the matrices")
    assert [tuple(cell.split()) for cell in written] == [convert.OUTPUT_TYPES, quantize.TYPES]
    assert names(cells("compatibility.md", "config.json's model_type")) == set(FAMILIES)
    assert names(cells("compatibility.md", "GGUF architecture")) == set(activations._DEFAULTS)
    readme = (ROOT / "README.md").read_text()
    n = len(activations._DEFAULTS)
    assert f"{n} model architectures, {len(formats)} tensor formats" in readme
    text = (ROOT / "docs" / "llama-cpp-python.md").read_text()
    listed = re.search(r"`chat_format=` ([^;]*);", text)
    assert listed and set(listed[1].split()) == set(chat.FORMATS)
    kinds = "\n".join(cells("compatibility.md", "kind"))
    assert set(convert.PRE_NAMES) == set(re.findall(r"[\w-]+", kinds)) & set(convert.PRE_NAMES)


def test_token_walk_links_every_stage() -> None:
    """The walk covers each part of the engine."""
    text = (ROOT / "docs" / "token.md").read_text()
    stages = "tokenizer budget session sequence kv_pages forward workspace ffn audit sampler"
    for part in (*stages.split(), "ops.cpp", "rows.cpp", "kernels.inc", "llama.py"):
        assert part in text


def test_density_curve_is_the_table() -> None:
    """The table has the figures of the file that the plot is drawn from."""
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


def test_training_curve_is_the_table() -> None:
    """The printed rows of relufy's example are those of the file that the plot is drawn from."""
    text = (ROOT / "docs" / "relufy.md").read_text()
    with (ROOT / "docs" / "relufy.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "prosparse, --l1 0.3"]
    found = {
        (int(row["step"]), row["activation"], float(row["threshold"])): (
            f"{math.exp(float(row['held_out_loss'])):.3f}",
            f"{100 * float(row['zero']):.1f}",
        )
        for row in rows
    }
    shown = re.findall(r"^ +(\d+) +(silu|relu) +([\d.]+) +([\d.]+) +\S+ +([\d.]+)%", text, re.M)
    assert len(shown) == 8
    for step, activation, threshold, perplexity, zero in shown:
        want = found[int(step), activation, float(threshold)]
        # The file has six digits of the loss.
        assert abs(float(perplexity) - float(want[0])) < 2e-3 and zero == want[1]
