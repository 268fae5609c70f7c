"""Saved states, their cache, pickled Llamas, and files from a repository."""

from __future__ import annotations

import itertools
import pickle
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
import tiny
from gguf_files import changed
from powerinfer_cpp._native import lib
from powerinfer_cpp.core.errors import check
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import SPARSE_MODES, Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.hub import one_match
from powerinfer_cpp.llama_cache import LlamaDiskCache
from tiny import take

from powerinfer_cpp import (
    ContextOverflowError,
    Llama,
    LlamaRAMCache,
    LlamaState,
    ModelFormatError,
    OutOfMemoryError,
    bundle,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("state"))


@pytest.fixture
def llm(path: Path):
    with Llama(path, n_ctx=128, verbose=False) as opened:
        yield opened


# ---- save and load ----


def test_a_state_is_held_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is saved, too; and a cache reserves its memory before anything is copied."""
    with Llama(path, n_ctx=4096, verbose=False) as llm:
        llm.eval([5] * 4000)
        tracemalloc.start()
        state = llm.save_state()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(state.llama_state) == llm._loop.opened._session.saved_bytes() > 500_000
        assert peak < 1.2 * state.n_bytes
        saved, reserved = [], []
        monkeypatch.setattr(Session, "save", lambda self: saved.append(1))

        def full(what: str, n_bytes: int) -> None:
            reserved.append(n_bytes)
            raise OutOfMemoryError(what)

    with Llama(path, n_ctx=128, verbose=False) as llm:
        monkeypatch.setattr(llm._model, "reserve", full)
        monkeypatch.setattr(llm._model, "unreserved", lambda: 0)
        cache = LlamaRAMCache()
        llm.set_cache(cache)
        assert llm("a", max_tokens=2)["choices"] and not cache.cache_size
        assert not saved and len(reserved) == 1


@pytest.mark.parametrize("kv", [0, 1])
def test_a_state_goes_on_as_before(path: Path, kv: int) -> None:
    options = {"n_ctx": 128, "verbose": False, "type_k": kv, "type_v": kv}
    with Llama(path, **options) as a, Llama(path, **{**options, "n_ctx": 64}) as b:
        a.eval([1, 10, 11, 12])
        state = a.save_state()
        want = a.scores[3].copy()
        assert state.n_tokens == 4 and state.input_ids.tolist() == [1, 10, 11, 12]
        assert state.llama_state_size == len(state.llama_state) and state.scores.shape[0] == 1
        a.eval([13, 14])
        after = a.scores[5].copy()
        for other in (a, b):
            other.load_state(pickle.loads(pickle.dumps(state)))
            assert other.n_tokens == 4 and other.input_ids[:4].tolist() == [1, 10, 11, 12]
            assert np.array_equal(other.scores[3], want)
            assert other.sample(temp=0) == int(np.argmax(want))
            other.eval([13, 14])
            assert np.array_equal(other.scores[5], after)


def test_a_state_holds_the_random_numbers(llm: Llama) -> None:
    llm.eval([1, 10, 11])
    state = llm.save_state()
    first = [llm(tiny.PROMPT, max_tokens=6, temperature=2.0) for _ in range(2)]
    llm.load_state(state)
    again = [llm(tiny.PROMPT, max_tokens=6, temperature=2.0) for _ in range(2)]
    assert [d["choices"] for d in again] == [d["choices"] for d in first]
    assert llm.n_tokens > 3


def draws(llm: Llama) -> list[int]:
    return [llm.sample(temp=2.0) for _ in range(12)]


def test_sample_goes_on_from_a_state(llm: Llama, path: Path) -> None:
    llm.set_seed(5)
    llm.eval([1, 10, 11])
    draws(llm)  # its sampler has been in use
    state = llm.save_state()
    first = draws(llm)
    assert len(set(first)) > 3
    llm.load_state(state)
    assert draws(llm) == first
    llm.sample(temp=1.0, top_k=7)  # another sampler, whose draws come out of the same numbers
    llm.eval([12])
    llm.load_state(pickle.loads(pickle.dumps(state)))
    assert draws(llm) == first
    with Llama(path, n_ctx=64, seed=77, verbose=False) as other:
        other.eval([5])
        draws(other)
        other.load_state(state)
        assert draws(other) == first


def test_states_of_other_versions_are_refused(llm: Llama) -> None:
    llm.eval([1, 10, 11])
    state, older, newer = (llm.save_state() for _ in range(3))
    del older.__dict__["version"]  # as those that were pickled before there were versions
    newer.version += 1
    for other in (older, newer):
        with pytest.raises(ValueError, match="saved by another version of powerinfer_cpp"):
            llm.load_state(pickle.loads(pickle.dumps(other)))
        assert llm.n_tokens == 3
    llm.load_state(state)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.noisy(tmp_path_factory.mktemp("noisy"))


@pytest.mark.parametrize("mode", ["auto", "predictor", "exact", "off"])
def test_generated_positions_of_a_state(noisy: Path, mode: str) -> None:
    """It continues with the same bits, and a prompt reuses only what it would compute equally."""
    options = {"n_ctx": 96, "verbose": False, "sparse": mode}
    prompt, answer = [1, 10, 11, 12], list(range(20, 90))  # over a page of 64 positions
    with Llama(noisy, **options) as llm:
        llm.eval(prompt)
        llm.eval(answer[:66], generated=True)
        state = llm.save_state()
        want = [llm.scores[69].copy()]
        llm.eval(answer[66:], generated=True)
        want.append(llm.scores[73].copy())
        llm.reset()
        llm.eval(prompt + answer)
        as_prompt = llm.scores[73].copy()
    assert state.generated.tolist() == [False] * 4 + [True] * 66
    assert state.n_prompt == (4 if mode == "auto" else 70)
    assert np.array_equal(as_prompt, want[1]) == (mode != "auto")
    for kept in (state, pickle.loads(pickle.dumps(state))):
        with Llama(noisy, **options) as llm:
            llm.eval([1, 40, 41])
            llm.load_state(kept)
            assert np.array_equal(llm.scores[69], want[0])
            llm.eval(answer[66:], generated=True)
            assert np.array_equal(llm.scores[73], want[1])
            again = llm.save_state()
            assert again.generated.tolist() == [False] * 4 + [True] * 70
            next(llm.generate(prompt + answer, temp=0))
            assert np.array_equal(llm.scores[73], as_prompt)
            assert llm.stats()["n_prompt"] == (len(answer) if mode == "auto" else 1)


UNMASKED = ("auto", "exact", "off")  # whose prompts have the same keys and values


@pytest.mark.parametrize("saved_by", [*UNMASKED, "predictor"])
def test_states_of_other_modes(noisy: Path, saved_by: str) -> None:
    """A state is refused if predictors would have masked other positions."""
    options = {"n_ctx": 32, "verbose": False}
    with Llama(noisy, sparse=saved_by, **options) as llm:
        llm.eval([1, 10, 11])
        prompt = llm.save_state()
        llm.eval([12], generated=True)
        answer = llm.save_state()
    others: dict[str, dict] = {mode: {"sparse": mode} for mode in SPARSE_MODES}
    others["threshold"] = {"sparse": saved_by, "sparse_threshold": 0.3}
    wrong = []
    for name, mode in others.items():
        pair = {saved_by, saved_by if name == "threshold" else name}
        same = pair <= {"exact", "off"} or name == saved_by
        for state, fits in ((prompt, same or pair <= {*UNMASKED}), (answer, same)):
            with Llama(noisy, **options, **mode) as llm:
                llm.eval([1, 2])
                try:
                    llm.load_state(state)
                    loaded = True
                except ModelFormatError as error:
                    assert "another mode" in str(error)
                    loaded = False
                assert llm.n_tokens == (state.n_tokens if loaded else 0)
            if loaded != fits:
                wrong.append((name, state.n_tokens))
    assert not wrong


ALIKE = [{mode} for mode in SPARSE_MODES] + [{"exact", "off"}]
PAIRS = list(itertools.product(SPARSE_MODES, SPARSE_MODES))
FITTING = [pair for pair in PAIRS if set(pair) in ALIKE]


def answered(noisy: Path, sparse: str) -> LlamaState:
    """A prompt and an answer."""
    with Llama(noisy, n_ctx=96, sparse=sparse, verbose=False) as llm:
        llm.eval([1, 10, 11])
        llm.eval([12, 13, 14], generated=True)
        return llm.save_state()


@pytest.mark.parametrize(("saved_by", "opened_in"), [pair for pair in PAIRS if pair not in FITTING])
def test_a_state_of_another_mode_is_refused(noisy: Path, saved_by: str, opened_in: str) -> None:
    state = answered(noisy, saved_by)
    with Llama(noisy, n_ctx=96, sparse=opened_in, verbose=False) as llm:
        with pytest.raises(ModelFormatError, match="another mode"):
            llm.load_state(state)
        assert llm.n_tokens == 0


@pytest.mark.parametrize(("saved_by", "opened_in"), FITTING)
def test_a_loaded_state_goes_on_whoever_comes_between(
    noisy: Path, saved_by: str, opened_in: str
) -> None:
    state = answered(noisy, saved_by)
    found: list[list[int]] = []
    for between in (False, True):
        with Llama(noisy, n_ctx=96, sparse=opened_in, verbose=False) as llm:
            llm.load_state(state)
            steps = llm.generate([15], temp=0, reset=False)
            found.append([])
            for _ in range(8):
                found[-1] += take(steps, 1)
                if between:
                    llm(tiny.PROMPT, max_tokens=1)
    assert found[0] == found[1]


def test_states_of_an_older_engine_are_refused(llm: Llama) -> None:
    """Old states do not contain how their positions were computed."""
    llm.eval([1, 10, 11])
    state = llm.save_state()
    assert state.llama_state.startswith(b"PIseq05\n")
    older = LlamaState(**{**vars(state), "llama_state": b"PIseq01\n" + state.llama_state[8:]})
    with pytest.raises(ModelFormatError, match="another version of the engine"):
        llm.load_state(older)
    assert llm.n_tokens == 0
    llm.load_state(state)
    assert llm.n_tokens == 3


def test_states_with_other_numerics_are_refused(llm: Llama) -> None:
    """Bits that this version does not compute, of the engine and of Python's part."""
    llm.eval([1, 10, 11])
    state = llm.save_state()
    assert state.numerics == lib.pi_numerics() > 0
    data = bytearray(state.llama_state)
    data[16] += 1
    for changes in ({"numerics": state.numerics + 1}, {"llama_state": bytes(data)}):
        with pytest.raises(ModelFormatError, match="rounds results differently"):
            llm.load_state(LlamaState(**{**vars(state), **changes}))
    llm.load_state(state)


