"""What results depend on tells caches apart: saved states, caches of them, and prompts on disk.

Each variant differs from the others in one thing. Whether two compute the same is not asked of the
keys, but seen in what a state holds: keys and values, and logits.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from families import golden, quiet
from gguf_files import changed
from lora_files import written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.state import LlamaState
from powerinfer_cpp.llama_cache import BaseLlamaCache, LlamaDiskCache, LlamaRAMCache
from powerinfer_cpp.run import prefix_files
from powerinfer_cpp.run.prefix_files import PrefixFiles
from powerinfer_cpp.server.served import ServedModel

from powerinfer_cpp import Llama, ModelFormatError

HEADER = 56  # bytes of a saved sequence, before what it holds
YARN = {"rope_scaling_type": 2, "rope_freq_scale": 0.5}
PROMPT, ANSWER = [1, *range(20, 60)], [*range(60, 80)]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Options of `Llama` by names: a ReLU model with predictors, and what differs in one thing."""
    folder = tmp_path_factory.mktemp("keys")
    model = tiny.noisy(folder, head_dim=32)
    rng = np.random.default_rng(2)
    adapters = []
    for name, n in (("blk.0.attn_v", 128), ("blk.0.attn_v", 128), ("blk.1.ffn_up", 96)):
        terms = {"lora_a": rng.normal(size=(4, 64)) / 8, "lora_b": rng.normal(size=(n, 4))}
        tensors = {f"{name}.weight.{term}": values for term, values in terms.items()}
        adapters.append(written(folder / f"{len(adapters)}.gguf", tensors))
    one, other, of_ffn = adapters

    def bend(name: str, data: np.ndarray) -> np.ndarray:
        return data * 1.5 if name == "blk.0.attn_k.weight" else data

    found: dict[str, dict[str, Any]] = {
        "plain": {},
        "exact": {"sparse": "exact"},
        "off": {"sparse": "off"},
        "predictor": {"sparse": "predictor"},
        "threshold": {"sparse_threshold": 2.0},
        "another threshold": {"sparse_threshold": -2.0},
        "predictor threshold": {"sparse": "predictor", "sparse_threshold": 2.0},
        "q8_0": {"type_k": 8, "type_v": 8},
        "f32": {"type_k": 0, "type_v": 0},
        "base": {"rope_freq_base": 5000.0},
        "scale": {"rope_freq_scale": 0.5},
        "magnitude": {"yarn_attn_factor": 1.5},
        "yarn": YARN,
        "yarn extension": {**YARN, "yarn_ext_factor": 0.5},
        "yarn magnitude": {**YARN, "yarn_attn_factor": 1.5},
        "yarn beta fast": {**YARN, "yarn_beta_fast": 4.0},
        "yarn beta slow": {**YARN, "yarn_beta_slow": 2.0},
        "yarn context": {**YARN, "yarn_orig_ctx": 32},
        "epsilon": {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 1e-3}},
        "base in the header": {"kv_overrides": {"llama.rope.freq_base": 400.0}},
        "weights": {"model_path": changed(model, folder / "bent.gguf", tensors=bend)},
        "adapter": {"lora_path": one},
        "another adapter": {"lora_path": other},
        "adapter's scale": {"lora_path": one, "lora_scale": 0.5},
        "opposite scale": {"lora_path": one, "lora_scale": -1.0},
        "both adapters": {"lora_path": {one: 1.0, other: 1.0}},
        "scales the other way": {"lora_path": {one: 0.5, other: 1.0}},
        "adapter of the layer": {"lora_path": of_ffn},
        "predictors with it": {"lora_path": of_ffn, "lora_allow_predictor": True},
    }
    common = {"model_path": model, "n_ctx": 192, "verbose": False}
    return {name: {**common, **options} for name, options in found.items()}


def computed(llm: Llama) -> list[LlamaState]:
    """States of a prompt, and with some generated tokens."""
    llm.eval(PROMPT)
    states = [llm.save_state()]
    llm.eval(ANSWER, generated=True)
    return [*states, llm.save_state()]


def same_results(a: LlamaState, b: LlamaState) -> bool:
    same_cache = a.llama_state[HEADER:] == b.llama_state[HEADER:]
    return same_cache and np.array_equal(a.scores, b.scores)


def takes(llm: Llama, state: LlamaState) -> bool:
    try:
        llm.load_state(state)
    except ModelFormatError:
        return False
    return True


