"""llama-server's environment variables: `serve` takes each as the option that it stands for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from powerinfer_cpp.cli import main
from powerinfer_cpp.cli.llama_server import Refused
from test_options_page import LISTED, SERVED

from powerinfer_cpp import cli

NAMED = [(names, values, variable) for names, values, variable in LISTED if variable != "HF_TOKEN"]
VARIABLES = [row for row in NAMED if row[2]]
FLAGS = [(names, variable) for names, values, variable in VARIABLES if not values]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return cli._parser("serve")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("LLAMA_") or name == "MTMD_BACKEND_DEVICE":
            monkeypatch.delenv(name)


@pytest.fixture
def serve(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `powerinfer serve` for what ends before it serves: its status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        status = main(["serve", *map(str, words)])
        return (status, *capfd.readouterr())

    return run


def test_there_are_variables() -> None:
    assert len(VARIABLES) > 140


@pytest.mark.parametrize("names, values, variable", VARIABLES, ids=[row[-1] for row in VARIABLES])
def test_a_variable_is_its_option(
    parser: argparse.ArgumentParser,
    names: list[str],
    values: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The same comes of both, or the same sentence; what changes nothing has the name given."""
    own = "--" + variable.removeprefix("LLAMA_ARG_").lower().replace("_", "-")
    long = own if own in names else next(name for name in names if name.startswith("--"))
    value = next((SERVED[name] for name in names if name in SERVED), "1") if values else ""
    told = []
    for words, variables in (
        ([f"{long}={value}" if values else long], {}),
        ([], {variable: value or "on"}),
    ):
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        try:
            found = vars(parser.parse_args(["serve", *words]))
        except SystemExit as ended:
            assert ended.code == 2
            told.append(capfd.readouterr().err.replace(f"{variable}: ", ""))
            continue
        without = found.pop("without_effect") or {}
        assert list(without) in ([], [variable if variables else long])
        told.append((found, list(without.values())))
    assert told[0] == told[1]


@pytest.mark.parametrize("names, variable", FLAGS, ids=[row[-1] for row in FLAGS])
def test_what_is_switched_off(
    parser: argparse.ArgumentParser,
    names: list[str],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flag's variable that says no is the opposite option, or nothing."""
    monkeypatch.setenv(variable, "False")
    known = _actions(parser)
    opposite = [name for name in names if name.startswith("--no-")]
    opposite = opposite if opposite[:1] != names[:1] else []
    if opposite and isinstance(known[opposite[0]], Refused):
        with pytest.raises(SystemExit):
            parser.parse_args(["serve"])
        return
    found = parser.parse_args(["serve"])
    monkeypatch.delenv(variable)
    want = parser.parse_args(["serve", *opposite[:1]])
    found.without_effect, want.without_effect = (
        list((args.without_effect or {}).values()) for args in (found, want)
    )
    assert found == want


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    serve = commands.choices["serve"]
    return {flag: action for action in serve._actions for flag in action.option_strings}


@pytest.mark.parametrize(
    ("variables", "words", "name", "value"),
    [
        ({"CTX_SIZE": "128"}, [], "ctx_size", 128),
        ({"CTX_SIZE": "128"}, ["-c", "64"], "ctx_size", 64),
        ({"CTX_SIZE": "128"}, ["--ctx-size=64"], "ctx_size", 64),
        ({"CTX_SIZE": ""}, [], "ctx_size", None),
        ({"N_PARALLEL": "-1"}, [], "parallel", None),
        ({"MODEL": "a"}, [], "model", ["a"]),
        ({"MODEL": "a"}, ["-m", "b"], "model", ["b"]),
        ({"MODEL": "a"}, ["b"], "model", None),
        ({"MODEL": "a"}, ["-hf", "x/y"], "model", None),
        ({"HF_REPO": "x/y"}, ["-c", "5", "b"], "hf_repo", None),
        ({"MODEL": "a"}, ["--jinja"], "model", ["a"]),
        ({"CORS_ORIGINS": "a,b"}, ["--cors-origins", "c"], "allowed_origin", ["c"]),
        ({"CHAT_TEMPLATE": "chatml"}, ["--chat-template-file", "f"], "chat_template", None),
        ({"CHAT_TEMPLATE": "chatml"}, ["--chat-format", "zephyr"], "chat_template", None),
        ({"LORA": "a,b"}, [], "lora", [("a", 1.0), ("b", 1.0)]),
        ({"LORA": "a"}, ["--lora-scaled", "b:2"], "lora", [("b", 2.0)]),
        ({"NO_MMAP": "1"}, [], "mmap", False),
        ({"NO_MMAP": "0"}, [], "mmap", True),
        ({"NO_MMAP": "1"}, ["--mmap"], "mmap", True),
        ({"MLOCK": "true"}, [], "mlock", True),
        ({"NO_WEBUI": "1"}, [], "page", False),
        ({"MODEL_DRAFT": "d"}, [], "model_draft", "d"),
        ({"MODEL_DRAFT": "d"}, ["--lookup"], "model_draft", None),
        ({"CACHE_TYPE_K": "q4_0"}, [], "cache_type_k", "q8_0"),
    ],
)
def test_the_command_line_wins(
    parser: argparse.ArgumentParser,
    variables: dict[str, str],
    words: list[str],
    name: str,
    value: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key, text in variables.items():
        monkeypatch.setenv(f"LLAMA_ARG_{key}", text)
    assert getattr(parser.parse_args(["serve", *words]), name) == value


def test_keys(parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "one,two")
    assert parser.parse_args(["serve"]).api_key == ["one", "two"]
    assert parser.parse_args(["serve", "--api-key", "three"]).api_key == ["three"]


def test_what_is_said(serve: Run, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(model_path))
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "96")
    monkeypatch.setenv("LLAMA_ARG_CACHE_REUSE", "256")
    monkeypatch.setenv("LLAMA_ARG_JINJA", "1")
    monkeypatch.setenv("LLAMA_ARG_SPEED", "fast")
    status, out, err = serve("--plan", "-np", 3)
    assert status == 0 and "96 positions (-c), 288 of all" in out
    assert err.splitlines() == [
        "LLAMA_ARG_CACHE_REUSE changes nothing: known beginnings are used, and nothing else of a "
        "prompt",
        "LLAMA_ARG_SPEED changes nothing: it stands for no option",
    ]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("THREADS", "many", "LLAMA_ARG_THREADS: argument -t/--threads: invalid integer"),
        ("FLASH_ATTN", "1", ""),
        ("JINJA", "maybe", "LLAMA_ARG_JINJA=maybe is neither of 1, on, true, enabled nor of 0"),
        ("JINJA", "0", "LLAMA_ARG_JINJA: option --no-jinja is not taken"),
        ("RPC", "a:1", "LLAMA_ARG_RPC: option --rpc is not taken: one machine computes a model"),
        ("RERANKING", "0", ""),
    ],
)
def test_what_is_refused(
    name: str,
    text: str,
    sentence: str,
    serve: Run,
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"LLAMA_ARG_{name}", text)
    status, _, err = serve(model_path, "--plan", "-c", 64)
    assert status == (2 if sentence else 0) and sentence in err
    assert len(err.splitlines()) == bool(sentence)


def test_other_commands_have_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "many")
    args = cli._parser("complete").parse_args(["complete", "m"])
    assert args.threads is None and not capfd.readouterr().err