def bent(path: Path, target: Path, name: str, where: slice) -> Path:
    """A copy of a model with other values in a part of one tensor."""

    def bend(tensor: str, data: np.ndarray) -> np.ndarray:
        if tensor == name:
            data = data.copy()
            data.reshape(-1)[where] += 0.25
        return data

    return changed(path, target, tensors=bend)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("blk.1.attn_v.weight", slice(None)),
        ("blk.0.ffn_norm.weight", slice(5, 6)),
        ("output.weight", slice(9000, 12000)),
    ],
)
def test_states_of_other_weights_are_refused(
    name: str, where: slice, path: Path, llm: Llama, tmp_path: Path
) -> None:
    """Of a model whose names, shapes and formats are the same; also by the caches."""
    other = bent(path, tmp_path / "other.gguf", name, where)
    ids = llm.tokenize(tiny.PROMPT.encode())
    llm.eval(ids)
    state, cache = llm.save_state(), LlamaDiskCache(tmp_path / "cache")
    cache[ids] = state
    with Llama(other, n_ctx=128, verbose=False) as changed_one:
        with pytest.raises(ModelFormatError, match="another model"):
            changed_one.load_state(state)
        want = changed_one(tiny.PROMPT, max_tokens=3, logprobs=1, seed=1)["choices"]
        changed_one.reset()
        changed_one.set_cache(cache)
        assert changed_one(tiny.PROMPT, max_tokens=3, logprobs=1, seed=1)["choices"] == want
    same = tmp_path / "elsewhere.gguf"
    same.write_bytes(path.read_bytes())
    with Llama(same, n_ctx=128, use_mmap=False, verbose=False) as copy:
        copy.load_state(state)
        assert copy.n_tokens == len(ids)