def test_states(variants: dict[str, dict[str, Any]]) -> None:
    """Each takes its own states, and none of those that it would have computed differently."""
    opened = {name: Llama(**options) for name, options in variants.items()}
    states = {name: computed(llm) for name, llm in opened.items()}
    n_refused, wrong = 0, []
    for (one, llm), other in itertools.product(opened.items(), states):
        for own, state in zip(states[one], states[other], strict=True):
            taken = takes(llm, state)
            if one == other:
                assert taken, one
            elif not same_results(own, state):
                n_refused += 1
                if taken:
                    wrong.append((one, other, state.n_tokens))
    assert not wrong
    # Modes that skip only what is zero compute the same prompts, and two of them the same texts.
    prompts = {"plain", "exact", "off", "threshold", "another threshold"}
    alike = [{*pair} for pair in itertools.combinations(prompts, 2)] + [{"exact", "off"}]
    alike.append({"adapter of the layer", "predictors with it"})
    assert n_refused == 2 * (len(variants) * (len(variants) - 1) - len(alike))
    for llm in opened.values():
        llm.close()


IN_TURN = ("plain", "adapter", "another adapter", "adapter's scale", "q8_0", "yarn", "weights")


@pytest.mark.parametrize("kind", [LlamaRAMCache, LlamaDiskCache])
def test_one_cache_for_all(
    kind: type[BaseLlamaCache], variants: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """What others have left is not used."""
    cache = LlamaDiskCache(tmp_path) if kind is LlamaDiskCache else LlamaRAMCache()
    call: dict[str, Any] = {"max_tokens": 3, "logprobs": 1, "seed": 1}
    for name in IN_TURN:
        with Llama(**variants[name]) as llm:
            want = llm(PROMPT, **call)["choices"]
            llm.reset()
            llm.set_cache(cache)
            for _ in range(2):
                assert llm(PROMPT, **call)["choices"] == want, name


def test_adapters_that_change(variants: dict[str, dict[str, Any]]) -> None:
    """Of one model, between calls, with a cache."""
    call: dict[str, Any] = {"max_tokens": 3, "logprobs": 1, "seed": 1}
    one, other = (variants[name]["lora_path"] for name in ("adapter", "another adapter"))
    with Llama(**variants["plain"]) as llm:
        found = {}
        for cache in (None, LlamaRAMCache()):
            llm.set_cache(cache)
            for adapters in ({}, {one: 1.0}, {one: 0.5}, {other: 0.5}, {one: 0.5, other: 1.0}, {}):
                llm.reset()
                llm.set_adapters(adapters)
                choices = llm(PROMPT, **call)["choices"]
                assert found.setdefault(str(adapters), choices) == choices


def names_of(options: dict[str, Any], folder: Path, key: bytes = b"") -> list[str]:
    """Of the files in which a served model keeps a prompt of two blocks."""
    ids = np.arange(1, 129, dtype=np.int32)
    files, path = PrefixFiles(folder, 1 << 20), options["model_path"]
    more = {name: value for name, value in options.items() if name != "model_path"}
    with ServedModel(
        path, lambda _: None, prefix_files=files, owner_key=lambda _: key, **more
    ) as m:
        assert m.prefixes is not None
        return m.prefixes.names("", ids, np.zeros(len(ids), bool))


def test_names_of_prompts_on_disk(
    variants: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two variants share a file, nor do keys; and each finds its own again."""
    monkeypatch.setattr(prefix_files, "_KEY_ROUNDS", 1)
    found = {name: names_of(options, tmp_path) for name, options in variants.items()}
    found["key"] = names_of(variants["plain"], tmp_path, b"key")
    found["another key"] = names_of(variants["plain"], tmp_path, b"other")
    every = [name for names in found.values() for name in names]
    assert len(set(every)) == len(every) == 2 * len(found)
    for name in ("plain", "adapter's scale", "both adapters"):
        assert names_of(variants[name], tmp_path) == found[name]
    faster = {**variants["plain"], "n_ctx": 160, "n_batch": 8, "n_threads": 1}
    assert names_of(faster, tmp_path) == found["plain"]


@pytest.mark.parametrize("name", ["llama-longrope", "llama-dynamic"])
def test_a_context_that_changes_rope(name: str, tmp_path: Path) -> None:
    """Of models that rotate otherwise in a longer context than they were trained with."""
    path = convert(
        golden(name, tmp_path / "model"), outfile=tmp_path / "m.gguf", outtype="f32", log=quiet
    )
    options = {"model_path": path, "verbose": False}
    contexts = (7, 8, 17, 100)
    opened = [Llama(**options, n_ctx=n) for n in contexts]
    ids = [int(i) for i in np.random.default_rng(0).integers(3, opened[0].n_vocab(), 6)]
    states = []
    for llm in opened:
        llm.eval(ids)
        states.append(llm.save_state())
    assert not all(same_results(states[0], state) for state in states)
    for llm, own in zip(opened, states, strict=True):
        for state in states:
            assert takes(llm, state) == same_results(own, state)
        llm.close()
    names = [names_of({**options, "n_ctx": n}, tmp_path) for n in (contexts[0], contexts[-1])]
    assert not set(names[0]) & set(names[1])
