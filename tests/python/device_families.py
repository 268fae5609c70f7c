"""Models of all families for a device: what the repository has or makes, and the files beside it.

A name is that of a folder in tests/golden, "mamba:" and one of mamba_models.MODELS, "rows:" and one
of these whose feed-forward blocks become neuron rows, or a file or folder of ../shared/fixtures.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import mamba_models
import numpy as np
from conftest import SHARED
from families import GOLDEN, golden, ling, quiet, smallthinker, turbo_mixtral
from powerinfer_cpp.convert import convert
from safetensors.numpy import load_file, save_file

FIXTURES = SHARED / "fixtures"

# Rows of floats of a device are whole groups of 8, and some golden models have others: these sizes
# of tensors become larger, and these keys of the configuration.
_FFN = ({20: 24}, {"intermediate_size": 24})
_HEADS = (
    {12: 16, 20: 24, 36: 48, 40: 48},
    {"head_dim": 16, "intermediate_size": 24},
)
_LATENT = {"qk_nope_head_dim": 16, "v_head_dim": 16}
_LATENTS = (
    {12: 16, 20: 24, 30: 48, 60: 72, 66: 96},
    {**_LATENT, "q_lora_rank": 16, "intermediate_size": 24},
)
RESIZED: dict[str, tuple[dict[int, int], dict[str, Any]]] = {
    **dict.fromkeys(("apertus", "cohere2", "exaone4", "gemma4", "olmo2", "olmo3"), _FFN),
    **dict.fromkeys(("qwen3-5", "smollm3"), _FFN),
    **dict.fromkeys(("glm4", "ministral3", "seed-oss"), _HEADS),
    "minimax-m2": ({12: 16, 36: 48}, {"head_dim": 16}),
    "granite-moe": ({12: 16, 24: 32}, {"shared_intermediate_size": 16}),
    **dict.fromkeys(
        ("qwen3-next", "qwen3-5-moe"), ({10: 16}, {"shared_expert_intermediate_size": 16})
    ),
    "deepseek-v2": ({20: 32, 40: 48, 44: 64}, {**_LATENT, "intermediate_size": 32}),
    "deepseek-v3": _LATENTS,
    "mistral4": _LATENTS,
    "gemma4-embeddings": (
        {4: 8, 8: 16, 12: 16, 16: 32, 24: 32, 32: 64},
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "hidden_size": 32,
            "hidden_size_per_layer_input": 8,
            "intermediate_size": 16,
        },
    ),
}
OF_MAMBA: dict[str, dict[str, Any]] = {"nemotron-narrow": {"moe_latent_size": 24}}
# Files that say how often neurons fire, or have predictors, are those of on_simt.py.
ROWS = ("llama-relu-gqa", "opt", "arcee", "jais2", "gemma2", "falcon-7b", "mamba:nemotron")
EXPERTS_IN_ROWS = ("mixtral", "gpt-oss", "qwen3-moe", "mamba:nemotron-moe")

# What keeps a part on the CPU, as the engine says it, of those that are not wholly on a device.
KEPT: dict[str, str] = {
    "turbosparse": "experts with predictors keep to the CPU",
    "rows:gpt-oss": "neuron rows with the activation swiglu_oai keep to the CPU",
    "qwen4-exp": "layers with several residual streams keep to the CPU",
    "rows:bitnet": "neuron rows whose values are normed keep to the CPU",
}

# For each operator of device_ops.inc a model that needs it, or the test that has it where no family
# file does.
OPERATORS = {
    "embed_rows": "qwen3",
    "norm": "qwen3",
    "quantise": "on_simt.py",  # the default model's Q8_0
    "add": "qwen3",
    "scale": "granite",
    "softcap": "gemma2",
    "activation": "qwen3",
    "xielu": "apertus",
    "gate_by": "qwen3-next",
    "weigh": "qwen2-moe",
    "matmul": "qwen3",
    "rope_table": "qwen3",
    "heads": "qwen3",
    "grow": "ministral3",
    "attention": "qwen3",
    "sketch_scores": "on_simt.py",
    "select": "on_simt.py",
    "partial_ffn": "rows:llama-relu-gqa",
    "merge": "rows:llama-relu-gqa",
    "publish": "rows:llama-relu-gqa",
    "merge_answer": "rows:llama-relu-gqa",
    "route": "glm4-moe",
    "choose_all": "deepseek-v3",
    "matmul_experts": "glm4-moe",
    "expert_values": "rows:mixtral",
    "add_experts": "rows:mixtral",
    "publish_experts": "glm4-moe",
    "merge_experts": "glm4-moe",
    "convolve": "lfm2",
    "mamba2_scan": "mamba:granite",
    "delta_rule": "qwen3-5",
    "gated_norm": "qwen3-5",
    "multiply": "lfm2",
    "copy_heads": "qwen3-next",
    "keep_rows": "lfm2",
    "unfold": "on_simt.py",
    "unfold_neurons": "rows:mixtral",
    "flag_rounds": "test_flags.cpp",
}
# Kernels of operators that have other names than these.
KERNELS = {
    "norm": "rms_norm",
    "partial_ffn": "down",
    "mamba2_scan": "scan",
    "delta_rule": "delta",
    "matmul_experts": "matmul",
}
# The same for what an operator, or the walk over layers, does only in some models.
VARIANTS = {
    "norms behind parts": "gemma2",
    "norms over whole rows": "olmo2",
    "norms behind RoPE": "hunyuan",
    "layer norms without bias": "cohere2",
    "layer norms over each head": "stablelm-parallel",
    "layer norms with 1 added": "nemotron",
    "norms of values, heads of two widths": "gemma4",
    "norms within feed-forward blocks": "bitnet",
    "RoPE of a part of each head": "glm4",
    "several RoPEs, windows": "gemma3",
    "RoPE in some layers": "smollm3",
    "positions that are learned": "gpt2",
    "sinks, biases of experts": "gpt-oss",
    "capped scores and logits": "gemma2",
    "keys and values of another layer, embeddings for each layer": "gemma4-embeddings",
    "scaled routers": "gemma4-mixture",
    "groups of experts, a shared one": "dots1",
    "a bias of the head": "phimoe",
    "squared ReLU without gates": "arcee",
    "biases of squared ReLU": "jais2",
    "a norm of the embedding": "nanochat",
    "attention and block of one input": "falcon-7b",
    "latents, no rank of queries": "deepseek-v2",
    "latents, growth": "mistral4",
    "convolutions": "lfm2",
    "gates of heads, norms behind convolutions": "lfm3",
    "gated delta nets": "qwen3-5",
    "delta nets whose beta goes to 2": "olmo-hybrid",
    "decays of rows, low ranks, latents without RoPE": "kimi-linear",
    "bounded decays, latents with gates": "bailing-hybrid",
    "Mamba-2": "mamba:nemotron-wide",
    "layers without attention or block": "mamba:nemotron-attention",
    "experts that read narrower rows": "mamba:nemotron-narrow",
    "Mamba-2 beside attention": "mamba:falcon",
    "gates of values, embeddings behind a norm": "muse-glimmer",
    "gates of heads by softplus, heads that differ": "laguna",
    "limits of gates, a gate of each head": "step3",
    "values narrower than keys, and scaled": "mimo-v2",
    "a norm of the sum with a shared expert": "trinity",
    "experts beside attention": "cohere2-moe",
}
# Those of the values above that are tests.
TESTS = {"on_simt.py", "test_flags.cpp"}
# A model for each kind of what a sequence keeps.
STATES = {
    "keys and values": "qwen3",
    "windows": "gemma3",
    "shared keys and values": "gemma4-embeddings",
    "latents": "deepseek-v3",
    "convolutions": "lfm2",
    "Mamba-2": "mamba:granite",
    "delta nets": "qwen3-5",
    "Kimi's delta attention": "kimi-linear",
}
QUICK = ["gemma2", "gpt-oss", "qwen3", "gemma4-embeddings"]


def of_operators() -> list[str]:
    """The models of both tables, each once."""
    return sorted({*OPERATORS.values(), *VARIANTS.values()} - TESTS)


def everything() -> list[str]:
    """All models, without those of ../shared where that is missing."""
    names = sorted(path.parent.name for path in GOLDEN.glob("*/expected.npz"))
    names += [f"mamba:{name}" for name in mamba_models.MODELS]
    names += [f"rows:{name}" for name in (*ROWS, *EXPERTS_IN_ROWS, "bitnet")]
    names += ["ling", "smallthinker", "turbosparse"]
    return names + gguf2() + [f"hf2/{path.parent.name}" for path in _of("hf2/*/config.json")]


def model_type(name: str) -> str:
    """What the config.json of one of the repository's models says, without rows."""
    if name.startswith("mamba:"):
        return mamba_models.MODELS[name.removeprefix("mamba:")]["model_type"]
    made_here = {"turbosparse": "turbosparsemixtral", "ling": "bailing_moe"}
    if name in (*made_here, "smallthinker"):
        return made_here.get(name, name)
    return json.loads((GOLDEN / name / "config.json").read_text())["model_type"]


