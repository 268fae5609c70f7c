#!/usr/bin/env bash
# Speed and quality of a model beside other engines that read GGUF, and of a sparse model beside the
# same weights computed in full: one table. --help lists the options.
#   scripts/real.sh MODEL [--text F] [--peers NAME=LLAMA-BENCH ...] [--out TABLE.md]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
python=$here/.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$here/scripts/real" "$@"
