#!/usr/bin/env python3
"""Measures a mixture that runs from its ordinary file beside other engines, on one throttled disk.

  scripts/make_mixture.py q.gguf --plain qwen3-30b --tokens q.ids
  scripts/mixture_speed.py --model q.gguf --tokens q.ids --mb 1000 --shares 0.25 0.5 0.75
  scripts/mixture_speed.py ... --peer "mmap=LLAMA_COMPLETION -sp -no-cnv" --peer "ik=IK_CLI -sp"

Needs root and cgroups of version 1, as scripts/storage.py does. Each run gets a cgroup of its own,
with a share of the file's size as memory and a disk of --mb a second (10^6 bytes; 0 leaves it as
it is), and finds a cold file. --of experts: a share of the experts, beside all else that a token
reads in memory, in a file that has tables of which it reads some rows; where the whole file does
not fit, --no-memory leaves out the run from which bounds follow. A faster disk than there is can
only be stood in for (--delayed). All
engines walk through the same tokens, so they choose the same experts: ours are given them, a peer
begins at the first and generates greedily. Speed is that of --n tokens after --warm others; a peer,
which says what all of its tokens took, runs twice for that. --first measures no speed, but how long
each program runs for a single token.

The bound of a token is the longer of its time with everything in memory, and of the time of the
part that is no expert and of its reads: those begin when the router has chosen.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
from pathlib import Path

import gguf
from storage import BESIDE, ROOT, TOOL, Group, disk_of

FIRST = "<0>"  # the text of the sequence's first token
ROWS = ("token_embd.weight", "per_layer_token_embd.weight")  # of which single rows are read
WORK = 768 << 20  # of a session and of places where experts arrive


class Bytes:
    """Of a file: experts, and what every token reads in memory. dense: of the bytes that a token
    reads there, the share of the latter."""

    def __init__(self, model: str) -> None:
        reader = gguf.GGUFReader(model)
        keys = {name.split(".", 1)[-1]: field for name, field in reader.fields.items()}
        counts = (keys[name].contents() for name in ("expert_used_count", "expert_count"))
        used, all_of = map(int, counts)
        self.experts = self.rest = 0
        for tensor in reader.tensors:
            if "_exps" in tensor.name:
                self.experts += int(tensor.n_bytes)
            elif tensor.name not in ROWS:
                self.rest += int(tensor.n_bytes)
        self.dense = self.rest / (self.rest + self.experts * used / all_of)


def forget(model: str) -> None:
    """What an earlier run kept in memory would be known beforehand."""
    Path(model + ".resident").unlink(missing_ok=True)


def ours(args: argparse.Namespace, n_bytes: int, mb: int) -> dict:
    """What storage_speed says."""
    command = [str(TOOL), "--model", args.model, "--tokens", args.tokens]
    command += ["--budget", str((n_bytes - BESIDE) / (1 << 20)), "--warm", str(args.warm)]
    command += ["--n", str(args.n), "--ctx", str(args.ctx)]
    if mb and args.delayed:
        command += ["--disk", str(mb)]
        mb = 0
    forget(args.model)
    group = Group(n_bytes, disk_of(args.model), 0, mb)
    try:
        result = json.loads(group.run(command))
        result["peak"] = group.peak()
    finally:
        group.close()
    return result


def run_peer(args: argparse.Namespace, command: str, n_bytes: int, n: int) -> tuple[float, float]:
    """What generating n tokens took, and what the whole program took."""
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
    return float(found[1]) / 1e3, group.seconds


def peer(args: argparse.Namespace, command: str, n_bytes: int) -> dict:
    if args.first:
        return {"seconds": run_peer(args, command, n_bytes, 1)[1]}
    warm, _ = run_peer(args, command, n_bytes, args.warm)
    whole, _ = run_peer(args, command, n_bytes, args.warm + args.n)
    return {"tokens_per_s": args.n / (whole - warm)}


def our_first(args: argparse.Namespace, n_bytes: int) -> dict:
    command = [str(ROOT / "main"), "-m", args.model, "-p", FIRST, "-n", "1", "-c", str(args.ctx)]
    command += ["--no-bundle", "--ram-budget", str((n_bytes - BESIDE) / (1 << 30))]
    forget(args.model)
    group = Group(n_bytes, disk_of(args.model), 0, args.mb)
    try:
        group.run(command)
    finally:
        group.close()
    return {"seconds": group.seconds}


def described(result: dict, whole_ms: float, dense: float, mb: int) -> str:
    """Our figures; whole_ms: of a token with everything in memory, dense: without experts."""
    line = f"p50 {result['p50_ms']:.0f} ms, p99 {result['p99_ms']:.0f} ms"
    line += f", {result['mb']:.0f} MB a token, {result['hits']:.1%} hits"
    if "slots" in result:
        line += f", {result['slots']} of {result['experts']} experts in memory"
    line += f", waited {result['waited_ms']:.1f} ms"
    if not mb or not whole_ms:
        return line
    least = [
        max(whole_ms, whole_ms * dense + read / mb * 1e3) for _, _, read, *_ in result["token"]
    ]
    return line + f", {sum(least) / sum(token[0] for token in result['token']):.0%} of the bound"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="of make_mixture.py --plain")
    add("--tokens", required=True, help="its token ids")
    add("--shares", type=float, nargs="*", default=[0.25, 0.5, 0.75], help="of the bytes of --of")
    add("--of", choices=["file", "experts"], default="file")
    add("--no-memory", action="store_true", help="no run with everything in memory, and no bounds")
    add("--mb", type=int, default=1000, help="of the disk, a second; 0: no limit")
    add("--delayed", action="store_true", help="ours waits for a disk of --mb that brings nothing")
    add("--first", action="store_true", help="seconds for one token, by the clock of the wall")
    add("--warm", type=int, default=150)
    add("--n", type=int, default=100)
    add("--ctx", type=int, default=2048)
    add("--repeat", type=int, default=3)
    add("--peer", action="append", default=[], help="NAME=COMMAND of another engine, repeatable")
    add("--out", default="mixture_speed.jsonl", help="gets a line of JSON for each run")
    args = parser.parse_args()

    size = os.path.getsize(args.model)
    parts = Bytes(args.model)
    dense = parts.dense
    of, beside = (size, 0) if args.of == "file" else (parts.experts, parts.rest + WORK)
    unit = "seconds" if args.first else "tokens_per_s"
    engines = {"powerinfer": lambda n_bytes: ours(args, n_bytes, args.mb)}
    if args.first:
        engines["powerinfer"] = lambda n_bytes: our_first(args, n_bytes)
    for named in args.peer:
        name, command = named.split("=", 1)
        engines[name] = lambda n_bytes, command=command: peer(args, command, n_bytes)

    with open(args.out, "a") as out:

        def note(name: str, share: float, result: dict) -> None:
            out.write(json.dumps({"engine": name, "share": share, "mb": args.mb, **result}) + "\n")
            out.flush()

        whole_ms = 0.0
        if not (args.first or args.no_memory):
            whole = ours(args, int(size * 1.2) + (1 << 30), 0)
            note("memory", 1, whole)
            whole_ms = whole["p50_ms"]
            print(f"in memory {whole['tokens_per_s']:.2f} tokens/s, {dense:.0%} without experts")
        for share in args.shares:
            found: dict[str, list[float]] = {}
            for _ in range(args.repeat):
                for name, run in engines.items():
                    try:
                        result = run(int(share * of) + beside)
                    except (RuntimeError, subprocess.CalledProcessError) as error:
                        print(f"{share:.0%} {name}: {error}", flush=True)
                        continue
                    note(name, share, result)
                    found.setdefault(name, []).append(result[unit])
                    line = f"{share:.0%} {name} {result[unit]:.2f} {unit}"
                    if "token" in result:
                        line += ", " + described(result, whole_ms, dense, args.mb)
                    print(line, flush=True)
            medians = [f"{name} {statistics.median(runs):.2f}" for name, runs in found.items()]
            print(f"{share:.0%} medians: {', '.join(medians)}", flush=True)


if __name__ == "__main__":
    main()
