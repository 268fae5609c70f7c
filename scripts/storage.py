#!/usr/bin/env python3
"""Measures a model that runs from storage beside llama.cpp, both on one throttled disk.

  scripts/storage.py --model 7b.powerinfer.gguf --tokens 7b.ids --gb 3.1 2.147
  scripts/storage.py ... --peer llama-bench --peer-model 7b.gguf      # alternating, medians of 3
  scripts/storage.py ... --sweep 8                                    # budgets from least to all
  scripts/storage.py ... --ablation                                   # what each part is worth

Needs root and cgroups of version 1. Each run gets a cgroup of its own, with so much memory (--gb,
of 10^9 bytes) and a disk of --reads a second and --mb a second; 0 leaves the disk as it is. Tokens
are generated ones from the file, after --warm others, before which nothing is known about the
neurons (but what the file says). The bound of a token is what the slower of
processor and disk needs at least: the time of a token with everything in memory, and that of its
reads. One line of JSON for each run goes to --out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "build" / "cpu" / "tests" / "storage_speed"
CGROUPS = Path("/sys/fs/cgroup")
# What a process takes that no plan counts: libraries, stacks, pages of the kernel.
BESIDE = 8 << 20


def disk_of(path: str) -> str:
    """MAJOR:MINOR of the disk that has a file (not of its partition)."""
    device = os.stat(path).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = node.parent if (node / "partition").exists() else node
    return (whole / "dev").read_text().strip()


class Group:
    """A cgroup with limits, for one program."""

    def __init__(self, n_bytes: int, disk: str, reads: int, mb: int) -> None:
        name = f"powerinfer.{os.getpid()}"
        self.folders = [CGROUPS / "memory" / name, CGROUPS / "blkio" / name]
        for folder in self.folders:
            folder.mkdir()
        memory, io = self.folders
        (memory / "memory.limit_in_bytes").write_text(str(n_bytes))
        if reads:
            (io / "blkio.throttle.read_iops_device").write_text(f"{disk} {reads}")
        if mb:
            (io / "blkio.throttle.read_bps_device").write_text(f"{disk} {mb * 10**6}")

    def run(self, command: list[str]) -> str:
        """A program's standard output; `seconds` is what it took. Raises CalledProcessError."""

        def enter() -> None:
            for folder in self.folders:
                (folder / "cgroup.procs").write_text(str(os.getpid()))

        # Pages that another group has cached would count for nothing here.
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
        self.seconds = time.monotonic() - begin
        if done.returncode:
            sys.stderr.write(done.stderr)
            done.check_returncode()
        return done.stdout

    def peak(self) -> int:
        return int((self.folders[0] / "memory.max_usage_in_bytes").read_text())

    def close(self) -> None:
        for folder in self.folders:
            folder.rmdir()


# From nothing to everything: what is left out, and how the disk is read.
ABLATION = {
    "three reads a neuron": ("bundles,cache,overlap", "threads"),
    "bundles": ("cache,overlap", "threads"),
    "cache": ("overlap", "threads"),
    "overlap": ("", "threads"),
    "io_uring": ("", "uring"),
}


def ours(args: argparse.Namespace, budget: int, n_bytes: int, without: str = "") -> dict:
    command = [str(TOOL), "--model", args.model, "--tokens", args.tokens]
    # Without a cache every token is alike, and slow.
    warm, n = (1, min(args.n, 5)) if "cache" in without else (args.warm, args.n)
    command += ["--budget", str(budget / (1 << 20)), "--warm", str(warm), "--n", str(n)]
    command += ["--prompt", str(args.prompt), "--ctx", str(args.ctx), "--sparse", str(args.sparse)]
    if without:
        command += ["--without", without]
    # What an earlier run kept in memory would be known beforehand.
    for bundle in (args.model, args.model + ".bundle.gguf"):
        Path(bundle + ".resident").unlink(missing_ok=True)
    group = Group(n_bytes, disk_of(args.model), args.reads, args.mb)
    try:
        result = json.loads(group.run(command))
        result["peak"] = group.peak()
    finally:
        group.close()
    return {"engine": "powerinfer", "bytes": n_bytes, "budget": budget, **result}


