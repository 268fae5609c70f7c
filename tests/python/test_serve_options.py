"""Options of `serve` as llama-server has them: what requests begin with, sizes, plans, names."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import serving
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.run.context_size import ENOUGH, SHARE, context_size
from powerinfer_cpp.run.options import Options
from powerinfer_cpp.run.shared_session import session_fields
from powerinfer_cpp.server.settings import Defaults, Settings

from powerinfer_cpp import cli

PROMPT = "Once upon a time, there was a"
ROUTES = ("completion", "v1/completions", "v1/chat/completions", "v1/messages", "v1/responses")


def body(route: str, **more: Any) -> dict[str, Any]:
    """A request that says nothing of how its text is written."""
    said = [{"role": "user", "content": PROMPT}]
    of_route = {"prompt": PROMPT} if "completion" in route and "chat" not in route else {}
    of_route = {"input": PROMPT} if route == "v1/responses" else of_route or {"messages": said}
    # A message has to say it.
    return {**of_route, **({"max_tokens": 6} if route == "v1/messages" else {}), **more}


def told(route: str, answer: dict[str, Any]) -> tuple[str, int]:
    """The text and its number of tokens."""
    if route == "completion":
        return answer["content"], answer["tokens_predicted"]
    if route == "v1/messages":
        return answer["content"][0]["text"], answer["usage"]["output_tokens"]
    if route == "v1/responses":
        return answer["output"][0]["content"][0]["text"], answer["usage"]["output_tokens"]
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return text, answer["usage"]["completion_tokens"]


def test_what_requests_begin_with(model_path: Path) -> None:
    sampling = {"temperature": 0.0, "repeat_penalty": 1.3}
    settings = Settings(defaults=Defaults(sampling, 6, {}, True))
    given = {"temperature": 0, "repeat_penalty": 1.3, "ignore_eos": True}
    with serving.in_thread(model_path, settings) as by_options:
        found = {}
        for route in ROUTES:
            found[route] = told(route, by_options.post(route, body(route)).json())
            assert found[route][1] == 6
            other = body(route, temperature=1.5, seed=5, repeat_penalty=1.0, max_tokens=9)
            assert told(route, by_options.post(route, other).json())[0] != found[route][0]
        # Another bias of a request takes the place of the options'.
        with serving.in_thread(model_path) as by_requests:
            for route in ROUTES:
                limit = "max_output_tokens" if route == "v1/responses" else "max_tokens"
                said = body(route, **given, **{limit: 6})
                assert told(route, by_requests.post(route, said).json()) == found[route]


def test_biases_of_options(model_path: Path) -> None:
    settings = Settings(defaults=Defaults({"temperature": 0.0}, 3, {50: 100.0}))
    with serving.in_thread(model_path, settings) as running:
        texts = {
            bias: running.post("completion", body("completion", **more)).json()["content"]
            for bias, more in {50: {}, 60: {"logit_bias": [[60, 100]]}}.items()
        }
        for token, text in texts.items():
            piece = running.post("detokenize", {"tokens": [token] * 3}).json()["content"]
            assert text.strip() == piece.strip()


def test_without_the_page(model_path: Path) -> None:
    with serving.in_thread(model_path, Settings(page=False)) as running:
        assert running.get("").status_code == 405  # POST is there
        assert running.get("health").status_code == 200


@dataclass
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def powerinfer(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs `powerinfer serve` in this process, for what ends before it serves."""

    def run(*words: object) -> Done:
        status = main(["serve", *map(str, words)])
        return Done(status, *capfd.readouterr())

    return run


def test_a_command_line_of_llama_server(model_path: Path) -> None:
    given = "--jinja -fa on -ngl 99 --no-mmap --alias mine,other -np 2 -tb 1 --temp 0 -n 3"
    words = [*given.split(), "--n-cpu-moe", "4", "--metrics", "--cache-reuse", "256", "-c", "128"]
    with serving.program("-m", model_path, *words) as program:
        answer = program.post("v1/completions", {"prompt": PROMPT}).json()
        assert answer["model"] == "mine" and answer["usage"]["completion_tokens"] == 3
        assert program.get("v1/models").json()["data"][0]["id"] == "mine"
        assert program.get("props").json()["default_generation_settings"]["n_ctx"] == 128


