#!/usr/bin/env python3
"""How many instructions a kernel of strips takes per 32 weights, on an emulated ARM processor.

    scripts/arm_counts.py build/arm/tests/one_strip --types Q4_0 Q8_0 Q4_K --tokens 1 64

Any program with the same arguments will do: TYPE COLUMNS ROWS TOKENS CALLS. qemu logs every
instruction; the difference between one call and two is what a call takes.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile


def executed(processor: str, *command: str) -> int:
    with tempfile.NamedTemporaryFile("rb") as log:
        emulator = ("qemu-aarch64", "-cpu", processor, "-singlestep", "-d", "nochain,exec")
        done = subprocess.run([*emulator, "-D", log.name, *command], stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}")
        return sum(line.startswith(b"Trace") for line in log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 4, 8, 64])
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cpu", default="max")
    options = parser.parse_args()
    for kind in options.types:
        print(kind, end="")
        for tokens in options.tokens:
            size = (str(options.columns), str(options.rows), str(tokens))
            one, two = (executed(options.cpu, options.program, kind, *size, n) for n in "12")
            blocks = options.columns // 32 * options.rows * tokens
            print(f"  {tokens}: {(two - one) / blocks:.2f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