def peer(args: argparse.Namespace, n_bytes: int) -> dict:
    command = [args.peer, "-m", args.peer_model, "-p", "0", "-n", str(args.peer_n), "-r", "1"]
    command += ["-t", "2", "-o", "json", *args.peer_args.split()]
    group = Group(n_bytes, disk_of(args.peer_model), args.reads, args.mb)
    try:
        result = json.loads(group.run(command))[0]
    finally:
        group.close()
    return {"engine": "llama.cpp", "bytes": n_bytes, "tokens_per_s": result["avg_ts"]}


def bounds(tokens: list[list[float]], whole_ms: float, reads: int, mb: int) -> list[float]:
    """The least milliseconds of each token."""
    return [
        max(whole_ms, n / reads * 1e3 if reads else 0, size / mb * 1e3 if mb else 0)
        for _, n, size, *_ in tokens
    ]


def report(result: dict, whole_ms: float, args: argparse.Namespace) -> str:
    line = f"{result['bytes'] / 1e9:5.2f} GB  {result['engine']:10}"
    line += f" {result['tokens_per_s']:7.2f} tokens/s"
    if "token" in result:
        least = bounds(result["token"], whole_ms, args.reads, args.mb)
        over = sorted(token[0] / best for token, best in zip(result["token"], least, strict=True))
        share = sum(least) / sum(token[0] for token in result["token"])
        line += f"  {share:4.0%} of the bound, a token {over[len(over) // 2]:.2f} (p50)"
        line += f" and {over[len(over) * 99 // 100]:.2f} (p99) times its own"
        line += f"; {result.get('reads', 0):.0f} reads, {result.get('mb', 0):.1f} MB a token"
        line += f", {result['hits']:.1%} hits"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True, help="file of token ids")
    parser.add_argument("--gb", type=float, nargs="*", default=[3.1, 2.147])
    parser.add_argument("--sweep", type=int, default=0, help="so many budgets in even steps")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--reads", type=int, default=50000, help="a second; 0: no limit")
    parser.add_argument("--mb", type=int, default=1000, help="a second; 0: no limit")
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--sparse", type=int, default=0, help="0 auto, 2 exact, 3 predictor")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer", help="llama.cpp's llama-bench")
    parser.add_argument("--peer-model", help="the same model as it reads it")
    parser.add_argument("--peer-n", type=int, default=8)
    parser.add_argument("--peer-args", default="", help="more of its options, as one text")
    parser.add_argument("--out", default="storage.jsonl")
    args = parser.parse_args()

    free = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.9)
    with open(args.out, "a") as out:

        def note(result: dict, whole_ms: float) -> dict:
            out.write(json.dumps(result) + "\n")
            out.flush()
            print(report(result, whole_ms, args), flush=True)
            return result

        whole = ours(args, free, free)
        whole_ms = whole["p50_ms"]
        note(whole, whole_ms)
        sizes = [int(gb * 1e9) for gb in args.gb]
        if args.sweep:
            low, high = min(sizes), os.path.getsize(args.model)
            sizes = [low + (high - low) * i // (args.sweep - 1) for i in range(args.sweep)]
        for n_bytes in sizes if args.ablation else []:
            for name, (without, path) in ABLATION.items():
                os.environ["POWERINFER_IO"] = path
                print(name, end=": ")
                result = ours(args, n_bytes - BESIDE, n_bytes, without)
                note({"with": name, **result}, whole_ms)
        for n_bytes in [] if args.ablation else sizes:
            rates: dict[str, list[float]] = {}
            for _ in range(args.repeat):
                results = [ours(args, n_bytes - BESIDE, n_bytes)]
                if args.peer:
                    results.append(peer(args, n_bytes))
                for result in results:
                    note(result, whole_ms)
                    rates.setdefault(result["engine"], []).append(result["tokens_per_s"])
            medians = {name: statistics.median(of) for name, of in rates.items()}
            text = ", ".join(f"{name} {median:.2f}" for name, median in medians.items())
            if len(medians) == 2:
                text += f": {medians['powerinfer'] / medians['llama.cpp']:.1f} times"
            print(f"{n_bytes / 1e9:5.2f} GB  medians: {text}", flush=True)


if __name__ == "__main__":
    main()