def test_an_edit_anywhere_is_another_model(model_path: Path, tmp_path: Path) -> None:
    """One byte of the weights, at any place, also of norms, at both ends and across pages."""
    data = bytearray(model_path.read_bytes())
    other = tmp_path / "edited.gguf"
    rng, size = np.random.default_rng(0), len(data)
    with Gguf(model_path) as gguf:
        norm = next(t.offset + 5 for t in gguf.tensors if t.name == "blk.1.ffn_norm.weight")
        begin = min(t.offset for t in gguf.tensors)
    session = Session(Model(str(model_path)), n_ctx=64)
    session.eval(np.arange(3, 9, dtype=np.int32))
    state = session.save()
    for at in (begin, norm, 65535, 65536, size - 1, *rng.integers(begin, size, 7)):
        at = max(begin, int(at))
        data[at] ^= 1
        other.write_bytes(data)
        with pytest.raises(ModelFormatError, match="another model"):
            Session(Model(str(other)), n_ctx=64).load(state)
        data[at] ^= 1
    other.write_bytes(data)
    copy = Session(Model(str(other)), n_ctx=64)
    copy.load(state)
    assert copy.length() == 6


def test_a_file_of_other_weights_is_refused(path: Path, tmp_path: Path) -> None:
    other = bent(path, tmp_path / "other.gguf", "blk.0.attn_q.weight", slice(None))
    file = str(tmp_path / "saved").encode()
    one, two = (Session(Model(str(model)), n_ctx=64) for model in (path, other))
    one.eval(np.arange(1, 9, dtype=np.int32))
    check(lib.pi_sequence_save_file(one.handle, 0, file))
    with pytest.raises(ModelFormatError, match="saved: the state belongs to another model"):
        check(lib.pi_sequence_load_file(two.handle, 0, file))
    one.truncate(0)
    check(lib.pi_sequence_load_file(one.handle, 0, file))
    assert one.length() == 8


