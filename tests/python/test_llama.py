"""`Llama` token by token, on a tiny random model: text, eval, generate, sample."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
import tiny
from gguf_files import changed
from powerinfer_cpp.core.gguf import Gguf
from tiny import BYTE, CONFIG, PROMPT, greedy, take

from powerinfer_cpp import (
    ContextOverflowError,
    Llama,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


# ---- Text and tokens ----


def test_tokens_and_text(llm: Llama) -> None:
    ids = llm.tokenize(PROMPT.encode())
    assert ids[0] == llm.token_bos() == 1 and llm.token_eos() == 2
    assert ids[1:] == llm.tokenize(PROMPT.encode(), add_bos=False)
    assert llm.detokenize(ids) == PROMPT.encode()
    assert llm.detokenize(ids[1:]) == b" " + PROMPT.encode()
    assert llm.detokenize(ids[1:], prev_tokens=ids[:1]) == b" " + PROMPT.encode()
    assert llm.tokenize(b"") == [1] and llm.tokenize(b"", add_bos=False) == []
    assert llm.tokenize(b"<s>", add_bos=False, special=True) == [1]
    assert 1 not in llm.tokenize(b"<s>", add_bos=False)
    assert llm.detokenize([1], special=True) == b"<s>" and llm.detokenize([1]) == b""
    every = bytes(range(256))
    assert llm.detokenize(llm.tokenize(every)) == every
    with pytest.raises(TypeError, match="bytes"):
        llm.tokenize("text")
    with pytest.raises(ValueError):
        llm.detokenize([CONFIG["vocab_size"]])


def test_a_text_with_more_tokens_than_bytes(path: Path, tmp_path: Path) -> None:
    """The space before a text is three byte tokens where the vocabulary has no piece for it."""
    with Gguf(path) as gguf:
        pieces = gguf.metadata["tokenizer.ggml.tokens"]
    pieces = [p.replace("\u2581", f"#{i}#") for i, p in enumerate(pieces)]
    file = changed(path, tmp_path / "bytes.gguf", {"tokenizer.ggml.tokens": pieces})
    with Llama(file, vocab_only=True, verbose=False) as llm:
        ids = llm.tokenize(b"\x01", add_bos=False)
        assert ids == [BYTE + byte for byte in "\u2581\x01".encode()]


def test_sizes_and_metadata(llm: Llama, path: Path) -> None:
    assert (llm.n_ctx(), llm.n_vocab(), llm.n_embd()) == (128, CONFIG["vocab_size"], 64)
    assert llm.context_params.n_ctx == 128
    assert llm.metadata["general.architecture"] == "llama"
    assert llm.metadata["llama.block_count"] == "2"
    assert llm.metadata["tokenizer.ggml.add_bos_token"] == "true"
    assert "tokenizer.ggml.tokens" not in llm.metadata
    with Llama(path, n_ctx=0, verbose=False) as whole:
        assert whole.n_ctx() == CONFIG["max_position_embeddings"]


def test_plan(llm: Llama) -> None:
    plan = llm.plan()
    assert plan["total"] == sum(plan["ram"].values()) <= plan["budget"]
    assert plan["ram"]["ffn"] == 2 * 3 * 64 * 96 * 4
    # Layers, k and v, positions, heads, F16; and what says which token is on which page.
    assert 0 <= plan["ram"]["kv"] - 2 * 2 * 128 * 2 * 16 * 2 < 1024


def test_vocabulary_alone(path: Path) -> None:
    with Llama(path, vocab_only=True, verbose=False) as llm:
        assert llm.detokenize(llm.tokenize(b"a story")) == b"a story"
        assert llm.n_ctx() == CONFIG["max_position_embeddings"] and llm.n_tokens == 0
        with pytest.raises(ValueError, match="vocab_only"):
            llm.eval([1])
        with pytest.raises(ValueError, match="vocab_only"):
            llm("x")


# ---- eval and scores ----


def test_scores_of_every_token(path: Path) -> None:
    tokens = [1, *range(10, 60)]
    want = reference.logits(CONFIG, checkpoints.weights(CONFIG), tokens, "silu")
    with Llama(
        path, n_ctx=64, n_batch=7, logits_all=True, verbose=False, type_k=0, type_v=0
    ) as llm:
        llm.eval(tokens)
        assert llm.n_tokens == len(tokens) and llm.input_ids[: len(tokens)].tolist() == tokens
        assert llm.scores.shape == (64, CONFIG["vocab_size"]) and llm.scores.dtype == np.float32
        assert reference.relative_error(llm.scores[: len(tokens)], want) < 2e-5
        once = llm.scores[: len(tokens)].copy()
        llm.reset()
        for token in tokens:
            llm.eval([token])
        assert np.array_equal(llm.scores[: len(tokens)], once)


@pytest.mark.parametrize(
    "options", [{"n_threads": 1}, {"n_threads": 3}, {"n_batch": 5}, {"n_ubatch": 4}]
)
def test_bits_do_not_depend_on(options: dict, llm: Llama, path: Path) -> None:
    tokens = [1, *range(20, 90)]
    llm.eval(tokens)
    with Llama(path, n_ctx=128, verbose=False, **options) as other:
        other.eval(tokens)
        assert np.array_equal(other.scores[70], llm.scores[70])


def test_only_the_last_row_of_an_eval(llm: Llama) -> None:
    llm.eval([1, 5, 6])
    llm.eval([7])
    filled = np.flatnonzero(np.abs(llm.scores[:10]).max(axis=1))
    assert filled.tolist() == [2, 3]


def test_scores_asked_for_after_generating(llm: Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    llm(prompt, max_tokens=3, temperature=0)
    row = llm.scores[llm.n_tokens - 1].copy()
    ids = llm.input_ids[: llm.n_tokens].tolist()
    llm.reset()
    llm.eval(ids)
    assert np.array_equal(llm.scores[len(ids) - 1], row)


def test_tokens_that_cannot_be(llm: Llama) -> None:
    for tokens in ([-1], [CONFIG["vocab_size"]], [1 << 40], [0.5]):
        with pytest.raises(ValueError):
            llm.eval(tokens)
    llm.eval([])
    assert llm.n_tokens == 0
    with pytest.raises(ContextOverflowError, match="129 tokens"):
        llm.eval([1] * 129)
    llm.eval([1] * 128)
    with pytest.raises(ContextOverflowError):
        llm.eval([1])
    assert llm.n_tokens == 128


# ---- generate and sample ----


def test_generate_is_eval_and_argmax(llm: Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    want = greedy(llm, prompt, 12)
    assert take(llm.generate(prompt, temp=0), 12) == want


def test_generate_reuses_the_longest_prefix(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    session = llm._loop.opened._session
    real = session.eval
    monkeypatch.setattr(
        session, "eval", lambda t, *a, **k: (computed.append(len(t)), real(t, *a, **k))[1]
    )
    first = take(llm.generate([1, 10, 11, 12, 13], temp=0), 3)
    assert computed == [5, 1, 1]
    take(llm.generate([1, 10, 11, 12, 13, first[0], 99], temp=0), 1)
    assert computed[3:] == [1]
    same = take(llm.generate([1, 10, 11, 12, 13], temp=0), 3)
    assert computed[4:] == [1, 1, 1] and same == first


def test_generate_goes_on_without_reset(llm: Llama) -> None:
    want = take(llm.generate([1, 10, 11], temp=0), 1)
    llm.reset()
    llm.eval([1, 10])
    assert take(llm.generate([11], temp=0, reset=False), 1) == want and llm.n_tokens == 3


def test_generators_take_turns(llm: Llama) -> None:
    prompts = [[1, 10, 11], [1, 30, 31, 32]]
    want = [greedy(llm, p, 8) for p in prompts]
    both = [llm.generate(p, temp=0) for p in prompts]
    got: list[list[int]] = [[], []]
    for _ in range(8):
        for ids, steps in zip(got, both, strict=True):
            ids.append(next(steps))
    assert got == want


def test_ids_sent_into_a_generator(llm: Llama) -> None:
    steps = llm.generate([1, 10], temp=0)
    first = next(steps)
    second = steps.send([40, 41])
    assert llm.input_ids[: llm.n_tokens].tolist() == [1, 10, first, 40, 41]
    assert second == greedy(llm, [1, 10, first, 40, 41], 1)[0]


def test_the_context_ends(llm: Llama) -> None:
    steps = llm.generate([1] * 126, temp=0)
    take(steps, 3)
    with pytest.raises(ContextOverflowError):
        next(steps)
    with pytest.raises(ValueError, match="at least one token"):
        next(llm.generate([]))


def test_sample(llm: Llama) -> None:
    with pytest.raises(ValueError, match="no logits"):
        llm.sample()
    llm.eval([1, 10, 11])
    best = int(np.argmax(llm.scores[2]))
    assert llm.sample(temp=0) == best == llm.sample(top_k=1) == llm.sample(temp=0, idx=2)
    llm.set_seed(5)
    drawn = [llm.sample(temp=2.0) for _ in range(20)]
    llm.set_seed(5)
    assert drawn == [llm.sample(temp=2.0) for _ in range(20)] and len(set(drawn)) > 3


def test_processors_and_criteria(llm: Llama) -> None:
    seen: list[tuple[int, ...]] = []

    def force(ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        assert (
            ids.dtype == np.intc
            and scores.dtype == np.float32
            and scores.shape == (CONFIG["vocab_size"],)
        )
        seen.append(tuple(ids))
        out = np.full_like(scores, -np.inf)
        out[50 + len(seen)] = 0
        return out

    steps = llm.generate([1, 10], temp=1.0, logits_processor=LogitsProcessorList([force]))
    assert take(steps, 3) == [51, 52, 53]
    assert seen == [(1, 10), (1, 10, 51), (1, 10, 51, 52)]
    stop = StoppingCriteriaList([lambda ids, logits: len(ids) >= 5])
    assert len(list(llm.generate([1, 10], temp=0, stopping_criteria=stop))) == 3
    done = llm(
        [1, 10], max_tokens=20, temperature=0, stopping_criteria=lambda ids, logits: len(ids) >= 5
    )
    assert done["choices"][0]["finish_reason"] == "stop" and done["usage"]["completion_tokens"] == 3
    never = MinTokensLogitsProcessor(5, 51)
    assert 51 not in take(llm.generate([1, 10], top_k=1, logits_processor=never), 5)
    with pytest.raises(ValueError, match="must return"):
        next(llm.generate([1], logits_processor=lambda ids, scores: scores[:5]))


def test_a_subclass_may_override_completions() -> None:
    class Loud(Llama):
        def __init__(self) -> None:
            self.asked: list[object] = []

        def create_completion(self, prompt: object, **more: object) -> object:
            self.asked.append(more)
            return f"{prompt}!"

    loud = Loud()
    assert loud("hm", max_tokens=3) == "hm!" and loud.asked == [{"max_tokens": 3}]


def test_a_processor_may_be_an_empty_list(llm: Llama) -> None:
    class Notes(list[int]):
        def __call__(self, ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
            self.append(len(ids))
            return scores

    notes = Notes()
    llm([1, 10], max_tokens=3, temperature=0, logits_processor=notes)
    assert notes == [2, 3, 4]
