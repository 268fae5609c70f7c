#!/usr/bin/env python3
"""Convert a Hugging Face folder to a GGUF: the same as `powerinfer convert`.

python convert.py [--outfile F] [--outtype f16] MODEL [PREDICTOR_DIR]
"""

import sys

try:
    from powerinfer_cpp.cli import main
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("powerinfer_cpp"):
        raise
    sys.exit("convert.py: error: powerinfer_cpp is not installed: run `pip install .` here first")

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
