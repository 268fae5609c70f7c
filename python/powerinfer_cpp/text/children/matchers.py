"""The process in which masks are computed, a fork for each text; masks.py starts it.

A mask is native code on a client's grammar: it may take long, need much memory, overflow the stack
or panic. In a process of its own it cannot hold the engine, and its limits are the system's.

Arguments: bytes of memory and seconds of processor time, and the folders of the packages. On stdin,
a Unix socket, comes the vocabulary (numbers of tokens and the end token, lengths, bytes of tokens).
Each message after that carries a socket to a text: the process forks, and the fork answers there.
Its first frame is the grammar; the others are tokens that were chosen. Each answer is a frame with
the processor time that it took, in front of the bytes: 0 or 1 (may the text end here?) and the
mask, or 2 and an error in words.
"""

import contextlib
import functools
import os
import signal
import socket
import struct
import sys
import time
from typing import Any


def limits() -> Any:
    """llguidance's own limits: bounds for a mask, well above what grammars need."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=3_000_000,
        step_lexer_fuel=2_000_000,
        max_lexer_states=60_000,
        verbose_errors=False,
    )


@functools.cache
def single_bytes() -> Any:
    """A vocabulary of all bytes, for trials."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def tokenizer(tokens: list[bytes], eos: int) -> Any:
    """The vocabulary for llguidance. tokens: the bytes of each, none for control tokens, for which
    no grammar asks by text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped = _Wrapped()
    wrapped.eos_token_id = eos
    wrapped.tokens = [text or b"\xff<%d>" % i for i, text in enumerate(tokens)]
    wrapped.special_token_ids = [i for i, text in enumerate(tokens) if not text]
    return LLTokenizer(TokenizerWrapper(wrapped), n_vocab=len(tokens), eos_token=eos)


class _Wrapped:
    """What TokenizerWrapper asks for."""

    eos_token_id: int
    bos_token_id = None
    tokens: list[bytes]
    special_token_ids: list[int]

    def __call__(self, _text: bytes) -> list[int]:
        return []  # grammars have no_forcing: nothing is tokenized


class Matcher:
    """A grammar at a place of a text."""

    def __init__(self, vocabulary: Any, grammar: str):
        from llguidance import LLMatcher

        self._matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits())

    def mask(self, tokens: list[int]) -> bytes:
        """The answer after these tokens."""
        matcher = self._matcher
        for token in tokens:
            if not matcher.consume_token(token):
                break
        bits = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            words = " ".join(matcher.get_error().split())[:300]
            return b"\x02" + words.encode("utf-8", "replace")
        return bytes([matcher.is_accepting()]) + bits


def _read_vocabulary(source: int) -> Any:
    n, eos = struct.unpack("<II", _read(source, 8))
    lengths = struct.unpack(f"<{n}I", _read(source, 4 * n))
    data = _read(source, sum(lengths))
    tokens, at = [], 0
    for length in lengths:
        tokens.append(data[at : at + length])
        at += length
    return tokenizer(tokens, eos)


def _read(source: int, n: int) -> bytes:
    from serve import read_exactly

    data = read_exactly(source, n)
    if len(data) < n:
        raise EOFError
    return data


def _serve(channel: int, vocabulary: Any, memory: int, seconds: float) -> None:
    """Answers for one text, until the other side closes the channel."""
    from serve import limit_memory, limit_time, size, write_all

    limit_memory(size() + memory)
    (n,) = struct.unpack("<I", _read(channel, 4))
    grammar = _read(channel, n).decode("utf-8", "surrogatepass")
    matcher = None
    while True:
        (n,) = struct.unpack("<I", _read(channel, 4))
        tokens = struct.unpack(f"<{n // 4}i", _read(channel, n))
        limit_time(seconds)
        took = -time.process_time()
        matcher = matcher or Matcher(vocabulary, grammar)
        reply = matcher.mask(list(tokens))
        limit_time(0)
        took += time.process_time()
        write_all(channel, struct.pack("<Id", len(reply), took) + reply)


def main(memory: str, seconds: str, *folders: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C and closes us
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    sys.path += folders
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # output that a package prints is not an answer
        os.dup2(nothing, number)
    vocabulary = _read_vocabulary(control.fileno())
    control.send(b"r")
    while True:
        message, channels, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            with contextlib.suppress(EOFError, OSError, MemoryError):
                _serve(channels[0], vocabulary, int(memory), float(seconds))
            os._exit(0)
        os.close(channels[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
