"""What the server tells about itself, and `powerinfer serve` as a program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
import tiny
from disturbing import buffered
from lora_files import written
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.server import models as models_module
from powerinfer_cpp.server.served import ServedModel
from prometheus_client.parser import text_string_to_metric_families
from serving import openai

from powerinfer_cpp import Llama

PROMPT = "Once upon a time, there was a"


@pytest.fixture(scope="module")
def running(model_path: Path) -> Iterator[serving.InThread]:
    with serving.in_thread(model_path, n_parallel=3) as found:
        yield found


def figures(running: serving.Running) -> dict[tuple[str, ...], float]:
    """All samples of /metrics, by name and values of labels."""
    text = running.get("metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# ---- Health ----


def test_health_while_loading(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(*args: Any, **options: Any) -> ServedModel:
        assert go.wait(60)
        return ServedModel(*args, **options)

    monkeypatch.setattr(models_module, "ServedModel", slow)
    with serving.in_thread(model_path, ready=False) as running:
        for path in ("health", "v1/health"):
            loading = running.get(path)
            assert loading.status_code == 503 and loading.headers["retry-after"] == "1"
        for path in ("props", "slots", "tokenizer_info"):
            assert running.get(path).status_code == 503, path
        assert running.post("v1/completions", {"prompt": "x"}).status_code == 503
        assert [m["id"] for m in running.get("v1/models").json()["data"]] == ["model"]
        assert running.get("metrics").status_code == 200
        go.set()
        serving.wait_for(lambda: running.get("health").status_code == 200)
        assert running.get("v1/health").json() == {"status": "ok"}


def test_a_dead_engine(model_path: Path) -> None:
    """Everyone is told, also those who wait already; nothing is tried again and again."""
    with serving.in_thread(model_path) as running:
        scheduler = running.model.scheduler
        body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0}
        with running.ask("v1/completions", body) as waits:
            serving.wait_for(lambda: scheduler.n_steps > 3)
            running.model.engine.call(lambda: setattr(scheduler, "_choose_rows", None))
            assert b" 500 " in waits.recv(64)
        with pytest.raises(openai.InternalServerError, match="restarted") as error:
            running.openai().completions.create(model="m", prompt="x", max_tokens=2)
        assert error.value.type == "server_error"
        assert running.get("health").status_code == 500
        assert running.get("slots").status_code == 500
        assert running.get("metrics").status_code == 200
        assert "NoneType" not in running.get("health").text


# ---- Models ----


def test_several_models(model_path: Path, tmp_path: Path) -> None:
    other = tiny.make(tmp_path, "{{ messages[0].content }}")
    with serving.in_thread({"stories": model_path, "tiny": other}) as running:
        client = running.openai()
        assert [model.id for model in client.models.list()] == ["stories", "tiny"]
        for name, path in (("stories", model_path), ("tiny", other)):
            with Llama(path, n_ctx=256, verbose=False) as llm:
                want = llm(PROMPT, max_tokens=8, seed=2)["choices"][0]["text"]
                facts = next(m for m in client.models.list() if m.id == name).meta
                assert facts["n_vocab"] == llm.n_vocab() and facts["size"] > 0
            done = client.completions.create(model=name, prompt=PROMPT, max_tokens=8, seed=2)
            assert done.choices[0].text == want and done.model == name
        with pytest.raises(openai.NotFoundError, match="stories, tiny") as error:
            client.completions.create(model="gpt", prompt=PROMPT)
        assert error.value.param == "model"
        assert running.get("props?model=tiny").json()["model_path"] == other.name
        assert running.get("props?model=gpt").status_code == 404
        assert running.get("props?model=tiny").json()["chat_format"] == "template"
        listed = running.get("v1/models").json()["data"]
        assert [m["chat_format"] for m in listed] == [None, "template"]
        found = figures(running)
        assert found["llamacpp:tokens_predicted_total", "tiny"] == 8
        assert found["llamacpp:tokens_predicted_total", "stories"] == 8
        longest = len(running.post("tokenize", {"content": PROMPT}).json()["tokens"]) + 1 + 8
        assert found["llamacpp:n_tokens_max_total", "stories"] == longest
        assert found["llamacpp:n_busy_slots_per_decode", "stories"] == 1
        assert found["llamacpp:spec_decode_num_draft_tokens_total", "stories"] == 0


def test_one_model(running: serving.InThread) -> None:
    client = running.openai()
    (listed,) = client.models.list().data
    assert client.models.retrieve(listed.id) == listed
    assert running.get(f"models/{listed.id}").json() == listed.to_dict()
    with pytest.raises(openai.NotFoundError, match="there is no model 'other/one'"):
        client.models.retrieve("other/one")


def test_props_and_slots(
    running: serving.InThread, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    props = running.get("props").json()
    assert props["total_slots"] == 3 and props["default_generation_settings"]["n_ctx"] == 256
    assert props["model_path"] == model_path.name and str(model_path.parent) not in str(props)
    assert [slot["is_processing"] for slot in running.get("slots").json()] == [False] * 3
    body = {"prompt": PROMPT, "max_tokens": 240, "temperature": 0, "logit_bias": {"2": -100}}
    step = running.model.scheduler.step

    def slow() -> Any:  # the text takes some seconds, so that it is seen
        time.sleep(0.02)
        return step()

    monkeypatch.setattr(running.model.scheduler, "step", slow)
    with running.ask("v1/completions", body):
        serving.wait_for(lambda: running.get("slots").json()[0]["is_processing"])
        slots = running.get("slots").json()
        assert [slot["is_processing"] for slot in slots] == [True, False, False]
        assert slots[0]["n_tokens"] > 0 and "Once" not in str(slots)
    serving.wait_for(lambda: running.idle)


def test_adapters(model_path: Path, tmp_path: Path) -> None:
    """The model's adapters change its texts, and are listed; a request cannot choose others."""
    with Gguf(model_path) as model:
        width = model.value("llama.embedding_length")
    factors = np.random.default_rng(0).standard_normal((2, 2, width))
    names = [f"blk.0.attn_output.weight.lora_{x}" for x in "ab"]
    tensors = dict(zip(names, (factors[0], factors[1].T), strict=True))
    adapter = written(tmp_path / "adapter.gguf", tensors)
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    with serving.in_thread(model_path, lora_path={adapter: 0.5}) as running:
        listed = running.get("lora-adapters").json()
        assert listed == [{"id": 0, "path": "adapter.gguf", "scale": 0.5}]
        same = {**body, "lora": [{"id": 0, "scale": 0.5}]}
        said = [
            running.post("v1/completions", b).json()["choices"][0]["text"] for b in (body, same)
        ]
        for lora in ([], [{"id": 0, "scale": 1}], [{"id": 1, "scale": 0.5}]):
            refused = running.post("v1/completions", {**body, "lora": lora})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "lora"
    with Llama(model_path, n_ctx=256, verbose=False) as llm:
        plain = llm(PROMPT, max_tokens=8, temperature=0)["choices"][0]["text"]
        llm.set_adapters({adapter: 0.5})
        text = llm(PROMPT, max_tokens=8, temperature=0)["choices"][0]["text"]
    assert said == [text, text] and text != plain


