"""Tells which circle of tests finds each fault of tests/faults.

    python scripts/faults.py [--folder FOLDER] [--skip-clean] [--up-to test|all] [--at-least N]
                             [FAULT ...]

A fault is a patch that breaks the product in a small way. Its header names the test that must fail:

    Area: sampler
    Fault: reset() keeps what mirostat learnt from the text before.
    Undoes: 259e9f0 python: load_state restores what sample() draws    (only some)
    Test: tests/python/test_native.py::test_program[test_sampler]      (one or two)

The faults of this checkout's HEAD are applied one by one to a clone of it, where `./run test`, then
`./run test --all`, then `./run test --nightly` run the named tests, until one of them fails. Before
that, the named tests must pass without a fault. A folder that is given again keeps what was built
there; --up-to leaves wider circles out. Prints a table. Exit status 1: a patch does not apply, a
test fails without a fault, or test and --all find fewer faults than --at-least.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CIRCLES = ("test", "--all", "--nightly")
COLUMNS = ("number", "area", "fault", "undoes", "test", "found by", "seconds")
# What pytest says of a test that is not there, or whose file cannot be imported; it runs no other.
_NOT_THERE = re.compile(
    r"^ERROR: (?:found no collectors for|not found:|file or \S+ not found:) (.+)$"
)


@dataclass(frozen=True)
class Fault:
    """A patch and the fields of its header. tests: ids of pytest."""

    path: Path
    area: str
    what: str
    undoes: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem


def read(path: Path) -> Fault:
    """Reads a patch. Raises ValueError for a header that lacks a field or has an unknown one."""
    fields: dict[str, list[str]] = {"Area": [], "Fault": [], "Undoes": [], "Test": []}
    for line in path.read_text().split("diff --git ", 1)[0].splitlines():
        field, colon, value = line.partition(": ")
        if line and (not colon or field not in fields or not value.strip()):
            raise ValueError(f"{path.name}: {line!r} is no field of a header")
        if line:
            fields[field].append(value.strip())
    counts = [len(fields[name]) for name in ("Area", "Fault", "Undoes", "Test")]
    if counts[:2] != [1, 1] or counts[2] > 1 or counts[3] not in (1, 2):
        raise ValueError(f"{path.name}: the header has {counts} Area, Fault, Undoes and Test")
    undoes = "".join(fields["Undoes"])
    return Fault(path, fields["Area"][0], fields["Fault"][0], undoes, tuple(fields["Test"]))


def faults(folder: Path) -> list[Fault]:
    """The faults of a folder, by number."""
    return [read(path) for path in sorted(folder.glob("*.patch"))]


def git(clone: Path, *arguments: str | Path) -> str:
    """The first line of git's complaint; "" if it succeeds."""
    done = subprocess.run(["git", *arguments], cwd=clone, capture_output=True, text=True)
    return [*done.stderr.splitlines(), "git failed"][0] if done.returncode else ""


def results(report: Path) -> dict[str, str]:
    """passed, failed, skipped or "unbuilt" of each test in pytest's report, by id."""
    found: dict[str, str] = {}
    for case in xml.parse(report).iter("testcase"):
        name = re.sub(r"@\w+$", "", case.get("name", ""))  # pytest-xdist's group
        test = f"{case.get('classname', '').replace('.', '/')}.py::{name}"
        outcome = "skipped" if case.find("skipped") is not None else "passed"
        for bad in (*case.iter("failure"), *case.iter("error")):
            about = f"{bad.get('message')} {bad.text}"
            setup = "failed on setup" in about and "cmake --build" in about
            outcome = "unbuilt" if setup else "failed"
        found[test] = outcome
    return found


def run(clone: Path, circle: str, tests: Iterable[str]) -> dict[str, str]:
    """How each test ends in a circle: passed, failed, skipped, "missing" where the circle leaves it
    out, or "unbuilt" where there is no program to test. A test without its parameters stands for
    all of them."""
    wanted = list(dict.fromkeys(tests))
    report, log = clone.parent / "report.xml", clone.parent / "log.txt"
    options = [] if circle == "test" else [circle]
    for _ in range(2):
        report.unlink(missing_ok=True)
        command = ["./run", "test", *options, *wanted, f"--junitxml={report}"]
        with log.open("w") as output:
            subprocess.run(command, cwd=clone, stdout=output, stderr=subprocess.STDOUT)
        said = log.read_text(errors="replace")
        gone = [m[1] for m in map(_NOT_THERE.match, said.splitlines()) if m]
        left = [test for test in wanted if not any(name.endswith(test) for name in gone)]
        if left == wanted or not left:
            break
        wanted = left
    found = results(report) if report.exists() else {}
    built = report.exists() or "unrecognized arguments" in said or not left

    def ended(test: str) -> str:
        own = {end for name, end in found.items() if name == test or name.startswith(f"{test}[")}
        order = ("failed", "unbuilt", "passed", "skipped")
        return next((end for end in order if end in own), "missing" if built else "unbuilt")

    return {test: ended(test) for test in dict.fromkeys(tests)}


