"""Masks over a vocabulary: which tokens a grammar admits next.

They are computed outside of this process (children/matchers.py), so that nothing that a grammar
costs can hold a thread or the interpreter here: past its limits, the process of that one text ends.
Where the system has no fork, they are computed here, within llguidance's limits alone.
"""

import contextlib
import os
import select
import socket
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import OutOfMemoryError
from ..core.model import Model
from .children import matchers
from .processor_time import took_elsewhere
from .worker import APART, WorkerMissing, package_folder, python_interpreter, step_back

MASK_SECONDS = 1.0  # of processor time for one mask, the first with the grammar's compilation
WAIT_SECONDS = 60.0  # for one mask, on a machine with other work
START_SECONDS = 60.0  # a large vocabulary takes 2 s
# Of the processes. The engine's threads go first, since they wait for each other after each
# operator: a text that is held to a grammar may wait for its mask, the others do not. While the
# engine waits for masks (`Scheduler`), there is a processor for them.
NICENESS = 19
MEMORY = 512 << 20  # bytes of address space of one text, besides the vocabulary

_CHILDREN = Path(__file__).parent / "children"
_TOO_MUCH = (
    f"the grammar takes more than {MASK_SECONDS:g} s or {MEMORY >> 20} MiB for the next token: "
    "refused"
)


class Vocabulary:
    """A model's tokens for masks; made once per model, it takes some time.

    Raises ValueError for a model without an end token: nothing could end a grammar's text.
    """

    def __init__(self, model: Model):
        if model.eos < 0:
            raise ValueError("grammars need a model with an end token")
        ids = range(model.n_vocab)
        self.n_vocab, self.eos = model.n_vocab, model.eos
        self.ends = np.array([i for i in ids if model.ends(i)], dtype=np.intp)
        # Tokens without bytes are control tokens: a grammar asks for them by number alone.
        self._tokens = [model.text(i) for i in ids]
        self._forks: _Forks | None = None
        self._here: Any = None
        self._past: dict[tuple[str, str], dict[str, np.ndarray]] = {}
        self._lock = threading.Lock()

    def going_past(self, mark: str, left: str) -> Mapping[str, np.ndarray]:
        """Tokens that end a mark and go on with something else than white space or the beginning of
        `left`: their ids, by what of the mark stands before them."""
        if (mark, left) not in self._past:
            self._past[mark, left] = going_past(self._tokens, mark, left)
        return self._past[mark, left]

    def matcher(self, grammar: str) -> "Matcher":
        """A grammar in llguidance's notation, at the beginning of a text."""
        return _Far(self, grammar) if hasattr(os, "fork") else _Here(self, grammar)

    def channel(self) -> socket.socket:
        """A connection to a process for one text. Raises ValueError if none can be started."""
        with self._lock:
            for _ in range(2):
                if self._forks is None:
                    self._forks = _Forks(self._tokens, self.eos)
                try:
                    return self._forks.channel()
                except OSError:  # it was ended, by the system for example
                    self._forks.close()
                    self._forks = None
        raise ValueError("the process for grammars does not answer")

    def here(self) -> Any:
        """The vocabulary for llguidance in this process."""
        with self._lock:
            if self._here is None:
                self._here = matchers.tokenizer(self._tokens, self.eos)
            return self._here


def going_past(tokens: Sequence[bytes], mark: str, left: str) -> dict[str, np.ndarray]:
    """`Vocabulary.going_past` of these tokens, whose ids are their numbers."""
    parts = [(mark[:n], mark[n:]) for n in range(len(mark))]
    last = mark.encode("utf-8")[-1:]
    found: dict[str, list[int]] = {}
    for token, data in enumerate(tokens):
        if last not in data[:-1]:
            continue
        text = data.decode("utf-8", "ignore")
        for before, end in parts:
            at = text.find(end) if not before else 0 if text.startswith(end) else -1
            rest = text[at + len(end) :]
            if at >= 0 and rest.strip() and not left.startswith(rest):
                found.setdefault(before, []).append(token)
    return {before: np.array(ids, dtype=np.intp) for before, ids in found.items()}


class _Forks:
    """The process that forks for each text."""

    def __init__(self, tokens: list[bytes], eos: int):
        ours, theirs = socket.socketpair()
        try:
            folder = package_folder("llguidance")
            command = [python_interpreter(), "-I", "-S", str(_CHILDREN / "matchers.py")]
            limits = [str(MEMORY), str(MASK_SECONDS)]
            self._process = subprocess.Popen(
                [*command, *limits, str(_CHILDREN), folder],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **APART,
            )
        except WorkerMissing as error:
            raise ValueError(error.sentence("a grammar needs a Python interpreter")) from None
        except OSError as error:
            raise ValueError(f"the process for grammars does not start: {error}") from None
        finally:
            theirs.close()
        self._control = ours
        self.close = weakref.finalize(self, _end, self._process, ours, os.getpid())
        try:
            ours.settimeout(START_SECONDS)
            ours.sendall(_vocabulary_frame(tokens, eos))
            ready = ours.recv(1) == b"r"
        except OSError:
            ready = False
        except BaseException:
            self.close()
            raise
        if not ready:
            self.close()
            raise ValueError("the process for grammars does not start")
        step_back(self._process.pid, NICENESS)  # its forks, too

    def channel(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"t"], [theirs.fileno()])
        return ours


def _end(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    control.close()
    if os.getpid() != owner:  # in a fork of ours
        return
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)


