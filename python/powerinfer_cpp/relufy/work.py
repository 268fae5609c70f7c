"""The folder OUT.relufy of unfinished work: what work it is, and the state of its training."""

import hashlib
import json
import pickle
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..convert.checkpoint import open_checkpoint
from ..convert.writer import alone, replacing

_SECONDS = 20.0  # at least between two saves
_SHARE = 20  # and so many times as long as a save takes


def identity_of(folder: Path) -> str:
    """A digest of a checkpoint: its config.json, and the first bytes of its tensors."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for name, weight in sorted(open_checkpoint(folder).items()):
        digest.update(f"{name} {weight.shape}\n".encode())
        digest.update(weight.stored().reshape(-1)[:1024].tobytes())
    return digest.hexdigest()


@contextmanager
def work_folder(out: Path, identity: dict[str, Any]) -> Iterator[Path]:
    """OUT.relufy, made or found, and locked. It goes when the work ends, and stays after an error
    once it holds a state.

    identity: JSON values by the names of options. Raises ValueError for a folder of other work.
    """
    folder = out.with_name(out.name + ".relufy")
    mark = folder / "identity.json"
    if not mark.exists() and folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: exists, and is no work of relufy")
    folder.mkdir(exist_ok=True)
    with alone(mark):
        if (folder / "state.pt").exists():
            before = json.loads(mark.read_text())
            if other := [name for name in identity if before.get(name) != identity[name]]:
                raise ValueError(
                    f"{folder}: holds unfinished work with another {', '.join(other)}: finish it "
                    "as it began, or remove the folder"
                )
        else:
            mark.write_text(json.dumps(identity))
        try:
            yield folder
        except BaseException:
            if not (folder / "state.pt").exists():
                _remove(folder, mark)
            raise
        _remove(folder, mark)


def _remove(folder: Path, mark: Path) -> None:
    """The state goes first: without it the rest is nothing to continue from."""
    (folder / "state.pt").unlink(missing_ok=True)
    for path in folder.iterdir():
        if path != mark:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    mark.unlink()
    folder.rmdir()


class State:
    """The state of a training in a folder, replaced as a whole now and then. n_bytes: about its
    size."""

    def __init__(self, folder: Path, n_bytes: int):
        self._path, self._n_bytes = folder / "state.pt", n_bytes
        self._next = time.monotonic() + _SECONDS

    def load(self, device: str) -> dict[str, Any] | None:
        """What was saved last, or None. Raises ValueError if it is damaged."""
        import torch

        if not self._path.exists():
            return None
        try:
            return torch.load(self._path, map_location=device, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).split("\n", 1)[0]
            raise ValueError(f"{self._path}: damaged ({reason}): remove its folder") from None

    def save(self, values: dict[str, Any]) -> None:
        """Saves, unless the last save was recent. Raises OSError."""
        import torch

        began = time.monotonic()
        if began < self._next:
            return
        with replacing(self._path, self._n_bytes) as part:
            torch.save(values, part)
        ended = time.monotonic()
        self._next = ended + max(_SECONDS, _SHARE * (ended - began))