def unfit(clone: Path, chosen: Sequence[Fault], circles: Sequence[str]) -> dict[str, str]:
    """Named tests that do not pass without a fault in any circle, and how they end."""
    left = {test: "missing" for fault in chosen for test in fault.tests}
    for circle in circles:
        if left:
            ends = run(clone, circle, left)
            left = {test: end for test, end in ends.items() if end != "passed"}
            if any(end in ("failed", "unbuilt") for end in left.values()):
                break
    return left


def finder(clone: Path, fault: Fault, circles: Sequence[str]) -> str:
    """The first circle in which a named test fails; or why none does."""
    if why := git(clone, "apply", fault.path):
        return f"does not apply: {why}"
    try:
        for circle in circles:
            ends = run(clone, circle, fault.tests).values()
            if "failed" in ends:
                return circle
            if "unbuilt" in ends:
                return "does not build"
        return "nothing"
    finally:
        if why := git(clone, "apply", "-R", fault.path):
            sys.exit(f"{fault.name} cannot be taken back: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("faults", nargs="*", help="their numbers or names; none: all")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary one")
    parser.add_argument("--skip-clean", action="store_true", help="without a run before all faults")
    names = [circle.removeprefix("--") for circle in CIRCLES]
    parser.add_argument("--up-to", choices=names, default=names[-1], help="the widest circle")
    parser.add_argument("--at-least", type=int, metavar="N", help="faults; default: all of them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(work(args, (args.folder or Path(temporary)).resolve()))


def work(args: argparse.Namespace, folder: Path) -> int:
    clone = folder / "checkout"
    folder.mkdir(parents=True, exist_ok=True)
    steps: list[tuple[Path, list[str]]] = [(folder, ["clone", "-q", str(ROOT), str(clone)])]
    if clone.exists():
        steps = [(clone, ["fetch", "-q", str(ROOT), "HEAD"])]
        steps += [(clone, ["reset", "-q", "--hard", "FETCH_HEAD"])]
    for where, step in steps:
        if why := git(where, *step):
            sys.exit(why)
    chosen = [
        fault
        for fault in faults(clone / "tests" / "faults")
        if not args.faults or {fault.name, fault.name.split("-")[0]} & set(args.faults)
    ]
    for fault in chosen:
        if why := git(clone, "apply", "--check", fault.path):
            print(f"{fault.name} does not apply: {why}", file=sys.stderr, flush=True)
    circles = CIRCLES[: [circle.removeprefix("--") for circle in CIRCLES].index(args.up_to) + 1]
    bad = {} if args.skip_clean else unfit(clone, chosen, circles)
    for test, end in bad.items():
        print(f"{test}: {end} without a fault", file=sys.stderr)
    rows, n_found, n_stale = [], 0, 0
    for fault in chosen:
        begin = time.monotonic()
        found = finder(clone, fault, circles)
        if found in CIRCLES and bad.keys() & set(fault.tests):
            found = "nothing: its test fails without it, too"
        n_found += found in CIRCLES[:2]
        n_stale += found.startswith("does not")
        seconds = f"{time.monotonic() - begin:.0f}"
        number, undoes = fault.name.split("-")[0], fault.undoes.split(" ")[0]
        tests = ", ".join(f"`{test}`" for test in fault.tests)
        rows.append((number, fault.area, fault.what, undoes, tests, found, seconds))
        print(f"{fault.name}: {found}, {seconds} s", file=sys.stderr, flush=True)
    for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows):
        print("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    print(f"\n{n_found} of {len(chosen)} faults are found by test or --all.")
    wanted = len(chosen) if args.at_least is None else min(args.at_least, len(chosen))
    return int(bool(bad) or n_stale > 0 or n_found < wanted)


if __name__ == "__main__":
    main()
