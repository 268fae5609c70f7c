"""What a chat understands beside messages: lines that begin with a slash."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.sampling import Sampling
from ...run.runtime import RANDOM_SEEDS
from ..suggest import hint
from .talk import Talk

NOT_THERE = "none"  # /system none


@dataclass(frozen=True)
class Command:
    """usage: its arguments. help: what it does."""

    usage: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "/help": Command("", "show this"),
    "/regen": Command("", "answer the last message again, with another seed"),
    "/set": Command("[NAME [VALUE]]", "show or change settings of sampling, max_tokens and seed"),
    "/system": Command(
        "[TEXT]", f"show or change the system message; {NOT_THERE}: no such message"
    ),
    "/save": Command("FILE", "write the conversation to a file, as JSON messages"),
    "/load": Command("FILE", "go on with the conversation of such a file"),
    "/reset": Command("", "begin a new conversation"),
    "/exit": Command("", "end; so does Ctrl-D"),
}
WITH_FILES = ("/save", "/load")
_ALSO = {"/quit": "/exit", "/bye": "/exit", "/clear": "/reset", "/new": "/reset", "/?": "/help"}
_SHORT = {"temp": "temperature", "typical": "typical_p", "predict": "max_tokens", "n": "max_tokens"}
KEYS = """\
Enter sends a message; Alt-Enter, or a backslash and Enter, begins another line of it.
Ctrl-C stops an answer, and what was written stays. Put a space before a message that begins with /.
"""
PLAIN = """\
The model has no chat template: it continues what you write, on a new line or, after a space, on the
same one. An empty line lets it go on.
"""


class Ended(Exception):
    """The user ends the chat."""


class Again(Exception):
    """The last message is to be answered again."""


class Commands:
    """Runs commands on a conversation.

    tell: shows a text to the user. seed: that of the first answer; None or -1: random. typed: by a
    person, so that an unknown command is a mistake; elsewhere it is a message.
    """

    def __init__(
        self,
        talk: Talk,
        tell: Callable[[str], None],
        seed: int | None = None,
        typed: bool = True,
    ):
        self._talk, self._tell, self._seed, self._typed = talk, tell, seed, typed

    def run(self, line: str) -> bool:
        """Runs a line, if it is a command; False if it is a message.

        Raises Ended, Again, and ValueError and OSError for what cannot be done.
        """
        found = re.fullmatch(r"(/[A-Za-z]+|/\?)(?:\s+(.*?))?\s*", line, re.DOTALL)
        if found is None:
            return False
        name, rest = found[1].lower(), found[2] or ""
        name = _ALSO.get(name, name)
        if name not in COMMANDS:
            if not self._typed:
                return False
            raise ValueError(
                f"unknown command {name}; {hint(name, [*COMMANDS], '/help lists all')}"
            )
        if rest and not COMMANDS[name].usage:
            raise ValueError(f"{name} takes nothing behind it")
        if not rest and name in WITH_FILES:
            raise ValueError(f"{name} needs the name of a file")
        getattr(self, "_" + name[1:])(rest)
        return True

    # ---- One method for each -------------------------------------------------------------

    def _help(self, _: str) -> None:
        width = max(len(f"{name} {c.usage}") for name, c in COMMANDS.items())
        rows = [f"{f'{name} {c.usage}':<{width}}  {c.help}\n" for name, c in COMMANDS.items()]
        self._tell("".join(rows) + KEYS + (PLAIN if self._talk.plain else ""))

    def _exit(self, _: str) -> None:
        raise Ended

    def _reset(self, _: str) -> None:
        self._talk.messages = []

    def _regen(self, _: str) -> None:
        if not self._talk.take_back():
            raise ValueError("there is no message to answer again")
        if self._talk.keywords["temperature"] <= 0:
            self._tell("the temperature is 0: the answer will be the same (/set temperature 0.8)\n")
        raise Again

    def _system(self, text: str) -> None:
        talk = self._talk
        if text and talk.plain:
            raise ValueError("a system message needs a chat template, and this model has none")
        if text:
            talk.system = "" if text == NOT_THERE else text
        else:
            self._tell((talk.system or "there is no system message") + "\n")

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        self._talk.save(path)
        self._tell(f"{len(self._talk.messages)} messages written to {path}\n")

    def _load(self, name: str) -> None:
        path = Path(name).expanduser()
        self._talk.load(path)
        self._tell(f"{len(self._talk.messages)} messages read from {path}\n")

    def _set(self, rest: str) -> None:
        name, _, value = rest.replace("=", " ").partition(" ")
        settings = self._settings()
        if not name:
            self._tell("".join(f"{key} = {given}\n" for key, given in settings.items()))
            return
        name = name.lstrip("-").replace("-", "_").lower()
        name = _SHORT.get(name, name)
        if name not in settings:
            known = ", ".join(settings)
            raise ValueError(
                f"unknown setting {name}; {hint(name, [*settings], f'known: {known}')}"
            )
        if value.strip():
            self._change(name, value.strip(), settings[name])
        else:
            self._tell(f"{name} = {settings[name]}\n")

    def _settings(self) -> dict[str, Any]:
        """Settings that are numbers, with their values."""
        names = [k for k, v in Sampling().keywords().items() if isinstance(v, int | float)]
        given = {name: self._talk.keywords[name] for name in [*names, "max_tokens"]}
        return {**given, "seed": "random" if self._seed in RANDOM_SEEDS else self._seed}

    def _change(self, name: str, text: str, before: Any) -> None:
        if name == "seed":
            seed = _number(name, text, int)
            if not -1 <= seed < 1 << 31:
                raise ValueError("seed is out of range: -1 (random) to 2147483647")
            self._talk.llm.set_seed(seed)
            self._seed = seed
            return
        value = _number(name, text, type(before))
        if name == "max_tokens" and not -2 <= value < 1 << 31:
            raise ValueError("max_tokens is out of range: -1 (until the end) or a number of tokens")
        changed = {**self._talk.keywords, name: value}
        params = Sampling(**{key: changed[key] for key in Sampling().keywords()})
        self._talk.llm._runtime.samplers.make(params, 0)  # refuses what it cannot use
        self._talk.keywords = changed
        self._tell(f"{name} = {value}\n")


def _number(name: str, text: str, kind: type) -> Any:
    try:
        value = kind(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} must be {what}, not {text!r}")
    return value