def test_a_state_goes_on_in_a_bundled_file(tmp_path: Path) -> None:
    """As a model does that has to run from storage in the next process."""
    noisy = tiny.noisy(tmp_path)
    found = []
    for path in (noisy, bundle.bundle(noisy, tmp_path / "bundled.gguf")):
        with Llama(path, n_ctx=64, verbose=False) as llm:
            if not found:
                llm.eval([1, 10, 11])
                state = llm.save_state()
            llm.load_state(state)
            llm.eval([12])
            found.append(llm.scores[3].copy())
    assert np.array_equal(*found)


def test_with_logits_all(path: Path) -> None:
    with Llama(path, n_ctx=64, logits_all=True, verbose=False) as llm:
        llm.eval([1, 10, 11])
        state, want = llm.save_state(), llm.scores[:3].copy()
        llm.reset()
        llm.eval([1, 20, 21, 22])
        llm.load_state(state)
        assert np.array_equal(llm.scores[:3], want)


def test_an_empty_state(llm: Llama) -> None:
    state = llm.save_state()
    llm.eval([1, 2, 3])
    llm.load_state(state)
    assert llm.n_tokens == 0
    with pytest.raises(ValueError, match="no logits"):
        llm.sample()


def test_states_that_do_not_fit(llm: Llama, path: Path) -> None:
    llm.eval([1] * 40)
    state = llm.save_state()
    with Llama(path, n_ctx=32, verbose=False) as small:
        small.eval([1, 2])
        with pytest.raises(ContextOverflowError):
            small.load_state(state)
        assert small.n_tokens == 2
    with Llama(path, n_ctx=64, type_k=0, type_v=0, verbose=False) as other:
        with pytest.raises(ModelFormatError):
            other.load_state(state)
        assert other.n_tokens == 0
        other.eval([1, 2])
    for changes in (
        {"llama_state": state.llama_state[:-1]},
        {"llama_state": b""},
        {"llama_state": bytes(200)},
        {"n_tokens": 39},
        {"input_ids": state.input_ids[:-1]},
        {"scores": np.zeros((1, 3), dtype=np.float32)},
        {"scores": np.zeros(3, dtype=np.float32)},
    ):
        broken = LlamaState(**{**vars(state), **changes})
        with pytest.raises(ValueError):  # noqa: PT011
            llm.load_state(broken)
        assert llm.n_tokens in (0, 40)
    llm.load_state(state)
    assert llm.n_tokens == 40


