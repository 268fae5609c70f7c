"""The frames of the live view: what a watcher gets, and that recording ends with the last one."""

from __future__ import annotations

import asyncio
import struct
import threading
from pathlib import Path
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest
import serving
from families import quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.server import view as view_module
from powerinfer_cpp.server.view import View

N = 20  # units of the stand-in


class Model:
    """What a view asks of a served model."""

    records, sparse, kind = True, True, "neurons"
    engine = SimpleNamespace(error=None)

    def __init__(self) -> None:
        self.see = None
        self.changes: list[bool] = []
        self.gate = threading.Event()  # recording begins and ends only while it is set
        self.gate.set()
        self.units = self

    def tiers(self) -> np.ndarray:
        return np.ones(N, np.uint8)

    def bytes_per_unit(self) -> float:
        return 10.0

    def fired(self, bits: np.ndarray) -> np.ndarray:
        return np.unpackbits(bits, count=N, bitorder="little").astype(bool)

    def watch(self, see, wants) -> None:
        assert self.gate.wait(10)
        self.see = see
        self.changes.append(see is not None)


def token(view: View, request: int, number: int, units: list[int], owner: str = "") -> None:
    flags = np.zeros(N, bool)
    flags[units] = True
    ticket = SimpleNamespace(number=request, request=SimpleNamespace(owner=owner))
    view._note(ticket, number, np.packbits(flags, bitorder="little"))


def parsed(frame: bytes) -> tuple[int, int, float, list[int]]:
    """Request, token, share and units of a token's frame."""
    length, kind, request, number, share = struct.unpack_from("<IBIIf", frame)
    assert length == len(frame) - 4 and kind == 1
    bits = np.unpackbits(np.frombuffer(frame[29:], np.uint8), count=N, bitorder="little")
    return request, number, round(share, 3), np.flatnonzero(bits).tolist()


async def settled(view: View) -> None:
    while view._changes:
        await asyncio.gather(*view._changes)


def test_a_frame_has_the_units_that_its_share_is_of() -> None:
    async def check() -> None:
        view = View(Model())
        quick, other, slow = view.frames("a"), view.frames("b"), view.frames("a")
        for each in (quick, other, slow):
            assert (await anext(each))[4] == 2
        for number, units in enumerate(([1, 2], [2, 3], [9])):
            token(view, 5, number, units, "a")
        # Those of the last token: one of twenty.
        assert parsed(await anext(quick)) == (5, 2, 0.05, [9])
        token(view, 5, 3, [4, 5], "a")
        assert parsed(await anext(quick)) == (5, 3, 0.1, [4, 5])
        assert parsed(await anext(slow)) == (5, 3, 0.1, [4, 5])
        token(view, 6, 0, [7], "b")
        assert parsed(await anext(other)) == (6, 0, 0.05, [7])
        for each in (quick, other, slow):
            await each.aclose()
        await settled(view)

    asyncio.run(check())


def test_every_answer_has_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if many of one token each end before the first frame is due."""
    monkeypatch.setattr(view_module, "MOST_WAITING", 30)

    async def check() -> None:
        view = View(Model())
        frames = view.frames("")
        await anext(frames)
        for request in range(32):
            token(view, request, 0, [request % N])
        found = [parsed(await anext(frames))[0] for _ in range(30)]
        assert found == list(range(2, 32)), "only of a client that takes nothing some are dropped"
        await frames.aclose()
        await settled(view)

    asyncio.run(check())


def test_recording_ends_with_the_last_watcher() -> None:
    async def check() -> None:
        model = Model()
        view = View(model)
        first, second = view.frames(""), view.frames("")
        await anext(first)
        await anext(second)
        await first.aclose()
        await settled(view)
        assert model.changes == [True] and model.see is not None
        await second.aclose()
        await settled(view)
        assert model.changes == [True, False] and not view._watchers

    asyncio.run(check())


def test_a_watcher_that_goes_before_recording_began() -> None:
    async def check() -> None:
        model = Model()
        model.gate.clear()
        view = View(model)
        waiting = asyncio.ensure_future(anext(view.frames("")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not view._watchers
        model.gate.set()
        await settled(view)
        assert model.changes == [True, False]

    asyncio.run(check())


def test_a_watcher_that_comes_while_recording_ends() -> None:
    """As a page does that is hidden and shown again."""

    async def check() -> None:
        model = Model()
        view = View(model)
        first = view.frames("")
        await anext(first)
        model.gate.clear()
        await first.aclose()
        await asyncio.sleep(0.05)
        again = view.frames("")
        coming = asyncio.ensure_future(anext(again))
        await asyncio.sleep(0.05)
        model.gate.set()
        await coming
        assert model.changes[-1] and model.see is not None
        token(view, 1, 0, [3])
        assert parsed(await anext(again))[3] == [3]
        await again.aclose()
        await settled(view)
        assert model.see is None

    asyncio.run(check())


def test_a_short_answer_of_a_server(model_path: Path) -> None:
    """One token, many times: each has its frame, with units that fired."""
    with serving.in_thread(model_path) as running:
        shape = running.get("view").json()
        assert shape["sparse"] is True
        assert shape["memory"][1] == sum(running.model.runtime.plan()["ram"].values()) > 0
        n_bytes = (sum(shape["layer_units"]) + 7) // 8
        asked: list[int] = []
        seen: dict[int, bytes] = {}
        with serving.httpx.stream(
            "GET", running.url + "view/stream", timeout=serving.SECONDS
        ) as stream:
            data, chunks = b"", stream.iter_raw()
            while not data:
                data += next(chunks)
            for i in range(12):
                body = {"prompt": f"Say {i}", "max_tokens": 1 + i % 3, "stream": True}
                text = running.post("v1/completions", body).text
                number = int(text.partition('"request":')[2].partition(",")[0])
                asked.append(number)
                while number not in seen:
                    data += next(chunks)
                    while len(data) >= 4 and len(data) >= 4 + (
                        n := struct.unpack_from("<I", data)[0]
                    ):
                        frame, data = data[: 4 + n], data[4 + n :]
                        if frame[4] == 1:
                            seen[struct.unpack_from("<I", frame, 5)[0]] = frame[29:]
        assert len(set(asked)) == 12
        assert all(len(seen[n]) == n_bytes and any(seen[n]) for n in asked)
        serving.wait_for(
            lambda: running.model.engine.call(lambda: running.model.scheduler.watch) is None
        )


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_which_models_leave_neurons_out(tmp_path: Path, activation: str) -> None:
    """Of one with a smooth activation all run for every token: there is nothing to see."""
    folder = checkpoints.model(tmp_path / "model", hidden_act=activation)
    file = tmp_path / "model.gguf"
    convert(folder, outfile=file, outtype="f16", log=quiet)
    with serving.in_thread(file) as running:
        shape = running.get("view").json()
        assert shape["sparse"] is (activation == "relu") and shape["live"] is True
        assert shape["memory"][0] == shape["memory"][2] == 0 < shape["memory"][1]
