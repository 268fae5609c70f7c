"""Saved state of interrupted work: a small file beside the output, replaced as a whole."""

import json
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.writer import alone, clear, replacing

_SECONDS = 20.0  # between two saves


class State:
    """Arrays and the identity of their work, in OUT.state.

    identity: must equal that of a saved state to use it. log: called with a line if one is found.
    """

    def __init__(self, target: Path, identity: dict[str, Any], log: Any):
        self._path = target.with_name(target.name + ".state")
        self._identity = json.dumps(identity, sort_keys=True)
        self._saved = time.monotonic()
        self._log = log

    def load(self) -> dict[str, np.ndarray] | None:
        """The saved arrays; None if there are none, or if they belong to other work."""
        if not self._path.exists():
            return None
        try:
            with np.load(self._path, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
            same = str(found.pop("identity")) == self._identity
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            self._log(f"{self._path}: cannot be read ({error}); starting from the beginning")
            return None
        if not same:
            self._log(f"{self._path}: belongs to other work; starting from the beginning")
            return None
        return found

    def save(self, arrays: dict[str, Any], at_once: bool = False) -> None:
        """Saves, unless the last save was recent. at_once: always save. Raises OSError."""
        if not at_once and time.monotonic() - self._saved < _SECONDS:
            return
        with replacing(self._path, 0) as part, part.open("wb") as file:
            np.savez(file, identity=np.array(self._identity), **arrays)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Removes the saved state, at the end of the work."""
        self._path.unlink(missing_ok=True)
        clear(self._path)  # partial files of processes that were killed while saving


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder OUT.scratch for temporary files. It stays if work is killed; the next run clears it.
    Raises ValueError if it is not such a folder, or is in use."""
    folder = target.with_name(target.name + ".scratch")
    mark = folder / "powerinfer"
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: exists, and is not a work folder of profile")
    folder.mkdir(exist_ok=True)
    with alone(mark):
        try:
            yield folder
        finally:
            for path in folder.iterdir():
                if path != mark:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            mark.unlink()  # last: without it the folder would not be recognised
            folder.rmdir()
