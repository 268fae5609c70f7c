#!/usr/bin/env python3
"""Make a model of this folder from its Hugging Face checkpoint and its training text.

  python models/make.py stories-relu|stories-relu2 CHECKPOINT_FOLDER STORIES

Writes NAME.Q8_0.gguf beside this script and copies the checkpoint's tokenizer.model. STORIES are
separated by <|endoftext|>. stories-relu needs torch, and about a quarter of an hour on two cores.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from powerinfer_cpp.cli import main

HERE = Path(__file__).resolve().parent
LEARNING = {
    # Eight epochs were no better than three; in a model this small Q8_0 would cost more than it
    # gains.
    "stories-relu": ["--epochs", "3", "--predictor-type", "Q4_0", "--target", "0.2%"],
    "stories-relu2": ["--kind", "sketch", "--target", "0.2%"],
}


def make(name: str, checkpoint: Path, stories: Path) -> int:
    out = HERE / f"{name}.Q8_0.gguf"
    text = ["--text", str(stories), "--separator", "<|endoftext|>", "-c", "256"]
    folder = HERE / f"{name}.parts"  # kept after a kill, and reused
    folder.mkdir(exist_ok=True)
    dense, neurons, profiled = (
        str(folder / f"{part}.gguf") for part in ("dense", "neurons", "profiled")
    )
    steps = (
        ["convert", "--outfile", dense, str(checkpoint)],
        # In F16 ffn_down is transposed without loss, and every weight is rounded once.
        ["convert", "--outtype", "q8_0", "--outfile", neurons, dense],
        ["profile", neurons, *text, "--tokens", "200000", "--out", profiled],
        ["train-predictor", profiled, *text, *LEARNING[name], "--out", str(out)],
    )
    for step in steps:
        if status := main(step):
            return status
    shutil.rmtree(folder)
    shutil.copyfile(checkpoint / "tokenizer.model", HERE / "tokenizer.model")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in LEARNING:
        sys.exit(__doc__)
    sys.exit(make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
