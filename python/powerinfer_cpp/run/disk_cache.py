"""A cache of states in files. They hold numbers alone: reading one runs no code."""

import hashlib
import logging
import os
import re
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np

from ..core.log import say
from ..core.state import NUMERICS, STATE_VERSION, BaseLlamaCache, LlamaState, common_prefix
from .own_files import open_file

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_MAGIC = b"PISTATE\1"
# Version of the state; tokens; rows of scores, and their length; n_prompt; bytes of llama_state;
# whether it is whole; numerics.
_HEADER = struct.Struct("<8s8q")
_CHECKSUM = struct.Struct("<I")  # CRC-32 of all before it, at the end
_ENDING, _PARTIAL = ".state", ".partial"
_NAME = re.compile(r"[0-9a-f]{64}\.state")
_OWN = "powerinfer-states"  # the folder in the user's, which nothing else has files in
_ABANDONED_S = 3600.0  # age of an unfinished file from which its writer counts as dead, unasked

_Stamp = tuple[int, int]  # size and time of use of a file


class LlamaDiskCache(BaseLlamaCache):
    """States in files of a folder, which several processes may share; the least recently used are
    removed first.

    cache_dir: made if it is missing; best one for each model. The files are in its folder
    `powerinfer-states`, others are never touched; those of earlier versions are moved there.
    capacity_bytes: limit for all files together. A file that is damaged, or of another version,
    counts as absent, and so does one that another process removes; of a damaged one, and of a state
    that cannot be written and is not kept, a warning is logged. What a process left that was killed
    while it wrote is removed. The state of random numbers is not kept. Raises OSError if there can
    be no folder.
    """

    def __init__(self, cache_dir: str | Path = ".cache/llama_cache", capacity_bytes: int = 2 << 30):
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir) / _OWN
        self._folder.mkdir(parents=True, exist_ok=True)
        _move_older(Path(cache_dir), self._folder)
        # By names of files, which say their ids: these, or None for a file that cannot be read,
        # until it changes.
        self._ids: dict[str, tuple[_Stamp, _Known | None]] = {}
        remove_abandoned(self._folder)

    @property
    def cache_size(self) -> int:
        """Bytes of all files."""
        return sum(size for ending in (_ENDING, _PARTIAL) for _, (size, _) in self._files(ending))

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest common prefix. Raises KeyError if there is none."""
        while (found := self._longest(key)) is not None:
            path, stamp = found
            state = _read(path)
            if state is not None:
                with suppress(OSError):
                    os.utime(path)
                return state
            self._ids[path.name] = stamp, None
        raise KeyError("no state begins with these tokens")

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longest(key) is not None

    def __setitem__(self, key: Sequence[int], state: LlamaState) -> None:
        name = hashlib.sha256(np.asarray(key, dtype="<i4").tobytes()).hexdigest() + _ENDING
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # another process may remove it
            _write(self._folder / name, state)
        except OSError as error:
            why = f"{self._folder}: a state was not kept: {error.strerror}"
            say(why, verbose=False, level=logging.WARNING)
        remove_abandoned(self._folder)
        total = self.cache_size
        for path, (size, _) in sorted(self._files(_ENDING), key=lambda file: file[1][1]):
            if total <= self.capacity_bytes:
                break
            with suppress(OSError):  # gone, or in use under Windows
                path.unlink(missing_ok=True)
                total -= size

    def _files(self, ending: str) -> list[tuple[Path, _Stamp]]:
        """Files with their sizes and times of use."""
        found = []
        with suppress(OSError):  # another process may remove the folder
            for path in self._folder.glob(f"*{ending}"):
                with suppress(OSError):
                    about = path.stat()
                    found.append((path, (about.st_size, about.st_mtime_ns)))
        return found

    def _longest(self, key: Sequence[int]) -> tuple[Path, _Stamp] | None:
        """The file with the longest common prefix with `key` that its state can be continued with;
        None if there is none."""
        wanted, best, most = np.asarray(key), None, 0
        known: dict[str, tuple[_Stamp, _Known | None]] = {}  # without files that are gone
        for path, stamp in self._files(_ENDING):
            before, found = self._ids.get(path.name, (None, None))
            # A name stands for the same ids: a file that can be read, and is as long, still can.
            changed = before is None or before[0] != stamp[0] or (found is None and before != stamp)
            if changed:
                found = _read_known(path)
            known[path.name] = stamp, found
            n = 0 if found is None else found.common(wanted)
            if n > most:
                best, most = (path, stamp), n
        self._ids = known
        return best


def _write(path: Path, state: LlamaState) -> None:
    scores = np.asarray(state.scores, dtype="<f4")
    sizes = (state.version, state.n_tokens, *scores.shape, state.n_prompt, state.llama_state_size)

    def write(file: BinaryIO) -> None:
        checksum = 0
        for part in (
            _HEADER.pack(_MAGIC, *sizes, state.whole, state.numerics),
            np.asarray(state.input_ids, dtype="<i4").tobytes(),
            np.asarray(state.generated, dtype=np.uint8).tobytes(),
            scores.tobytes(),
            state.llama_state,
        ):
            file.write(part)
            checksum = zlib.crc32(part, checksum)
        file.write(_CHECKSUM.pack(checksum))

    write_at_once(path, write)


def _move_older(folder: Path, own: Path) -> None:
    """Moves states that lie in the user's folder itself, where earlier versions kept them."""
    with suppress(OSError):
        for path in folder.glob(f"*{_ENDING}"):
            with suppress(OSError):
                if _NAME.fullmatch(path.name) and _is_state(path):
                    path.replace(own / path.name)


