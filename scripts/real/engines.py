"""Ours and other engines: how each is called, and how its answers are read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "Once upon a time"
# For the start. Some engines take the context of the training by default, and fill all of it.
CTX = 512
# How long a program may take by itself, in seconds.
LIMIT = 1800


class Failed(Exception):
    """A program failed, or cannot do what is asked. The message is a part of a sentence."""


class Case(NamedTuple):
    """n_prompt tokens as a prompt, or n_gen tokens one by one after n_depth others."""

    n_prompt: int
    n_gen: int
    n_depth: int

    def __str__(self) -> str:
        if self.n_prompt:
            return f"prompt of {self.n_prompt:,}"
        return f"decode at {self.n_depth:,}"


class Perplexity(NamedTuple):
    """windows: how many were scored, of how many tokens."""

    value: float
    error: float
    windows: int
    ctx: int
    kl_99: float | None = None  # 99th percentile of the divergence from every neuron computed
    same_top: float | None = None  # percent

    @property
    def n_tokens(self) -> int:
        """Scored tokens: the second half of each window less one, as both engines do it."""
        return self.windows * (self.ctx - self.ctx // 2 - 1)


@dataclass(frozen=True)
class How:
    """threads: of every engine. folder: where the programs run, as some leave logs behind. before:
    a command that starts each measured program."""

    threads: int
    folder: Path
    before: tuple[str, ...] = ()

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """What a program printed. Raises Failed."""
        line = [*self.before, *map(str, command)]
        try:
            done = subprocess.run(
                line,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=LIMIT,
            )
        except OSError as error:
            raise Failed(f"{line[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"took more than {LIMIT} seconds") from None
        if done.returncode:
            said = [text.strip() for text in (done.stderr + done.stdout).splitlines()]
            last = next((text for text in reversed(said) if text), "")
            raise Failed(f"ended with {done.returncode}: {last[:200]}".rstrip(": "))
        return done

    def machine(self, *what: object) -> dict[str, float]:
        """What machine.py measures. Raises Failed."""
        program = Path(__file__).with_name("machine.py")
        return _json(self.run(sys.executable, program, *what).stdout)


def powerinfer(how: How, *line: object) -> str:
    """A command of ours, with the Python that runs this. Raises Failed."""
    return how.run(sys.executable, "-m", "powerinfer_cpp", *line).stdout


def _json(text: str) -> Any:
    """The JSON in a text that may begin with other lines. Raises Failed."""
    found = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        return json.loads(text[found.start() :] if found else "")
    except ValueError:
        raise Failed("printed no JSON") from None


def _perplexity(text: str, windows: str, ctx: int) -> Perplexity:
    """windows: the pattern of their number."""
    estimate = re.search(r"Final estimate: PPL\b.*? = (\S+) \+/- (\S+)", text)
    count = re.search(windows, text)
    if estimate is None or count is None:
        raise Failed("printed no perplexity")
    return Perplexity(float(estimate[1]), float(estimate[2]), int(count[1]), ctx)


@dataclass(frozen=True)
class Ours:
    """This engine with a model in one sparse mode."""

    name: str
    model: Path
    sparse: str = "off"

    def speed(self, how: How, model: Path, test: Case, kv: str) -> dict[str, Any]:
        """avg_ts and, of generated tokens, bytes_per_token and neurons_computed. Raises Failed."""
        line = ["-p", test.n_prompt, "-n", test.n_gen, "-d", test.n_depth, "-r", 1, "-o", "json"]
        line += ["-t", how.threads, "-ctk", kv, "-ctv", kv, "--sparse", self.sparse]
        (row,) = _json(powerinfer(how, "bench", model, *line))
        found = {"avg_ts": row["avg_ts"], "neurons_computed": row["neurons_computed"]}
        if test.n_gen:
            found["bytes_per_token"] = sum(row["bytes_per_token"].values())
        return found

    def first(self, how: How, model: Path) -> float:
        """Seconds from the start of ./main to the first byte of its first token. Raises Failed."""
        program = ROOT / "main"
        if not program.exists():
            raise Failed("./main is not built")
        line = ["-m", model, "-p", PROMPT, "-n", 2, "-c", CTX, "-no-cnv", "--no-display-prompt"]
        line += ["-t", how.threads, "--sparse", self.sparse]
        return how.machine("first", program, *line)["s"]

    def perplexity(
        self, how: How, model: Path, text: Path, ctx: int, kv: str, separator: str
    ) -> Perplexity:
        """Sparse modes are compared with every neuron computed. Raises Failed."""
        compare = self.sparse != "off"
        line = ["--text", text, "-c", ctx, "-t", how.threads, "-ctk", kv, "-ctv", kv]
        line += ["--separator", separator] if separator else []
        line += ["--sparse", self.sparse, *(["--compare", "off"] if compare else [])]
        out = powerinfer(replace(how, before=()), "perplexity", model, *line)
        found = _perplexity(out, r"(\d+) windows of", ctx)
        if compare:
            kl, same = (
                re.search(pattern, out)
                for pattern in (r"99\.0% +KLD: +(\S+)", r"Same top p: +(\S+)")
            )
            if kl is None or same is None:
                raise Failed("printed no comparison")
            found = found._replace(kl_99=float(kl[1]), same_top=float(same[1]))
        return found


class Peer:
    """Another engine: its llama-bench, and its other programs in the same folder."""

    def __init__(self, name: str, line: list[str]) -> None:
        """line: llama-bench and options of it, which come before the usual ones. Raises Failed."""
        self.name, self.options = name, line[1:]
        found = shutil.which(line[0])
        if found is None:
            raise Failed(f"{line[0]} is no program")
        self.bench = Path(found).resolve()
        self.about: dict[str, Any] = {}
        help_text = _help(self.bench)
        self._depth = bool(re.search(r"(?<![\w-])--n-depth\b", help_text))
        # What makes it fast, where it has that: attention without a matrix of scores, and weights
        # laid out for this processor as they are loaded.
        for flag in ("-fa", "-rtr"):
            if flag not in self.options and _has(help_text, flag):
                self.options += [flag, "1"]

    def program(self, *names: str) -> tuple[Path, str]:
        """The first of these programs that is beside llama-bench, and its help. Raises Failed."""
        for name in names:
            path = self.bench.with_name(name)
            if path.exists():
                return path, _help(path)
        raise Failed(f"there is no {' or '.join(names)} beside its llama-bench")

    def speed(self, how: How, model: Path, test: Case, kv: str) -> dict[str, Any]:
        """avg_ts. Raises Failed."""
        line = ["-m", model, "-r", 1, "-o", "json", "-t", how.threads, "-ctk", kv, "-ctv", kv]
        asked = (test.n_prompt, test.n_gen)
        if test.n_depth and not self._depth:  # an older one: a prompt of that length, not timed
            line += ["-p", 0, "-n", 0, "-gp", f"{test.n_depth},{test.n_gen}"]
            asked = (test.n_depth, test.n_gen)
        else:
            line += ["-p", test.n_prompt, "-n", test.n_gen]
            line += ["-d", test.n_depth] if test.n_depth else []
        rows = _json(how.run(self.bench, *line, *self.options).stdout)
        row = rows[-1] if isinstance(rows, list) and rows else {}
        if (row.get("n_prompt"), row.get("n_gen")) != asked or not row.get("avg_ts"):
            raise Failed("reported another test than the one asked for")
        self.about.update(row)
        return {"avg_ts": row["avg_ts"]}

    def first(self, how: How, model: Path) -> float:
        """As Ours.first()."""
        program, help_text = self.program("llama-completion", "llama-cli")
        if not _has(help_text, "--no-display-prompt"):
            raise Failed(f"{program.name} has no --no-display-prompt")
        line = ["-m", model, "-p", PROMPT, "-n", 2, "-c", CTX, "--no-display-prompt"]
        line += ["-t", how.threads]
        line += [flag for flag in ("-no-cnv", "--no-warmup") if _has(help_text, flag)]
        return how.machine("first", program, *line, *self._for(help_text))["s"]

    def perplexity(
        self, how: How, model: Path, text: Path, ctx: int, kv: str, separator: str
    ) -> Perplexity:
        """Raises Failed."""
        if separator:
            raise Failed("it knows no separator of documents")
        program, help_text = self.program("llama-perplexity")
        line = ["-m", model, "-f", text, "-c", ctx, "-t", how.threads, "-ctk", kv, "-ctv", kv]
        done = replace(how, before=()).run(program, *line, *self._for(help_text))
        return _perplexity(done.stdout + done.stderr, r"over (\d+) chunks", ctx)

    def _for(self, help_text: str) -> list[str]:
        """-fa and -rtr for its other programs, where -rtr has no value."""
        given = dict(zip(self.options, self.options[1:], strict=False))
        found = ["-fa", "on" if given["-fa"] in ("1", "on") else "off"] if "-fa" in given else []
        repacks = given.get("-rtr") == "1" and _has(help_text, "-rtr")
        return [*found, *(["-rtr"] if repacks else [])]


def _help(program: Path) -> str:
    """What --help prints. Raises Failed."""
    try:
        with tempfile.TemporaryDirectory() as folder:  # for its logs
            done = subprocess.run(
                [program, "--help"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=60,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{program} --help: {error}") from None
    return done.stdout + done.stderr


def _has(help_text: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", help_text) is not None


def others(specs: list[str] | None) -> list[Peer]:
    """The engines that --peers names, [NAME=]LLAMA-BENCH [OPTION ...] each; without it the
    llama-bench on the PATH, if there is one. Raises Failed."""
    if specs is None:
        specs = ["llama-bench"] if shutil.which("llama-bench") else []
    found: dict[str, Peer] = {}
    for spec in specs:
        name, equals, line = spec.partition("=")
        if not equals or re.search(r"[/\s]", name):  # an equals sign in a path or an option
            name, line = "", spec
        if not line.strip():
            raise Failed(f"{spec}: names no llama-bench")
        if (name := name or "llama.cpp") in found or name == "powerinfer":
            raise Failed(f"two engines are called {name}: use NAME=LLAMA-BENCH")
        found[name] = Peer(name, shlex.split(line))
    return list(found.values())
