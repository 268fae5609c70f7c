"""Prompts on disk: a later server begins where an earlier one was, with the same texts."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import stat
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
from lora_files import written as written_adapter
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.run import disk_cache, prefix_files
from powerinfer_cpp.run.prefix_files import PrefixFiles, chain
from powerinfer_cpp.server.limits import owner_key
from powerinfer_cpp.server.settings import Settings
from serving import wait_for
from test_full_disk import _may_mount, small_disk  # noqa: F401 (a fixture)

BLOCK = 64
GIB = 1 << 30
IDS = [1, *np.random.default_rng(1).integers(300, 2000, 299).tolist()]  # four whole blocks
BODY = {"prompt": IDS, "max_tokens": 8, "seed": 3}
NAMES = chain(b"root", [bytes([i]) for i in range(8)])


@contextlib.contextmanager
def serve(
    model: Path, folder: Path | None, size: int = GIB, keys: tuple[str, ...] = (), **options: Any
) -> Iterator[serving.InThread]:
    if folder is not None:
        options["prefix_files"] = PrefixFiles(folder, size)
    with serving.in_thread(model, Settings(api_keys=keys), n_ctx=512, **options) as found:
        yield found


def ask(server: serving.InThread, body: Any = BODY, key: str = "") -> tuple[Any, int]:
    """The choices, and how many tokens of the prompt were known."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = server.post("v1/completions", body, headers=headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "prefixes").glob("*.prefix"))


def written(server: serving.InThread) -> bool:
    """Is nothing left to write?"""
    prefixes = server.model.prefixes
    return prefixes is not None and not server.model.engine.call(lambda: dict(prefixes._pinned))


@pytest.fixture(scope="module")
def want(model_path: Path) -> Any:
    with serve(model_path, None) as server:
        return ask(server)[0]


@pytest.fixture
def kept(model_path: Path, tmp_path: Path, want: Any) -> Path:
    """A folder with the prompt."""
    with serve(model_path, tmp_path) as server:
        assert ask(server) == (want, 0)
    assert len(files(tmp_path)) == 4
    return tmp_path


# ---- The server ----


def test_a_restart_finds_prompts(model_path: Path, kept: Path, want: Any) -> None:
    with serve(model_path, kept) as server:
        assert ask(server) == (want, 4 * BLOCK)
        assert ask(server) == (want, len(IDS) - 1)  # from memory
        # Another text with the same beginning; and one that only begins alike.
        other = {**BODY, "prompt": [*IDS[:150], *IDS[:150]]}
        assert ask(server, other)[1] >= 2 * BLOCK
        lines = server.get("metrics").text.splitlines()
        assert any(
            line.startswith("powerinfer:prompt_tokens_from_disk_total") and line.endswith(" 256.0")
            for line in lines
        )
    with serve(model_path, kept) as server:
        other_text, n = ask(server, other)
        assert n == 4 * BLOCK
    with serve(model_path, None) as server:
        assert ask(server, other) == (other_text, 0)


@pytest.mark.parametrize(("sparse", "n_blocks"), [("off", 6), ("auto", 4)])
def test_what_a_text_added_is_found(
    sparse: str, n_blocks: int, model_path: Path, tmp_path: Path
) -> None:
    """The next turn of a conversation begins with the text, which predictors compute otherwise."""
    long = {**BODY, "max_tokens": 100, "ignore_eos": True, "return_tokens": True}
    with serve(model_path, tmp_path, sparse=sparse) as server:
        text = server.post("completion", long).json()
    turn = {**BODY, "prompt": [*IDS, *text["tokens"], *IDS[1:20]]}
    assert len(files(tmp_path)) == 6
    with serve(model_path, tmp_path, sparse=sparse) as server:
        found, n = ask(server, turn)
        assert n == n_blocks * BLOCK
    with serve(model_path, None, sparse=sparse) as server:
        assert ask(server, turn)[0] == found