def _is_state(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(len(_MAGIC) - 1) == _MAGIC[:-1]


def write_at_once(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A file that write() fills: other processes see all of it or nothing, also after the machine
    has lost its power. Raises OSError, and leaves nothing then."""
    file, made = _new_partial(path.parent)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # before the name: a file system may store that first
            if fcntl is not None:  # while the file is locked
                os.replace(made, path)
        if fcntl is None:  # Windows does not rename open files
            os.replace(made, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(made)
        raise


def _new_partial(folder: Path) -> tuple[BinaryIO, str]:
    """A file to write, and its path. It is locked, so that it is seen whether its writer lives."""
    while True:
        handle, made = tempfile.mkstemp(suffix=_PARTIAL, dir=folder)
        file = os.fdopen(handle, "wb")
        if fcntl is None:
            return file, made
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        # Another process may have found it before it was locked.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(made)):
                return file, made
        file.close()


def remove_abandoned(folder: Path) -> None:
    """Removes what writers left that do not live any more."""
    with suppress(OSError):
        for path in folder.glob(f"*{_PARTIAL}"):
            with suppress(OSError):
                if fcntl is None or _is_abandoned(path):
                    path.unlink()  # which fails under Windows while its writer has it open


def _is_abandoned(path: Path) -> bool:
    with open_file(path) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED_S
        return True


class _Damaged(ValueError):
    """What a file of this version says of itself is not so."""


def _sizes(data: bytes, size: int) -> tuple[int, int, int, int, int, bool] | None:
    """Tokens, rows of scores, their length, n_prompt, bytes of llama_state, and whether it is
    whole; None for another version.

    data: the header, or more. size: of the file. Raises _Damaged if they contradict each other.
    """
    if len(data) < _HEADER.size:
        raise _Damaged
    magic, version, *sizes, numerics = _HEADER.unpack_from(data)
    if magic != _MAGIC or (version, numerics) != (STATE_VERSION, NUMERICS):
        return None
    n, rows, columns, n_prompt, n_bytes, whole = sizes
    wanted = _HEADER.size + 5 * n + 4 * rows * columns + n_bytes + _CHECKSUM.size
    if min(sizes) < 0 or wanted != size:
        raise _Damaged
    return n, rows, columns, n_prompt, n_bytes, bool(whole)


def _not_used(path: Path) -> None:
    say(f"{path}: the state is damaged and not used", verbose=False, level=logging.WARNING)


@dataclass(frozen=True)
class _Known:
    """What is known of a file: its ids, and whether its state is whole."""

    ids: np.ndarray
    whole: bool

    def common(self, wanted: np.ndarray) -> int:
        """Length of the common prefix with which the state can be continued."""
        n = common_prefix(wanted, self.ids)
        return n if n == len(self.ids) or not self.whole else 0


def _read_known(path: Path) -> _Known | None:
    """What is known of a file; None if it is damaged, gone or of another version."""
    try:
        with open_file(path) as file:
            sizes = _sizes(file.read(_HEADER.size), os.fstat(file.fileno()).st_size)
            if sizes is None:
                return None
            return _Known(np.frombuffer(file.read(4 * sizes[0]), dtype="<i4"), sizes[-1])
    except _Damaged:
        _not_used(path)
    except (OSError, ValueError):
        pass
    return None


def _read(path: Path) -> LlamaState | None:
    """The state of a file; None if it is damaged, gone or of another version."""
    try:
        with open_file(path) as file:
            data = file.read()
        sizes = _sizes(data, len(data))
        if sizes is None:
            return None
        content = memoryview(data)[: -_CHECKSUM.size]
        if _CHECKSUM.pack(zlib.crc32(content)) != data[len(content) :]:
            raise _Damaged
        n, rows, columns, n_prompt, n_bytes, whole = sizes
        ids = np.frombuffer(data, "<i4", n, _HEADER.size).astype(np.intc)
        at = _HEADER.size + 4 * n
        generated = np.frombuffer(data, np.uint8, n, at).astype(bool)
        scores = np.frombuffer(data, "<f4", rows * columns, at + n).reshape(rows, columns)
    except _Damaged:
        _not_used(path)
        return None
    except (OSError, ValueError):
        return None
    kept = data[len(content) - n_bytes : len(content)]
    return LlamaState(
        ids,
        scores.astype(np.float32),
        n,
        kept,
        n_bytes,
        generated,
        n_prompt,
        whole,
        version=STATE_VERSION,
        numerics=NUMERICS,
    )
