"""Ordinary files of mixtures that run from storage, in every program: what they give in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from circles import pick
from powerinfer_cpp.cli import main
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.llama_speculative import LlamaPromptLookupDecoding
from powerinfer_cpp.run import prefixes
from powerinfer_cpp.run.prefix_files import PrefixFiles
from small_mixtures import Mixture

from powerinfer_cpp import Llama, OutOfMemoryError

FIELDS: dict[str, Any] = {"n_ctx": 128, "n_batch": 32, "n_ubatch": 32}
OPTIONS = ("-c", 128, "-b", 32, "-ub", 32)
PROMPT = "w1 w22 w3 a w44 w5 w66"
CHAT = [{"role": "user", "content": "w7 w8 w9"}]
MIXTURES = {
    "parts": Mixture(parts=3, experts="fused"),
    "smallthinker": Mixture("smallthinker", type="Q4_0", down="Q8_0", tied=True),
    "mixtral": Mixture("llama", experts="single", uneven=True, n_layer=6),
    "qwen3moe": Mixture(n_expert=16, n_used=5),
    "shared": Mixture("qwen2moe", n_ff_shared=512, uneven=True, n_expert=24),
    "gpt-oss": Mixture("gpt-oss", type="MXFP4", down="MXFP4"),
    "nvfp4": Mixture("qwen2moe", type="NVFP4", down="NVFP4", n_ff_shared=256, scaled=True),
}
# Of the way from the least memory to all of it.
NEAR_NOTHING, MIDDLE, NEAR_ALL = 0.0, 0.5, 0.97
SHARES = (NEAR_NOTHING, MIDDLE, NEAR_ALL)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A file of MIXTURES, by name."""
    folder = tmp_path_factory.mktemp("experts")
    return cache(lambda name: MIXTURES[name].write(folder / f"{name}.gguf"))


@pytest.fixture
def path(file: Callable[[str], Path]) -> Path:
    """The first of them, without what an earlier run has left."""
    resident_of(file("parts")).unlink(missing_ok=True)
    return file("parts")


def resident_of(path: Path) -> Path:
    return Path(f"{path}.resident")


def least(path: Path, **options: Any) -> int:
    """Bytes: the least budget, as the error says it."""
    with pytest.raises(OutOfMemoryError) as error:
        Llama(path, **{**FIELDS, "verbose": False, **options, "ram_budget": 1e-6})
    found = re.search(
        r"with the experts on the disk it needs at least (\d+) bytes", str(error.value)
    )
    assert found and str(error.value).startswith(f"{path}: "), error.value
    return int(found[1])


def budget(path: Path, share: float = MIDDLE, **options: Any) -> float:
    """GiB: a share of the way from the least memory to what is needed for all."""
    with Llama(path, **{**FIELDS, "verbose": False, **options}) as llm:
        whole = llm.plan()["total"]
        assert not llm.plan()["storage"]
    low = least(path, **options)
    return (low + share * (whole - low)) / (1 << 30)


def opened(path: Path, share: float | None = None, **options: Any) -> Llama:
    """share: None: all in memory."""
    options = {"verbose": False, **FIELDS, **options}
    options["ram_budget"] = None if share is None else budget(path, share, **options)
    llm = Llama(path, **options)
    assert bool(llm.plan()["storage"]) == (share is not None)
    return llm


def work(llm: Llama) -> list[Any]:
    """A text with log-probabilities, its logits, a chat, and a continued state."""
    made = llm(PROMPT, max_tokens=24, temperature=1, seed=3, logprobs=3)["choices"]
    found = [made, llm.scores[: llm.n_tokens].copy()]
    state = llm.save_state()
    more = llm.create_chat_completion(CHAT, max_tokens=8, temperature=1, seed=4)
    found.append(more["choices"][0]["message"]["content"])
    llm.load_state(state)
    llm.eval([40, 41, 42])
    return [*found, llm.scores[llm.n_tokens - 1].copy()]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(map(np.array_equal, a, b))


# ---- Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", pick(["parts", "smallthinker", "shared", "gpt-oss", "nvfp4"], list(MIXTURES))
)
def test_llama(file: Callable[[str], Path], name: str) -> None:
    path = file(name)
    resident_of(path).unlink(missing_ok=True)
    with opened(path, logits_all=True) as llm:
        want = work(llm)
    for share in SHARES:
        with opened(path, share, logits_all=True) as llm:
            assert same(work(llm), want), share
            figures = llm.stats()["storage"]["first"]
            assert 0 < figures["missed"] <= figures["needed"]
        assert resident_of(path).exists()  # the next budget begins with it
    resident_of(path).unlink()


