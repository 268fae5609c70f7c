"""Models whose layers see a window of positions, in sessions that have no room for what is behind
it: whatever was computed before, texts are those of a session that keeps everything, to the bit,
and prompts go on where windows are left and at checkpoints, in memory and on disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
from families import golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import UnsupportedModelError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.sequences.context import Context
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.core.state import checkpoint_flags, checkpoints_of
from powerinfer_cpp.measure import bench
from powerinfer_cpp.run.prefix_files import PrefixFiles
from powerinfer_cpp.run.sequences import Sequences, fields
from powerinfer_cpp.server import served as served_module
from powerinfer_cpp.server.limits import owner_key
from powerinfer_cpp.server.settings import Settings
from test_scheduler import Desk, run
from test_state_served import alone, ask, asked, open_served, told
from test_state_texts import ids_of
from test_state_walks import STEPS, Texts

WINDOW = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    sizes = {"max_position_embeddings": 8192, "sliding_window": WINDOW}
    checkpoint = golden("gemma3", folder / "model", **sizes)
    return convert(checkpoint, outtype="f16", outfile=folder / "m.gguf", log=quiet)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model(str(path))


@pytest.mark.parametrize(("n_kv_old", "n_checkpoints"), [(0, 0), (0, 8), (128, 8), (512, 8)])
def test_a_context(model: Model, n_kv_old: int, n_checkpoints: int) -> None:
    texts = Texts(model, n_kv_old + n_checkpoints)
    sizes = {"n_ctx": 512, "n_batch": 64, "n_ubatch": 32, "n_logits": 32}
    more = {"n_checkpoints": n_checkpoints, "n_kv_old": n_kv_old}
    context, saved, lost = Context(model, False, **sizes, **more), [], 0
    for _ in range(STEPS):
        kind, ids = texts.rng.integers(5), texts.next()
        if kind == 0 and saved:
            context.load(saved[texts.rng.integers(len(saved))])
            ids = context.input_ids[: context.n_tokens].copy()
        else:
            positions = checkpoints_of(len(ids), texts.rng.integers(0, 400, 2).tolist())
            context.become(ids, np.zeros(len(ids), bool), positions)
        np.testing.assert_array_equal(context.last_logits(), texts.logits(ids))
        lost += context._session.first_cut() > 1
        if texts.rng.random() < 0.2:
            saved.append(context.save())
            assert saved[-1].whole == (context._session.first_cut() > 1)
        if context.n_tokens > 480 - 64:
            context.truncate(0)
    assert (lost > 0) == (n_kv_old < 512)
    context.close()


@pytest.mark.parametrize("n_kv", [512, 2048])
def test_several_sequences(model: Model, n_kv: int) -> None:
    """As many as without windows, of which those that are not continued rest."""
    texts = Texts(model, n_kv)
    sizes = fields(2, 512, n_kv, 64)
    assert sizes["n_seq"] == 34 and sizes["n_active"] == 4
    session = Session(model, n_ctx=512, n_ubatch=24, n_kv_old=0, **sizes)
    sequences = Sequences(session, sizes["n_seq"])
    known = 0
    for _ in range(STEPS):
        ids = texts.next()
        seq, done = sequences.take("", ids, np.zeros(len(ids), bool))
        assert session.length(seq) == done < len(ids)
        known += done
        positions = checkpoints_of(len(ids)) | sequences.partings(seq, done)
        for first in range(done, len(ids), 64):
            part = ids[first : first + 64]
            while session.free_positions() < len(part) + 64 and sequences.forget_one():
                pass
            where = np.full(len(part), seq, np.int32)
            kept_before = checkpoint_flags(first, len(part), positions)
            session.eval(part, None, where, None, kept_before)
        found = session.logits(len(part) - 1)
        np.testing.assert_array_equal(found, texts.logits(ids))
        sequences.leave(seq, session.length(seq) if texts.rng.random() < 0.8 else 0)
    assert known > 0
    session.close()


def test_what_cannot_be_cut(model: Model) -> None:
    session = Session(model, n_ctx=512, n_batch=512, n_ubatch=32, n_seq=2, n_kv_old=0, n_active=1)
    ids = np.arange(10, 310, dtype=np.int32) % 290 + 5
    session.eval(ids, sequences=np.zeros(300, np.int32))
    first = session.first_cut()
    assert 100 < first < 300 and session.match(ids[: first - 1]) == 0
    with pytest.raises(UnsupportedModelError, match=f"and from {first} on$"):
        session.truncate(first - 1)
    session.copy(0, 1, first)
    assert session.length(1) == first
    session.truncate(first)
    session.truncate(0)
    assert session.first_cut() == 1
    session.close()


def test_plans(model: Model, path: Path, main_path: Path) -> None:
    """Of a window as much at any length, and what is behind it apart."""
    sizes = [model.plan(n_ctx=n, n_kv_old=0)["ram"]["kv"] for n in (2048, 4096, 8192)]
    page = 64 * 2 * 2 * 12 * 2  # keys and values of a layer in F16
    per_position = (sizes[2] - sizes[1]) / 4096
    assert page / 64 < per_position < page / 64 + 10  # one of three layers, and tokens
    assert sizes[2] - 2 * sizes[1] + sizes[0] < 0.6 * sizes[2]
    every = model.plan(n_ctx=8192, n_kv_old=1 << 40)["ram"]
    assert every["kv"] == sizes[2]
    windows = sizes[2] - per_position * 8192
    assert abs(every["kv_old"] + windows - 2 * 8192 * page / 64) < 0.1 * every["kv_old"]
    command = [main_path, "-m", path, "--plan", "-c", "8192"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert " kv " in told and " kv_old " in told
    everything = subprocess.run(
        [*command, "--swa-full"], capture_output=True, text=True, check=True
    ).stdout
    assert everything.splitlines()[0] == told.splitlines()[0]


@pytest.mark.parametrize("test", [bench.Test(100, 0, 300), bench.Test(0, 70, 300)])
def test_bench(model: Model, test: bench.Test) -> None:
    """It computes what came before again where a window was given up."""
    found = bench.measure(model, test, 3, 0, None, n_batch=64, n_ubatch=64, n_kv_old=0)
    assert len(found.samples_ns) == 3


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions of servers have no room for what is behind windows."""
    fields_of = served_module.session_fields

    def changed(*args: Any) -> tuple[dict[str, Any], int]:
        found, n_pins = fields_of(*args)
        return {**found, "n_kv_old": 0, "n_ubatch": 32}, n_pins

    monkeypatch.setattr(served_module, "session_fields", changed)
    yield