def test_streams_and_several_prompts(model_path: Path, kept: Path, want: Any) -> None:
    with serve(model_path, kept) as server:
        body = {**BODY, "prompt": [IDS, IDS], "stream": True}
        parts = server.openai().completions.create(model="x", **body)
        texts = ["", ""]
        for part in parts:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == [want[0]["text"]] * 2
        assert server.model.prefixes.counts.n_read == 4 * BLOCK


def test_nothing_is_written_twice(model_path: Path, kept: Path) -> None:
    before = {path: path.stat().st_ino for path in files(kept)}
    with serve(model_path, kept) as server:
        for _ in range(2):
            ask(server)
        wait_for(lambda: written(server))
        assert server.model.prefixes.counts.n_written == 0
    assert {path: path.stat().st_ino for path in files(kept)} == before


def test_a_key_finds_its_own(model_path: Path, tmp_path: Path, want: Any) -> None:
    keys = ("first", "second")
    with serve(model_path, tmp_path, keys=keys) as server:
        assert ask(server, key="first") == (want, 0)
        wait_for(lambda: written(server))
    assert len(files(tmp_path)) == 4
    with serve(model_path, tmp_path, keys=keys[::-1]) as server:  # numbers of keys say nothing
        assert ask(server, key="second") == (want, 0)
        assert ask(server, key="first") == (want, 4 * BLOCK)
    with serve(model_path, tmp_path) as server:
        assert ask(server) == (want, 0)
    everything = b"".join(path.read_bytes() for path in (tmp_path / "prefixes").iterdir())
    assert b"first" not in everything and b"second" not in everything
    assert owner_key("key 1", Settings(api_keys=keys)) == b"second"
    assert owner_key("", Settings()) == b""


def test_only_its_user_reads_them(kept: Path) -> None:
    mode = stat.S_IMODE((kept / "prefixes").stat().st_mode)
    assert mode == 0o700
    for path in (kept / "prefixes").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_other_options_find_nothing(model_path: Path, kept: Path) -> None:
    with serve(model_path, kept, type_k=8, type_v=8) as server:  # q8_0
        assert ask(server)[1] == 0
    with serve(model_path, kept, sparse="exact") as server:
        assert ask(server)[1] == 0


def test_another_adapter_of_the_same_name(model_path: Path, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "adapter.gguf"
    with Gguf(model_path) as gguf:
        shape = next(t for t in gguf.tensors if t.name == "blk.0.attn_q.weight").shape
    wide = max(shape)
    for i in range(2):
        tensors = {
            "blk.0.attn_q.weight.lora_a": rng.normal(size=(4, wide)),
            "blk.0.attn_q.weight.lora_b": rng.normal(size=(wide, 4)),
        }
        path.unlink(missing_ok=True)
        written_adapter(path, tensors)
        options = {"lora_path": {path: 1.0}, "sparse": "off"}
        with serve(model_path, None, **options) as server:
            want = ask(server)
        with serve(model_path, tmp_path, **options) as server:
            assert ask(server) == want
        with serve(model_path, tmp_path, **options) as server:
            assert ask(server) == (want[0], 4 * BLOCK), i


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "foreign", "gone"])
def test_damaged_files(harm: str, model_path: Path, kept: Path, want: Any) -> None:
    """What comes before them is used, and they are written again."""
    with serve(model_path, kept) as server:
        prefixes = server.model.prefixes
        names = prefixes.names("", np.array(IDS, np.int32), np.zeros(len(IDS), bool))
        path = kept / "prefixes" / f"{names[2]}.prefix"
        data = path.read_bytes()
        if harm == "foreign":  # the right checksum, and another place
            path.write_bytes((kept / "prefixes" / f"{names[1]}.prefix").read_bytes())
        elif harm == "gone":
            path.unlink()
        else:
            new = {"cut": data[:-9], "empty": b"", "changed": data[:-1] + bytes([data[-1] ^ 1])}
            path.write_bytes(new[harm])
        assert ask(server) == (want, 2 * BLOCK)
        wait_for(lambda: written(server))
        assert path.read_bytes() == data