# ---- cache ----


def test_cache(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LlamaRAMCache()
    llm.set_cache(cache)
    prompts = [f"{tiny.PROMPT} jumps over the lazy dog {i}" for i in range(2)]
    other = "a small model tells a story"
    options = {"max_tokens": 4, "temperature": 0}
    want = [llm(p, **options)["choices"] for p in (prompts[0], other)]
    computed: list[int] = []
    session = llm._loop.opened._session
    real = session.eval
    monkeypatch.setattr(
        session, "eval", lambda t, *a, **k: (computed.append(len(t)), real(t, *a, **k))[1]
    )
    assert llm(prompts[0], **options)["choices"] == want[0]
    assert computed[0] == 1  # all but the last token came from the cache
    computed.clear()
    llm(prompts[1], **options)
    assert computed[0] <= 3
    stream = "".join(c["choices"][0]["text"] for c in llm(other, stream=True, **options))
    assert stream == want[1][0]["text"] and cache.cache_size > 0
    llm.set_cache(None)


def test_the_oldest_state_goes_first(llm: Llama) -> None:
    states = {}
    for token in (10, 20, 30):
        llm.reset()
        llm.eval([token, token + 1])
        states[token] = llm.save_state()
    cache = LlamaRAMCache(capacity_bytes=2 * states[10].n_bytes)
    cache[(10, 11)], cache[(20, 21)] = states[10], states[20]
    assert cache[(10, 99)] is states[10]  # used, and so the youngest
    cache[(30, 31)] = states[30]
    assert (20, 21) not in cache and (10,) in cache and (30, 31) in cache
    with pytest.raises(KeyError):
        cache[(77,)]
    assert cache.cache_size == 2 * states[10].n_bytes
    LlamaRAMCache(capacity_bytes=1)[(10,)] = states[10]


# ---- pickle ----


def test_pickle(path: Path) -> None:
    with Llama(path, n_ctx=77, seed=5, verbose=False, progress_callback=lambda _: True) as llm:
        data = pickle.dumps(llm)
        want = llm(tiny.PROMPT, max_tokens=8, temperature=1.5)["choices"]
    assert len(data) < 2000
    with pickle.loads(data) as again:
        assert again.n_ctx() == 77 and again.n_tokens == 0
        assert again(tiny.PROMPT, max_tokens=8, temperature=1.5)["choices"] == want


# ---- stats ----


def test_stats(llm: Llama) -> None:
    assert llm.stats()["n_gen"] == 0
    done = llm(tiny.PROMPT, max_tokens=10, temperature=0, logit_bias={2: -1000})
    found = llm.stats()
    times = {"n_prompt", "n_gen", "prompt_s", "gen_s", "gen_ts", "ttft_s", "token_ms"}
    shares = {"share_predicted", "share_computed", "share_fired", "bytes_per_token", "tiers"}
    others = {"audit", "pcie_bytes", "rss_peak", "vram_peak", "storage", "experts"}
    assert set(found) == times | shares | others and found["storage"] is None
    assert found["n_prompt"] == done["usage"]["prompt_tokens"] and found["n_gen"] == 9
    assert found["gen_ts"] == pytest.approx(9 / found["gen_s"])
    assert 0 < found["prompt_s"] <= found["ttft_s"]
    ms = found["token_ms"]
    assert 0 < ms["p50"] <= ms["p95"] <= ms["p99"]
    layers, n_ff = tiny.CONFIG["num_hidden_layers"], tiny.CONFIG["intermediate_size"]
    assert found["share_computed"] == [1.0] * layers
    parts = found["bytes_per_token"]
    assert set(parts) == {"attention", "predictor", "ffn", "head", "kv"}
    weights = sum(n for part, n in parts.items() if part != "kv")
    looked_up = ("token_embd.weight",)  # a row of it, where the head is another tensor
    assert weights == sum(t.n_bytes for t in llm._model.gguf.tensors if t.name not in looked_up)
    assert parts["ffn"] == layers * 3 * 64 * n_ff * 4
    # Keys and values of the positions that each generated token saw: the last one saw all.
    seen = llm.n_tokens - (found["n_gen"] - 1) / 2
    assert parts["kv"] == layers * 2 * seen * 2 * 16 * 2
    assert set(found["tiers"]) == {"gpu", "ram", "storage"}
    keys = {"neurons", "experts", "bytes", "hits", "reads", "stall_s", "layer_neurons"}
    keys |= {"layer_hits"}
    assert all(set(tier) == keys for tier in found["tiers"].values())
    ram, gpu = found["tiers"]["ram"], found["tiers"]["gpu"]
    assert ram["neurons"] == layers * n_ff and found["rss_peak"] > 1 << 20
    assert ram["layer_neurons"] == ram["layer_hits"] == [n_ff] * layers
    assert gpu["layer_neurons"] == gpu["layer_hits"] == [0] * layers
    llm(tiny.PROMPT + " jumps", max_tokens=1)
    assert 0 < llm.stats()["n_prompt"] < 8  # what was there already is not counted


# ---- from_pretrained ----

FILES = ["README.md", "m-Q4_0.gguf", "m-Q8_0.gguf", "sub/m-F16.gguf"]


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        ("*Q8_0.gguf", "m-Q8_0.gguf"),
        ("m-Q4_0.gguf", "m-Q4_0.gguf"),
        ("*F16.gguf", "sub/m-F16.gguf"),
        ("sub/*", "sub/m-F16.gguf"),
        ("*.gguf", "3 files match"),
        ("*q8_0.gguf", "no file matches"),
        ("none", "no file matches"),
    ],
)
def test_one_match(pattern: str, want: str) -> None:
    if want in FILES:
        assert one_match(FILES, pattern, "a/b") == want
    else:
        with pytest.raises(ValueError, match=want):
            one_match(FILES, pattern, "a/b")


