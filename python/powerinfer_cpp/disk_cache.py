"""A cache of states in files. They hold numbers alone: reading one runs no code."""

import hashlib
import logging
import os
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from .log import say
from .state import STATE_VERSION, BaseLlamaCache, LlamaState, common_prefix

_MAGIC = b"PISTATE\0"
# Version of the state; tokens; rows of scores, and their length; n_prompt; bytes of llama_state.
_HEADER = struct.Struct("<8s6q")
_ENDING = ".state"


class LlamaDiskCache(BaseLlamaCache):
    """States in files of a folder, which several processes may share; the least recently used are
    removed first.

    cache_dir: made if it is missing; best one for each model. capacity_bytes: limit for all files
    together. A file that is damaged, or of another version, counts as absent. A state that cannot
    be written is not kept, and a warning is logged. The state of random numbers is not kept.
    Raises OSError if there can be no folder.
    """

    def __init__(self, cache_dir: str | Path = ".cache/llama_cache", capacity_bytes: int = 2 << 30):
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ids: dict[str, np.ndarray | None] = {}  # by the names of files, which say their ids

    @property
    def cache_size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix. Raises KeyError if there is none."""
        while (path := self._longest(key)) is not None:
            state = _read(path)
            if state is not None:
                with suppress(OSError):
                    os.utime(path)
                return state
            self._ids[path.name] = None
        raise KeyError("no state begins with these tokens")

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        ids = np.asarray(key, dtype="<i4")
        name = hashlib.sha256(ids.tobytes()).hexdigest() + _ENDING
        try:
            _write(self._folder / name, state)
        except OSError as error:
            why = f"{self._folder}: a state was not kept: {error.strerror}"
            say(why, verbose=False, level=logging.WARNING)
            return
        self._ids[name] = ids
        files = sorted(self._files(), key=lambda file: file[2])
        total = sum(size for _, size, _ in files)
        while total > self.capacity_bytes:
            path, size, _ = files.pop(0)
            path.unlink(missing_ok=True)
            total -= size

    def _files(self) -> list[tuple[Path, int, int]]:
        """Files with their sizes and times of use."""
        found = []
        for path in self._folder.glob(f"*{_ENDING}"):
            with suppress(OSError):  # another process may remove it
                about = path.stat()
                found.append((path, about.st_size, about.st_mtime_ns))
        return found

    def _longest(self, key: Sequence[int]) -> Path | None:
        """The file with the longest common prefix with `key`; None if there is none."""
        wanted, best, most = np.asarray(key), None, 0
        for path, _, _ in self._files():
            if path.name not in self._ids:
                self._ids[path.name] = _read_ids(path)
            ids = self._ids[path.name]
            n = 0 if ids is None else common_prefix(wanted, ids)
            if n > most:
                best, most = path, n
        return best


def _write(path: Path, state: LlamaState) -> None:
    """Writes a file at once: other processes see all of it or nothing."""
    scores = np.asarray(state.scores, dtype="<f4")
    sizes = (state.version, state.n_tokens, *scores.shape, state.n_prompt, state.llama_state_size)
    handle, made = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_HEADER.pack(_MAGIC, *sizes))
            file.write(np.asarray(state.input_ids, dtype="<i4").tobytes())
            file.write(np.asarray(state.generated, dtype=np.uint8).tobytes())
            file.write(scores.tobytes())
            file.write(state.llama_state)
        os.replace(made, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(made)
        raise


def _sizes(data: bytes, size: int) -> tuple[int, int, int, int, int] | None:
    """Tokens, rows of scores, their length, n_prompt and bytes of llama_state.

    data: the header, or more. size: of the file. None if they contradict each other.
    """
    if len(data) < _HEADER.size:
        return None
    magic, version, n, rows, columns, n_prompt, n_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != STATE_VERSION or min(n, rows, columns, n_prompt, n_bytes) < 0:
        return None
    if _HEADER.size + 5 * n + 4 * rows * columns + n_bytes != size:
        return None
    return n, rows, columns, n_prompt, n_bytes


def _read_ids(path: Path) -> np.ndarray | None:
    """The ids of a file; None if it is damaged."""
    try:
        with path.open("rb") as file:
            sizes = _sizes(file.read(_HEADER.size), os.fstat(file.fileno()).st_size)
            return None if sizes is None else np.frombuffer(file.read(4 * sizes[0]), dtype="<i4")
    except (OSError, ValueError):
        return None


def _read(path: Path) -> LlamaState | None:
    """The state of a file; None if it is damaged, or gone."""
    try:
        data = path.read_bytes()
        sizes = _sizes(data, len(data))
        if sizes is None:
            return None
        n, rows, columns, n_prompt, n_bytes = sizes
        ids = np.frombuffer(data, "<i4", n, _HEADER.size).astype(np.intc)
        at = _HEADER.size + 4 * n
        generated = np.frombuffer(data, np.uint8, n, at).astype(bool)
        scores = np.frombuffer(data, "<f4", rows * columns, at + n).reshape(rows, columns)
    except (OSError, ValueError):
        return None
    kept = data[len(data) - n_bytes :]
    version = STATE_VERSION
    return LlamaState(
        ids, scores.astype(np.float32), n, kept, n_bytes, generated, n_prompt, version=version
    )
