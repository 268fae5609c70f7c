"""Sampling parameters: documented signatures, and one set of defaults."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from pathlib import Path

import pytest
from powerinfer_cpp._native import ffi, lib
from powerinfer_cpp.cli import chat
from powerinfer_cpp.core.sampler import Samplers
from powerinfer_cpp.core.sampling import Sampling, further

from powerinfer_cpp import Llama

# llama-cpp-python's names, order and defaults, by which callers pass them.
PROMISED = {
    "sample": (
        "top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.8, repeat_penalty=1.0, "
        "frequency_penalty=0.0, presence_penalty=0.0, logits_processor=None, idx=None, "
        "grammar=None"
    ),
    "generate": (
        "tokens, top_k=40, top_p=0.95, min_p=0.05, typical_p=1.0, temp=0.8, repeat_penalty=1.0, "
        "frequency_penalty=0.0, presence_penalty=0.0, reset=True, logits_processor=None, "
        "stopping_criteria=None, grammar=None"
    ),
    "create_completion": (
        "prompt, suffix=None, max_tokens=16, temperature=0.8, top_p=0.95, min_p=0.05, "
        "typical_p=1.0, logprobs=None, echo=False, stop=None, frequency_penalty=0.0, "
        "presence_penalty=0.0, repeat_penalty=1.0, top_k=40, stream=False, seed=None, tfs_z=1.0, "
        "mirostat_mode=0, mirostat_tau=5.0, mirostat_eta=0.1, model=None, stopping_criteria=None, "
        "logits_processor=None, grammar=None, logit_bias=None"
    ),
    "create_chat_completion": (
        "messages, functions=None, function_call=None, tools=None, tool_choice=None, "
        "temperature=0.2, top_p=0.95, top_k=40, min_p=0.05, typical_p=1.0, stream=False, "
        "stop=None, seed=None, response_format=None, max_tokens=None, presence_penalty=0.0, "
        "frequency_penalty=0.0, repeat_penalty=1.0, tfs_z=1.0, mirostat_mode=0, mirostat_tau=5.0, "
        "mirostat_eta=0.1, model=None, logits_processor=None, grammar=None, logit_bias=None, "
        "logprobs=None, top_logprobs=None, chat_template_kwargs=None, reasoning_effort=None, "
        "reasoning_budget=None, reasoning_format=None, continue_final_message=None"
    ),
}


def parameters(method: str) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(getattr(Llama, method)).parameters.items())[1:])


@pytest.mark.parametrize("method", PROMISED)
def test_signatures_are_as_promised(method: str) -> None:
    found = parameters(method)
    assert found.pop("sampling").kind is inspect.Parameter.VAR_KEYWORD
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in found.values())
    shown = (n if p.default is p.empty else f"{n}={p.default!r}" for n, p in found.items())
    assert ", ".join(shown) == PROMISED[method]


@pytest.mark.parametrize("method", PROMISED)
def test_every_parameter_has_the_engines_default(method: str) -> None:
    found = {name: p.default for name, p in parameters(method).items()}
    for name, default in Sampling().keywords().items():
        if name not in found and name != "temperature":
            continue  # one of `sampling`, without a default of its own
        given = found[name] if name in found else found["temp"]
        # Chats are colder, which llama-cpp-python decided.
        cold = method == "create_chat_completion" and name == "temperature"
        assert given == (0.2 if cold else default), name


def test_the_table_is_the_engines() -> None:
    engine = lib.pi_sampler_default_params()
    own = {"struct_size", "seed", "repeat_last_n"}  # of the call and of Llama
    assert {f.name for f in fields(Sampling)} == set(dir(engine)) - own
    for name, default in Sampling().keywords().items():
        if name in ("dry_sequence_breakers", "samplers"):
            assert getattr(engine, name) == ffi.NULL  # the engine has no vocabulary
            continue
        assert getattr(engine, name) == pytest.approx(default, rel=1e-7), name
        assert len(repr(default)) < 5  # as somebody would write it


def test_values_that_are_given() -> None:
    given = {"samplers": ["top_k"], "dry_sequence_breakers": ["a"]}
    assert Sampling(**given) == Sampling(samplers=("top_k",), dry_sequence_breakers=("a",))
    for name in given:
        with pytest.raises(ValueError, match=f"{name} must be a list of texts, not 'top_k'"):
            Sampling(**{name: "top_k"})
    with pytest.raises(ValueError, match="top_k must be a whole number, not 0.5"):
        Sampling(top_k=0.5)
    assert further("call", {"tfs_z": 0.5, "penalize_nl": False, "dry_base": 2.0}) == {
        "dry_base": 2.0
    }


@pytest.mark.parametrize("method", PROMISED)
def test_each_parameter_reaches_its_field(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Each value is another one, so that none can take the place of another."""
    names = [*Sampling().keywords()]
    given = {name: 1 + i for i, name in enumerate(names[: names.index("dry_sequence_breakers")])}
    seen: list[Sampling] = []

    def make(self: Samplers, params: Sampling, *_: object) -> None:
        seen.append(params)
        raise InterruptedError

    monkeypatch.setattr(Samplers, "make", make)
    first = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "tokens": [1]}
    more = {name: first[name] for name in parameters(method) if name in first}
    more |= given
    if "temp" in parameters(method):
        more["temp"] = more.pop("temperature")
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        llm.eval([1])
        with pytest.raises(InterruptedError):
            found = getattr(llm, method)(**more)
            next(found)
    assert seen == [Sampling(**given)]


