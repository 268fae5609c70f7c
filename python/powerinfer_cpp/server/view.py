"""The live view of a model: which neurons ran for which token, and where they are.

Of mixtures whose experts are computed as a whole, these are the units that are shown, and not their
neurons.

Frames, each 4 bytes of length (little-endian), then 1 byte of kind:
- 1, a token: uint32 number of the request, uint32 number of the token, float32 share of the model's
  units that ran, 3 float32 bytes of units read from disk, RAM and GPU; then a bit for each unit,
  layer after layer and expert after expert, without gaps, bit i % 8 of byte i / 8. Of tokens that
  come faster than frames, one has a frame: together they would light up nearly every unit.
- 2, tiers: a uint8 for each unit in the same order, 0 disk, 1 RAM, 2 GPU.
"""

import asyncio
import base64
import struct
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..run.engine import EngineDead
from ..run.requests import Ticket
from .served import ServedModel

FRAME_SECONDS = 1 / 15
TIERS_SECONDS = 2.0
NAMES = ("disk", "RAM", "GPU")
MOST_FRAMES = 8  # that wait for a watcher; it misses those that come beyond


class View:
    """What watchers of a model see. Neurons are recorded only while there are any."""

    def __init__(self, model: ServedModel):
        self._model = model
        self._lock = threading.Lock()  # the engine's thread writes, the event loop reads
        self._ran: dict[int, _Ran] = {}  # since the last frame, by request
        self._watchers: dict[asyncio.Queue[bytes], str] = {}  # with their owners
        self._tiers = model.tiers()
        self._after = self._tiers  # the last token, where every token changes them
        self._sending: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._recording = False

    @property
    def live(self) -> bool:
        """Can tokens be watched?"""
        return self._model.records

    def describe(self) -> dict[str, Any]:
        """GET /view."""
        self._tiers = self._model.tiers()
        return {
            "layers": len(self._model.layer_units()),
            "unit": self._model.unit,
            "layer_units": self._model.layer_units(),
            "tiers": base64.b64encode(self._tiers.tobytes()).decode(),
            "bytes_per_unit": self._model.bytes_per_unit(),
            "names": NAMES,
            "live": self.live,
        }

    async def frames(self, owner: str) -> AsyncIterator[bytes]:
        """Frames of the owner's requests, as they come."""
        if self._model.engine.error is not None:
            raise EngineDead(f"the engine has stopped: {self._model.engine.error}")
        queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_FRAMES)
        self._watchers[queue] = owner
        try:
            self._settle()
            yield _frame(2, self._tiers.tobytes())
            while True:
                yield await queue.get()
        finally:
            del self._watchers[queue]
            self._settle()

    def _settle(self) -> None:
        """Makes the engine record if there are watchers, and only then; waits for nothing."""
        if self._settling is None:
            self._settling = asyncio.ensure_future(self._settled())

    async def _settled(self) -> None:
        # One change at a time, and each looks at those who watch then: whoever comes and goes while
        # the engine takes a step leaves nothing behind.
        try:
            while bool(self._watchers) != self._recording:
                wanted = bool(self._watchers)
                await asyncio.to_thread(self._model.watch, self._note if wanted else None)
                self._recording = wanted
                if wanted:
                    self._sending = asyncio.ensure_future(self._send())
                elif self._sending is not None:
                    self._sending.cancel()
        except EngineDead:
            pass
        finally:
            self._settling = None

    def _note(self, ticket: Ticket, token: int, bits: np.ndarray) -> None:
        """Called in the engine's thread for each token."""
        before = None
        if self._model.unit == "experts":
            before, self._after = self._after, self._model.tiers()
        with self._lock:
            self._ran[ticket.number] = _Ran(ticket.request.owner, token, bits, before)

    async def _send(self) -> None:
        passed = 0.0
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            passed += FRAME_SECONDS
            with self._lock:
                ran, self._ran = self._ran, {}
            watching = set(self._watchers.values())
            for number, each in ran.items():
                if each.owner in watching:
                    frame = await asyncio.to_thread(self._token_frame, number, each)
                    self._put(frame, each.owner)
            if passed >= TIERS_SECONDS:
                passed = 0.0
                tiers = await asyncio.to_thread(self._model.tiers)
                if not np.array_equal(tiers, self._tiers):
                    self._tiers = tiers
                    self._put(_frame(2, tiers.tobytes()), None)

    def _token_frame(self, number: int, ran: "_Ran") -> bytes:
        flags = self._model.fired(ran.bits)
        tiers = self._tiers if ran.tiers is None else ran.tiers
        by_tier = np.bincount(tiers[flags], minlength=3)
        read = by_tier * self._model.bytes_per_unit()
        share = by_tier.sum() / self._tiers.size
        head = struct.pack("<IIf3f", number, ran.token, share, *read)
        return _frame(1, head + np.packbits(flags, bitorder="little").tobytes())

    def _put(self, frame: bytes, owner: str | None) -> None:
        for queue, of in self._watchers.items():
            if (owner is None or of == owner) and not queue.full():
                queue.put_nowait(frame)


@dataclass(frozen=True)
class _Ran:
    """Neurons that ran for a token of a request. tiers: before it; None: as they were lately."""

    owner: str
    token: int
    bits: np.ndarray
    tiers: np.ndarray | None


def _frame(kind: int, data: bytes) -> bytes:
    return struct.pack("<IB", len(data) + 1, kind) + data
