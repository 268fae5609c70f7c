"""Files with parts of prompts' keys and values, by names that say what they hold.

A file is a part of a sequence (`Session.save_part`) with a checksum. Its name is a hash over all
that its values depend on: whose it is, the model and options, and every id up to its end. So a name
that is found is the right one, and equal beginnings are kept once.
"""

import contextlib
import errno
import hashlib
import logging
import os
import secrets
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..core.log import say
from .disk_cache import remove_abandoned, write_at_once
from .own_files import open_file, own_folder

_MAGIC = b"PIprefx1"
_HEADER = struct.Struct("<8s32sQI")  # magic; name; bytes that follow, and their CRC-32
_ENDING, _SALT = ".prefix", "salt"
_KEY_ROUNDS = 100_000  # of PBKDF2: 30 ms for a key, and for each guess of one
_WHOLE = 0.95  # of the capacity that is left when files have to go
QUIET_SECONDS = 60.0  # without a try after a file could not be written


class PrefixFiles:
    """Files below a folder, which several processes may share; the least recently used are removed
    first. Any thread may call the methods.

    capacity_bytes: of all files together. What is damaged, or belongs to another model, counts as
    absent. Where nothing can be read or written, a warning is logged and there are no files. What a
    process left that was killed while it wrote is removed. Only this user can read them. verbose:
    warnings are lines on stderr, too.
    """

    def __init__(self, folder: str | Path, capacity_bytes: int, verbose: bool = False):
        # Below the folder that was named, which may be one that others use as well.
        self.folder, self.capacity_bytes = Path(folder) / "prefixes", capacity_bytes
        self._verbose = verbose
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._total = 0
        self._quiet_until = 0.0
        self._salt = b""
        self._keys: dict[bytes, bytes] = {}
        try:
            self._place = own_folder(self.folder)
            self._salt = self._own_salt()
        except OSError as error:
            self.warn(f"{self.folder}: prompts are not kept there: {error.strerror}")
            self._quiet_until = float("inf")
            return
        remove_abandoned(self.folder)
        self._list()

    def root(self, key: bytes, identity: bytes) -> bytes:
        """Where the chain of names begins: for an API key, and for what a model computes."""
        with self._lock:
            if key not in self._keys:
                # Names must not tell the key, not even to one who tries many.
                self._keys[key] = hashlib.pbkdf2_hmac("sha256", key, self._salt, _KEY_ROUNDS)
            return hashlib.sha256(self._keys[key] + identity).digest()

    def has(self, name: str, listed: bool = False) -> bool:
        """Is there such a file? listed: only look where no disk is asked."""
        with self._lock:
            if name in self._sizes:
                return True
        if listed or not self._salt:
            return False
        try:
            size = self._path(name).stat().st_size  # another process may have written it
        except OSError:
            return False
        self._add(name, size)
        return True

    def read(self, name: str) -> memoryview | None:
        """What a file holds; None if it is gone or damaged, and then it is removed."""
        try:
            with open_file(self._path(name), own=True) as file:
                data = file.read(self.capacity_bytes + 1)
        except FileNotFoundError:
            self.remove(name, gone=True)
            return None
        except (OSError, MemoryError):
            self.remove(name)
            return None
        if len(data) >= _HEADER.size:
            magic, named, n_bytes, checksum = _HEADER.unpack_from(data)
            found = memoryview(data)[_HEADER.size :]
            same = (magic, named.hex(), n_bytes) == (_MAGIC, name, len(found))
            if same and zlib.crc32(found) == checksum:
                return found
        self.remove(name)
        return None

    def write(self, name: str, data: bytes | bytearray) -> bool:
        """Keeps a file, and removes others if the capacity requires it. Is it there now?"""
        size = _HEADER.size + len(data)
        if size > self.capacity_bytes or time.monotonic() < self._quiet_until:
            return False
        head = _HEADER.pack(_MAGIC, bytes.fromhex(name), len(data), zlib.crc32(data))
        try:
            self._make_room(size)
            if own_folder(self.folder) != self._place:
                raise OSError(errno.ESTALE, "another folder is there now")
            write_at_once(self._path(name), lambda file: file.writelines((head, data)))
        except OSError as error:
            self.warn(f"{self.folder}: a prompt was not kept: {error.strerror}")
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            return False
        self._stamp(name, time.time_ns())
        self._add(name, size)
        return True

    def use(self, names: Sequence[str]) -> None:
        """Says that a chain of files is used: its end is removed before its beginning."""
        now = time.time_ns()
        for i, name in enumerate(reversed(names)):
            with self._lock:
                if name not in self._sizes:
                    continue
                self._sizes.move_to_end(name)
            self._stamp(name, now + i)

    def remove(self, name: str, gone: bool = False) -> None:
        """Forgets a file, and removes it unless it is gone."""
        with self._lock:
            self._total -= self._sizes.pop(name, 0)
        if not gone:
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files, as far as this process knows them."""
        return self._total

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"

    def _stamp(self, name: str, now: int) -> None:
        """Sets a file's time of use, more finely than a file system does by itself."""
        with contextlib.suppress(OSError):
            os.utime(self._path(name), ns=(now, now))

    def _add(self, name: str, size: int) -> None:
        with self._lock:
            self._total += size - self._sizes.pop(name, 0)
            self._sizes[name] = size

    def _make_room(self, size: int) -> None:
        if self._total + size <= self.capacity_bytes:
            return
        self._list()  # others may have written and removed files
        with self._lock:
            left = int(_WHOLE * self.capacity_bytes) - size
            gone: list[str] = []
            while self._sizes and self._total > max(0, left):
                name, n_bytes = self._sizes.popitem(last=False)
                self._total -= n_bytes
                gone.append(name)
        for name in gone:
            with contextlib.suppress(OSError):
                self._path(name).unlink(missing_ok=True)

    def _list(self) -> None:
        """Reads which files there are."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(_ENDING)
                if name != entry.name and len(name) == 64:
                    with contextlib.suppress(OSError):
                        about = entry.stat()
                        found.append((about.st_mtime_ns, name, about.st_size))
        with self._lock:
            known = {name: i for i, name in enumerate(self._sizes)}
            found.sort(key=lambda file: (file[0], known.get(file[1], -1)))
            self._sizes = OrderedDict((name, size) for _, name, size in found)
            self._total = sum(self._sizes.values())

    def _own_salt(self) -> bytes:
        """Bytes that are this folder's own. Raises OSError."""
        path = self.folder / _SALT
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                with open_file(path, own=True) as file:
                    found = file.read(33)
                if len(found) == 32:
                    return found
                path.unlink()  # damaged: what was named with it is foreign now
            write_at_once(path, lambda file: file.write(secrets.token_bytes(32)))
        with open_file(path, own=True) as file:
            return file.read()

    def warn(self, text: str) -> None:
        """Tells that something was not kept or read."""
        say(text, self._verbose, logging.WARNING)


def chain(root: bytes, parts: Iterable[bytes]) -> list[str]:
    """Names of parts, one after another: each says all parts up to its own."""
    names, digest = [], root
    for part in parts:
        digest = hashlib.sha256(digest + part).digest()
        names.append(digest.hex())
    return names
