"""The commands of docs/serve.md and docs/clients.md, as they are written there."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving
from test_vectors import converted

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT, CLIENTS = ((DOCS / name).read_text() for name in ("serve.md", "clients.md"))
BLOCKS = BLOCK.findall(TEXT) + BLOCK.findall(CLIENTS)
ADDRESS = "http://127.0.0.1:8080/"


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.Program]:
    with serving.program("-m", model_path) as found:
        yield found


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Program]:
    made = converted(tmp_path_factory.mktemp("ranks"), "bert-rank")
    with serving.program("-m", made.path) as found:
        yield found


@pytest.fixture
def asked(command: str, request: pytest.FixtureRequest) -> serving.Program:
    """The server that a command is for."""
    return request.getfixturevalue("ranking" if "/rerank" in command else "running")


def clients(language: str, word: str) -> list[str]:
    """Blocks that ask a server."""
    return [text for name, text in BLOCKS if name == language and word in text]


@pytest.mark.parametrize("command", clients("sh", "curl"))
def test_what_curl_sends(asked: serving.Program, command: str) -> None:
    path, body = re.search(rf"{ADDRESS}(\S+).*-d '(.*)'", command, re.DOTALL).groups()
    assert asked.post(path, body.encode()).status_code == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="no tool to run these commands: curl")
@pytest.mark.parametrize("command", clients("sh", "curl"))
def test_curl(asked: serving.Program, command: str) -> None:
    command = command.replace(ADDRESS, asked.url)
    done = subprocess.run(
        ["bash", "-ec", command], capture_output=True, errors="replace", timeout=60
    )
    assert done.returncode == 0 and '"error"' not in done.stdout
    names = ("choices", "stop_type", "embedding", "relevance_score")
    assert any(f'"{name}"' in done.stdout for name in names)


@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=pytest.mark.peer(name)) for name in ("openai", "anthropic")],
)
def test_python(running: serving.Program, package: str) -> None:
    program = next(text for text in clients("python", "") if text.startswith(f"from {package} "))
    program = program.replace("http://127.0.0.1:8080", running.url.rstrip("/"))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, errors="replace", timeout=60)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_settings_and_programs_are_well_formed() -> None:
    """Programs are only compiled: scripts/clients.py runs others of the same packages."""
    for name, text in BLOCKS:
        if name == "python":
            compile(text, "clients.md", "exec")
        elif name == "json":
            json.loads(text)
        elif name == "toml":
            pytest.importorskip("tomllib").loads(text)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/clients.py."""
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    return importlib.import_module("clients")


def test_what_is_run_is_told(script: Any) -> None:
    """Each client of scripts/clients.py has a section, and a row that says what came of it."""
    headings = [line.lower() for line in re.findall(r"^### (.*)$", CLIENTS, re.MULTILINE)]
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[^|]*\|[^|]*\| (run|replayed)\b", CLIENTS, re.MULTILINE)
    assert [name.lower() for name, _ in rows] == headings
    run = {name.lower().replace(" ", "").replace("-", "") for name, how in rows if how == "run"}
    assert run == {name.replace("-", "") for name in script.CLIENTS}
    for name in script.CLIENTS:
        assert script.program(name).exists(), name


def test_attempts_are_told(script: Any, tmp_path: Path) -> None:
    """What worked, what did not and why, and a program that does not even begin."""
    folder = DOCS.parent / "scripts"
    shutil.copy(folder / "client_programs" / "attempts.py", tmp_path)
    text = "from attempts import attempt\n\ndef one():\n    return 1\n\ndef two_of_it():\n"
    text += "    raise ValueError('no')\n\ndef none():\n    return ''\n\n"
    (tmp_path / "use_it.py").write_text(text + "attempt(one, two_of_it, none)\n")
    (tmp_path / "use_other.py").write_text("import nothing_of_this_name\n")
    told = list(script.attempts(tmp_path / "use_it.py", sys.executable, ADDRESS, "m"))
    assert told == [("one", ""), ("two of it", "ValueError: no"), ("none", "the result is empty")]
    ((name, error),) = script.attempts(tmp_path / "use_other.py", sys.executable, ADDRESS, "m")
    assert name == "the program" and "nothing_of_this_name" in error


