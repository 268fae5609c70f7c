"""Work that survives being killed: a small file beside the output, replaced as a whole."""

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

_SECONDS = 20.0  # between two savings


class State:
    """Arrays and what they belong to, at OUT.state.

    identity: what must be equal for a saved state to be of use. log: gets a line when one is found.
    """

    def __init__(self, target: Path, identity: dict[str, Any], log: Any):
        self._path = target.with_name(target.name + ".state")
        self._identity = json.dumps(identity, sort_keys=True)
        self._saved = time.monotonic()
        self._log = log

    def load(self) -> dict[str, np.ndarray] | None:
        """What was saved; None where nothing was, or by other work."""
        if not self._path.exists():
            return None
        try:
            with np.load(self._path, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
            same = str(found.pop("identity")) == self._identity
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            self._log(f"{self._path}: cannot be read ({error}); starting anew")
            return None
        if not same:
            self._log(f"{self._path}: is of other work; starting anew")
            return None
        return found

    def save(self, arrays: dict[str, Any], at_once: bool = False) -> None:
        """Saves, unless that was done a moment ago. Raises OSError."""
        if not at_once and time.monotonic() - self._saved < _SECONDS:
            return
        with replacing(self._path, 0) as part, part.open("wb") as file:
            np.savez(file, identity=np.array(self._identity), **arrays)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """The work is done."""
        self._path.unlink(missing_ok=True)
        clear(self._path)  # of a process that was killed while it saved


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder OUT.scratch for files that are needed on the way. Where work was killed it stays,
    and the work that takes it up clears it. Raises ValueError where it is another's, or in use."""
    folder = target.with_name(target.name + ".scratch")
    mark = folder / "powerinfer"
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: exists, and is no work of profile")
    folder.mkdir(exist_ok=True)
    with alone(mark):
        try:
            yield folder
        finally:
            for path in folder.iterdir():
                if path != mark:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            mark.unlink()  # last: without it the rest would be taken for a stranger's
            folder.rmdir()