def test_what_changes_nothing_is_said(powerinfer: Callable[..., Done], model_path: Path) -> None:
    done = powerinfer("--plan", "-c", 64, "-ot", "exps=CPU", "--jinja", "-cram", 0, model_path)
    notes = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    # -ot is not one of them, but no GPU is asked for either.
    assert [note.partition(" changes nothing: ")[0] for note in notes[:1]] == ["-cram"]
    assert notes[1:] == ["-ot exps=CPU: without effect here: the CPU computes everything"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rpc", "a:1"], "option --rpc is not taken: one machine computes a model"),
        (["--control-vector-layer-range", "1", "2"], "the model is used as it is"),
        (["--sampler-seq", "kq"], "'q' is none of"),
        (["--fa"], "option --fa is unknown; powerinfer serve --help lists all"),
        (["--paralel", "3"], "did you mean --parallel?"),
        (["--temp", "hot"], "argument --temp/--temperature: invalid float value"),
    ],
)
def test_what_is_refused(
    powerinfer: Callable[..., Done], model_path: Path, words: list[str], sentence: str
) -> None:
    done = powerinfer(model_path, *words)
    assert done.returncode == 2 and sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_minus_one_is_the_default(powerinfer: Callable[..., Done], model_path: Path) -> None:
    plain, given = (
        powerinfer(model_path, "--plan", "-c", "64", "--ram-budget", "1", *words)
        for words in ([], ["-t", "-1", "-tb", "-1", "-np", "-1", "-n", "-1", "--seed", "-1"])
    )
    assert given.returncode == 0 and given.stdout == plain.stdout
    assert powerinfer(model_path, "--plan", "-t", "-2").returncode == 2


def test_types_of_the_cache(powerinfer: Callable[..., Done], model_path: Path) -> None:
    """Those of llama.cpp's that there are not: the nearest, and a sentence."""

    def planned(name: str, *more: str) -> tuple[str, list[str]]:
        done = powerinfer(model_path, "--plan", "-c", 64, "-ctk", name, "-ctv", name, *more)
        assert done.returncode == 0, done.stderr
        return re.search(r"kv +([\d.]+ MiB)", done.stdout)[1], done.stderr.splitlines()

    sizes = {name: planned(name)[0] for name in ("f16", "f32", "q8_0")}
    assert len(set(sizes.values())) == 3
    for name, used in {
        "bf16": "f16",
        **dict.fromkeys(("q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl"), "q8_0"),
    }.items():
        size, notes = planned(name)
        assert size == sizes[used]
        begin = [note.partition(" is used, ")[0] for note in notes]
        assert begin == [f"-ctk {name}: {used}", f"-ctv {name}: {used}"]
    assert planned("q4_0", "-ctk", "f16", "-ctv", "f16") == (sizes["f16"], [])
    assert not planned("q4_0", "-ctk", "q8_0", "-ctv", "q8_0")[1]
    refused = powerinfer(model_path, "--plan", "-ctk", "q3_0")
    assert refused.returncode == 2 and "q8_0" in refused.stderr


@pytest.mark.parametrize("command", ["serve", "complete", "chat"])
def test_lists_with_commas(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*words: str) -> Any:
        return cli._parser(command).parse_args([command, *words])

    monkeypatch.chdir(tmp_path)
    Path("a,b").touch()
    given = ["--lora", "x,y", "--lora-scaled", 'z:0.5,"v,w":2', "--lora", "a,b", "--lora", "u"]
    want = [("x", 1.0), ("y", 1.0), ("z", 0.5), ("v,w", 2.0), ("a,b", 1.0), ("u", 1.0)]
    assert parsed(*given).lora == want
    for wrong in ("x,", ",x", "x,,y", ""):
        with pytest.raises(SystemExit):
            parsed("--lora", wrong)
    for wrong in ("x", "x:1,y", "x:one", ":1"):
        with pytest.raises(SystemExit):
            parsed("--lora-scaled", wrong)
    given = ["--override-kv", 'a.b=int:1,c=str:x, y=z,"d=float:0.5",e=bool:true']
    want = [("a.b", 1), ("c", "x, y=z"), ("d", 0.5), ("e", True)]
    assert parsed(*given, "--override-kv", "f=str:").override_kv == [*want, ("f", "")]
    for wrong in ("a=int:1,", "a=int:x,b=int:1", "a", "a=int:1,b=long:1"):
        with pytest.raises(SystemExit):
            parsed("--override-kv", wrong)