def test_routes_are_listed(running: serving.Program) -> None:
    paths = running.get("openapi.json").json()["paths"]
    table = TEXT.split("| route | does |")[1].split("\n\n")[0]
    listed = set(re.findall(r"`(/[\w/.{}-]*)`", table))
    assert {path for path in paths if f"/v1{path}" not in paths} - {"/v1/health"} | {
        "/health"
    } == listed


def test_limits_are_those_of_the_code() -> None:
    from powerinfer_cpp.run import scheduler
    from powerinfer_cpp.run.pace import BURST, LEAST_SHARE
    from powerinfer_cpp.server.app import REQUEST_BURST, REQUEST_SECONDS
    from powerinfer_cpp.server.recorded import CANDIDATE_BYTES, TOKEN_BYTES
    from powerinfer_cpp.server.settings import Settings
    from powerinfer_cpp.text.grammar import MAX_TEXT, SECONDS
    from powerinfer_cpp.text.masks import MASK_SECONDS, MEMORY
    from powerinfer_cpp.text.worker import MAX_MEMORY

    of = Settings()
    for text in (
        f"| {of.max_body >> 20} MB, nested {of.max_depth} deep, {of.body_seconds:g} s to arrive |",
        f"| {of.max_bodies >> 20} MB, above that 503; {of.max_bodies // 4 >> 20} MB of one client",
        f"| {of.max_recorded >> 20} MiB (`--max-recorded`), see below |",
        f"Each counts {TOKEN_BYTES} bytes and {CANDIDATE_BYTES} for each candidate",
        f"{BURST} rows of prompts are read at full speed",
        f"but {LEAST_SHARE:.0%} at least",
        f"a client gets {LEAST_SHARE / REQUEST_SECONDS:.0f} in a second beside 19 others, "
        f"after {REQUEST_BURST / REQUEST_SECONDS:.0f} at once",
        f"a step waits at most {1e3 * scheduler.MASK_SECONDS:.0f} ms for masks",
        f"| {of.max_headers >> 10} kB, {of.header_seconds:g} s to arrive |",
        f"| {of.send_seconds:g} s |",
        f"| {of.max_n}, {of.max_inputs} |",
        f"| {of.max_stops} texts of {of.max_stop_length} characters, {of.max_bias} tokens, "
        f"{of.max_top} tokens |",
        f"| {MAX_TEXT >> 10} Ki characters; {SECONDS:g} s of processor time and "
        f"{MAX_MEMORY >> 20} MiB,",
        f"| {MASK_SECONDS:g} s of processor time for each and {MEMORY >> 20} MiB,",
    ):
        assert text in TEXT, text


@pytest.fixture
def unit() -> str:
    """The unit of systemd."""
    (found,) = [text for name, text in BLOCKS if name == "ini"]
    return found


def test_the_unit_starts_one_program(unit: str) -> None:
    assert unit.count("ExecStart=") == 1


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no tool to check units: systemd-analyze"
)
def test_the_unit(unit: str, tmp_path: Path) -> None:
    unit = unit.replace("/opt/powerinfer/bin/powerinfer", sys.executable)
    (tmp_path / "powerinfer.service").write_text(unit)
    command = ["systemd-analyze", "verify", str(tmp_path / "powerinfer.service")]
    done = subprocess.run(command, capture_output=True, errors="replace")
    said = [line for line in done.stderr.splitlines() if "powerinfer" in line]
    assert said == []


@pytest.mark.slow
def test_the_load(root: Path) -> None:
    """The script of the measurements, for some seconds."""
    command = [sys.executable, "scripts/serve_load.py", "--clients", "8", "--seconds", "4"]
    line = [*command, "--texts", "12", "--connections", "300"]
    done = subprocess.run(line, cwd=root, capture_output=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 connections opened" in done.stdout and " 0 texts differ, 0 errors" in done.stdout
