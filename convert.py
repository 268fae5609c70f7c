#!/usr/bin/env python3
"""Convert a Hugging Face folder or another GGUF to a GGUF: the same as `powerinfer convert`.

./convert.py [--outfile F] [--outtype f16] MODEL [PREDICTOR_DIR]
"""

import os
import sys
from pathlib import Path

try:
    from powerinfer_cpp.cli import main
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("powerinfer_cpp"):
        raise
    venv = Path(__file__).resolve().parent / ".venv"
    python = venv / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != venv.resolve():
        os.execv(python, [str(python), __file__, *sys.argv[1:]])  # where ./run installs it
    sys.exit("convert.py: error: powerinfer_cpp is not installed: run ./run here first")

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