def test_bytes_that_the_engine_refuses(model_path: Path, kept: Path, want: Any) -> None:
    with serve(model_path, kept) as server:
        prefixes = server.model.prefixes
        names = prefixes.names("", np.array(IDS, np.int32), np.zeros(len(IDS), bool))
        prefixes._files.write(names[0], b"PIseq05\n" + bytes(100))
        assert ask(server) == (want, 0)
        wait_for(lambda: written(server))
    with serve(model_path, kept) as server:
        assert ask(server) == (want, 4 * BLOCK)


def test_a_session_that_fails(
    model_path: Path,
    kept: Path,
    want: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The prompt is computed, and the log says why."""

    def fails(*of: Any) -> None:
        raise RuntimeError("the device is gone")

    with serve(model_path, kept) as server, caplog.at_level(logging.WARNING):
        session = server.model._session
        monkeypatch.setattr(session, "load_part", fails)
        assert ask(server) == (want, 0)
        assert caplog.text.count("not read from disk: the device is gone") == 1
        monkeypatch.setattr(session, "save_part", fails)
        assert ask(server, {**BODY, "prompt": [5, *IDS]})[1] == 0
        wait_for(lambda: written(server))
        assert "not kept: the device is gone" in caplog.text
    assert len(files(kept)) == 4


def test_a_full_disk(
    model_path: Path,
    tmp_path: Path,
    want: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serve(model_path, tmp_path) as server, caplog.at_level(logging.WARNING):
        with monkeypatch.context() as during:
            during.setattr(disk_cache.os, "replace", full)
            assert ask(server) == (want, 0)
            wait_for(lambda: written(server))
        assert files(tmp_path) == [] and caplog.text.count("No space left") == 1
        assert list((tmp_path / "prefixes").glob("*.partial")) == []
        # Later there is room.
        monkeypatch.setattr(server.model.prefixes._files, "_quiet_until", 0.0)
        assert ask(server)[0] == want
        wait_for(lambda: written(server))
        assert len(files(tmp_path)) == 4


@pytest.mark.skipif(not _may_mount(), reason="no right to mount a small disk")
def test_a_small_disk(
    model_path: Path,
    kept: Path,
    small_disk: Path,  # noqa: F811
    want: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What fits before it is full is found later; nothing is half-written."""
    size = files(kept)[0].stat().st_size
    with caplog.at_level(logging.WARNING), serve(model_path, small_disk) as server:
        (small_disk / "filler").write_bytes(bytes((8 << 20) - 5 * size // 2))
        assert ask(server) == (want, 0)
        wait_for(lambda: written(server))
    n = len(files(small_disk))
    assert 0 < n < 4 and "No space left" in caplog.text
    assert list((small_disk / "prefixes").glob("*.partial")) == []
    with serve(model_path, small_disk) as server:
        assert ask(server) == (want, n * BLOCK)


def test_no_memory_for_pieces(
    model_path: Path, tmp_path: Path, want: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(model_path, tmp_path) as server:
        total = server.model.runtime.plan()["total"]
    with (
        caplog.at_level(logging.WARNING),
        serve(model_path, tmp_path, ram_budget=(total + 1000) / GIB) as server,
    ):
        assert server.model.prefixes is None and ask(server) == (want, 0)
    assert caplog.text.count("prompts are not kept on disk") == 1 and files(tmp_path) == []


def test_a_folder_that_cannot_be(
    model_path: Path, tmp_path: Path, want: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING), serve(model_path, tmp_path / "file") as server:
        assert ask(server) == (want, 0)
        wait_for(lambda: written(server))
    assert caplog.text.count("prompts are not kept there") == 1


def test_little_memory_for_positions(model_path: Path, tmp_path: Path, want: Any) -> None:
    """Texts come first: what waits to be written is given up."""
    with serve(model_path, tmp_path, n_kv=512, n_parallel=2) as server:
        found = [None] * 6

        def client(i: int) -> None:
            found[i] = ask(server, {**BODY, "prompt": [*IDS, 300 + i]})[0]

        threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ask(server)[0] == want
        wait_for(lambda: written(server))
    with serve(model_path, None) as server:
        for i in range(6):
            assert ask(server, {**BODY, "prompt": [*IDS, 300 + i]})[0] == found[i]


def test_giving_up_what_waits(model_path: Path, tmp_path: Path) -> None:
    with serve(model_path, tmp_path) as server:
        prefixes, engine = server.model.prefixes, server.model.engine
        gate = threading.Event()
        prefixes._write_job = lambda job: gate.wait(serving.SECONDS)
        ask(server)
        free = engine.call(server.model._session.free_positions)
        assert len(prefixes._pinned) == 1 and engine.call(prefixes.release)
        assert prefixes._pinned == {} and not engine.call(prefixes.release)
        assert engine.call(server.model._session.free_positions) >= free
        gate.set()
        del prefixes._write_job
        ask(server)  # the same prompt is tried again
        wait_for(lambda: len(files(tmp_path)) == 4)


def test_what_may_wait(model_path: Path, tmp_path: Path) -> None:
    """One prompt of any length, a text that goes on from it, and others while there is room."""
    with serve(model_path, tmp_path, n_parallel=2, sparse="off") as server:  # 1024 positions
        prefixes = server.model.prefixes
        gate = threading.Event()
        prefixes._write_job = lambda job: gate.wait(serving.SECONDS)
        server.post("completion", {**BODY, "max_tokens": 100, "ignore_eos": True})
        waits = [len(job.names) for job in prefixes._pinned.values()]
        assert waits == [4, 6]
        ask(server, {**BODY, "prompt": [1, *IDS[::-1]]})
        assert [len(job.names) for job in prefixes._pinned.values()] == waits
        del prefixes._write_job
        gate.set()
        wait_for(lambda: len(files(tmp_path)) >= 2)


def test_the_end_is_bounded(model_path: Path, tmp_path: Path) -> None:
    with serve(model_path, tmp_path) as server:
        prefixes = server.model.prefixes
        prefixes._write_job = lambda job: time.sleep(30)
        ask(server)
        before = time.monotonic()
        prefixes.close(0.2)
        assert time.monotonic() - before < 5
        prefixes._thread = None  # which sleeps still


# ---- As a program ----


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_server(model_path: Path, tmp_path: Path, want: Any) -> None:
    """While it writes: files are whole or not there, and the next server removes the rest."""
    line = ["-m", model_path, "-c", "512", "--prompt-cache-dir", tmp_path]
    folder = tmp_path / "prefixes"
    with serving.program(*line) as server:
        server.post("v1/completions", {**BODY, "max_tokens": 1})
        wait_for(lambda: list(folder.glob("*.p*")))
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    n = len(files(tmp_path))
    left = folder / "left.partial"
    left.write_bytes(b"half")
    with serving.program(*line) as server:
        assert list(folder.glob("*.partial")) == []
        found = server.post("v1/completions", BODY).json()
        assert found["choices"] == want
        cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == BLOCK * n or n == 0
        wait_for(lambda: len(files(tmp_path)) == 4)


def test_options_of_the_program(model_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "powerinfer_cpp.cli", "serve", "-m", str(model_path)]
    for more, word in (
        (["--prompt-cache-size", "2"], "needs --prompt-cache-dir"),
        (["--prompt-cache-dir", str(tmp_path), "--prompt-cache-size", "0"], "no number of GiB"),
        (["--prompt-cache-dir", str(tmp_path), "-np", "250"], "at most 246"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60)
        assert done.returncode and word in done.stderr, done.stderr


def test_what_the_program_says(model_path: Path, tmp_path: Path) -> None:
    """A folder that cannot be is a line on stderr, and the server serves."""
    (tmp_path / "file").write_bytes(b"")
    line = ["-m", model_path, "-c", "512", "--prompt-cache-dir", tmp_path / "file"]
    with serving.program(*line) as server:
        assert server.post("v1/completions", BODY).status_code == 200
        server.process.terminate()
        said = server.process.communicate(timeout=serving.SECONDS)[1]
    assert said.count("prompts are not kept there") == 1 and "Traceback" not in said


# ---- Files ----


def test_files(tmp_path: Path) -> None:
    kept = PrefixFiles(tmp_path, 10_000)
    for i in range(3):
        assert kept.write(NAMES[i], bytes([i]) * 1000)
    assert not kept.write(NAMES[3], bytes(10_000)) and not kept.has(NAMES[3])
    again = PrefixFiles(tmp_path, 10_000)
    assert again.n_bytes == kept.n_bytes == sum(f.stat().st_size for f in files(tmp_path))
    assert [bytes(again.read(name)) for name in NAMES[:3]] == [bytes([i]) * 1000 for i in range(3)]
    assert again.read(NAMES[4]) is None and not again.has(NAMES[4])
    # What another process writes and removes is noticed.
    kept.write(NAMES[4], b"x")
    assert not again.has(NAMES[4], listed=True) and again.has(NAMES[4])
    kept.remove(NAMES[0])
    assert again.has(NAMES[0]) and again.read(NAMES[0]) is None and not again.has(NAMES[0])


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    kept = PrefixFiles(tmp_path, 5600)
    for name in NAMES[:5]:
        kept.write(name, bytes(1000))
    kept.use(NAMES[:2])  # a chain: its end goes first
    kept.write(NAMES[5], bytes(1000))
    assert not kept.has(NAMES[2]) and kept.has(NAMES[0])
    for i in (6, 7):
        kept.write(NAMES[i], bytes(1000))
    assert kept.n_bytes <= 5600
    later = PrefixFiles(tmp_path, 5600)
    assert later.n_bytes == kept.n_bytes
    assert later.has(NAMES[0]) and later.has(NAMES[1])
    assert list(later._sizes)[:2] == [NAMES[1], NAMES[0]]
    later.write(chain(b"x", [b"y"])[0], bytes(1000))
    assert not later.has(NAMES[1]) and later.has(NAMES[0])


def test_names(tmp_path: Path) -> None:
    """They depend on the folder, the key, the model, and all that comes before."""
    kept = PrefixFiles(tmp_path / "a", GIB)
    root = kept.root(b"key", b"model")
    assert root == PrefixFiles(tmp_path / "a", GIB).root(b"key", b"model")
    others = [kept.root(b"key2", b"model"), kept.root(b"key", b"model2"), kept.root(b"", b"")]
    assert len({root, *others, PrefixFiles(tmp_path / "b", GIB).root(b"key", b"model")}) == 5
    one, two = chain(root, [b"a", b"b"]), chain(root, [b"c", b"b"])
    assert one[0] != two[0] and one[1] != two[1] and chain(root, [b"a"]) == one[:1]
    (tmp_path / "a" / "prefixes" / "salt").write_bytes(b"short")
    assert PrefixFiles(tmp_path / "a", GIB).root(b"key", b"model") != root


def test_a_disk_that_fails_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = PrefixFiles(tmp_path, GIB)
    tries = []

    def fails(path: Path, write: Any) -> None:
        tries.append(path)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(prefix_files, "write_at_once", fails)
    with caplog.at_level(logging.WARNING):
        assert not kept.write(NAMES[0], b"a") and not kept.write(NAMES[1], b"a")
    assert len(tries) == 1 and caplog.text.count("Input/output error") == 1
    monkeypatch.setattr(prefix_files, "QUIET_SECONDS", 0.0)
    kept._quiet_until = 0.0
    assert not kept.write(NAMES[0], b"a") and not kept.write(NAMES[1], b"a") and len(tries) == 3
