"""Texts that share the engine of a model whose layers have a state: each is what it is alone, and
prompts are continued where checkpoints are, in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving
import small_states
from circles import pick
from powerinfer_cpp.core.sampling import Sampling
from powerinfer_cpp.core.state import GRID, common_prefix
from powerinfer_cpp.run.drafts import DraftFile, Drafts
from powerinfer_cpp.run.prefix_files import PrefixFiles
from powerinfer_cpp.run.requests import Request, Ticket
from powerinfer_cpp.server.limits import owner_key
from powerinfer_cpp.server.served import ServedModel
from powerinfer_cpp.server.settings import Settings
from test_scheduler import Desk, run
from test_state_texts import BORDER, SYSTEM, THINKING, Guess, ids_of, thoughts, user

from powerinfer_cpp import Llama

BLOCK = 64
SUREST = Sampling(temperature=0)


@pytest.fixture(scope="module", params=pick(small_states.KINDS[:1], small_states.KINDS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_states.make(tmp_path_factory.mktemp("states"), THINKING, request.param)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(path: Path, desk: Desk) -> Iterator[ServedModel]:
    with open_served(path, desk) as found:
        yield found


def open_served(path: Path, desk: Desk, **options: Any) -> ServedModel:
    fields = {"n_ctx": 2048, "n_batch": 96, "n_parallel": 3, "verbose": False}
    return ServedModel(path, desk.deliver, **{**fields, **options})


def asked(served: ServedModel, ids: list[int], n: int = 20, **more: Any) -> Request:
    return served.request(ids, max_tokens=n, params=SUREST, logprobs=2, **more)


def told(desk: Desk, ticket: Ticket, index: int = 0) -> list[Any]:
    """What was chosen, with its log-probability and those of others, to the bit."""
    desk.text(ticket, index)  # raises if it failed
    chosen = [p.choice for u in desk.of(ticket, index) for p in u.piece.placed]
    return [(c.token, c.logprob, c.likely.tolist()) for c in chosen]


def alone(path: Path, ids: list[int], n: int = 20) -> list[Any]:
    desk = Desk()
    with open_served(path, desk, n_parallel=1) as served:
        (ticket,) = run(served, desk, [asked(served, ids, n)])
        assert ticket.n_reused == 0
        return told(desk, ticket)


def test_few_sequences(served: ServedModel) -> None:
    """Each takes memory for its states."""
    assert len(served.scheduler._sequences._free) == 3 + 2
    assert served.model.has_states


def test_texts_beside_each_other(path: Path, served: ServedModel, desk: Desk) -> None:
    prompts = [ids_of(n, n) for n in (150, 33, 7, 300, 64)]
    want = [alone(path, ids) for ids in prompts]
    for turn in range(2):
        tickets = run(served, desk, [asked(served, ids) for ids in prompts])
        assert [told(desk, ticket) for ticket in tickets] == want
        if turn == 0:
            continue
        # There are not as many sequences as texts, but the last ones are known.
        assert any(t.n_reused == len(t.request.ids) - 1 for t in tickets)


def test_several_texts_of_a_prompt(path: Path, served: ServedModel, desk: Desk) -> None:
    ids = ids_of(200)
    want = alone(path, ids)
    (ticket,) = run(served, desk, [asked(served, ids, n=20)])
    before = served.engine.call(served.scheduler.work).rows
    request = served.request(ids, max_tokens=20, params=SUREST, logprobs=2, n=5)
    (ticket,) = run(served, desk, [request])
    assert [told(desk, ticket, i) for i in range(5)] == [want] * 5
    rows = served.engine.call(served.scheduler.work).rows - before
    assert rows <= 5 * (1 + 20)  # of the prompt only the last token, for each text


def test_little_room(path: Path, desk: Desk) -> None:
    """Texts give up their places when positions run out, and become the same."""
    prompts = [ids_of(n, n) for n in (60, 70, 80, 90)]
    want = [alone(path, ids, 150) for ids in prompts]
    with open_served(path, desk, n_ctx=256, n_kv=320, n_parallel=4) as served:
        tickets = run(served, desk, [asked(served, ids, 150) for ids in prompts])
    assert [told(desk, ticket) for ticket in tickets] == want


def test_places_that_are_given_to_others(path: Path, served: ServedModel, desk: Desk) -> None:
    """A text that goes on later continues where it was."""
    prompts = [ids_of(n, n) for n in (60, 70, 80)]
    want = [alone(path, ids, 120) for ids in prompts]
    other = ids_of(50, 5)
    of_other = alone(path, other)

    def submit() -> list[Ticket]:
        first = [served.engine.submit(asked(served, ids, 120, owner="a")) for ids in prompts]
        return [*first, served.engine.submit(asked(served, other, owner="b"))]

    tickets = served.engine.call(submit)
    desk.wait(tickets)
    assert [told(desk, ticket) for ticket in tickets] == [*want, of_other]


def test_prompts_that_begin_alike(path: Path, served: ServedModel, desk: Desk) -> None:
    """A third prompt goes on where the second one had to begin afresh."""
    begin, known = ids_of(200), []
    for seed in range(1, 5):
        ids = [*begin, *ids_of(60, seed)[1:]]
        (ticket,) = run(served, desk, [asked(served, ids)])
        assert told(desk, ticket) == alone(path, ids)
        known.append(ticket.n_reused)
    assert known == [0, 0, 200, 200]


def test_chats_that_take_turns(path: Path, desk: Desk) -> None:
    """As many as there are sequences: the next turn of each takes the place of the last one, of
    which the end is no beginning of it."""
    prompts = [ids_of(200, n) for n in range(3)]
    with open_served(path, desk, n_parallel=1) as served:
        for turn in range(3):
            for i, ids in enumerate(prompts):
                (ticket,) = run(served, desk, [asked(served, ids, owner=f"{i}")])
                assert told(desk, ticket) == alone(path, ids)
                assert (ticket.n_reused >= 199) == (turn > 0)
                prompts[i] = [*ids, *ids_of(40, turn)]


def test_cancelled(path: Path, served: ServedModel, desk: Desk) -> None:
    ids = ids_of(500)
    tickets = [served.engine.submit(asked(served, ids, 200)) for _ in range(4)]
    other = served.engine.submit(asked(served, ids_of(40, 1)))
    for ticket in tickets:
        served.engine.cancel(ticket)
    desk.wait([other])
    assert told(desk, other) == alone(path, ids_of(40, 1))
    (again,) = run(served, desk, [asked(served, ids)])
    assert told(desk, again) == alone(path, ids)


@pytest.mark.parametrize("right", [0, 3, 30])
def test_drafts(path: Path, desk: Desk, right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)
    prompts = [ids_of(n, n) for n in (100, 50, 60)]
    want = [alone(path, ids, 60) for ids in prompts]
    texts = []
    with Llama(path, n_ctx=512, verbose=False) as llm:
        for ids in prompts:
            steps = llm.generate(ids, temp=0)
            texts.append([*ids, *(next(steps) for _ in range(80))])

    def guess(input_ids: np.ndarray, /, **more: Any) -> np.ndarray:
        n = len(input_ids)
        known = next((t for t in texts if t[:n] == input_ids.tolist()), [])
        return Guess(known, right)(input_ids)

    with open_served(path, desk, draft_model=guess, n_ubatch=5) as served:
        for _ in range(2):
            tickets = run(served, desk, [asked(served, ids, 60) for ids in prompts])
            assert [told(desk, ticket) for ticket in tickets] == want
        assert sum(t.n_drafted for t in tickets) > 0
        assert (sum(t.n_accepted for t in tickets) > 0) == (right > 0)


def test_a_draft_model(path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has states as well, and serves texts that take turns."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)
    hot = Sampling(temperature=1.5)
    with open_served(path, desk) as plain:
        of = [plain.request(ids_of(n, n), max_tokens=40, params=hot, seed=n) for n in (40, 90)]
        want = [desk.text(ticket) for ticket in run(plain, desk, of)]
    with open_served(path, desk, draft_model=DraftFile(path, p_min=0.0)) as served:
        of = [served.request(ids_of(n, n), max_tokens=40, params=hot, seed=n) for n in (40, 90)]
        assert [desk.text(ticket) for ticket in run(served, desk, of)] == want


# ---- The server ----


def ask(server: serving.InThread, body: Any, path: str = "v1/completions") -> tuple[Any, int]:
    """The choices, and how many tokens of the prompt were known."""
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve(path: Path, folder: Path | None = None) -> Any:
    more: dict[str, Any] = {} if folder is None else {"owner_key": owner_key}
    if folder is not None:
        more["prefix_files"] = PrefixFiles(folder, 1 << 30)
    return serving.in_thread(path, Settings(), n_ctx=4096, n_batch=128, **more)


def test_a_chat_with_thoughts(path: Path) -> None:
    with serve(path) as server, serve(path) as fresh:
        messages = [SYSTEM]
        before = np.empty(0, int)
        for turn in range(4):
            messages = [*messages, user(f"{turn}: the quick brown fox")]
            body = {"messages": messages, "max_tokens": 30, "temperature": 0}
            made = server.model.turn(messages)
            ids = np.array(server.model.prompts.ids(made.text))
            found, known = ask(server, body, "v1/chat/completions")
            # Without what was kept: another owner's prompt begins afresh.
            want, _ = ask(fresh, {**body, "messages": messages}, "v1/chat/completions")
            assert found[0]["message"] == want[0]["message"]
            if turn:
                assert known >= common_prefix(before, ids) - BORDER
            said = {"role": "assistant", "content": "a story", **thoughts(turn)}
            messages, before = [*messages, said], ids


def test_prompts_on_disk(path: Path, tmp_path: Path) -> None:
    """A later server goes on at a checkpoint, which is at the end of a block."""
    ids = ids_of(300)
    body = {"prompt": ids, "max_tokens": 12, "temperature": 0, "logprobs": 2}
    longer = {**body, "prompt": [*ids, *ids_of(50, 1)]}
    with serve(path) as server:
        want, want_longer = ask(server, body)[0], ask(server, longer)[0]
    with serve(path, tmp_path) as server:
        assert ask(server, body) == (want, 0)
        assert ask(server, body) == (want, 256)
    with serve(path, tmp_path) as server:
        assert ask(server, longer) == (want_longer, 256)
    with serve(path, tmp_path) as server:
        assert ask(server, longer) == (want_longer, 320)
        other = {**body, "prompt": [*ids[:150], *ids_of(100, 2)[1:]]}
        found, known = ask(server, other)
        assert known == 0  # within the first blocks no state was kept
    with serve(path) as server:
        assert ask(server, other)[0] == found


def test_a_long_prompt_on_disk(path: Path, tmp_path: Path) -> None:
    ids = ids_of(GRID + 400)
    body = {"prompt": ids, "max_tokens": 4, "temperature": 0}
    with serve(path, tmp_path) as server:
        want = ask(server, body)[0]
    with serve(path, tmp_path) as server:
        found, known = ask(server, body)
        assert found == want and known == (len(ids) - 1) // BLOCK * BLOCK
    parted = {**body, "prompt": [*ids[: GRID + 200], *ids_of(100, 1)[1:]]}
    with serve(path) as server:
        want_parted = ask(server, parted)[0]
    with serve(path, tmp_path) as server:
        assert ask(server, parted) == (want_parted, GRID)
    # A damaged file counts as absent: what comes before it is of no use without a state.
    for file in (tmp_path / "prefixes").glob("*.prefix"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with serve(path, tmp_path) as server:
        assert ask(server, body) == (want, 0)
