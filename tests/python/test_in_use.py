"""What many threads use at the same time: nobody waits but the one who ends it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from powerinfer_cpp.run import in_use as in_use_module
from powerinfer_cpp.run.in_use import InUse
from serving import wait_for

from powerinfer_cpp import Llama


def test_only_the_end_waits() -> None:
    used, ended = InUse("it is over"), threading.Event()

    def end() -> None:
        used.end()
        ended.set()

    with used(), used():
        thread = threading.Thread(target=end)
        thread.start()
        wait_for(lambda: used.over)
        with pytest.raises(ValueError, match="it is over"), used():
            pass
        assert not ended.wait(0.05)
    thread.join(10)
    assert ended.is_set()
    used.end()  # again


def test_a_fork_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other threads are gone, and will not say that they have ended."""
    used = InUse("it is over")
    with used():
        monkeypatch.setattr(in_use_module.os, "getpid", lambda: -1)
        used.end()


def test_ctrl_c_at_any_place(tmp_path: Path) -> None:
    """Wherever it comes, nothing is in use afterwards, and the end does not wait for ever."""
    n, used = 0, InUse("it is over")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal n
        if frame.f_code.co_filename != in_use_module.__file__:
            return None
        frame.f_trace_opcodes = True
        n -= 1
        if n == 0:
            raise KeyboardInterrupt
        return trace

    def use() -> None:
        with used():
            pass

    for first in range(1, 1000):
        n = first
        sys.settrace(trace)
        try:
            use()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not any(of() for of in used._uses), first
        if n > 0:  # it was over before
            break
    assert 20 < first < 999
    used.end()


def test_tokens_while_the_model_is_locked(model_path: Path) -> None:
    """A thread that computes, or has a long text, keeps no other from the vocabulary."""
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with llm._runtime.lock:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        try:
            ids = llm.tokenize(b"The dog")
            assert llm.detokenize(ids) == b"The dog"
            assert llm._prompts.token_bytes(ids[-1]) == llm._prompts.name_bytes(ids[-1], False)
            assert llm._prompts.ids("The dog") == ids and llm._prompts.text(ids) == "The dog"
            assert llm.metadata["general.architecture"]
        finally:
            done.set()
            thread.join()
    with pytest.raises(ValueError, match="closed"):
        llm.tokenize(b"x")
    with pytest.raises(ValueError, match="closed"):
        llm._prompts.token_bytes(5)


def test_a_long_text_is_closed_behind(model_path: Path) -> None:
    """`close` waits for threads that tokenise, and frees nothing that they use."""
    llm = Llama(model_path, n_ctx=64, verbose=False)
    text, found, begun = b"Once upon a time " * 50_000, [], threading.Event()

    def work() -> None:
        try:
            while True:
                found.append(len(llm.tokenize(text)))
                begun.set()
        except ValueError:
            found.append(None)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    llm.close()
    for thread in threads:
        thread.join(60)
    assert found[-3:].count(None) >= 1 and found.count(None) == 3
    assert len(set(found) - {None}) == 1
