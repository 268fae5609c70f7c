#!/usr/bin/env python3
"""Make the default model from its Hugging Face checkpoint.

  python models/make.py CHECKPOINT_FOLDER

Writes stories-relu.Q8_0.gguf beside this script and copies the checkpoint's tokenizer.model.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from powerinfer_cpp.cli import main

HERE = Path(__file__).resolve().parent


def make(checkpoint: Path) -> int:
    out = HERE / "stories-relu.Q8_0.gguf"
    status = main(["convert", "--outtype", "q8_0", "--outfile", str(out), str(checkpoint)])
    if status == 0:
        shutil.copyfile(checkpoint / "tokenizer.model", HERE / "tokenizer.model")
    return status


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(make(Path(sys.argv[1])))
