"""Texts of a model whose layers have a state: what a used `Llama` writes is what a fresh one does,
to the bit, and it computes no more of a prompt than docs/states.md says."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_states
from powerinfer_cpp.core.state import GRID, NEAR, common_prefix
from powerinfer_cpp.run.disk_cache import LlamaDiskCache
from powerinfer_cpp.run.drafts import Drafts

from powerinfer_cpp import Llama, LlamaRAMCache

# As Qwen 3 does it: thoughts before the last message of the user are left out.
THINKING = """
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
SYSTEM = {"role": "system", "content": "A small model tells a short story to a child. " * 4}
# Tokens by which a position may be missed: those of a text's end that its continuation changes.
BORDER = 4


@pytest.fixture(scope="module", params=small_states.KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_states.make(tmp_path_factory.mktemp("states"), THINKING, request.param)


@pytest.fixture
def llm(path: Path) -> Iterator[Llama]:
    with open_model(path) as found:
        yield found


def open_model(path: Path, **options: Any) -> Llama:
    return Llama(path, **{"n_ctx": 2048, "n_batch": 128, "verbose": False, "seed": 1, **options})


def ids_of(n: int, seed: int = 0) -> list[int]:
    return [1, *np.random.default_rng(seed).integers(10, 300, n - 1).tolist()]


def complete(llm: Llama, ids: list[int], n: int = 6) -> tuple[Any, int]:
    """A text with its log-probabilities, and how much of the prompt was computed."""
    found = llm(ids, max_tokens=n, temperature=0.0, logprobs=3)["choices"]
    return found, llm.stats()["n_prompt"]


def answer(llm: Llama, messages: list[dict[str, str]], n: int = 6) -> tuple[Any, int]:
    more = {"max_tokens": n, "temperature": 0.0, "logprobs": True, "top_logprobs": 3}
    found = llm.create_chat_completion(messages, **more)["choices"]
    return found, llm.stats()["n_prompt"]


def alone(path: Path, ask: Callable[..., tuple[Any, int]], of: Any, n: int = 6) -> Any:
    """What a fresh model writes."""
    with open_model(path) as llm:
        found, n_computed = ask(llm, of, n)
        assert n_computed > 0
        return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def prompt_ids(llm: Llama, messages: list[dict[str, str]]) -> np.ndarray:
    turn = llm._prompts.turn(messages, None, None, None)
    return np.array(llm._prompts.ids(turn.text))


def test_the_model_has_states(llm: Llama) -> None:
    """In the header as well as when it is open; and its layers make use of it."""
    assert llm._model.has_states and llm._model.gguf.has_states
    ids = ids_of(40)
    assert complete(llm, ids)[0] != complete(llm, [*ids[:30], 11, *ids[31:]])[0]


# ---- Completions ----


def test_a_repeated_prompt(path: Path, llm: Llama) -> None:
    ids = ids_of(300)
    want = alone(path, complete, ids)
    assert complete(llm, ids) == (want, 300)
    for _ in range(3):
        assert complete(llm, ids) == (want, 1)
    short = ids_of(NEAR, 1)  # has no checkpoint of its own
    want = alone(path, complete, short)
    assert complete(llm, short) == (want, NEAR)
    assert complete(llm, short)[0] == want


def test_a_second_turn(path: Path, llm: Llama) -> None:
    """A prompt that goes on from a text is continued at its end."""
    ids = ids_of(100)
    for more in range(1, 5):
        steps = llm.generate(ids, temp=0)
        text = [next(steps) for _ in range(8)]
        ids = [*ids, *text, *ids_of(20, more)]
        found, n_computed = complete(llm, ids)
        assert found == alone(path, complete, ids)
        assert n_computed == 21  # the last token of the text was not


def test_prompts_that_begin_alike(path: Path, llm: Llama) -> None:
    """A third prompt goes on where the second one had to begin afresh."""
    begin = ids_of(200)
    computed = []
    for seed in range(1, 5):
        ids = [*begin, *ids_of(60, seed)[1:]]
        found, n_computed = complete(llm, ids)
        assert found == alone(path, complete, ids)
        computed.append(n_computed)
    assert computed == [259, 259, 59, 59]


def test_a_long_prompt_has_a_grid(path: Path, llm: Llama) -> None:
    ids = ids_of(1500)
    complete(llm, ids)
    changed = [*ids[:1300], *ids_of(150, 1)[1:]]
    found, n_computed = complete(llm, changed)
    assert found == alone(path, complete, changed)
    assert n_computed == len(changed) - GRID
    shorter = ids[:800]
    assert complete(llm, shorter)[0] == alone(path, complete, shorter)


@pytest.mark.parametrize("options", [{"n_batch": 7, "n_ubatch": 3}, {"n_threads": 1}])
def test_cuts_of_a_prompt(path: Path, options: dict[str, int]) -> None:
    ids = ids_of(150)
    want = alone(path, complete, ids)
    with open_model(path, **options) as llm:
        for _ in range(2):
            assert complete(llm, ids)[0] == want
        llm.reset()
        for first in range(0, 150, 50):
            llm.eval(ids[first : first + 50])
        state = llm.scores[149].copy()
        llm.reset()
        llm.eval(ids)
        np.testing.assert_array_equal(llm.scores[149], state)


def test_texts_that_take_turns(path: Path, llm: Llama) -> None:
    """Two streams on one sequence: each begins again where it can."""
    prompts = [ids_of(120, 1), ids_of(90, 2)]
    want = []
    for ids in prompts:
        with open_model(path) as other:
            steps = other.generate(ids, temp=0)
            want.append([next(steps) for _ in range(6)])
    streams = [llm.generate(ids, temp=0) for ids in prompts]
    found: list[list[int]] = [[], []]
    for _ in range(6):
        for stream, text in zip(streams, found, strict=True):
            text.append(next(stream))
    assert found == want


@pytest.mark.parametrize("n_checkpoints", [0, 1])
def test_fewer_checkpoints(path: Path, llm: Llama, n_checkpoints: int) -> None:
    """They are dropped, or never kept; texts are the same."""
    chats = [[SYSTEM, user(f"the quick brown fox {i}")] for i in range(3)]
    with open_model(path, n_checkpoints=n_checkpoints) as few:
        assert few.plan()["ram"]["states"] < llm.plan()["ram"]["states"]
        for chat in [*chats, *chats]:
            assert answer(few, chat)[0] == answer(llm, chat)[0]
        ids = prompt_ids(few, chats[0])
        assert (answer(few, chats[-1])[1] == len(ids)) == (n_checkpoints == 0)


# ---- Chats ----


def test_ten_turns_with_thoughts(path: Path, llm: Llama) -> None:
    """Neither the prompt nor the answer is the beginning of the next prompt."""
    messages = [SYSTEM]
    before = np.empty(0, int)
    for turn in range(10):
        messages = [*messages, user(f"{turn}: the quick brown fox jumps over the dog")]
        ids = prompt_ids(llm, messages)
        found, n_computed = answer(llm, messages, 40)
        assert found == alone(path, answer, messages, 40)
        same = common_prefix(before, ids)
        assert len(before) == 0 or same < len(before)  # the thoughts are left out
        assert len(ids) - same <= n_computed <= len(ids) - same + BORDER, turn
        messages = [*messages, {"role": "assistant", "content": "the lazy dog", **thoughts(turn)}]
        before = ids


def thoughts(turn: int) -> dict[str, str]:
    return {"reasoning_content": f"a short story {turn}"}


def test_calls_keep_thoughts(path: Path, llm: Llama) -> None:
    """What an agent has thought since the last message of the user stays in its prompts."""
    messages = [SYSTEM, user("the quick brown fox")]
    answer(llm, messages)
    first = prompt_ids(llm, messages)
    for turn in range(3):
        messages += [
            {"role": "assistant", "content": "jumps", **thoughts(turn)},
            {"role": "tool", "content": "over the lazy dog"},
        ]
        found, _ = answer(llm, messages)
        assert found == alone(path, answer, messages)
    messages += [{"role": "assistant", "content": "a child"}, user("a story")]
    found, n_computed = answer(llm, messages)
    assert found == alone(path, answer, messages)
    ids = prompt_ids(llm, messages)
    same = common_prefix(first, ids)  # the thoughts behind it are left out now
    assert n_computed <= len(ids) - same + BORDER


def test_an_answer_once_more(path: Path, llm: Llama) -> None:
    messages = [SYSTEM, user("the quick brown fox jumps")]
    want = alone(path, answer, messages)
    assert answer(llm, messages)[0] == want
    for _ in range(3):
        found, n_computed = answer(llm, messages)
        assert found == want and n_computed <= NEAR + 1


def test_an_edited_message(path: Path, llm: Llama) -> None:
    messages = [SYSTEM, user("the quick brown fox"), {"role": "assistant", "content": "jumps"}]
    for said in ("over the lazy dog", "a small model", "tells a short story"):
        chat = [*messages, user(said)]
        before, ids = prompt_ids(llm, [*messages, user("x")]), prompt_ids(llm, chat)
        found, n_computed = answer(llm, chat)
        assert found == alone(path, answer, chat)
        if said != "over the lazy dog":
            assert n_computed <= len(ids) - common_prefix(before, ids) + BORDER


def test_two_chats_of_one_system_prompt(path: Path, llm: Llama) -> None:
    chats = [[SYSTEM, user("the quick brown fox")], [SYSTEM, user("a small model")]]
    n_system = len(prompt_ids(llm, [SYSTEM]))
    for turn in range(3):
        for i in range(2):
            chat = chats[i]
            ids = prompt_ids(llm, chat)
            found, n_computed = answer(llm, chat)
            assert found == alone(path, answer, chat)
            if turn or i:
                assert n_computed <= len(ids) - n_system + 20 < len(ids)
            chats[i] = [*chat, {"role": "assistant", "content": "a story"}, user(f"{turn}?")]


# ---- Drafts ----


class Guess:
    """What a text has at this place; wrong from the i-th token of a draft on."""

    def __init__(self, ids: list[int], right: int) -> None:
        self.ids, self.right = ids, right

    def __call__(self, input_ids: np.ndarray, /, **_: object) -> np.ndarray:
        found = np.array(self.ids[len(input_ids) : len(input_ids) + 30], dtype=np.intc)
        found[self.right :] = (found[self.right :] + 1) % 300
        return found


@pytest.mark.parametrize("right", [0, 1, 3, 30])
@pytest.mark.parametrize("n_ubatch", [3, 128])
def test_drafts(path: Path, right: int, n_ubatch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)  # none is left out because it does not pay
    ids = ids_of(100)
    want = alone(path, complete, ids, 60)
    with open_model(path) as plain:
        steps = plain.generate(ids, temp=0)
        text = [next(steps) for _ in range(80)]
    with open_model(path, draft_model=Guess(ids + text, right), n_ubatch=n_ubatch) as llm:
        for _ in range(2):
            assert complete(llm, ids, 60)[0] == want
        # Other calls in between drop what was guessed.
        steps = llm.generate(ids, temp=0)
        for i in range(40):
            assert next(steps) == text[i]
            if i == 12:
                state = llm.save_state()
                assert state.n_tokens == len(ids) + i
            if i == 17:
                llm.load_state(state)
                assert llm.n_tokens == len(ids) + 12


def test_a_draft_model_with_states(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrong now and then, and goes on from before what it guessed."""
    monkeypatch.setattr(Drafts, "TRIAL", 1 << 30)
    ids = ids_of(100)
    sampling = {"max_tokens": 60, "temperature": 1.5, "seed": 5, "logprobs": 2}
    with open_model(path) as plain:
        want = plain(ids, **sampling)["choices"]
    with open_model(path, draft_model=str(path)) as llm:
        assert llm(ids, **sampling)["choices"] == want
        draft = llm.draft_model
        work = draft._session.work().rows
        assert work < 100 + 60 * 20  # it did not begin again and again


# ---- Saved states ----


def test_saved_states(path: Path, llm: Llama) -> None:
    ids, more = ids_of(100), ids_of(20, 1)
    steps = llm.generate(ids, temp=0)
    text = [next(steps) for _ in range(5)]
    state = pickle.loads(pickle.dumps(llm.save_state()))
    assert state.whole and state.n_tokens == 104
    known = [*ids, *text[:4]]
    assert [state.reusable(np.array(of)) for of in ([*known, 11], known, ids)] == [104, 0, 0]
    want = [next(steps) for _ in range(5)]
    llm.eval(more)
    scores = llm.scores[llm.n_tokens - 1].copy()
    with open_model(path) as other:
        other.load_state(state)
        steps = other.generate(text[-1:], temp=0, reset=False)
        # The token is a prompt now, which makes no difference without predictors.
        assert [next(steps) for _ in range(5)] == want
        other.eval([*want[-1:], *more][1:])
        np.testing.assert_array_equal(other.scores[other.n_tokens - 1], scores)
        # The state stands for one position alone.
        assert complete(other, ids)[0] == alone(path, complete, ids)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_caches_of_states(path: Path, tmp_path: Path, kind: str) -> None:
    """The state before the last tokens of a prompt is kept, and the one at the end of the text."""
    cache = LlamaRAMCache() if kind == "ram" else LlamaDiskCache(tmp_path)
    ids, other = ids_of(200), ids_of(150, 1)
    want = alone(path, complete, ids)
    with open_model(path) as llm:
        llm.set_cache(cache)
        assert complete(llm, ids) == (want, 200)
        complete(llm, other)
        assert complete(llm, ids) == (want, 1)
    with open_model(path) as llm:  # a new session
        llm.set_cache(cache)
        assert complete(llm, ids) == (want, 1)
        steps = llm.generate(ids, temp=0)
        text = [next(steps) for _ in range(6)]
    longer = [*ids, *text, *ids_of(30, 2)]
    with open_model(path) as llm:
        llm.set_cache(cache)
        found, n_computed = complete(llm, longer)
        assert found == alone(path, complete, longer)
        # The last token of a text is not computed, unless an end token came behind it.
        n_written = len(want[0]["logprobs"]["tokens"]) - (want[0]["finish_reason"] == "length")
        assert n_computed == 36 - n_written


def test_a_cache_of_chats(path: Path) -> None:
    cache = LlamaRAMCache()
    messages = [SYSTEM, user("the quick brown fox")]
    with open_model(path) as llm:
        llm.set_cache(cache)
        answer(llm, messages)
        before = prompt_ids(llm, messages)
    messages += [{"role": "assistant", "content": "jumps"}, user("over the lazy dog")]
    with open_model(path) as llm:
        llm.set_cache(cache)
        found, n_computed = answer(llm, messages)
        assert found == alone(path, answer, messages)
        ids = prompt_ids(llm, messages)
        assert n_computed <= len(ids) - common_prefix(before, ids) + BORDER
