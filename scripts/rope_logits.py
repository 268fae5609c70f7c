#!/usr/bin/env python3
"""Logits that llama.cpp computes with other scalings of RoPE than the file's.

The reference of tests/python/test_overrides.py, from a tiny model in F32 (needs llama-cpp-python):

    cp -r tests/golden/llama-silu-tied build/tiny && cp tests/golden/tokenizer.model build/tiny
    ./convert.py --outtype f32 --outfile build/tiny.gguf build/tiny
    scripts/rope_logits.py build/tiny.gguf > tests/golden/rope_logits.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOKENS = [1, *((37 * i * i + 11 * i) % 296 + 4 for i in range(99))]
N_LOGITS = 24
# Keywords of Llama, here and there.
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "base": {"rope_freq_base": 500.0},
    "linear": {"rope_scaling_type": 1, "rope_freq_scale": 0.25},
    "linear by the scale alone": {"rope_freq_scale": 0.4},
    "no scaling": {"rope_scaling_type": 0, "rope_freq_scale": 0.25},
    "yarn": {"rope_scaling_type": 2, "rope_freq_scale": 0.25},
    "yarn of a short training": {
        "rope_scaling_type": 2,
        "rope_freq_scale": 0.125,
        "yarn_orig_ctx": 24,
    },
    "yarn with betas": {
        "rope_scaling_type": 2,
        "rope_freq_scale": 0.25,
        "yarn_beta_fast": 8.0,
        "yarn_beta_slow": 0.3,
    },
    "yarn, half": {
        "rope_scaling_type": 2,
        "rope_freq_scale": 0.25,
        "yarn_ext_factor": 0.5,
        "rope_freq_base": 3000.0,
    },
    "linear with some yarn": {
        "rope_scaling_type": 1,
        "rope_freq_scale": 0.25,
        "yarn_ext_factor": 0.7,
    },
    "yarn without extrapolation": {
        "rope_scaling_type": 2,
        "rope_freq_scale": 0.25,
        "yarn_ext_factor": 0.0,
        "yarn_attn_factor": 1.3,
    },
    "linear with a magnitude": {
        "rope_scaling_type": 1,
        "rope_freq_scale": 0.5,
        "yarn_attn_factor": 0.8,
    },
}
# What llama-cpp-python passes for `not given` is not what llama.cpp takes for that.
UNSET = {
    "rope_scaling_type": -1,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
}


def main() -> None:
    import llama_cpp

    found = {}
    for name, case in CASES.items():
        llm = llama_cpp.Llama(
            sys.argv[1],
            n_ctx=128,
            logits_all=True,
            type_k=0,
            type_v=0,
            flash_attn=False,
            n_threads=1,
            verbose=False,
            **{**UNSET, **case},
        )
        llm.eval(TOKENS)
        last = llm.scores[len(TOKENS) - 1]
        found[name] = [round(float(x), 7) for x in last[:N_LOGITS]]
        llm.close()
    json.dump(found, sys.stdout)
    print()


if __name__ == "__main__":
    main()
