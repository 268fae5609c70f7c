#!/usr/bin/env python3
"""How often llama.cpp's samplers choose each token.

The reference of tests/python/test_sampler_counts.py:

    scripts/sampler_counts.py > tests/golden/sampler_counts.json    # needs llama-cpp-python

Every case draws 20,000 tokens from the same logits with one chain of samplers, after the same
tokens. `--dry` prints what DRY subtracts from logits, the reference of tests/python/test_dry.py:

    scripts/sampler_counts.py --dry > tests/golden/dry_penalties.json
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODEL = Path(__file__).resolve().parents[1] / "models" / "stories-relu.Q8_0.gguf"

N_VOCAB, DRAWS = 300, 20_000
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
ORDER = [
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
]
HISTORY = [5, 73, 49, 79, 58, 5, 73, 49, 44, 7, 73, 49, 79, 58, 5, 73, 49]
PENALTIES = {"repeat": 1.0, "frequency": 0.0, "presence": 0.0}  # and what turns them off
DRY = {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64}
# Fields of pi_sampler_params, samplers as a list.
CASES: dict[str, dict[str, Any]] = {
    "temperature": {**OFF, "temperature": 0.7},
    "filters": {**OFF, "top_k": 40, "typical_p": 0.9, "top_p": 0.8, "min_p": 0.05},
    "top-n-sigma": {**OFF, "top_n_sigma": 1.5},
    "top-n-sigma and top-k": {**OFF, "top_n_sigma": 2.0, "top_k": 12, "temperature": 1.5},
    "xtc always": {**OFF, "xtc_probability": 1.0, "xtc_threshold": 0.05},
    "xtc sometimes": {**OFF, "xtc_probability": 0.4, "xtc_threshold": 0.03, "temperature": 0.8},
    "dynatemp": {**OFF, "dynatemp_range": 0.6},
    "dynatemp with an exponent": {
        **OFF,
        "temperature": 0.8,
        "top_k": 50,
        "dynatemp_range": 0.7,
        "dynatemp_exponent": 2.5,
    },
    "mirostat 1": {**OFF, "mirostat_mode": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.1},
    "mirostat 1, colder": {
        **OFF,
        "temperature": 0.6,
        "mirostat_mode": 1,
        "mirostat_tau": 2.0,
        "mirostat_eta": 0.05,
    },
    "mirostat 2": {**OFF, "mirostat_mode": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.1},
    "mirostat 2, hotter": {
        **OFF,
        "temperature": 1.4,
        "mirostat_mode": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
    },
    "dry": {**OFF, **DRY},
    "dry of short repetitions": {**OFF, **DRY, "dry_allowed_length": 1, "dry_penalty_last_n": 9},
    "dry and penalties": {
        **OFF,
        **DRY,
        "top_k": 40,
        "repeat_penalty": 1.3,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
    },
    "temperature first": {
        **OFF,
        "temperature": 1.8,
        "top_k": 60,
        "top_p": 0.7,
        "samplers": ["temperature", "top_p", "top_k"],
    },
    "penalties last": {
        **OFF,
        **DRY,
        "temperature": 0.6,
        "min_p": 0.02,
        "repeat_penalty": 1.3,
        "samplers": ["min_p", "temperature", "dry", "penalties"],
    },
    "xtc before typical, without temperature": {
        **OFF,
        "temperature": 0.2,
        "typical_p": 0.6,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.7,
        "samplers": ["xtc", "typ_p", "top_n_sigma"],
    },
    "temperature twice": {
        **OFF,
        "temperature": 0.8,
        "dynatemp_range": 0.4,
        "typical_p": 0.8,
        "samplers": ["temperature", "typ_p", "temperature"],
    },
}


def logits() -> np.ndarray:
    """float32 [N_VOCAB]: a few likely tokens and many others."""
    return np.random.default_rng(7).normal(0, 2, N_VOCAB).astype(np.float32)


def chain(lib: Any, case: dict[str, Any]) -> Any:
    samplers = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    add = lambda sampler: lib.llama_sampler_chain_add(samplers, sampler)  # noqa: E731
    mode = case.get("mirostat_mode", 0)
    if mode:
        add(lib.llama_sampler_init_temp(case["temperature"]))
        tau, eta = case["mirostat_tau"], case["mirostat_eta"]
        if mode == 1:
            add(lib.llama_sampler_init_mirostat(N_VOCAB, 1, tau, eta, 100))
        else:
            add(lib.llama_sampler_init_mirostat_v2(1, tau, eta))
        return samplers
    penalties = [case.get(f"{name}_penalty", off) for name, off in PENALTIES.items()]
    xtc = case.get("xtc_probability", 0.0), case.get("xtc_threshold", 0.1)
    dynamic = case.get("dynatemp_range", 0.0), case.get("dynatemp_exponent", 1.0)
    dry = [case.get(name, 0) for name in DRY]
    made: dict[str, Callable[[], Any]] = {
        "penalties": lambda: lib.llama_sampler_init_penalties(N_VOCAB, 64, *penalties),
        "dry": lambda: lib.llama_sampler_init_dry(None, *dry, None, 0),
        "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(case.get("top_n_sigma", -1.0)),
        "top_k": lambda: lib.llama_sampler_init_top_k(case["top_k"]),
        "typ_p": lambda: lib.llama_sampler_init_typical(case["typical_p"], 0),
        "top_p": lambda: lib.llama_sampler_init_top_p(case["top_p"], 0),
        "min_p": lambda: lib.llama_sampler_init_min_p(case["min_p"], 0),
        "xtc": lambda: lib.llama_sampler_init_xtc(*xtc, 0, 1),
        "temperature": lambda: lib.llama_sampler_init_temp_ext(case["temperature"], *dynamic),
    }
    for name in case.get("samplers", ORDER):
        add(made[name]())
    add(lib.llama_sampler_init_dist(1))
    return samplers


def counts(lib: Any) -> dict[str, dict[str, int]]:
    values, found = logits(), {}
    data = (lib.llama_token_data * N_VOCAB)()
    for name, case in CASES.items():
        drawn = np.zeros(N_VOCAB, dtype=int)
        samplers = chain(lib, case)
        for token in HISTORY:
            lib.llama_sampler_accept(samplers, token)
        for _ in range(DRAWS):
            for i, value in enumerate(values):
                data[i] = lib.llama_token_data(i, float(value), 0.0)
            tokens = lib.llama_token_data_array(data=data, size=N_VOCAB, selected=-1, sorted=False)
            lib.llama_sampler_apply(samplers, ctypes.byref(tokens))
            drawn[tokens.data[tokens.selected].id] += 1
        lib.llama_sampler_free(samplers)
        found[name] = {str(i): int(n) for i, n in enumerate(drawn) if n}
        print(name, len(found[name]), file=sys.stderr)
    return found


def dry_cases(tokenize: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    """Tokens with many repetitions, parameters, and breakers that are one token, part of one, or
    several."""
    draw = random.Random(3)
    words = ["The cat", " sat", " Lily", " and", " went to the park", ":", "\n", '"', "*", "."]
    cases = []
    for i in range(40):
        phrase = "".join(draw.choices(words[: draw.randint(4, 10)], k=draw.randint(2, 6)))
        ids = tokenize(phrase * 3)[: draw.randint(15, 60)]
        if i % 4 == 0:
            ids = draw.choices(draw.sample(ids, 3), k=50)
        cases.append(
            {
                "tokens": ids,
                "dry_multiplier": draw.choice([0.8, 1.3]),
                "dry_base": draw.choice([1.75, 1.1, 1.0]),
                "dry_allowed_length": draw.choice([0, 1, 2, 3]),
                "dry_penalty_last_n": draw.choice([8, 30, 1000]),
                "dry_sequence_breakers": draw.choice(
                    [
                        ["\n", ":", '"', "*"],
                        [],
                        [" sat"],
                        ["t", "went to"],
                        [" the park."],
                        ["y and"],
                    ]
                ),
            }
        )
    return cases


def dry_penalties(lib: Any) -> list[dict[str, Any]]:
    """Cases with `penalties`: what DRY subtracts, by token."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(MODEL).encode(), params)
    vocab = lib.llama_model_get_vocab(model)
    n_vocab = lib.llama_vocab_n_tokens(vocab)

    def tokenize(text: str) -> list[int]:
        ids, data = (lib.llama_token * 1000)(), text.encode()
        return ids[: lib.llama_tokenize(vocab, data, len(data), ids, 1000, False, True)]

    cases = dry_cases(tokenize)
    for case in cases:
        texts = [text.encode() for text in case["dry_sequence_breakers"]]
        breakers = (ctypes.c_char_p * len(texts))(*texts)
        sampler = lib.llama_sampler_init_dry(
            vocab, *(case[name] for name in DRY), breakers, len(texts)
        )
        for token in case["tokens"]:
            lib.llama_sampler_accept(sampler, token)
        data = (lib.llama_token_data * n_vocab)()
        for i in range(n_vocab):
            data[i] = lib.llama_token_data(i, 0.0, 0.0)
        tokens = lib.llama_token_data_array(data=data, size=n_vocab, selected=-1, sorted=False)
        lib.llama_sampler_apply(sampler, ctypes.byref(tokens))
        lib.llama_sampler_free(sampler)
        case["penalties"] = {d.id: -d.logit for d in data if d.logit}
        print(len(case["tokens"]), len(case["penalties"]), file=sys.stderr)
    return cases


def main() -> None:
    from llama_cpp import llama_cpp as lib

    made = dry_penalties if sys.argv[1:] == ["--dry"] else counts
    json.dump(made(lib), sys.stdout, indent=None)
    print()


if __name__ == "__main__":
    main()