def test_from_pretrained(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        Llama.from_pretrained("a/b", "*.gguf")
    asked: list[tuple] = []

    class Api:
        def list_repo_files(self, repo_id: str) -> list[str]:
            return FILES

    def fetch(repo_id: str, name: str, **where: str) -> str:
        asked.append((repo_id, name, where))
        return str(path) if name == "m-Q8_0.gguf" else "/nowhere"

    stand_in = types.ModuleType("huggingface_hub")
    stand_in.HfApi, stand_in.hf_hub_download = Api, fetch
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    with Llama.from_pretrained(
        "a/b", filename="*Q8_0.gguf", additional_files=["*F16*"], cache_dir="c", verbose=False
    ) as llm:
        assert llm.model_path == str(path)
    assert asked == [
        ("a/b", "m-Q8_0.gguf", {"cache_dir": "c"}),
        ("a/b", "sub/m-F16.gguf", {"cache_dir": "c"}),
    ]
    for name in (None, "", "*.gguf"):
        with pytest.raises(ValueError, match="filename|files match"):
            Llama.from_pretrained("a/b", name)


def test_parts_of_a_sequence(path: Path) -> None:
    """Put together they are the sequence; a part that does not belong there changes nothing."""
    model = Model(str(path))
    session = Session(model, n_ctx=192, n_seq=3, n_kv=256)
    ids = np.arange(20, 120, dtype=np.int32)
    session.eval(ids)
    begin, end = session.save_part(0, 0, 64), session.save_part(0, 64, 36)
    session.load_part(1, begin)
    session.load_part(1, end)
    assert session.match(ids, sequence=1) == session.length(1) == 100
    assert session.save_part(1, 0, 100) == session.save()
    for first, count in ((0, 101), (3, 4), (64, -1), (-64, 64)):
        with pytest.raises(ValueError, match="there is no part"):
            session.save_part(0, first, count)
    with pytest.raises(ModelFormatError, match="position 100 comes next"):
        session.load_part(1, begin)
    with pytest.raises(ModelFormatError, match="cut off"):
        session.load_part(2, begin[:20])
    with pytest.raises(ContextOverflowError, match="n_kv"):
        session.load_part(2, begin)
    assert [session.length(i) for i in range(3)] == [100, 100, 0]
    session.close()
