#!/usr/bin/env python3
"""Measures decoding in memory of a mixture that make_mixture.py wrote, beside other engines.

  scripts/make_mixture.py n.gguf --plain nemotron-3-nano --tokens n.ids
  scripts/make_mixture.py n.rows.gguf --plain nemotron-3-nano --rows
  scripts/hybrid_speed.py --model n.gguf --rows n.rows.gguf --tokens n.ids \\
      --peer "llama.cpp=LLAMA/bin/llama-bench -fa 1" --depths 0,1024 --rounds 3

`exact` is the file of neuron rows, of whose down rows only those that fire are read, `dense` the
same weights as matrices, which the peers read, too. In each round the engines take turns, a process
for each; the plain read of memory is measured before. The bytes of a token are those of its weights
(down rows by the share that fires, experts by the number that is chosen), and its state, read and
written. "Of the bytes": how much faster exact is than dense, divided by how much it would be if
both read at one speed. One line of JSON for each run goes to --out.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import gguf

ROOT = Path(__file__).resolve().parents[1]
MACHINE = ROOT / "scripts" / "real" / "machine.py"


def token_bytes(path: str, fired: float) -> float:
    """What a token reads and writes; fired: the share of an expert's neurons that fire."""
    reader = gguf.GGUFReader(path)
    keys = {name.split(".", 1)[-1]: field.contents() for name, field in reader.fields.items()}
    chosen = int(keys["expert_used_count"]) / int(keys["expert_count"])
    state = 4 * int(keys["ssm.inner_size"]) * int(keys["ssm.state_size"])
    total = 0.0
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            continue
        n = float(tensor.n_bytes)
        n *= chosen if "_exps" in tensor.name else 1
        n *= fired if "_down_t" in tensor.name else 1
        total += n + 2 * state * (".ssm_out." in tensor.name)
    return total


def fired_share(run: dict) -> float:
    """The share of the neurons that fired, of what `bench` says of the layers."""
    shares = zip(run["share_fired"], run["share_predicted"], strict=True)
    return statistics.mean(fired / all_of for fired, all_of in shares if all_of)


def knows_depth(command: list[str]) -> bool:
    """Whether a llama-bench has -d. Others measure with nothing before the timed tokens."""
    done = subprocess.run([command[0], "--help"], capture_output=True, text=True)
    return "--n-depth" in done.stdout + done.stderr


def run(*command: object) -> list[dict]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        done.check_returncode()
    return json.loads(done.stdout[done.stdout.index("[") :])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="with matrices")
    add("--rows", help="with neuron rows")
    add("--tokens", required=True, help="token ids")
    add("--peer", action="append", default=[], help="NAME=COMMAND of a llama-bench, repeatable")
    add("--depths", default="0", help="tokens before those that are timed, by commas")
    add("--n", type=int, default=48, help="tokens that are timed")
    add("--prompt", type=int, default=0, help="also a prompt of so many tokens")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=3)
    add("--out", default="hybrid_speed.jsonl")
    args = parser.parse_args()

    bench = [ROOT / "powerinfer", "bench", "--tokens-file", args.tokens]
    engines = {"exact": (bench, args.rows)} if args.rows else {}
    engines["dense"] = (bench, args.model)
    at = {name: ["-d", args.depths] for name in engines}
    for named in args.peer:
        name, command = named.split("=", 1)
        words = command.split()
        engines[name] = (words, args.model)
        at[name] = ["-d", args.depths] if knows_depth(words) else []
    common = ["-t", args.threads, "-n", args.n, "-p", args.prompt]
    found: dict[tuple[str, str], list[float]] = {}
    fired = 1.0
    with open(args.out, "a") as out:
        for _ in range(args.rounds):
            read = subprocess.run(
                [sys.executable, MACHINE, "read", str(args.threads)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            print("plain read:", read.strip(), flush=True)
            for name, (command, model) in engines.items():
                try:
                    results = run(*command, *common, *at[name], "-r", 1, "-o", "json", "-m", model)
                except subprocess.CalledProcessError as error:
                    print(f"{name}: {error}", flush=True)
                    continue
                for r in results:
                    what = f"prompt of {r['n_prompt']}" if r["n_prompt"] else "decode"
                    what += f" at {r.get('n_depth', 0)}"
                    if name == "exact" and r["n_gen"]:
                        fired = fired_share(r)
                    found.setdefault((what, name), []).append(r["avg_ts"])
                    print(f"{what}: {name} {r['avg_ts']:.2f} tokens/s", flush=True)
                    out.write(json.dumps({"engine": name, "test": what, **r}) + "\n")
                    out.flush()
    sizes = {name: token_bytes(model, fired) for name, (_, model) in engines.items()}
    print(f"of the neurons in rows {fired:.1%} fire")
    for (what, name), rates in found.items():
        middle = statistics.median(rates)
        line = f"{what}, {name}: median {middle:.2f} tokens/s"
        if what.startswith("decode"):
            line += f", {sizes[name] / 1e6:.0f} MB a token, {sizes[name] * middle / 1e9:.1f} GB/s"
        if (what, "dense") in found and name != "dense":
            gain = middle / statistics.median(found[what, "dense"])
            line += f", {gain:.2f} times dense"
            if name == "exact" and what.startswith("decode"):
                line += f", {gain / (sizes['dense'] / sizes['exact']):.0%} of the bytes"
        print(line)


if __name__ == "__main__":
    main()
