"""Prompts on disk: what was computed of them is written beside the engine's work, and read back for
a later prompt that begins in the same way, also after a restart.

Sequences are cut into blocks of positions. The engine's thread only copies some blocks at a time
between two steps; a thread of its own writes files, and the thread of a request reads them.

Where layers have a state, a later prompt can go on only behind a block at whose end it is known.
The file of such a block has another name, and the state as well.
"""

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..core.errors import ContextOverflowError, ModelFormatError
from ..core.model import Model
from ..core.session import Session
from .engine import Engine, EngineDead
from .prefix_files import PrefixFiles, chain
from .sequences import PAGE, Sequences

BLOCK = PAGE  # positions of a file
PIECE_BYTES = 8 << 20  # that the engine's thread copies between two steps
# Sequences that wait until they are written; where each takes memory for states of layers.
N_PINS, N_PINS_WITH_STATES = 8, 2
PIN_SHARE = 4  # all but one of them hold at most this part of all positions
CLOSE_SECONDS = 5.0  # for what is not written yet when a model is closed
_PIECES = 3  # that are in memory at once: one is written, and one is read while another is loaded


def room_for(position_bytes: int, state_bytes: int) -> int:
    """Bytes of memory that `Prefixes` takes; position_bytes: of one position in the cache;
    state_bytes: of a sequence's states."""
    return _PIECES * (_per_piece(position_bytes) * BLOCK * position_bytes + state_bytes)


