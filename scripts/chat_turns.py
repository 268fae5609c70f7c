#!/usr/bin/env python3
"""A chat of several turns with a thinking model: positions computed and time to the first token.

  chat_turns.py -m MODEL.gguf [--peer llama-server]      the table
  chat_turns.py --make OUT.gguf                          a random model, LFM2 1.2B's sizes

MODEL is asked through `Llama`, `powerinfer serve` and, if named, llama.cpp's server, one after the
other, each with its own defaults but for the context, threads and a single text at a time. Its
template is to be one that opens thoughts and leaves them out of later turns, as that of --make.
What a model says does not matter to the figures: every answer has --thought tokens, which all are
thoughts since the end of thoughts is no likely token of a random model, and ends of texts are
forbidden. The answer that later turns quote is a text of --words words. So all three see the same
prompts; in each the last answer is new, as that of a model that thinks is behind its thoughts.

computed: positions of the prompt that were computed (`timings.prompt_n`); prompt: all of them.
first: seconds from the request to the first token.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from powerinfer_cpp.convert.formats import encode, format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import (
    Entry,
    array,
    boolean,
    float32,
    of_layers,
    string,
    uint32,
    write_gguf,
)

from powerinfer_cpp import Llama

# As Qwen 3 has it: thoughts before the last message of the user are left out.
TEMPLATE = """
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
SAYING = "the a small big cat dog bird tree house river says sees goes to and then with old"
WORDS = SAYING.split()


@dataclass
class Turn:
    """Of one request."""

    n_prompt: int
    n_computed: int
    first: float


# Gives the figures of a chat that goes on with these messages.
Ask = Callable[[list[dict[str, str]]], Turn]


def text_of(n: int, rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(n))


def chat(ask: Ask, args: argparse.Namespace) -> list[Turn]:
    rng = random.Random(args.seed)
    messages = [{"role": "system", "content": text_of(2 * args.words, rng)}]
    found = []
    for _ in range(args.turns):
        messages.append({"role": "user", "content": text_of(args.words, rng)})
        found.append(ask(messages))
        messages.append({"role": "assistant", "content": text_of(args.words, rng)})
    return found


# ---- Who is asked ----


@contextlib.contextmanager
def in_process(args: argparse.Namespace) -> Iterator[Ask]:
    with Llama(args.model, n_ctx=args.ctx, n_threads=args.threads, verbose=False) as llm:
        options = {"max_tokens": args.thought, "temperature": 0.0, "stream": True}

        def ask(messages: list[dict[str, str]]) -> Turn:
            begin, first = time.perf_counter(), math.nan
            never = {llm.token_eos(): -100.0}
            for chunk in llm.create_chat_completion(messages, logit_bias=never, **options):
                if math.isnan(first) and said(chunk):
                    first = time.perf_counter() - begin
            n_computed = llm.stats()["n_prompt"]
            return Turn(llm.n_tokens - args.thought + 1, n_computed, first)

        yield ask