def _vocabulary_frame(tokens: list[bytes], eos: int) -> bytes:
    lengths = struct.pack(f"<{len(tokens)}I", *map(len, tokens))
    return struct.pack("<II", len(tokens), eos) + lengths + b"".join(tokens)


class Matcher:
    """A grammar at a place of a text: ask, then answer, in turns."""

    def ask(self, tokens: list[int]) -> None:
        """Goes on by these tokens and begins the next mask."""
        raise NotImplementedError

    def ready(self, seconds: float) -> bool:
        """Would `answer` return at once? Waits so long for it."""
        raise NotImplementedError

    def answer(self) -> tuple[bytes, bool]:
        """The mask, a bit for each token, and whether the text may end here. Raises ValueError
        when the grammar and the text part, and past the limits."""
        raise NotImplementedError


def _split(reply: bytes) -> tuple[bytes, bool]:
    if reply[:1] == b"\x02":
        raise ValueError(f"the grammar cannot go on: {reply[1:].decode('utf-8', 'replace')}")
    return reply[1:], reply[:1] == b"\x01"


class _Here(Matcher):
    """In a thread, that is not the engine's: building a matcher may take a tenth of a second."""

    def __init__(self, vocabulary: Vocabulary, grammar: str):
        self._vocabulary, self._grammar = vocabulary, grammar
        self._matcher: Any = None
        self._done = threading.Event()
        self._reply, self._failure, self._seconds = b"", None, 0.0

    def ask(self, tokens: list[int]) -> None:
        self._done.clear()
        try:
            _begin(self._work, tokens)
        except OutOfMemoryError as error:
            self._failure = error
            self._done.set()

    def _work(self, tokens: list[int]) -> None:
        begin = time.thread_time()
        try:
            if self._matcher is None:
                self._matcher = matchers.Matcher(self._vocabulary.here(), self._grammar)
            self._reply = self._matcher.mask(tokens)
        except Exception as error:
            self._failure = error
        finally:
            self._seconds = time.thread_time() - begin
            self._done.set()

    def ready(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def answer(self) -> tuple[bytes, bool]:
        self._done.wait()
        took_elsewhere(self._seconds)
        if self._failure is not None:
            raise self._failure
        return _split(self._reply)


class _Far(Matcher):
    def __init__(self, vocabulary: Vocabulary, grammar: str):
        self._vocabulary, self._grammar = vocabulary, grammar.encode("utf-8", "surrogatepass")
        self._channel: socket.socket | None = None
        self._opened: threading.Event | None = None  # set when there is a channel, or a failure
        self._failure: Exception | None = None
        self._until = 0.0

    def ask(self, tokens: list[int]) -> None:
        frame = struct.pack(f"<I{len(tokens)}i", 4 * len(tokens), *tokens)
        self._until = time.monotonic() + WAIT_SECONDS
        if self._opened is None:
            # A long grammar waits for the fork that reads it, and the process may have to be
            # started: the engine's thread has no time for that.
            self._opened = threading.Event()
            try:
                _begin(self._open, frame)
            except OutOfMemoryError as error:  # `answer` raises it
                self._failure = error
                self._opened.set()
            return
        self._opened.wait()
        if self._channel is not None:
            _send(self._channel, frame)

    def _open(self, frame: bytes) -> None:
        assert self._opened is not None
        try:
            channel = self._vocabulary.channel()
            weakref.finalize(self, channel.close)
            channel.settimeout(WAIT_SECONDS)
            self._until = time.monotonic() + WAIT_SECONDS
            self._channel = channel
            _send(channel, struct.pack("<I", len(self._grammar)) + self._grammar + frame)
        except Exception as error:
            self._failure = error
        finally:
            self._opened.set()

    def ready(self, seconds: float) -> bool:
        assert self._opened is not None
        until = time.monotonic() + seconds
        if not self._opened.wait(seconds):
            return False
        if self._channel is None:
            return True
        seconds = max(0.0, min(until, self._until) - time.monotonic())
        return bool(_wait(self._channel, seconds)) or time.monotonic() >= self._until

    def answer(self) -> tuple[bytes, bool]:
        assert self._opened is not None
        self._opened.wait()
        if self._failure is not None:
            raise self._failure
        try:
            n, seconds = struct.unpack("<Id", self._read(12))
            reply = self._read(n)
        except (OSError, EOFError):
            took_elsewhere(MASK_SECONDS)
            self._close()
            raise ValueError(_TOO_MUCH) from None
        except BaseException:  # Ctrl-C: the next question must not get this answer
            self._close()
            raise
        took_elsewhere(seconds)
        return _split(reply)

    def _read(self, n: int) -> bytes:
        assert self._channel is not None
        data = bytearray()
        while len(data) < n:
            if not _wait(self._channel, max(0.0, self._until - time.monotonic())):
                raise EOFError
            part = self._channel.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _close(self) -> None:
        """Ends the process; what is asked later is an error."""
        if self._channel is not None:
            self._channel.close()


def _begin(work: Callable[..., None], of: Any) -> None:
    """Begins work in a thread of its own. Raises OutOfMemoryError past the system's limit of
    threads."""
    try:
        threading.Thread(target=work, args=(of,), daemon=True).start()
    except RuntimeError as error:
        raise OutOfMemoryError(f"no thread for a grammar: {error}") from None


def _send(channel: socket.socket, data: bytes) -> None:
    # A process that has ended is an error of `answer`.
    with contextlib.suppress(OSError):
        channel.sendall(data)


def _wait(channel: socket.socket, seconds: float) -> bool:
    """Is there something to read, or the end? Waits so long for it."""
    if channel.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