def test_the_command_has_an_option_for_each() -> None:
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)

    def sampling(*flags: str) -> Sampling:
        args = vars(parser.parse_args(["m.gguf", *flags]))
        return Sampling(**{name: args[name] for name in Sampling().keywords()})

    assert sampling() == Sampling()
    flags = "--temp 1 --top-k 2 --top-p 0.3 --min-p 0.4 --typical 0.5 --repeat-penalty 6"
    flags += " --frequency-penalty 7 --presence-penalty 8"
    flags += " --top-n-sigma 9 --xtc-probability 0.1 --xtc-threshold 0.2 --dynatemp-range 0.3"
    flags += " --dynatemp-exp 1.1 --mirostat 2 --mirostat-ent 6.5 --mirostat-lr 0.4"
    flags += " --dry-multiplier 0.8 --dry-base 1.5 --dry-allowed-length 3 --dry-penalty-last-n 9"
    flags += " --dry-sequence-breaker a --dry-sequence-breaker b --samplers top_k;xtc"
    expected = (1.0, 2, 0.3, 0.4, 0.5, 6.0, 7.0, 8.0, 9.0, 0.1, 0.2, 0.3, 1.1, 2, 6.5, 0.4)
    assert sampling(*flags.split()) == Sampling(
        *expected, 0.8, 1.5, 3, 9, ("a", "b"), ("top_k", "xtc")
    )
    assert sampling("--dry-sequence-breaker", "none").dry_sequence_breakers == ()


def test_further_samplers(model_path: Path) -> None:
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        for method in (llm.create_completion, llm.generate):
            with pytest.raises(TypeError, match="has no argument 'top_q'; did you mean"):
                method("x" if method == llm.create_completion else [1], top_q=1)
        with pytest.raises(ValueError, match="mirostat_mode must be 0, 1 or 2"):
            llm("Once", max_tokens=2, mirostat_mode=3)
        with pytest.raises(ValueError, match="samplers: 'top_q' is unknown: known are penalties,"):
            llm("Once", max_tokens=2, samplers=["top_k", "top_q"])
        with pytest.raises(ValueError, match="a sequence breaker of DRY is empty"):
            llm("Once", max_tokens=2, dry_multiplier=1.0, dry_sequence_breakers=[""])
        with pytest.raises(ValueError, match="xtc_probability"):
            llm("Once", max_tokens=2, xtc_probability=2)
        plain = llm("Once upon a time", max_tokens=20, seed=1, temperature=2)["choices"]
        for changed in (
            {"mirostat_mode": 1, "mirostat_tau": 2.0},
            {"mirostat_mode": 2, "mirostat_tau": 2.0},
            {"xtc_probability": 1.0},
            {"dynatemp_range": 0.9},
            {"top_n_sigma": 0.1},
            {"dry_multiplier": 5.0, "dry_allowed_length": 0},
            {"samplers": ["top_p", "temperature"]},
        ):
            found = [
                llm("Once upon a time", max_tokens=20, seed=1, temperature=2, **changed)["choices"]
                for _ in range(2)
            ]
            assert found[0] == found[1] != plain, changed
