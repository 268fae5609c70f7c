#!/usr/bin/env python3
"""Measures a mixture that runs from its ordinary file beside other engines, on one throttled disk.

  scripts/make_mixture.py q.gguf --plain qwen3-30b --tokens q.ids
  scripts/mixture_speed.py --model q.gguf --tokens q.ids --mb 1000 --shares 0.25 0.5 0.75
  scripts/mixture_speed.py ... --peer "mmap=LLAMA_COMPLETION -sp -no-cnv" --peer "ik=IK_CLI -sp"

Needs root and cgroups of version 1, as scripts/storage.py does. Each run gets a cgroup of its own,
with a share of the file's size as memory and a disk of --mb a second (10^6 bytes; 0 leaves it as
it is), and finds a cold file. A faster disk than there is can only be stood in for (--delayed). All
engines walk through the same tokens, so they choose the same experts: ours are given them, a peer
begins at the first and generates greedily. Speed is that of --n tokens after --warm others; a peer,
which says what all of its tokens took, runs twice for that.

The bound of a token is the longer of its time with everything in memory, and of the time of the
part that is no expert and of its reads: those begin when the router has chosen.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

import gguf
from storage import BESIDE, TOOL, Group, disk_of

FIRST = "<0>"  # the text of the sequence's first token


def dense_share(model: str) -> float:
    """Of the bytes that a token reads in memory, those that every token reads."""
    reader = gguf.GGUFReader(model)
    keys = {name.split(".", 1)[-1]: field for name, field in reader.fields.items()}
    used, all_of = (int(keys[name].contents()) for name in ("expert_used_count", "expert_count"))
    dense = chosen = 0.0
    for tensor in reader.tensors:
        if "_exps" in tensor.name:
            chosen += float(tensor.n_bytes) * used / all_of
        elif tensor.name != "token_embd.weight":
            dense += float(tensor.n_bytes)
    return dense / (dense + chosen)


def ours(args: argparse.Namespace, n_bytes: int, mb: int) -> dict:
    """What storage_speed says."""
    command = [str(TOOL), "--model", args.model, "--tokens", args.tokens]
    command += ["--budget", str((n_bytes - BESIDE) / (1 << 20)), "--warm", str(args.warm)]
    command += ["--n", str(args.n), "--ctx", str(args.ctx)]
    if mb and args.delayed:
        command += ["--disk", str(mb)]
        mb = 0
    # What an earlier run kept in memory would be known beforehand.
    Path(args.model + ".resident").unlink(missing_ok=True)
    group = Group(n_bytes, disk_of(args.model), 0, mb)
    try:
        result = json.loads(group.run(command))
        result["peak"] = group.peak()
    finally:
        group.close()
    return result


def peer_seconds(args: argparse.Namespace, command: str, n_bytes: int, n: int) -> float:
    """What generating so many tokens took, by the peer's own clock."""
    words = [*command.split(), "-m", args.model, "-p", FIRST, "-n", str(n), "--temp", "0"]
    words += ["-c", str(args.ctx), "-t", "2", "--ignore-eos"]
    group = Group(n_bytes, disk_of(args.model), 0, args.mb)
    try:
        said = group.run(["sh", "-c", 'exec "$@" 2>&1', "sh", *words])
    finally:
        group.close()
    found = re.search(r" eval time = *([\d.]+) ms", said.replace("prompt eval time", ""))
    if not found:
        raise RuntimeError(f"no timings: {said[-500:]}")
    return float(found[1]) / 1e3


def peer(args: argparse.Namespace, command: str, n_bytes: int) -> dict:
    begin = time.monotonic()
    warm = peer_seconds(args, command, n_bytes, args.warm)
    whole = peer_seconds(args, command, n_bytes, args.warm + args.n)
    return {"tokens_per_s": args.n / (whole - warm), "s": time.monotonic() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="of make_mixture.py --plain")
    add("--tokens", required=True, help="its token ids")
    add("--shares", type=float, nargs="*", default=[0.25, 0.5, 0.75], help="of the file's bytes")
    add("--mb", type=int, default=1000, help="of the disk, a second; 0: no limit")
    add("--delayed", action="store_true", help="ours waits for a disk of --mb that brings nothing")
    add("--warm", type=int, default=150)
    add("--n", type=int, default=100)
    add("--ctx", type=int, default=2048)
    add("--repeat", type=int, default=3)
    add("--peer", action="append", default=[], help="NAME=COMMAND of another engine, repeatable")
    add("--out", default="mixture_speed.jsonl", help="gets a line of JSON for each run")
    args = parser.parse_args()

    size = os.path.getsize(args.model)
    dense = dense_share(args.model)
    with open(args.out, "a") as out:

        def note(name: str, share: float, result: dict) -> dict:
            out.write(json.dumps({"engine": name, "share": share, "mb": args.mb, **result}) + "\n")
            out.flush()
            return result

        whole = note("memory", 1, ours(args, int(size * 1.2) + (1 << 30), 0))
        whole_ms = whole["p50_ms"]
        print(f"in memory {whole['tokens_per_s']:.2f} tokens/s, {dense:.0%} of it without experts")
        for share in args.shares:
            n_bytes = int(share * size)
            rates: dict[str, list[float]] = {}
            for _ in range(args.repeat):
                result = note("powerinfer", share, ours(args, n_bytes, args.mb))
                rates.setdefault("powerinfer", []).append(result["tokens_per_s"])
                line = f"{share:.0%} {result['tokens_per_s']:.2f} tokens/s"
                line += f", p50 {result['p50_ms']:.0f} ms, p99 {result['p99_ms']:.0f} ms"
                line += f", {result['mb']:.0f} MB a token, {result['hits']:.1%} hits"
                line += f", waited {result['waited_ms']:.1f} ms"
                if args.mb:
                    least = [
                        max(whole_ms, whole_ms * dense + read / args.mb * 1e3)
                        for _, _, read, *_ in result["token"]
                    ]
                    bound = sum(least) / sum(token[0] for token in result["token"])
                    line += f", {bound:.0%} of the bound"
                print(line, flush=True)
                for named in args.peer:
                    name, command = named.split("=", 1)
                    try:
                        result = note(name, share, peer(args, command, n_bytes))
                        rates.setdefault(name, []).append(result["tokens_per_s"])
                    except (RuntimeError, subprocess.CalledProcessError) as error:
                        print(f"{share:.0%} {name}: {error}", flush=True)
            medians = {name: statistics.median(of) for name, of in rates.items()}
            print(
                f"{share:.0%} medians: "
                + ", ".join(f"{name} {median:.2f}" for name, median in medians.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
