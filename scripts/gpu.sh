#!/usr/bin/env bash
# Correctness, then speed, of a build on a GPU. Each part takes at most 9 minutes; nothing is
# downloaded. docs/gpu.md describes the parts.
#   scripts/gpu.sh [--binaries FOLDER] [--folder /dev/shm] [--out build/gpu] PART... | all
#   scripts/gpu.sh --device simt --toy all      # everything at toy size, without a GPU
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
[ -x $python ] || python=python3
exec "$python" scripts/gpu "$@"