@contextlib.contextmanager
def served(command: list[str], args: argparse.Namespace) -> Iterator[Ask]:
    """By a server that answers at --port; both kinds know the routes of the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [*command, "-m", args.model, "-c", str(args.ctx), "-t", str(args.threads)]
    line += ["-np", "1", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port, process)
            yield lambda messages: asked(port, messages, args)
        finally:
            process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise SystemExit("the server did not start")


def asked(port: int, messages: list[dict[str, str]], args: argparse.Namespace) -> Turn:
    body = {"messages": messages, "max_tokens": args.thought, "temperature": 0, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}, "timings": True}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begin, first = time.perf_counter(), math.nan
    connection.request("POST", "/v1/chat/completions", json.dumps(body), KIND)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if math.isnan(first) and said(chunk):
            first = time.perf_counter() - begin
        usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
    return Turn(usage["prompt_tokens"], timings["prompt_n"], first)


KIND = {"Content-Type": "application/json"}


def said(chunk: dict[str, Any]) -> bool:
    """Whether a chunk of a stream has text."""
    delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


# ---- A model ----


def make(path: Path, n: int, seed: int) -> None:
    """LFM2 of this width with random matrices in Q4_0, and a vocabulary of bytes, letters and
    words. 1.2B has 2,048."""
    ff, heads, kv, taps = 4 * n, n // 64, n // 256, 3
    attends = {2, 5, 8, 10, 12, 14}
    kinds = ["attention" if i in attends else "convolution" for i in range(16)]
    rng, fmt = np.random.default_rng(seed), format_by_name("Q4_0")
    whole = [*MARKS, *(f" {word}" for word in WORDS)]  # found in a text as they are
    pieces = ["\u2581", *(chr(97 + i) for i in range(26)), *whole]
    special = ["<unk>", "<s>", "</s>"]
    words = special + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    words += [f"<{i}>" for i in range(65536 - len(words))]
    types = [2, 3, 3] + [6] * 256 + [4 if piece in whole else 1 for piece in pieces]
    slabs = {
        cols: encode(fmt, rng.standard_normal((n, cols), np.float32) / np.float32(math.sqrt(cols)))
        for cols in (n, ff)
    }

    def matrix(name: str, rows: int, cols: int) -> Stored:
        slab = slabs[cols].reshape(n, -1)
        first = int(rng.integers(n))
        return Stored(
            f"{name}.weight",
            (rows, cols),
            fmt,
            lambda a, b: slab[(np.arange(a, b) + first) % n].reshape(-1),
        )

    def floats(name: str, *shape: int, scale: float = 0.0) -> Stored:
        values = (1 - scale + scale * rng.standard_normal(shape)).astype(np.float32)
        data = values.reshape(-1, shape[-1])
        return Stored(
            f"{name}.weight",
            shape,
            format_by_name("F32"),
            lambda a, b: np.ascontiguousarray(data[a:b]).reshape(-1).view(np.uint8),
        )

    tensors = [matrix("token_embd", len(words), n), floats("token_embd_norm", n)]
    for i, kind in enumerate(kinds):
        block = f"blk.{i}"
        tensors += [floats(f"{block}.{norm}_norm", n) for norm in ("attn", "ffn")]
        if kind == "attention":
            width = n // heads
            rows = (("q", n), ("k", kv * width), ("v", kv * width), ("output", n))
            tensors += [matrix(f"{block}.attn_{part}", size, n) for part, size in rows]
            tensors += [floats(f"{block}.attn_{part}_norm", width) for part in "qk"]
        else:
            tensors += [
                matrix(f"{block}.shortconv.in_proj", 3 * n, n),
                matrix(f"{block}.shortconv.out_proj", n, n),
                floats(f"{block}.shortconv.conv", n, taps, scale=0.5),
            ]
        tensors += [matrix(f"{block}.ffn_{part}", ff, n) for part in ("gate", "up")]
        tensors.append(matrix(f"{block}.ffn_down", n, ff))
    sizes = {"context_length": 32768, "embedding_length": n, "block_count": len(kinds)}
    sizes |= {"feed_forward_length": ff, "attention.head_count": heads, "shortconv.l_cache": taps}
    keys: list[Entry] = [
        *(uint32(f"lfm2.{key}", value) for key, value in sizes.items()),
        of_layers("lfm2.attention.head_count_kv", [kv * (kind == "attention") for kind in kinds]),
        float32("lfm2.attention.layer_norm_rms_epsilon", 1e-5),
        float32("lfm2.rope.freq_base", 1e6),
        string("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", "STRING", words),
        array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(len(words))]),
        array("tokenizer.ggml.token_type", "INT32", types + [1] * (len(words) - len(types))),
        uint32("tokenizer.ggml.bos_token_id", 1),
        uint32("tokenizer.ggml.eos_token_id", 2),
        boolean("tokenizer.ggml.add_bos_token", True),
        string("tokenizer.chat_template", TEMPLATE),
    ]
    write_gguf(path, "lfm2", keys, tensors)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", help="a GGUF with a template that thinks")
    add("--make", type=Path, metavar="OUT", help="writes a random model of LFM2 1.2B's sizes")
    add("--width", type=int, default=2048, help="of --make, a multiple of 256")
    add("--peer", help="llama.cpp's llama-server")
    add("--peer-args", default="", help="further arguments of it, separated by spaces")
    add("--turns", type=int, default=10)
    add("--thought", type=int, default=100, help="tokens of each answer's thoughts")
    add("--words", type=int, default=60, help="of a message; the system prompt has twice as many")
    add("--ctx", type=int, default=8192)
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.make:
        make(args.make, args.width, args.seed)
        return 0
    if not args.model:
        parser.error("-m names the model")
    serve = [sys.executable, "-m", "powerinfer_cpp.cli", "serve"]
    kinds = {"Llama": in_process(args), "powerinfer serve": served(serve, args)}
    if args.peer:
        kinds["llama-server"] = served([args.peer, *args.peer_args.split()], args)
    found = {}
    for name, kind in kinds.items():
        with kind as ask:
            found[name] = chat(ask, args)
    print("| turn | prompt |" + "".join(f" {name}: computed | first, s |" for name in found))
    print("|" + " --- |" * (2 + 2 * len(found)))
    for i in range(args.turns):
        turns = [each[i] for each in found.values()]
        cells = "".join(f" {turn.n_computed} | {turn.first:.3f} |" for turn in turns)
        print(f"| {i + 1} | {turns[-1].n_prompt} |{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