@pytest.mark.usefixtures("tight")
def test_texts_beside_each_other(path: Path, desk: Desk) -> None:
    prompts = [ids_of(n, n) for n in (150, 33, 7, 300, 64)]
    want = [alone(path, ids) for ids in prompts]
    with open_served(path, desk) as served:
        for turn in range(2):
            tickets = run(served, desk, [asked(served, ids) for ids in prompts])
            assert [told(desk, ticket) for ticket in tickets] == want
            assert turn == 0 or any(t.n_reused > 0 for t in tickets)


@pytest.mark.usefixtures("tight")
def test_little_room(path: Path, desk: Desk) -> None:
    """Texts give up their places when positions run out, and become the same."""
    prompts = [ids_of(n, n) for n in (60, 70, 80, 90)]
    want = [alone(path, ids, 150) for ids in prompts]
    with open_served(path, desk, n_ctx=256, n_kv=320, n_parallel=4) as served:
        tickets = run(served, desk, [asked(served, ids, 150) for ids in prompts])
    assert [told(desk, ticket) for ticket in tickets] == want


@pytest.mark.usefixtures("tight")
def test_prompts_that_begin_alike(path: Path, desk: Desk) -> None:
    """A checkpoint keeps the window before it."""
    begin, known = ids_of(200), []
    with open_served(path, desk) as served:
        for seed in range(1, 5):
            ids = [*begin, *ids_of(60, seed)[1:]]
            (ticket,) = run(served, desk, [asked(served, ids)])
            assert told(desk, ticket) == alone(path, ids)
            known.append(ticket.n_reused)
    assert known[0] == 0 and known[2:] == [200, 200]


@pytest.mark.usefixtures("tight")
def test_prompts_on_disk(path: Path, tmp_path: Path) -> None:
    """A later server goes on at the end of a block whose window is in the files."""
    ids = ids_of(300)
    body = {"prompt": ids, "max_tokens": 12, "temperature": 0, "logprobs": 2}
    longer = {**body, "prompt": [*ids, *ids_of(50, 1)]}

    def serve(folder: Path | None = None) -> Any:
        more: dict[str, Any] = {"owner_key": owner_key}
        if folder is not None:
            more["prefix_files"] = PrefixFiles(folder, 1 << 30)
        return serving.in_thread(path, Settings(), n_ctx=4096, n_batch=128, **more)

    with serve() as server:
        want, want_longer = ask(server, body)[0], ask(server, longer)[0]
    with serve(tmp_path) as server:
        assert ask(server, body) == (want, 0)
    with serve(tmp_path) as server:
        found, known = ask(server, longer)
        assert found == want_longer and known == 256
    with serve(tmp_path) as server:
        assert ask(server, longer) == (want_longer, 320)
        assert ask(server, body)[0] == want
