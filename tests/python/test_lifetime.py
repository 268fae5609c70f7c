"""Opening and closing `Llama`, and its use from threads and forked processes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny import PROMPT, text

from powerinfer_cpp import Llama, ModelFormatError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("lifetime"))


@pytest.fixture
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.gguf"):
        Llama(tmp_path / "none.gguf", verbose=False)
    with pytest.raises(IsADirectoryError):
        Llama(tmp_path, verbose=False)
    (tmp_path / "empty").touch()
    with pytest.raises((OSError, ModelFormatError), match="empty"):
        Llama(tmp_path / "empty", verbose=False)


def test_close(path: Path) -> None:
    llm = Llama(path, verbose=False)
    stream = llm(PROMPT, stream=True)
    next(stream)
    scores = llm.scores
    llm.close()
    llm.close()
    assert scores.shape[0] == 256  # the array outlives the model
    for call in (
        lambda: llm(PROMPT),
        lambda: llm.eval([1]),
        lambda: llm.tokenize(b"x"),
        lambda: next(stream),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    with Llama(path, verbose=False) as other:
        del other


def test_it_lives_as_long_as_a_stream(path: Path) -> None:
    """Nobody need close it: its memory goes with the last that uses it, without a collector."""
    llm = Llama(path, n_ctx=128, verbose=False)
    model = weakref.ref(llm._model)
    want = text(llm(PROMPT, max_tokens=8, temperature=0))
    stream = llm(PROMPT, max_tokens=8, temperature=0, stream=True)
    gc.disable()
    try:
        del llm
        first = text(next(stream))
        assert model() is not None
        assert first + "".join(map(text, stream)) == want
        assert model() is None
    finally:
        gc.enable()


def in_child(work) -> bool:
    """Whether work() holds in a child of fork(), which ends as Python does. One that hangs is
    killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if work() else 1
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_children_of_fork(path: Path) -> None:
    """They compute, close and end; they have none of the threads."""
    with Llama(path, n_ctx=128, n_threads=2, verbose=False) as llm:
        want = text(llm(PROMPT, max_tokens=8, temperature=0))
        assert in_child(lambda: llm.close() is None)
        assert in_child(lambda: text(llm(PROMPT, max_tokens=8, temperature=0)) == want)
        assert in_child(
            lambda: (
                llm.reset() is None
                and text(llm(PROMPT, max_tokens=8, temperature=0)) == want
                and in_child(lambda: text(llm("the lazy dog", max_tokens=2)) is not None)
            )
        )
        # A process that just ends closes what is open.
        child = multiprocessing.get_context("fork").Process(target=llm.tokenize, args=(b"fox",))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert text(llm(PROMPT, max_tokens=8, temperature=0)) == want


def test_threads_queue(llm: Llama) -> None:
    prompts = [f"{PROMPT} {i}" for i in range(4)]
    want = [text(llm(p, max_tokens=10, temperature=0)) for p in prompts]
    got: dict[int, list[str]] = {}

    def work(i: int) -> None:
        whole = [text(llm(prompts[i], max_tokens=10, temperature=0)) for _ in range(3)]
        pieces = llm(prompts[i], max_tokens=10, temperature=0, stream=True)
        got[i] = [*whole, "".join(map(text, pieces))]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {i: [want[i]] * 4 for i in range(4)}


def test_other_threads_run_while_it_computes(model_path: Path) -> None:
    """The GIL is released: another thread counts on while a long prompt is computed."""
    with Llama(model_path, n_ctx=1024, n_threads=1, verbose=False) as llm:
        counts, done = [0], threading.Event()

        def count() -> None:
            while not done.is_set():
                counts[0] += 1

        thread = threading.Thread(target=count)
        thread.start()
        before = counts[0]
        llm._loop.opened.eval(np.ones(1000, dtype=np.int32))  # two calls of the engine
        during = counts[0] - before
        done.set()
        thread.join()
    assert during > 1000
