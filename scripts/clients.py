"""Runs packages of PyPI against a server of `powerinfer serve`: which of their uses work.

Each client gets a virtual environment of its own, and runs its program of scripts/client_programs
there, which tells each attempt. A row of the table is a client with the versions of its packages,
what worked, and what did not, with the error. Answers are not judged: any chat model will do. A
server with an embedding model, or with one that ranks texts, is asked for vectors, or ranks, alone.
Clients that need torch are only run when they are named with --only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "client_programs"
SECONDS = 900.0  # for the attempts of one client


@dataclass(frozen=True)
class Client:
    """packages: what pip installs, the client itself first. before: what it installs first.
    large: gigabytes are downloaded, so it is run only where it is named."""

    packages: Sequence[str]
    before: Sequence[str] = ()
    large: bool = False


CLIENTS = {
    "openai": Client(["openai"]),
    "anthropic": Client(["anthropic"]),
    "litellm": Client(["litellm"]),
    "instructor": Client(["instructor"]),
    "langchain": Client(["langchain-openai"]),
    "llama-index": Client(
        [
            "llama-index-llms-openai-like",
            "llama-index-embeddings-openai-like",
            "llama-index-embeddings-text-embeddings-inference",
            "llama-index-postprocessor-jinaai-rerank",
            "llama-index-postprocessor-tei-rerank",
        ]
    ),
    "smolagents": Client(["smolagents", "openai"]),
    "openai-agents": Client(["openai-agents"]),
    "dspy": Client(["dspy", "numpy"]),
    "haystack": Client(["haystack-ai", "huggingface-api-haystack"]),
    "outlines": Client(["outlines", "openai"]),
    "pydantic-ai": Client(["pydantic-ai-slim[openai]"]),
    "hermes-agent": Client(["hermes-agent"]),
    # The build of torch for CPUs is a tenth of the one that pip would choose.
    "open-webui": Client(["open-webui"], before=["torch==2.13.0"], large=True),
}


@dataclass
class Row:
    """What became of a client: attempts that worked, and errors by attempt."""

    client: str
    versions: str = ""
    worked: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/clients.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", default="http://127.0.0.1:8080", metavar="URL")
    parser.add_argument("--model", help="a name that /v1/models has (default: its first one)")
    parser.add_argument("--only", action="append", choices=sorted(CLIENTS), metavar="NAME")
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="where to keep the environments")
    return parser.parse_args()


def first_model(url: str) -> str:
    """The name of the first model that a server has."""
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def pip(python: Path, *arguments: str) -> str:
    """What pip says, for another environment: making one with its own pip takes longer."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def environment(client: Client, folder: Path) -> Path:
    """The Python of an environment that has the client's packages; made if it is not there."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True)
    for packages in filter(None, (client.before, client.packages)):
        pip(python, "install", "--quiet", *packages)
    return python


def versions(client: Client, python: Path) -> str:
    """The packages that the table names, with their versions."""
    listed = json.loads(pip(python, "list", "--format", "json"))
    of = {entry["name"].lower().replace("_", "-"): entry["version"] for entry in listed}
    named = [package.partition("[")[0] for package in client.packages]
    return ", ".join(f"{name} {of[name]}" for name in named)


def program(name: str) -> Path:
    """The program of a client."""
    return PROGRAMS / f"use_{name.replace('-', '_')}.py"


def attempts(program: Path, python: Path, url: str, model: str) -> Iterator[tuple[str, str]]:
    """What a client's program tells: attempts and their errors, which are empty if they worked."""
    command = [str(python), str(program), url, model]
    try:
        done = subprocess.run(
            command, capture_output=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        yield "the program", f"took more than {SECONDS:g} s"
        return
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"attempt": ')]
    for line in lines:
        told = json.loads(line)
        yield told["attempt"], told["error"]
    if not lines:
        yield "the program", done.stderr.strip()[-500:] or f"status {done.returncode}"


def run(name: str, folder: Path, url: str, model: str) -> Row:
    client, row = CLIENTS[name], Row(name)
    try:
        python = environment(client, folder)
        row.versions = versions(client, python)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        row.failed["installing"] = str(error)
        return row
    for attempt, error in attempts(program(name), python, url, model):
        if error:
            row.failed[attempt] = error
        else:
            row.worked.append(attempt)
    return row


def main() -> int:
    given = arguments()
    url = given.server.rstrip("/")
    try:
        model = given.model or first_model(url)
    except (OSError, ValueError, LookupError) as error:
        sys.exit(f"scripts/clients.py: error: --server {url}: {error}")
    chosen = given.only or [name for name, client in CLIENTS.items() if not client.large]
    print("| client | versions | works | fails |\n| --- | --- | --- | --- |", flush=True)
    failed = False
    for name in chosen:
        with tempfile.TemporaryDirectory() as made:
            row = run(name, (given.venvs or Path(made)) / name, url, model)
        failed |= bool(row.failed)
        errors = "; ".join(f"{attempt}: {error}" for attempt, error in row.failed.items())
        cells = (name, row.versions, ", ".join(row.worked), " ".join(errors.split()))
        print("|", " | ".join(cell.replace("|", "\\|") for cell in cells), "|", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
