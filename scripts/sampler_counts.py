#!/usr/bin/env python3
"""How often llama.cpp's samplers choose each token.

The reference of tests/python/test_sampler_counts.py:

    scripts/sampler_counts.py > tests/golden/sampler_counts.json    # needs llama-cpp-python

Every case draws 20,000 tokens from the same logits with one chain of samplers, in llama.cpp's
order.
"""

from __future__ import annotations

import ctypes
import json
import sys

import numpy as np

N_VOCAB, DRAWS = 300, 20_000
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
# Fields of pi_sampler_params.
CASES: dict[str, dict[str, float]] = {
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
}


def logits() -> np.ndarray:
    """float32 [N_VOCAB]: a few likely tokens and many others."""
    return np.random.default_rng(7).normal(0, 2, N_VOCAB).astype(np.float32)


def chain(lib, case: dict[str, float]):
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
    add(lib.llama_sampler_init_top_n_sigma(case.get("top_n_sigma", -1.0)))
    add(lib.llama_sampler_init_top_k(int(case["top_k"])))
    add(lib.llama_sampler_init_typical(case["typical_p"], 0))
    add(lib.llama_sampler_init_top_p(case["top_p"], 0))
    add(lib.llama_sampler_init_min_p(case["min_p"], 0))
    xtc = case.get("xtc_probability", 0.0), case.get("xtc_threshold", 0.1)
    add(lib.llama_sampler_init_xtc(*xtc, 0, 1))
    dynamic = case.get("dynatemp_range", 0.0), case.get("dynatemp_exponent", 1.0)
    add(lib.llama_sampler_init_temp_ext(case["temperature"], *dynamic))
    add(lib.llama_sampler_init_dist(1))
    return samplers


def main() -> None:
    from llama_cpp import llama_cpp as lib

    values, found = logits(), {}
    data = (lib.llama_token_data * N_VOCAB)()
    for name, case in CASES.items():
        counts = np.zeros(N_VOCAB, dtype=int)
        samplers = chain(lib, case)
        for _ in range(DRAWS):
            for i, value in enumerate(values):
                data[i] = lib.llama_token_data(i, float(value), 0.0)
            tokens = lib.llama_token_data_array(data=data, size=N_VOCAB, selected=-1, sorted=False)
            lib.llama_sampler_apply(samplers, ctypes.byref(tokens))
            counts[tokens.data[tokens.selected].id] += 1
        lib.llama_sampler_free(samplers)
        found[name] = {str(i): int(n) for i, n in enumerate(counts) if n}
        print(name, len(found[name]), file=sys.stderr)
    json.dump(found, sys.stdout, indent=None)
    print()


if __name__ == "__main__":
    main()