@pytest.mark.slow
def test_two_of_one_file(path: Path) -> None:
    """Each has a cache of its own; calls take turns, or come from two threads."""
    with opened(path) as llm:
        steps = llm.generate(llm.tokenize(PROMPT.encode()), temp=0)
        want = [next(steps) for _ in range(20)]
    with opened(path, NEAR_NOTHING) as a, opened(path, MIDDLE) as b:
        prompt = a.tokenize(PROMPT.encode())
        steps = [llm.generate(prompt, temp=0) for llm in (a, b)]
        assert [[next(s) for s in steps] for _ in range(20)] == [[t, t] for t in want]
        found: dict[Llama, list[int]] = {}

        def run(llm: Llama) -> None:
            again = llm.generate(prompt, temp=0)
            found[llm] = [next(again) for _ in range(20)]

        threads = [threading.Thread(target=run, args=(llm,)) for llm in (a, b)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {a: want, b: want}


def test_sessions_of_one_model(path: Path) -> None:
    """Several sequences in one pass, and two sessions that share the cache."""
    ids = np.arange(3, 43, dtype=np.int32)
    at = np.arange(40, dtype=np.int32) % 3  # three texts, row by row

    def logits(model: Model) -> list[np.ndarray]:
        many = Session(model, n_seq=3, **FIELDS)
        alone = Session(model, **FIELDS)
        found = []
        for i in range(0, 40, 8):
            keep = np.ones(8, bool)
            many.eval(ids[i : i + 8], sequences=at[i : i + 8], keep=keep)
            found += [many.logits(row).copy() for row in range(8)]
            alone.eval(ids[i : i + 8], keep=keep)
            found += [alone.logits(row).copy() for row in range(8)]
        many.close(), alone.close()
        return found

    whole = Model(str(path))
    want = logits(whole)
    whole.close()
    # Sessions that nobody has announced have to fit beside what a plan for one leaves.
    stored = Model(str(path), ram_budget=2 * least(path))
    assert stored.storage()
    assert same(logits(stored), want)
    stored.close()


@pytest.mark.slow
def test_drafts(path: Path) -> None:
    prompt = PROMPT * 2  # so that there is something to look up
    with opened(path) as llm:
        want = llm(prompt, max_tokens=30, temperature=0)["choices"]
    for drafts in (LlamaPromptLookupDecoding(), str(path)):
        with opened(path, MIDDLE, draft_model=drafts) as llm:
            assert llm(prompt, max_tokens=30, temperature=0)["choices"] == want
    other = Mixture(seed=2, n_layer=1).write(path.with_name("draft.gguf"))
    with opened(path, MIDDLE, draft_model=str(other)) as llm:
        assert llm(prompt, max_tokens=30, temperature=0)["choices"] == want


def test_embeddings(path: Path) -> None:
    options = {"embedding": True, "pooling_type": 0}
    with opened(path, **options) as llm:
        want = llm.embed([PROMPT, "w5"])
    for share in (NEAR_NOTHING, NEAR_ALL):
        with opened(path, share, **options) as llm:
            assert llm.embed([PROMPT, "w5"]) == want


# ---- Programs -----------------------------------------------------------------------------------


def text_of(main_path: Path, path: Path, *more: object) -> bytes:
    line = [main_path, "-m", path, *OPTIONS, "-s", 5, "-p", PROMPT, "-n", 40, *more]
    done = subprocess.run(list(map(str, line)), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", pick(["parts"], list(MIXTURES)))
def test_main(main_path: Path, file: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    path, out = file(name), tmp_path / "stats.json"
    want = text_of(main_path, path)
    for share in (NEAR_NOTHING, MIDDLE):
        more = ("--ram-budget", budget(path, share), "--json-stats", out)
        assert text_of(main_path, path, *more) == want
        assert json.loads(out.read_text())["storage"]["first"]["needed"] > 0


@pytest.mark.parametrize("command", ["complete", "complete --lookup", "chat -st --simple-io"])
def test_commands(path: Path, command: str, capsysbinary: pytest.CaptureFixture) -> None:
    name, *more = command.split()
    line = [name, str(path), *map(str, OPTIONS), "-p", PROMPT, "-n", "20", "-s", "5", *more]
    found = []
    for gib in ([], ["--ram-budget", str(budget(path, NEAR_NOTHING))]):
        assert main([*line, *gib]) == 0
        found.append(capsysbinary.readouterr().out)
    assert found[0] == found[1] != b""


def test_serve_keeps_prompts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of experts leaves room for prompts on their way to the disk."""
    serving = pytest.importorskip("serving")
    monkeypatch.setattr(prefixes, "PIECE_BYTES", 64 << 10)
    fields = {**FIELDS, "n_parallel": 1, "n_ctx": 256}
    body = {"prompt": [1, *range(50, 200)], "max_tokens": 8, "temperature": 0}
    with serving.in_thread(path, **fields) as running:
        want = running.post("v1/completions", body).json()["choices"]
        fields["ram_budget"] = 0.7 * running.model.runtime.plan()["total"] / (1 << 30)
    for n_known in (0, 128):
        kept = PrefixFiles(tmp_path, 1 << 30)
        with serving.in_thread(path, prefix_files=kept, **fields) as running:
            assert running.model.runtime.plan()["storage"] and running.model.prefixes is not None
            found = running.post("v1/completions", body).json()
            assert found["choices"] == want
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == n_known


@pytest.mark.slow
def test_serve(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Several clients at once, each of whom gets the text of one alone with all in memory."""
    serving = pytest.importorskip("serving")
    fields = {**FIELDS, "n_parallel": 3}
    bodies = [
        {"prompt": f"{PROMPT} w{i}", "max_tokens": 16, "temperature": 1, "seed": i, "logprobs": 2}
        for i in range(6)
    ]

    def choices(running: Any, body: dict[str, Any]) -> Any:
        answer = running.post("v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]

    with serving.in_thread(path, **fields) as running:
        want = [choices(running, body) for body in bodies]
        whole = running.model.runtime.plan()["total"] / (1 << 30)
    with serving.in_thread(path, ram_budget=0.6 * whole, **fields) as running:
        assert running.model.runtime.plan()["storage"]
        found: dict[int, Any] = {}

        def ask(i: int) -> None:
            found[i] = choices(running, bodies[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[i] for i in range(len(bodies))] == want
        # A file that changes: the client learns what it can, the log the name.
        last = MIXTURES["parts"].part(path.with_name("parts.gguf"), 2)
        os.utime(last, (1, 1))
        for _ in range(2):
            answer = running.post("v1/completions", bodies[0])
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "storage_error"
            assert f"{last}: was changed while it was open" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        "perplexity --text {text} -c 64",
        "profile --text {text} --tokens 100 --imatrix {out}",
        "bench -p 16 -n 4 -r 1 -o json",
    ],
)
def test_measurements(path: Path, line: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "text").write_text(" ".join(f"w{i * i % 250}" for i in range(80)))
    gib = budget(path, 0.4, n_ctx=64, n_batch=64, n_ubatch=64)
    found = []
    for i, more in enumerate(([], ["--ram-budget", str(gib)])):
        out = tmp_path / f"{i}.gguf"
        name, *arguments = line.format(text=tmp_path / "text", out=out).split()
        batch = ["-b", "64", "-ub", "64"] if name != "bench" else ["-b", "16"]
        assert main([name, str(path), *arguments, *batch, *more]) == 0
        said = capsys.readouterr().out
        if name == "bench":
            rows = json.loads(said)
            assert all(bool(row.get("storage")) == bool(more) for row in rows)
            found.append([row["test"] if "test" in row else row["n_gen"] for row in rows])
        else:
            found.append((said.replace(str(out), ""), out.read_bytes() if out.exists() else b""))
    assert found[0] == found[1]


def test_firings(file: Callable[[str], Path]) -> None:
    """`powerinfer profile` and recordings do not ask where an expert is."""
    path = file("smallthinker")
    found = []
    for share in (None, NEAR_NOTHING):
        with opened(path, share, sparse="exact", record="fired+input") as llm:
            llm.eval(range(10, 50))
            found.append([llm.activations(), llm.ffn_inputs()])
    assert same(found[0], found[1]) and found[0][0].any()
