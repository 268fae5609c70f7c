"""What passed in `./run test` at this very commit, which `--all` need not run again.

The quick circle writes build/passed.json: the commit, if nothing in the checkout differs from it,
and its tests that passed. Not among them are those that do more in a wider circle, or that test
builds and instruction sets: the quick circle compiles for this processor alone.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

FILE = Path("build") / "passed.json"  # in the checkout
# A file of tests does more in a wider circle if it, or what it imports of this folder, says one of
# these.
DEEPER = re.compile(r"\b(?:circles|builds|GGML_ISA)\b")
IMPORTS = re.compile(r"^\s*(?:from|import) (\w+)", re.M)


@cache
def does_more(file: Path) -> bool:
    """Whether the tests of a file do more in a wider circle."""
    seen, left = set(), [file]
    while left:
        source = left.pop()
        text = source.read_text()
        if DEEPER.search(text):
            return True
        seen.add(source)
        beside = {source.with_name(f"{name}.py") for name in IMPORTS.findall(text)}
        left += [path for path in beside - seen - {*left} if path.is_file()]
    return False


@cache
def commit(checkout: Path) -> str:
    """The commit that the checkout is at; "" if files differ from it, or that is unknown."""
    said = []
    for arguments in (["status", "--porcelain"], ["rev-parse", "HEAD"]):
        command = ["git", "-C", str(checkout), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return ""
        said.append(done.stdout.strip() if done.returncode == 0 else "?")
    return said[1] if said[0] == "" and said[1] != "?" else ""


def _stored(checkout: Path) -> dict[str, object]:
    try:
        return json.loads((checkout / FILE).read_text())
    except (OSError, ValueError):
        return {}


@cache
def before(checkout: Path) -> frozenset[str]:
    """Ids of the tests that need not run again."""
    here, stored = commit(checkout), _stored(checkout)
    return frozenset(stored["tests"]) if here and stored.get("commit") == here else frozenset()


def keep(checkout: Path, tests: Iterable[str]) -> None:
    """Stores that the quick circle passed these, besides what it passed at this commit before.

    commit() was called before the tests ran, so what they changed meanwhile is not overlooked.
    """
    here = commit(checkout)
    if not here:
        return
    commit.cache_clear()
    if commit(checkout) != here:
        return
    tests = [test for test in tests if not does_more(checkout / test.split("::")[0])]
    path = checkout / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"commit": here, "tests": sorted({*before(checkout), *tests})}))
