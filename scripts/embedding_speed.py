#!/usr/bin/env python3
"""Speed of vectors of texts, beside onnxruntime, torch and llama-server, in alternating rounds.

  embedding_speed.py [--threads N] [--rounds N] [--onnx FILE]... [--torch DIR]
                     [--llama-server PROGRAM:MODEL.gguf]... MODEL.gguf...

Texts are random ids: 1 and 32 of 27 and of 234 tokens, and 32 of 10 to 250. onnxruntime and torch
get them one by one and sorted in padded batches of 4, 8 and all, and their best way counts. A
graph is exported from the checkpoint with the last hidden states as its output, and optimised with
onnxruntime.transformers.optimizer (model_type bert); pooling is not counted there. llama-server
gets all texts of a case in one request. The table has the least milliseconds for a text, and the
middle of the ratios of the rounds: above 1 the first model is faster. Measure on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from powerinfer_cpp import Llama

Texts = list[list[int]]
BATCHES = (1, 4, 8, 1024)
PORT = 18089


def cases(seed: int = 0) -> dict[str, Texts]:
    """The texts of each case, with the ids of [CLS] and [SEP] around them."""
    rng = np.random.default_rng(seed)

    def text(n: int) -> list[int]:
        return [101, *rng.integers(1000, 30000, n - 2).tolist(), 102]

    found = {f"{n} x {k}": [text(n) for _ in range(k)] for n in (27, 234) for k in (1, 32)}
    found["mixed x 32"] = [text(n) for n in rng.integers(10, 251, 32)]
    return found


def padded(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask, int64 [texts, tokens of the longest]."""
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    mask = np.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return ids, mask


def in_batches(run: Callable[[np.ndarray, np.ndarray], object]) -> dict[str, Callable]:
    """The ways of an engine that pads."""

    def way(size: int) -> Callable[[Texts], None]:
        def compute(texts: Texts) -> None:
            texts = sorted(texts, key=len)
            for i in range(0, len(texts), size):
                run(*padded(texts[i : i + size]))

        return compute

    return {f"by {size}": way(size) for size in BATCHES}


def of_ours(path: str, threads: int) -> dict[str, Callable]:
    llm = Llama(path, embedding=True, n_threads=threads, verbose=False)
    return {"": lambda texts: llm.create_embedding(texts)}


def of_onnx(path: str, threads: int) -> dict[str, Callable]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(ids: np.ndarray, mask: np.ndarray) -> object:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}
        return session.run(None, {name: given[name] for name in names})

    return in_batches(run)


def of_torch(folder: str, threads: int) -> dict[str, Callable]:
    import torch
    from transformers import AutoModel

    torch.set_num_threads(threads)
    model = AutoModel.from_pretrained(folder).eval()

    def run(ids: np.ndarray, mask: np.ndarray) -> object:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model(**given).last_hidden_state

    return in_batches(run)


@contextlib.contextmanager
def llama_server(given: str, threads: int, port: int) -> Iterator[dict[str, Callable]]:
    program, _, model = given.partition(":")
    command = [program, "-m", model, "--embedding", "-t", threads, "-tb", threads, "--port", port]
    command += ["-c", 16384, "-b", 2048, "-ub", 2048, "-np", 32]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:

        def ask(texts: Texts) -> None:
            body = json.dumps({"input": texts}).encode()
            head = {"Content-Type": "application/json"}
            with urllib.request.urlopen(
                urllib.request.Request(f"{address}/v1/embeddings", body, head)
            ) as answer:
                answer.read()

        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/health").read()
                    break
                time.sleep(0.1)
            yield {"": ask}
        finally:
            process.terminate()


def timed(compute: Callable[[Texts], None], texts: Texts, repetitions: int) -> float:
    """Milliseconds for a text, the least of some repetitions."""
    least = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        compute(texts)
        least = min(least, time.perf_counter() - start)
    return 1e3 * least / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--onnx", action="append", default=[], metavar="FILE")
    parser.add_argument("--torch", metavar="DIR")
    parser.add_argument("--llama-server", action="append", default=[], metavar="PROGRAM:MODEL.gguf")
    args = parser.parse_args()

    with contextlib.ExitStack() as stack:
        engines = {path: of_ours(path, args.threads) for path in args.models}
        engines |= {path: of_onnx(path, args.threads) for path in args.onnx}
        if args.torch:
            engines[f"torch {args.torch}"] = of_torch(args.torch, args.threads)
        for i, given in enumerate(args.llama_server):
            engines[f"llama-server {given.partition(':')[2]}"] = stack.enter_context(
                llama_server(given, args.threads, PORT + i)
            )
        first = args.models[0]
        for name, texts in cases().items():
            print(
                f"\n{name}, {args.threads} threads\n\n| engine | ms/text | ratio |\n|---|--:|--:|"
            )
            ways = {}  # each engine's best one
            for engine, known in engines.items():
                fits = [way for i, way in enumerate(known.values()) if i < 2 or len(texts) > 1]
                for way in fits:
                    way(texts)
                ways[engine] = min(fits, key=lambda way: timed(way, texts, 2))
            times: dict[str, list[float]] = {engine: [] for engine in engines}
            for _ in range(args.rounds):
                for engine, way in ways.items():
                    time.sleep(0.05)  # until the threads of the engine before sleep
                    times[engine].append(timed(way, texts, 1 if len(texts) > 1 else 8))
            for engine, found in times.items():
                pairs = zip(found, times[first], strict=True)
                ratio = median(theirs / ours for theirs, ours in pairs)
                print(f"| {engine} | {min(found):.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
