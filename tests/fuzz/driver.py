"""What the Python fuzz targets share: running under atheris, replaying a corpus, and texts that are
grown from bytes by rules.

A target is a module with `run(data)`, which raises for a defect only.
"""

from __future__ import annotations

import argparse
import functools
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "python"))  # of hostile.py, wherever this is started

_LITERAL = b"\xff"  # before a text that is meant as it stands
_HOLE = re.compile(r"<(\w+)>")
_MOST_MEMORY = 1024  # MiB of this process: the fuzzer, the package and what a text may take


def corpus(name: str) -> list[Path]:
    """Files worth keeping of a target, in a fixed order."""
    return sorted((HERE / "corpus" / name).iterdir())


def replayed(name: str, changes: int) -> Iterator[bytes]:
    """The files of a corpus, each also cut short and with single bytes changed, as replay.cpp."""
    draw = random.Random(1)
    yield b""
    for path in corpus(name):
        data = path.read_bytes()
        yield data
        for _ in range(changes):
            yield data[: draw.randrange(len(data))]
            at = draw.randrange(len(data))
            yield data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def grown(data: bytes, rules: dict[str, list[str] | str], start: str) -> str:
    """The text that bytes choose: each takes the next hole `<name>` and fills it with one of the
    choices that rules have for the name; a text stands for its words. At the end of the bytes, and
    below some depth, it is the first choice, and these lead to no other hole in the end.

    Fuzzers do not find `{% for x in y %}` byte by byte, and what does not parse tests the parser
    alone. Bytes behind 0xFF are a text as it stands: so a finding stays one when the rules change.
    """
    if data.startswith(_LITERAL):
        return data[1:].decode("utf-8", "replace")
    taken = iter(data)

    def filled(text: str, depth: int) -> str:
        def choice(match: re.Match[str]) -> str:
            choices = rules[match[1]]
            choices = choices.split() if isinstance(choices, str) else choices
            number = next(taken, 0) if depth < 60 else 0
            return filled(choices[number % len(choices)], depth + 1)

        return _HOLE.sub(choice, text)

    return filled(start, 0)


def _drawn(name: str) -> Callable[[bytes, int, int], bytes]:
    """Inputs by a seed: new bytes mostly, else a file of the corpus with some bytes changed."""
    known = [path.read_bytes() for path in corpus(name)]

    def mutate(_data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.8:
            # Not 0xFF, which would make a text of all that follows.
            return bytes(draw.randrange(255) for _ in range(draw.randrange(2, 120)))[:most]
        data = bytearray(draw.choice(known))
        for _ in range(draw.randrange(1, 9)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data[:most])

    return mutate


def main(
    run: Callable[..., None], name: str, draw: bool = False, names: Sequence[str] = ()
) -> None:
    """Runs a target as its command line asks for. names: of the readers that it has, of which
    `only`, an argument of run, is one.

    draw: the work is done where the fuzzer sees no coverage, so that it would keep to the shortest
    inputs; they are drawn instead.
    """
    parser = argparse.ArgumentParser(
        description=f"Fuzzes {name} with atheris, or runs some inputs."
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, help="folder of inputs that reach something new")
    parser.add_argument(
        "inputs", nargs="*", type=Path, help="files to run instead, without atheris"
    )
    if names:
        parser.add_argument("--only", choices=names, help="fuzz this reader alone")
    asked = parser.parse_args()
    if names and asked.only:
        run = functools.partial(run, only=asked.only)
    for path in asked.inputs:
        run(path.read_bytes())
    if asked.inputs:
        return
    try:
        import atheris
    except ImportError:
        sys.exit("fuzzing Python needs the package atheris: pip install atheris")
    found = asked.found or HERE.parents[1] / "build" / "fuzz-found" / name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={asked.seconds}",
        f"-seed={asked.seed}",
        f"-rss_limit_mb={_MOST_MEMORY}",
        f"-artifact_prefix={found.parent}/{name}-",
    ]
    folders = [str(found), str(HERE / "corpus" / name)]
    how = {"custom_mutator": _drawn(name)} if draw else {}
    atheris.Setup([sys.argv[0], *options, "-len_control=0", *folders], run, **how)
    atheris.Fuzz()