def gguf2() -> list[str]:
    """The files as llama.cpp's converter writes them."""
    return [f"gguf2/{path.name}" for path in _of("gguf2/*.gguf")]


def _of(pattern: str) -> list[Path]:
    return sorted(FIXTURES.glob(pattern))


@functools.cache
def made(name: str, folder: Path) -> Path:
    """The file of a model, in F32 where it is converted here."""
    if name.startswith("gguf2/"):
        return FIXTURES / name
    out = folder / (re.sub(r"\W", "-", name) + ".gguf")
    if name.startswith("hf2/"):
        return convert(FIXTURES / name, outfile=out, log=quiet)
    kind, _, of = name.partition(":")
    if kind == "rows":
        source = made(of, folder)
    elif kind == "mamba":
        source = mamba_models.checkpoint(of, folder / out.stem, **OF_MAMBA.get(of, {}))
    elif name in ("smallthinker", "ling"):
        (ling if name == "ling" else smallthinker)(source := folder / out.stem)
    elif name == "turbosparse":
        source = turbo_mixtral(folder / out.stem)
    else:
        source = _resized(name, folder / out.stem)
    return convert(source, outfile=out, outtype="f32", log=quiet)


def _resized(name: str, folder: Path) -> Path:
    sizes, changes = RESIZED.get(name, ({}, {}))
    checkpoint = golden(name, folder, **changes)
    if sizes:
        path = checkpoint / "model.safetensors"
        found = load_file(path)
        for tensor, values in found.items():
            shape = tuple(sizes.get(n, n) for n in values.shape)
            found[tensor] = values if shape == values.shape else np.resize(values, shape)
        save_file(found, path)
    return checkpoint
