"""The live view of a model: which neurons ran for which token, and where they are.

Of mixtures whose experts are computed as a whole, these are the units that are shown, and not their
neurons.

Frames, each 4 bytes of length (little-endian), then 1 byte of kind:
- 1, a token: uint32 number of the request, uint32 number of the token, float32 share of the model's
  units that ran, 3 float32 bytes of units read from disk, RAM and GPU; then a bit for each unit,
  layer after layer and expert after expert, without gaps, bit i % 8 of byte i / 8. Tokens that come
  faster than frames have one together, that of the last of them, so that the map shows what the
  figures say. An answer has a frame, however short it is.
- 2, tiers: a uint8 for each unit in the same order, 0 disk, 1 RAM, 2 GPU.
"""

import asyncio
import base64
import contextlib
import struct
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..run.engine import EngineDead
from ..run.requests import Ticket
from .errors import Refusal
from .served import ServedModel

FRAME_SECONDS = 1 / 15
TIERS_SECONDS = 2.0
NAMES = ("disk", "RAM", "GPU")
MOST_WATCHERS = 16  # of one client at the same time
MOST_WAITING = 64  # requests with tokens that a watcher has not been sent


class View:
    """What watchers of a model see. Neurons are recorded only while there are any. ended: there is
    nothing more to see."""

    def __init__(self, model: ServedModel):
        self._model = model
        self._lock = threading.Lock()  # the engine's thread writes, the event loop reads
        self._watchers: list[_Watcher] = []
        self._recording = self.ended = False
        self._turn = asyncio.Lock()  # one begins or ends recording at a time
        self._changes: set[asyncio.Task[None]] = set()
        self._tiers = model.units.tiers()
        self._told = time.monotonic()  # when these tiers were asked for
        self._after = self._tiers  # the last token, where every token changes them

    @property
    def live(self) -> bool:
        """Can tokens be watched?"""
        return self._model.records

    def describe(self) -> dict[str, Any]:
        """GET /view."""
        self._tiers = self._model.units.tiers()
        return {
            "layers": len(self._model.units.layer_units()),
            "unit": self._model.units.kind,
            "layer_units": self._model.units.layer_units(),
            "tiers": base64.b64encode(self._tiers.tobytes()).decode(),
            "bytes_per_unit": self._model.units.bytes_per_unit(),
            "names": NAMES,
            "live": self.live,
            "sparse": self._model.units.sparse,
            "memory": self._memory(),
        }

    def _memory(self) -> list[int]:
        """Bytes that the model takes on disk, in RAM and on the GPU."""
        plan = self._model.runtime.plan()
        return [sum(plan[tier].values()) for tier in ("storage", "ram", "gpu")]

    def check_room(self, sender: str) -> None:
        """Raises Refusal if a sender has too many watchers."""
        if sum(watcher.sender == sender for watcher in self._watchers) >= MOST_WATCHERS:
            raise Refusal(429, f"{MOST_WATCHERS} watchers of this client are there already")

    async def frames(self, owner: str, sender: str = "") -> AsyncIterator[bytes]:
        """Frames of the owner's requests, as they come. sender: who watches. Raises EngineDead."""
        if self._model.engine.error is not None:
            raise EngineDead(f"the engine has stopped: {self._model.engine.error}")
        watcher = self._join(owner, sender)
        try:
            await asyncio.shield(self._record())
            tiers = self._tiers
            yield _frame(2, tiers.tobytes())
            while not self.ended:
                await asyncio.sleep(FRAME_SECONDS)
                with self._lock:
                    ran, watcher.ran = watcher.ran, {}
                for number, each in ran.items():
                    yield await asyncio.to_thread(self._token_frame, number, each)
                now = await self._tiers_now()
                if not np.array_equal(now, tiers):
                    tiers = now
                    yield _frame(2, tiers.tobytes())
        finally:
            with self._lock:
                self._watchers.remove(watcher)
            self._record()

    def _join(self, owner: str, sender: str = "") -> "_Watcher":
        watcher = _Watcher(owner, sender)
        with self._lock:
            self._watchers.append(watcher)
        return watcher

    def _record(self) -> "asyncio.Task[None]":
        """Begins or ends recording, as somebody watches or not. A task of its own: it must not end
        half-way when a client goes away."""
        change = asyncio.ensure_future(self._agree())
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return change

    async def _agree(self) -> None:
        async with self._turn:
            wanted = bool(self._watchers)
            if wanted == self._recording:
                return
            note = self._note if wanted else None
            # A dead engine records nothing; a watcher is told by the requests that fail.
            with contextlib.suppress(EngineDead):
                await asyncio.to_thread(self._model.watch, note, self._is_watched)
            self._recording = wanted

    async def _tiers_now(self) -> np.ndarray:
        """The tiers, at most TIERS_SECONDS old; watchers share them."""
        if time.monotonic() - self._told >= TIERS_SECONDS:
            self._told = time.monotonic()
            self._tiers = await asyncio.to_thread(self._model.units.tiers)
        return self._tiers

    def _is_watched(self, ticket: Ticket) -> bool:
        """Called in the engine's thread, before bits are fetched."""
        with self._lock:
            return any(watcher.owner == ticket.request.owner for watcher in self._watchers)

    def _note(self, ticket: Ticket, token: int, bits: np.ndarray) -> None:
        """Called in the engine's thread for each token."""
        before = None
        if self._model.units.kind == "experts":
            before, self._after = self._after, self._model.units.tiers()
        with self._lock:
            for watcher in self._watchers:
                if watcher.owner == ticket.request.owner:
                    watcher.note(ticket.number, _Ran(token, bits, before))

    def _token_frame(self, number: int, ran: "_Ran") -> bytes:
        flags = self._model.units.fired(ran.bits)
        tiers = self._tiers if ran.tiers is None else ran.tiers
        by_tier = np.bincount(tiers[flags], minlength=3)
        read = by_tier * self._model.units.bytes_per_unit()
        share = by_tier.sum() / self._tiers.size
        head = struct.pack("<IIf3f", number, ran.token, share, *read)
        return _frame(1, head + np.packbits(flags, bitorder="little").tobytes())


@dataclass(frozen=True)
class _Ran:
    """Neurons that ran for a token of a request.
    tiers: before the token; None: as they were lately."""

    token: int
    bits: np.ndarray
    tiers: np.ndarray | None


@dataclass(eq=False)  # two that have seen the same are two
class _Watcher:
    """What a watcher has not been sent, by request."""

    owner: str
    sender: str
    ran: dict[int, _Ran] = field(default_factory=dict)

    def note(self, number: int, ran: _Ran) -> None:
        """The latest token. A client that takes nothing for a while misses the oldest requests."""
        if number not in self.ran and len(self.ran) >= MOST_WAITING:
            del self.ran[next(iter(self.ran))]
        self.ran[number] = ran


def _frame(kind: int, data: bytes) -> bytes:
    return struct.pack("<IB", len(data) + 1, kind) + data
