"""What is done for a request before the engine, in threads, and whose turn it is."""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..answering import encode, while_connected
from ..background import EMBEDDING
from ..dialects.bodies import decode
from ..limits import check_depth
from ..models import Models
from ..settings import Settings
from ..shares import ProcessorTime, Shares
from .route import Call, Cost

# What a client may take of the processor at once beside texts that are written: seconds of work.
WORK_BURST = 0.5
TOLD_SECONDS = 0.1  # for so long what a server tells may be told again, while texts are written

Made = TypeVar("Made")


class Preparing:
    """Runs what may take long in threads. Each sender has a share of them and of the time: one for
    work of some milliseconds, another for what may take a second."""

    def __init__(self, models: Models, settings: Settings):
        self._models, self._settings = models, settings
        quick, long = (ProcessorTime(models.writing, WORK_BURST) for _ in range(2))
        self._shares = {
            Cost.TOKENS: Shares(4, 2, quick),
            Cost.TEMPLATE: Shares(4, 2, quick),
            Cost.MANY_TEXTS: Shares(4, 1, long),
            Cost.GRAMMAR: Shares(4, 1, long),
            Cost.COLOURS: Shares(2, 1, long),
        }
        self._telling, self._large = Shares(4, 1, quick), Shares(4, 1, long)
        self._embedding = Shares(1, 1, long)
        self._answers: dict[Any, tuple[float, bytes]] = {}  # what was told, and when

    async def read(self, call: Call) -> Call:
        """The same with its body. Raises Refusal, and ClientGone."""
        assert call.route.body is not None
        data, kind = await call.arriving.read(), call.route.body

        def read() -> Any:
            check_depth(data, self._settings.max_depth)
            return decode(data, kind)

        large = call.arriving.large
        return replace(call, body=await self._run(self._large, call, read) if large else read())

    async def made(self, call: Call, make: Callable[..., Made], *of: Any) -> Made:
        """What make gives, when it is the turn of the request's sender. Raises ClientGone, and
        Refusal if too many of the sender wait."""
        return await self._run(self._shares[call.cost], call, make, *of)

    async def told(
        self,
        call: Call,
        tell: Callable[..., Any],
        *of: Any,
        written: Callable[[Any], bytes] = encode,
    ) -> bytes:
        """What tell says, as JSON. While texts are written, all who ask within TOLD_SECONDS get the
        same."""
        when, data = self._answers.get((tell, of), (-math.inf, b""))
        if time.monotonic() - when < TOLD_SECONDS and self._models.writing():
            return data
        data = await self._run(self._telling, call, lambda: written(tell(*of)))
        self._answers[tell, of] = time.monotonic(), data
        return data

    def embedded(self, sender: str, work: Callable[..., Made], *of: Any) -> Awaitable[Made]:
        """What work gives, when no other embedding is computed and it is the sender's turn."""
        return self._embedding.run(sender, work, *of, background=EMBEDDING)

    async def _run(self, shares: Shares, call: Call, work: Callable[..., Made], *of: Any) -> Made:
        if call.arriving.large:
            shares = self._large
        return await while_connected(call.request.receive, shares.run(call.sender, work, *of))
