"""No client can hurt another: who sends much takes turns with those who send little."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
import serving  # noqa: F401  skips without the server's packages
from powerinfer_cpp.server.errors import Refusal
from powerinfer_cpp.server.limits import sender_of
from powerinfer_cpp.server.shares import Shares


class Slow:
    """Work that ends when it is told to. begun: who has begun, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._gates: dict[str, threading.Event] = {}

    def __call__(self, name: str) -> str:
        gate = self._gates.setdefault(name, threading.Event())
        self.begun.append(name)
        assert gate.wait(serving.SECONDS)
        return name

    def end(self, *names: str) -> None:
        for name in names:
            self._gates.setdefault(name, threading.Event()).set()


async def happens(what: Callable[[], bool]) -> None:
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen")


def test_senders_take_turns() -> None:
    async def main() -> None:
        shares, slow = Shares(2, 1, most_waiting=3), Slow()
        many = [asyncio.ensure_future(shares.run("a", slow, f"a{i}")) for i in range(4)]
        await happens(lambda: slow.begun == ["a0"] and shares.n_waiting == 3)
        with pytest.raises(Refusal, match="waiting already"):
            await shares.run("a", slow, "a4")
        # Another client has a place at once, and a third one the next.
        other = asyncio.ensure_future(shares.run("b", slow, "b0"))
        await happens(lambda: slow.begun == ["a0", "b0"])
        third = asyncio.ensure_future(shares.run("c", slow, "c0"))
        await asyncio.sleep(0.02)
        slow.end("b0")
        assert await other == "b0"
        await happens(lambda: slow.begun[2:] == ["c0"])
        slow.end("c0", *(f"a{i}" for i in range(4)))
        assert await third == "c0" and await asyncio.gather(*many) == ["a0", "a1", "a2", "a3"]
        assert shares.n_held == shares.n_waiting == 0

    asyncio.run(main())


def test_who_goes_keeps_a_place_until_the_work_is_done() -> None:
    """Else a client could begin as much as it likes, and leave."""

    async def main() -> None:
        shares, slow = Shares(1, 1), Slow()
        first = asyncio.ensure_future(shares.run("a", slow, "a0"))
        await happens(lambda: slow.begun == ["a0"])
        second, third = (asyncio.ensure_future(shares.run(s, slow, f"{s}1")) for s in "ab")
        await happens(lambda: shares.n_waiting == 2)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert slow.begun == ["a0"] and shares.n_held == 1 and shares.n_waiting == 1
        slow.end("a0", "b1")
        assert await third == "b1" and slow.begun == ["a0", "b1"]
        await happens(lambda: shares.n_held == 0)

        def wrong() -> None:
            raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await shares.run("a", wrong)
        await happens(lambda: shares.n_held == 0)

    asyncio.run(main())


def test_senders() -> None:
    assert sender_of(("10.0.0.7", 4000)) == sender_of(("10.0.0.7", 4001)) == "10.0.0.7"
    assert sender_of(("::ffff:10.0.0.7", 1)) == "10.0.0.7"
    network = "2001:db8:1:2::/64"
    assert sender_of(("2001:db8:1:2::9", 1)) == sender_of(("2001:db8:1:2:5::", 1)) == network
    assert sender_of(("fe80::1%eth0", 1)) == "fe80::/64"
    assert sender_of(None) == "" and sender_of(("a socket", None)) == "a socket"
