"""scripts/gpu.sh: correctness, then speed, of a build on a GPU."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import correct
import speed
from programs import ROOT, Failed, Runner, built, names, say
from results import Results

PARTS: dict[str, Callable[[Runner, Results], None]] = {
    "flags": correct.flags,
    "card": speed.card,
    "operators": correct.operators,
    "experts": correct.experts,
    "states": correct.states,
    "mixture": speed.mixture,
    "split": correct.split,
    "stop": correct.stop,
    "speed-7b": speed.speed_7b,
    "vram": speed.vram,
    "batches": speed.batches,
    "prompts": speed.prompts,
    "speed-13b": speed.speed_13b,
}
SECONDS = 9 * 60


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu.sh", description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="PART", help=f"all, or {', '.join(PARTS)}")
    parser.add_argument("--device", default="cuda0", help="cuda0; simt: no GPU is needed")
    parser.add_argument("--toy", action="store_true", help="tiny models: does all of it work?")
    parser.add_argument(
        "--binaries", type=Path, metavar="FOLDER", help="built programs; else they are built here"
    )
    parser.add_argument("--folder", type=Path, help="for models: /dev/shm, if it is there")
    parser.add_argument("--keep", action="store_true", help="keep the models for the next call")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="for results")
    parser.add_argument("--llama-bench", type=Path, metavar="PROGRAM", help="measured beside it")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each part")
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in (*PARTS, "all")]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: {', '.join(PARTS)} or all")
    return args


def main() -> int:
    args = arguments()
    memory = Path("/dev/shm")
    folder = args.folder or (memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir()))
    binaries = args.binaries
    if binaries is None or any(not (binaries / name).exists() for name in names(args.device)):
        if binaries is not None:
            say(f"{binaries} lacks some of {', '.join(names(args.device))}: building them")
        try:
            binaries = built(args.device)
        except Failed as error:
            say(f"cannot build: {error}")
            return 2
    run = Runner(args.device, args.toy, binaries.resolve(), folder / "powerinfer-gpu")
    run.llama_bench = args.llama_bench
    results = Results(args.out, args.device)
    chosen = list(PARTS) if "all" in args.parts else args.parts
    try:
        for part in chosen:
            begin = time.monotonic()
            run.deadline = begin + args.seconds
            results.begin(part)
            try:
                PARTS[part](run, results)
            except Failed as error:
                results.add(part, str(error), False)
            results.table()
            say(f"{part}: {time.monotonic() - begin:.0f} s")
            if part == "flags" and results.failures:
                say("flags do not work: nothing else is worth trying")
                break
    finally:
        if not args.keep:
            speed.forget_models(run)
    say(f"results: {args.out}/results.md; {results.failures} failed")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