def test_metrics(running: serving.InThread) -> None:
    """Counters are those of the requests, and only grow."""
    before = figures(running)
    body = {"prompt": "A new prompt of some length", "max_tokens": 7, "ignore": 1, "seed": 1}
    usage = running.post("v1/completions", body).json()["usage"]
    after = figures(running)
    changed = {
        key: after[key] - before[key]
        for key in before
        if key[0].endswith("_total") and key in after
    }
    assert min(changed.values()) >= 0
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    of = {key[0].split(":")[1]: value for key, value in changed.items() if len(key) == 2}
    assert of["tokens_predicted_total"] == usage["completion_tokens"]
    assert of["prompt_tokens_total"] == usage["prompt_tokens"] - cached
    assert of["prompt_tokens_reused_total"] == cached and of["requests_total"] == 1
    assert 0 < of["neurons_computed_total"] <= of["neurons_possible_total"]
    assert of["n_decode_total"] >= 7
    assert changed["powerinfer:bytes_total", "model", "ram"] > 0
    assert after["llamacpp:requests_processing", "model"] == 0
    assert running.get("metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


# ---- Tokens ----


def test_tokens(running: serving.InThread, model_path: Path) -> None:
    text = "Once upon a time, a b\u00e4r \U0001f43b said </s>"
    with Llama(model_path, vocab_only=True, verbose=False) as llm:
        plain = llm.tokenize(text.encode(), add_bos=False, special=False)
        special = llm.tokenize(text.encode(), add_bos=True, special=True)
        ends = {
            "eos_token": llm.detokenize([llm.token_eos()], special=True).decode(),
            "eos_token_id": llm.token_eos(),
            "bos_token_id": llm.token_bos(),
            "vocab_size": llm.n_vocab(),
        }
    body = {"content": text, "parse_special": False}
    assert running.post("tokenize", body).json() == {"tokens": plain}
    body = {"prompt": text, "add_special_tokens": True}
    assert running.post("tokenize", body).json() == {"tokens": special}
    back = running.post("detokenize", {"tokens": plain}).json()
    assert back["content"] == back["prompt"] and back["content"].strip() == text
    info = running.get("tokenizer_info").json()
    assert {name: info[name] for name in ends} == ends
    assert running.post("tokenize", {}).status_code == 400
    for bad in ([-1], [10**6], [2**40], ["x"]):
        assert running.post("detokenize", {"tokens": bad}).status_code == 400, bad
    messages = [{"role": "user", "content": "Hello"}]
    prompt = running.post("apply-template", {"messages": messages}).json()["prompt"]
    assert "Hello" in prompt
    assert running.post("apply-template", {"messages": []}).status_code == 400
    asked = {"messages": messages, "chat_template": "{{ 1 }}"}
    assert running.post("apply-template", asked).status_code == 400


# ---- The program ----


def test_program(model_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    line = ["-m", f"a={model_path}", "-c", "64", "--api-key", "three", "--api-key-file", keys]
    with serving.program(*line, POWERINFER_API_KEY="four") as running:
        for key in ("one", "two", "three", "four"):
            (model,) = running.openai(key).models.list()
            assert model.id == "a"
        assert running.get("v1/models").status_code == 401
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) in (0, 130, -signal.SIGINT)
        assert "Traceback" not in running.process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["-m", "none.gguf"], 1, "none.gguf: there is no such file"),
        (["-m", "{broken}"], 1, "broken.gguf"),
        (["-m", "{model}", "-m", "{model}"], 1, "two models have the name"),
        (["-m", "{model}", "--api-key", ""], 1, "an API key is empty"),
        (["-m", "{model}", "--api-key-file", "{empty}"], 1, "has no key"),
        (["-m", "{model}", "--api-key-file", "none.txt"], 1, "none.txt"),
        (["-m", "{model}", "--port", "x"], 2, "--port"),
        (["-m", "{model}", "--port", "70000"], 1, "70000"),
        (["-m", "{model}", "--parallel", "0"], 2, "--parallel"),
        (["-m", "{model}", "--host", "256.1.1.1", "--port", "0"], 1, "256.1.1.1"),
        (["-m", "{model}", "--chat-format", "x", "--port", "0"], 1, "chat_format 'x' is unknown"),
        (["-m", "{model}", "-c", "1000000000", "--port", "0"], 1, "of RAM"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    status: int,
    says: str,
    model_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(60))
    (tmp_path / "empty").write_text("\n")
    files = {"broken": tmp_path / "broken.gguf", "model": model_path, "empty": tmp_path / "empty"}
    assert main(["serve", *(text.format(**files) for text in arguments)]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("powerinfer: error: ") and says in line


def test_a_taken_port(running: serving.InThread, model_path: Path) -> None:
    done = program(model_path, "--port", str(running.port))
    assert done.returncode == 1 and done.stdout == ""
    want = f"cannot listen at 127.0.0.1:{running.port}: Address already in use"
    assert re.fullmatch(f"powerinfer: error: {want}", done.stderr.strip())


def test_a_model_without_a_chat_template_is_named(model_path: Path) -> None:
    """Once, when the server is ready."""
    command = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", model_path, "--port", "0"]
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered(),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("serving stories-relu.Q8_0 at http")
        process.terminate()
        sizes, line = process.stderr.read().splitlines()
    assert re.fullmatch(r"-c 1024 --kv-size 4096, as memory allows: 0\.0 GiB for .*", sizes)
    assert line.startswith("warning: stories-relu.Q8_0 has no chat template: the page continues")


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "msgspec", "prometheus_client"])
def test_without_a_package(package: str, model_path: Path, tmp_path: Path) -> None:
    missing = f"raise ModuleNotFoundError('No module named {package}', name='{package}')"
    (tmp_path / f"{package}.py").write_text(missing)
    done = program(model_path, "--port", "0", path=tmp_path)
    assert done.returncode == 1
    want = f"the server needs the package {package}: pip install 'powerinfer_cpp[serve]'"
    want += ", or ./run in a clone"
    assert done.stderr.strip() == f"powerinfer: error: {want}"


def program(model: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess:
    """`powerinfer serve` that ends soon; path: a folder of modules that come first."""
    paths = [str(path)] if path else []
    paths += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    command = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "-m", str(model), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_a_name_with_a_slash(model_path: Path) -> None:
    """As those of repositories have one."""
    with serving.in_thread({"owner/name": model_path, "owner": model_path}, n_ctx=64) as two:
        client = two.openai()
        for name in ("owner/name", "owner"):
            assert client.models.retrieve(name).id == name
            assert two.get(f"models/{name.replace('/', '%2F')}").json()["id"] == name
            done = client.completions.create(model=name, prompt="a", max_tokens=1)
            assert done.model == name
        error = serving.refused(two.get("v1/models/owner/other"), 404)
        assert (error["code"], error["type"]) == ("model_not_found", "not_found_error")
