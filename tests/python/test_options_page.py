"""docs/options.md agrees with the programs, row by row; a failure lists the rows that are wrong."""

from __future__ import annotations

import argparse
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from powerinfer_cpp.cli import add_arguments
from powerinfer_cpp.cli.llama_server import Refused, notes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
COMMANDS = ("complete", "chat", "serve")
# A valid value, for options that do not take 1.
VALUES = {
    "--cache-type-k": "f16",
    "--cache-type-v": "f16",
    "--device": "cpu",
    "-dev": "none",
    "--load-mode": "mmap",
    "--logit-bias": "5+1",
    "--override-kv": "a.b=int:1",
    "--samplers": "top_k;temperature",
    "--sampler-seq": "kt",
    "--rope-scaling": "linear",
    "--lora-scaled": "file:1",
    "--sparse": "off",
    "-ot": "exps=CPU",
}
NAME = re.compile(r"(?<![\w-])--?[a-z][\w.-]*", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    names: list[str]
    argument: str  # as the page writes it; "": none
    main: str
    commands: str

    def said_of(self, command: str) -> str:
        """What the page says of a command: "yes", "accepted" or "no"."""
        for group in self.commands.split("; "):
            kind, _, names = group.rpartition(": ")
            if command in names.split(", "):
                return kind or "yes"
        return "no"

    @property
    def values(self) -> list[str]:
        """The words after an option of ./main."""
        if not self.argument or self.argument.startswith("[") and "|" in self.argument:
            return []  # none, or one that may be missing
        return [next((VALUES[name] for name in self.names if name in VALUES), "1")]


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`-"):
            option = cells[0].strip("`").replace("\\|", "|")
            names = re.match(r"(?:-[\w.-]+(?:, )?)+", option)[0]
            argument = option[len(names) :].strip()
            found.append(Row(names.rstrip(", ").split(", "), argument, *cells[1:3]))
    return found


ROWS = rows()


def answer(main_path: Path, words: list[str]) -> str:
    """What ./main says to a command line that only gets read: "takes", "refuses", or its error."""
    line = [main_path, *words, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        return "takes"
    refused = " is unknown" in done.stderr or " is not one of main's" in done.stderr
    return "refuses" if refused and done.returncode == 2 else done.stderr.strip()


def test_the_page_is_read() -> None:
    assert len(ROWS) > 300 and all(row.main in ("yes", "accepted", "no") for row in ROWS)
    named = [name for row in ROWS for name in row.names]
    assert len(SERVER) == len((Path(__file__).parent / "llama_server.txt").read_text().splitlines())
    assert len(named) == len(set(named)), sorted(n for n in named if named.count(n) > 1)


def test_main_has_what_the_page_says(main_path: Path) -> None:
    asked = [(name, row) for row in ROWS for name in row.names]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda ask: answer(main_path, [ask[0], *ask[1].values]), asked))
    wrong = [
        f"{name}: the page says {row.main}; ./main: {said}"
        for (name, row), said in zip(asked, got, strict=True)
        if said != ("refuses" if row.main == "no" else "takes")
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_option_of_main_is_on_the_page(main_path: Path) -> None:
    text = subprocess.run([main_path, "--help"], capture_output=True, text=True, check=True).stdout
    listed, others = text.split("\nAccepted, as the default or without effect: ")
    lines = re.findall(r"(?m)^  (-[\w-]+(?:, -[\w-]+)*)", listed)
    ours = set(NAME.findall(", ".join([*lines, others])))
    missing = ours - {name for row in ROWS for name in row.names if row.main != "no"}
    assert len(ours) > 100 and not missing, f"not on the page as yes or accepted: {sorted(missing)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_what_the_page_says(command: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(command, parser)
    ours = {
        flag: "accepted" if action.help == argparse.SUPPRESS else "yes"
        for action in parser._actions
        for flag in action.option_strings
        if not isinstance(action, Refused)
    }
    wrong = []
    for row in ROWS:
        said = row.said_of(command)
        for name in row.names:
            if (got := ours.pop(name, "no")) != said:
                wrong.append(f"{name}: the page says {said} for {command}, it is {got}")
    wrong += [f"{name} of {command} is not on the page" for name in ours]
    assert not wrong, "\n" + "\n".join(wrong)


# What llama-server's --help lists in autumn 2026, as (llama_server.txt).
LISTED = [
    (names.split(", "), values, variable)
    for names, values, variable in re.findall(
        r"(?m)^((?:-[\w.-]+(?:, )?)+)(?: (\[?VALUE\]?))?(?: \(env: (\w+)\))?$",
        (Path(__file__).parent / "llama_server.txt").read_text(),
    )
]
SERVER = [(names, values) for names, values, _ in LISTED]
# Valid values of options that serve obeys, if 1 is none.
SERVED = {
    **VALUES,
    "--split-mode": "layer",
    "--pooling": "cls",
    "--reasoning": "on",
    "--reasoning-effort": "low",
    "--reasoning-format": "none",
    "--chat-template-kwargs": "{}",
    "--spec-type": "ngram-simple",
    "--no-webui": "",
}


@pytest.mark.parametrize("names, values", SERVER, ids=lambda given: str(given)[:40])
def test_serve_takes_llama_servers_options_or_says_why_not(names: list[str], values: str) -> None:
    parser = _Command(prog="serve", allow_abbrev=False)
    add_arguments("serve", parser)
    known = {flag: action for action in parser._actions for flag in action.option_strings}
    given = [] if not values else next(([SERVED[n]] for n in names if n in SERVED), ["1"])
    for name in names:
        assert name in known, f"{name} is unknown to serve"
        if isinstance(known[name], Refused):
            with pytest.raises(_Ended, match=f"option {re.escape(name)} is not taken: .{{9,}}"):
                parser.parse_args([name, *given])
        elif name not in ("-h", "--help"):
            args = parser.parse_args([name, *given])
            said = args.without_effect or {}
            hidden = known[name].help == argparse.SUPPRESS
            assert hidden == (name in said), f"{name}: what comes of it is not known"
            assert all(len(each.split()) > 5 for each in notes(args))


class _Ended(Exception):
    pass


class _Command(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Ended(message)