def test_several_models_have_no_alias(powerinfer: Callable[..., Done], model_path: Path) -> None:
    done = powerinfer(f"a={model_path}", f"b={model_path}", "--alias", "c")
    assert done.returncode == 1 and "--alias names one model" in done.stderr


def test_plans(powerinfer: Callable[..., Done], model_path: Path) -> None:
    done = powerinfer(model_path, "--plan", "-c", 256, "-np", 3, "-ctk", "q8_0", "-ctv", "q8_0")
    options = Options(model_path, n_ctx=256, type_k=8, type_v=8)
    plan = memory_plan(
        options.model_path, options.model, session_fields(options, 3, None, False)[0]
    )
    assert done.returncode == 0
    assert f"{plan['total'] / 2**20:.2f} MiB" in done.stdout and "768 of all" in done.stdout
    assert powerinfer(model_path, "--plan", "--ram-budget", "0.001").returncode == 3


def test_figures_of_requests(model_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "powerinfer_cpp.server"),
        serving.in_thread(model_path) as running,
    ):
        for _ in range(2):
            running.post("v1/completions", {"prompt": PROMPT, "max_tokens": 7})
    first, second = (text for text in caplog.messages if text.startswith("request "))
    n = r"(\d+)"
    found = re.compile(
        rf"request {n}: {n} tokens of prompt, {n} of them known, waited [\d.]+ s, first token "
        rf"after [\d.]+ s; {n} written, [\d.]+ a second"
    )
    (_, n_prompt, known, written), (_, same, more, _) = (
        found.fullmatch(text).groups() for text in (first, second)
    )
    assert n_prompt == same and known == "0" < more and written == "7"


def test_log_files(powerinfer: Callable[..., Done], model_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving.program("-m", model_path, "-c", 64, "-lv", 4, "--log-file", log) as program:
        program.get("health")
    assert "GET /health" in log.read_text()
    assert powerinfer(model_path, "--log-file", tmp_path / "no" / "log").returncode == 1


GIB = 2**30


@pytest.mark.parametrize("budget", [0.06, 0.2, 1.0, 40.0])
@pytest.mark.parametrize("n_parallel", [1, 4])
def test_sizes_of_contexts(
    model_path: Path, budget: float, n_parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values take an eighth of what is left, or more where texts would be short."""
    monkeypatch.setattr(Gguf, "n_ctx_train", 1 << 22)
    options = Options(model_path, n_ctx=0, ram_budget=budget)
    fields, _ = session_fields(options, n_parallel, None, False)
    found = context_size(options, fields, n_parallel)
    assert 512 <= found.n_ctx <= found.n_kv
    session = {**fields, "n_ctx": found.n_ctx, "n_kv": found.n_kv}
    plan = memory_plan(options.model_path, options.model, session)
    kv = plan["ram"]["kv"]
    left = plan["budget"] - (plan["total"] - kv)
    assert plan["total"] <= plan["budget"]
    assert abs(found.n_bytes - kv) < 0.02 * kv
    if found.n_ctx > ENOUGH:
        assert kv <= 1.02 * left / SHARE
    elif found.n_ctx < ENOUGH:
        assert kv > 0.4 * left


def test_a_model_for_short_texts_has_its_own_size(model_path: Path) -> None:
    options = Options(model_path, n_ctx=0)
    fields, _ = session_fields(options, 4, None, False)
    found = context_size(options, fields, 4)
    with Gguf(model_path) as gguf:
        assert found.n_ctx == gguf.n_ctx_train and found.n_kv == 4 * found.n_ctx
