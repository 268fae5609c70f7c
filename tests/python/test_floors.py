"""The floors of the package: imports go down, and never round in a circle."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "powerinfer_cpp"

# The lowest first: a module imports only from its own floor and from those before it.
FLOORS = (
    ("core",),
    ("text",),
    ("run",),
    ("",),  # the package's own modules: Llama, and what llama-cpp-python has beside it
    (
        "bundle",
        "convert",
        "measure",
        "perplexity",
        "placement",
        "plot",
        "predictor",
        "profile",
        "quantize",
        "relufy",
    ),
    ("server",),
    ("__main__", "cli", "ray"),
)
# The same within convert.families, whose own modules all of its folders build on.
FAMILIES = ("dense", "mixtures", "recurrent", "encoders")


@cache
def modules() -> dict[str, Path]:
    """Files by names of modules within the package, which itself is ""."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str) -> set[str]:
    """Modules of the package that a module imports, anywhere in it, and packages around these,
    which Python runs first."""
    path, found = modules()[name], set()
    package = name.split(".") if path.name == "__init__.py" and name else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module.split(".") if node.module else []
        if node.level:
            module = package[: len(package) - node.level + 1] + module
        elif module[:1] == ["powerinfer_cpp"]:
            module = module[1:]
        else:
            continue
        for alias in node.names:
            full = ".".join([*module, alias.name])
            found.add(full if full in modules() else ".".join(module))
    for inner in [n for n in found if "." in n]:
        outer = inner.split(".")
        found |= {".".join(outer[:i]) for i in range(1, len(outer))}
    inside = {n for n in found if f"{name}.".startswith(f"{n}.")}  # those that run already
    return {n for n in found - inside if n in modules()}


def floor(name: str) -> int:
    """The number of a module's floor."""
    top = name.split(".")[0]
    named = [i for i, names in enumerate(FLOORS) if top in names]
    return named[0] if named else FLOORS.index(("",))


def test_imports_go_down() -> None:
    up = [
        f"{name} imports {other}"
        for name in sorted(modules())
        for other in sorted(imported(name))
        if floor(other) > floor(name)
    ]
    assert not up


def test_no_import_goes_round() -> None:
    left = {name: imported(name) for name in modules() if name}  # the package imports them all
    while ready := {name for name, of in left.items() if not of & left.keys()}:
        left = {name: of for name, of in left.items() if name not in ready}
    assert not left, "in a circle, or above one"


def test_imports_of_families_go_down() -> None:
    kinds = {}
    for name in modules():
        if name.startswith("convert.families."):
            kind = name.split(".")[2]
            kinds[name] = FAMILIES.index(kind) if kind in FAMILIES else -1
    assert set(kinds.values()) == set(range(-1, len(FAMILIES)))
    pairs = [(name, other) for name in sorted(kinds) for other in sorted(imported(name))]
    assert not [(a, b) for a, b in pairs if b in kinds and kinds[b] > kinds[a]]


def test_floors_are_folders() -> None:
    tops = {name.split(".")[0] for name in modules()}
    assert not {name for names in FLOORS for name in names if name} - tops


def test_the_package_tells_its_floors() -> None:
    told = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text())) or ""
    rows = [line[2:] for line in told.splitlines() if line.startswith(("- ", "  "))]
    named = " ".join(rows)
    for floor in FLOORS:
        for part in floor:
            if part.strip("_") == part and part:
                assert re.search(rf"\b{part}\b", named), part