def _per_piece(position_bytes: int) -> int:
    return max(1, PIECE_BYTES // max(1, BLOCK * position_bytes))


@dataclass
class _Job:
    """A sequence whose blocks are to be written. files: where to; missing: numbers of those. ids,
    generated: its positions."""

    pin: int
    names: list[str]
    files: list[str]
    missing: list[int]
    ids: np.ndarray
    generated: np.ndarray
    dropped: bool = False


@dataclass
class Counts:
    """Positions that were written and read."""

    n_written: int = 0
    n_read: int = 0


@dataclass
class _Residents:
    """Behind which blocks sequences in memory can go on, by files; as far as it is known."""

    of: dict[int, frozenset[str]] = field(default_factory=dict)

    def n_leading(self, files: Sequence[str]) -> int:
        """Behind how many of the first of these blocks one of them can go on."""
        every = list(self.of.values())  # other threads change it
        held = (i + 1 for i, file in enumerate(files) if any(file in of for of in every))
        return max(held, default=0)


class Prefixes:
    """Keeps prefixes of a scheduler's sequences in files.

    identity: what results depend on. key: of an owner, whose files only that owner finds. masked:
    do generated tokens differ from those of a prompt? pins: sequences of the session that nobody
    else uses. n_kv: positions of all sequences; position_bytes: of one; state_bytes: of a
    sequence's states. Raises OutOfMemoryError if the model's budget has no room for the pieces that
    are written and read.
    """

    step = BLOCK

    def __init__(
        self,
        files: PrefixFiles,
        model: Model,
        session: Session,
        identity: bytes,
        key: Callable[[str], bytes],
        masked: bool,
        pins: Sequence[int],
        n_kv: int,
        position_bytes: int,
        state_bytes: int,
    ):
        self._files, self._session, self._key, self._masked = files, session, key, masked
        self._identity = hashlib.sha256(identity).digest()
        self._free, self._most_pinned = list(pins), n_kv // PIN_SHARE
        self._roots: dict[str, bytes] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pinned: dict[int, _Job] = {}  # by sequence; oldest first
        self._residents = _Residents()
        self._recalling = threading.Lock()
        self._closing = False
        self.counts = Counts()
        self._per_piece = _per_piece(position_bytes)
        # Where sequences cannot be cut everywhere, files say behind which blocks they can go on.
        self._has_windows = model.has_windows
        self._has_ends = model.has_states or model.has_windows
        room = room_for(position_bytes, state_bytes)
        self._reserved = model.reserve("prompts on their way to the disk and back", room)
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine, sequences: Sequences) -> None:
        """Begins to write. sequences: what `Scheduler.keep_with` gave."""
        self._engine, self._sequences = engine, sequences
        self._thread = threading.Thread(target=self._write, name="prompts to disk", daemon=True)
        self._thread.start()

    # ---- In the engine's thread --------------------------------------------------------------

    def computed(self, owner: str, seq: int, ids: np.ndarray, generated: np.ndarray) -> None:
        """Keeps int32 ids [n], which a sequence has computed, unless files or jobs have them.
        generated: bool [n]."""
        try:
            self._keep(owner, seq, ids, generated)
        except (MemoryError, ValueError, RuntimeError) as error:  # the text goes on
            self._files.warn(f"a prompt was not kept: {error}")

    def _keep(self, owner: str, seq: int, ids: np.ndarray, generated: np.ndarray) -> None:
        n_blocks = self._n_blocks(seq, ids, generated)
        names = self.names(owner, ids[: BLOCK * n_blocks], generated)
        if not names:
            return
        files = self._files_of(seq, names, ids, generated)
        self._residents.of[seq] = self._ends(names, files)
        waiting = {name for job in self._pinned.values() for name in job.files}
        missing = [
            i
            for i, name in enumerate(files)
            if name not in waiting and not self._files.has(name, listed=True)
        ]
        if not missing or not self._free or self._closing:
            return
        # A text that goes on from what waits has the same pages.
        same = any(job.names == names[: len(job.names)] for job in self._pinned.values())
        pinned = {name for job in self._pinned.values() for name in job.names}
        n_held = BLOCK * len(pinned.union(names))
        if self._pinned and not same and n_held > self._most_pinned:
            return  # it may have its turn when the text ends
        known = slice(BLOCK * n_blocks)
        of = ids[known].copy(), generated[known].copy()
        job = _Job(self._free.pop(), names, files, missing, *of)
        self._session.copy(seq, job.pin, BLOCK * len(names))
        self._session.rest(job.pin)
        self._pinned[job.pin] = job
        self._jobs.put(job)

    def _n_blocks(self, seq: int, ids: np.ndarray, generated: np.ndarray) -> int:
        """The most blocks behind which a sequence can go on, of int32 ids [n]; generated:
        bool [n]."""
        n = len(ids) // BLOCK
        while n:
            known = slice(BLOCK * n)
            same = self._session.match(ids[known], generated[known], seq)
            if same == BLOCK * n:
                break
            n = same // BLOCK
        return n

    def _files_of(
        self, seq: int, names: Sequence[str], ids: np.ndarray, generated: np.ndarray
    ) -> list[str]:
        """The files of a sequence's blocks, by where it can go on."""
        if not self._has_ends:
            return list(names)
        files, n = list(names), len(names)
        first = self._session.first_cut(seq)
        while n := n if BLOCK * n >= first else self._known(seq, ids, generated, n):
            n -= 1
            files[n] = self._end(names[n])
        return files

    def _known(self, seq: int, ids: np.ndarray, generated: np.ndarray, n: int) -> int:
        return self._n_blocks(seq, ids[: BLOCK * n], generated[: BLOCK * n])

    def gone(self, seq: int) -> None:
        """A sequence holds nothing any more."""
        self._residents.of.pop(seq, None)

    def release(self) -> bool:
        """Gives up what waits longest to be written, since its positions are needed. Was there
        anything?"""
        for job in list(self._pinned.values()):
            self._unpin(job)
            return True
        return False

    def _unpin(self, job: _Job) -> None:
        if not job.dropped:
            job.dropped = True
            self._session.truncate(0, job.pin)
            del self._pinned[job.pin]
            self._free.append(job.pin)

    # ---- In threads of requests --------------------------------------------------------------

    def wanted(self, owner: str, ids: Sequence[int]) -> list[str]:
        """Names of the blocks with which these ids begin, of those that files have; none if memory
        has them all."""
        prompt = np.asarray(ids, dtype=np.int32)[: len(ids) - 1]  # the last one is computed
        names = self.names(owner, prompt, np.zeros(len(prompt), bool))
        known = found = self._residents.n_leading(list(map(self._end, names)))
        for i in range(known, len(names)):
            if self._files.has(self._end(names[i])):
                found = i + 1
            elif not self._files.has(names[i]):
                break
        return names[:found] if found > known else []

    def recall(
        self, owner: str, ids: Sequence[int], names: Sequence[str], sender: str = ""
    ) -> None:
        """Loads what `wanted` has found into a sequence, beyond what memory has. One at a time.
        sender: who keeps it."""
        with self._recalling, suppress(EngineDead):
            if self._residents.n_leading(list(map(self._end, names))) == len(names):
                return
            try:
                self._recall(owner, np.asarray(ids, dtype=np.int32), names, sender)
            except (MemoryError, ValueError, OSError, RuntimeError) as error:  # it is computed
                self._files.warn(f"a prompt was not read from disk: {error}")

    def _recall(self, owner: str, ids: np.ndarray, names: Sequence[str], sender: str) -> None:
        prefix = ids[: BLOCK * len(names) + 1]
        flags = np.zeros(len(prefix), bool)

        def begin() -> tuple[int, int] | None:
            if not self._sequences.has_room:
                return None
            seq, n = self._sequences.take(owner, prefix, flags, sender)
            try:
                return seq, self._cut(seq, prefix[:n])
            except BaseException:
                self._sequences.leave(seq, 0)
                raise

        def load(parts: Sequence[memoryview]) -> tuple[int, bool]:
            """How many of them could be loaded, and whether the next one is bad."""
            for i, part in enumerate(parts):
                while self._session.free_positions() < BLOCK:
                    if not self._sequences.forget_one():
                        return i, False
                try:
                    self._session.load_part(seq, part)
                except (ModelFormatError, ContextOverflowError) as error:
                    return i, isinstance(error, ModelFormatError)
            return len(parts), False

        begun = self._engine.call(begin)
        if begun is None:
            return
        seq, at = begun
        # Windows need the blocks before the last one whole, too; of states that one alone, and the
        # files of others are smaller without.
        files = [self._file(name) for name in names[:-1]]
        files.append(self._end(names[-1]))
        try:
            while at < len(files):
                piece = files[at : at + self._per_piece]
                parts = list(_parts(self._files, piece))
                n, bad = self._engine.call(partial(load, parts)) if parts else (0, False)
                self.counts.n_read += BLOCK * n
                at += n
                for name in files[at:] if bad else ():  # what follows is of the same kind
                    self._files.remove(name)
                if n < len(piece):
                    break
        finally:

            def end() -> None:
                n = 0
                try:
                    n = self._cut(seq, prefix[: BLOCK * at])
                    held = self._files_of(seq, names[:n], prefix, flags)
                    self._residents.of[seq] = self._ends(names[:n], held)
                finally:
                    self._sequences.leave(seq, BLOCK * n)

            self._engine.call(end)
        self._files.use(files[:at])

    def _cut(self, seq: int, prompt: np.ndarray) -> int:
        """Cuts a sequence, which has these ids of a prompt, to whole blocks; how many."""
        n = self._n_blocks(seq, prompt, np.zeros(len(prompt), bool))
        self._session.truncate(BLOCK * n, seq)
        return n

    # ---- In the thread that writes -----------------------------------------------------------

    def _write(self) -> None:
        # With the priority of other threads: it takes Python's lock again behind each system call,
        # and if it then waited for a processor, all that need the lock would wait with it. What
        # takes time here is in the system, or a checksum; neither holds the lock.
        try:
            while (job := self._jobs.get()) is not None:
                try:
                    self._write_job(job)
                except (MemoryError, ValueError, OSError, RuntimeError) as error:
                    self._files.warn(f"a prompt was not kept: {error}")
                self._engine.call(partial(self._unpin, job))
        except EngineDead:
            pass

    def _write_job(self, job: _Job) -> None:
        missing = [i for i in job.missing if not self._files.has(job.files[i])]

        def copied(numbers: Sequence[int]) -> list[bytearray] | None:
            if job.dropped:
                return None
            # A state may have been given up since; the last one is the sequence's own.
            job.files = self._files_of(job.pin, job.names, job.ids, job.generated)
            return [self._session.save_part(job.pin, BLOCK * i, BLOCK) for i in numbers]

        for first in range(0, len(missing), self._per_piece):
            numbers = missing[first : first + self._per_piece]
            parts = self._engine.call(partial(copied, numbers))
            for i, part in zip(numbers, parts or (), strict=False):
                if not self._files.write(job.files[i], part):
                    return
                self.counts.n_written += BLOCK
            if parts is None:
                return
        self._files.use(job.files)

    # ---- Any thread ---------------------------------------------------------------------------

    def names(self, owner: str, ids: np.ndarray, generated: np.ndarray) -> list[str]:
        """Names of the whole blocks of int32 ids [n]; generated: bool [n]."""
        n = len(ids) // BLOCK
        if not n:
            return []
        root = self._roots.get(owner)
        if root is None:
            root = self._roots[owner] = self._files.root(self._key(owner), self._identity)
        flags = generated[: n * BLOCK] if self._masked else np.zeros(n * BLOCK, bool)
        bits = np.packbits(flags.reshape(n, BLOCK), axis=1)
        blocks = np.ascontiguousarray(ids[: n * BLOCK], dtype="<i4").reshape(n, BLOCK)
        return chain(root, (a.tobytes() + b.tobytes() for a, b in zip(blocks, bits, strict=True)))

    def _end(self, name: str) -> str:
        """The file of a block behind which sequences can go on: with states, if there are any."""
        if not self._has_ends:
            return name
        return hashlib.sha256(b"with states" + bytes.fromhex(name)).hexdigest()

    def _file(self, name: str) -> str:
        """Of the files that a block before the last one may have, one that there is."""
        end = self._end(name)
        first, other = (end, name) if self._has_windows else (name, end)
        return first if self._files.has(first) else other

    def _ends(self, names: Sequence[str], files: Sequence[str]) -> frozenset[str]:
        """Those of a sequence's files behind which it can go on."""
        return frozenset(
            file for name, file in zip(names, files, strict=True) if file == self._end(name)
        )

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Writes what waits, for so many seconds; the engine must still run."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(seconds)
        self._closing = True


def _parts(files: PrefixFiles, names: Sequence[str]) -> Iterator[memoryview]:
    """What the files hold, up to the first that is absent or damaged."""
    for name in names:
        data = files.read(name)
        if data is None:
            return
        yield data
