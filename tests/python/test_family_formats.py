"""Every family in every format, and llama.cpp as a reader of files from convert.py --dense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from circles import pick
from families import (
    GOLDEN,
    TOKENS,
    VARIANTS,
    falcon_weights,
    golden,
    logits,
    quiet,
    smallthinker,
    with_head,
    with_null,
)
from gguf_files import changed, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.quantize import quantize
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama

# ---- llama.cpp opens what convert.py --dense writes ----

YARN_OF_MISTRAL4 = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
DENSE: dict[str, dict[str, Any]] = {
    "llama-silu-tied": {},
    "llama-bias": {},
    "llama-head-dim": {},
    "llama-linear": {},
    "llama-llama3": {},
    "mistral-window": {"sliding_window": None},  # llama.cpp's Mistral does not slide
    "mixtral": {},
    "qwen2-yarn": {},
    "qwen3": {},
    "falcon-7b": {},
    "falcon-40b": {"activation": "gelu"},  # the only one that llama.cpp's Falcon has
    "qwen3-moe": {},
    "stablelm": {},
    # llama.cpp rounds n_ctx up to 256, and takes the long factors beyond the original length.
    "phi3-short": {"original_max_position_embeddings": 256},
    "stablelm-parallel": {},
    "phi3-long": {},
    "phi3-window": {"sliding_window": None},  # which llama.cpp ignores
    "llama-longrope": {},
    "llama-dynamic": {"max_position_embeddings": 128},  # llama.cpp computes plain RoPE
    "gemma": {},
    "gemma2": {},
    "gemma3": {"query_pre_attn_scalar": 12},  # llama.cpp's scores are scaled by head_dim
    "gpt2": {},
    "starcoder2": {"sliding_window": None},  # which llama.cpp ignores
    "glm4-moe": {},
    "olmoe": {},
    "dots1": {"sliding_window": None},  # which llama.cpp ignores
    "minimax-m2": {},
    "ernie-moe": {},
    "hunyuan": {},
    "hunyuan-moe": {},
    "granite": {},
    "granite-moe": {},
    "gpt-oss": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": True}},
    "smollm3": {"no_rope_layers": None},  # llama.cpp knows of every fourth layer only
    "seed-oss": {"attention_out_bias": False},  # llama.cpp knows no such bias
    "glm4": {},
    "ministral3": {},
    "olmo2": {},
    "olmo3": {},
    "exaone4": {},  # with null for sliding_window: llama.cpp decides by the number of layers
    "cohere2": {"sliding_window_pattern": 4},  # llama.cpp has no other
    "apertus": {},
    "arcee": {},
    "jais2": {},
    "nemotron": {},
    "bitnet": {"hidden_act": "silu"},  # the only one that llama.cpp's BitNet has
    "deepseek-v3": {},
    "mistral4": {"rope_parameters": YARN_OF_MISTRAL4},  # llama.cpp takes mscale to be 1
    "gemma4": {},
    "gemma4-embeddings": {},
    "gemma4-mixture": {},
    "qwen2-moe": {},
    "lfm2": {},
    "lfm2-moe": {"routed_scaling_factor": 1.0},  # llama.cpp does not read it
    "laguna": {},
    "hy-v3": {},
    "trinity": {"layer_types": ["sliding_attention"] * 2},  # as llama.cpp has it of two layers
    "exaone-moe": {},
    "granite-swa": {},
    "granite-moe-swa": {},
    "mellum": {"layer_types": ["full_attention"] * 2},  # llama.cpp has one base of RoPE
    "step3": {},
    "mimo-v2": {"attention_bias": False},  # llama.cpp knows no biases of it
    "cohere2-moe": {},
    "bailing-hybrid": {},
}
# llama.cpp knows no tied head of these.
WITH_HEAD = ("olmoe", "dots1", "minimax-m2", "gpt-oss", "olmo2", "olmo3", "apertus", "qwen2-moe")
WITH_HEAD += ("exaone-moe", "mellum", "mimo-v2")
# It refuses layers without experts in these: the last layer alone is compared.
ONE_LAYER = ("qwen2-moe",)


def without(folder: Path, part: str) -> None:
    """Removes tensors from the checkpoint."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if part not in name}
    save_file(kept, folder / "model.safetensors")


def last_layer_alone(folder: Path) -> None:
    cfg = json.loads((folder / "config.json").read_text())
    last = cfg["num_hidden_layers"] - 1
    weights = load_file(folder / "model.safetensors")
    kept = {
        n.replace(f"layers.{last}.", "layers.0."): w
        for n, w in weights.items()
        if "layers.0." not in n
    }
    save_file(kept, folder / "model.safetensors")
    cfg |= {"num_hidden_layers": 1, "decoder_sparse_step": 1}
    (folder / "config.json").write_text(json.dumps(cfg))


# llama.cpp's GELU is a table: it rounds inputs and results to F16, each by up to 2^-11.
OF_GELU = (
    *("falcon-7b", "falcon-40b", "gemma", "gemma2", "gemma3", "gpt2", "starcoder2"),
    *("gemma4", "gemma4-embeddings", "gemma4-mixture"),
)
ROUNDING = dict.fromkeys(OF_GELU, 2**-10)
LONG = TOKENS + [(37 * i * i + 11 * i) % 290 + 4 for i in range(80)]
F32_CACHE: dict[str, Any] = {"n_ctx": 128, "verbose": False, "type_k": 0, "type_v": 0}


def by_llama_cpp(path: Path) -> Any:
    import llama_cpp

    return llama_cpp.Llama(str(path), n_threads=1, logits_all=True, **F32_CACHE)


def greedy_by_llama_cpp(path: Path, prompt: list[int], n: int) -> list[int]:
    llm = by_llama_cpp(path)
    llm.eval(prompt)
    found: list[int] = []
    for i in range(n):
        found.append(int(llm.scores[len(prompt) - 1 + i].argmax()))
        llm.eval(found[-1:])
    llm.close()
    return found


def greedy(path: Path, prompt: list[int], n: int) -> list[int]:
    with Llama(path, **F32_CACHE) as llm:
        stream = llm.generate(prompt, top_k=1, temp=0.0)
        return [next(stream) for _ in range(n)]


def compare_with_llama_cpp(path: Path, rounding: float = 2e-5) -> None:
    """Logits of a long prompt, and a text: some of these random models repeat one token."""
    assert greedy(path, TOKENS, 64) == greedy_by_llama_cpp(path, TOKENS, 64)
    theirs = by_llama_cpp(path)
    with Llama(path, logits_all=True, **F32_CACHE) as ours:
        for llm in (ours, theirs):
            llm.eval(LONG)
        found, want = (llm.scores[: len(LONG)].astype(np.float64) for llm in (ours, theirs))
    theirs.close()
    assert reference.relative_error(found, want) < rounding


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", DENSE)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **DENSE[name])
    if name in WITH_HEAD:
        with_head(folder)
    if name in ONE_LAYER:
        last_layer_alone(folder)
    if name == "exaone4":
        with_null(folder, "sliding_window")
    if name == "seed-oss":
        without(folder, "o_proj.bias")
    if name == "mimo-v2":
        without(folder, "_proj.bias")
    path = convert(folder, outtype="f32", dense=True, outfile=tmp_path / "a.gguf", log=quiet)
    compare_with_llama_cpp(path, ROUNDING.get(name, 2e-5))


@pytest.mark.shared
@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", ["qwen2", "llama3-rope", "mistral-silu"])
def test_llama_cpp_from_text_to_text(name: str, shared: Path, tmp_path: Path) -> None:
    """Checkpoints with their own vocabularies, two of them byte-level."""
    import llama_cpp

    path = convert(
        shared / "fixtures" / "hf" / name,
        outtype="f32",
        dense=True,
        outfile=tmp_path / "a.gguf",
        log=quiet,
    )
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    with Llama(path, vocab_only=True, verbose=False) as llm:
        for text in (
            "Once upon a time, 1234 bears didn't sleep.",
            "\n\tGr\u00fc\u00dfe \u4f60\u597d",
        ):
            prompt = llm.tokenize(text.encode())
            assert prompt == theirs.tokenize(text.encode())
            ids = greedy_by_llama_cpp(path, prompt, 64)
            assert greedy(path, prompt, 64) == ids
            assert llm.detokenize(ids) == theirs.detokenize(ids)


@pytest.mark.peer("llama_cpp")
@pytest.mark.parametrize("name", ["sigmoid", "softmax", "wide window"])
def test_llama_cpp_reads_smallthinker(name: str, tmp_path: Path) -> None:
    """Where there is a window, llama.cpp takes 4096, whatever the file says."""
    smallthinker(tmp_path / "model", **VARIANTS[name])
    path = convert(
        tmp_path / "model", outtype="f32", dense=True, outfile=tmp_path / "a.gguf", log=quiet
    )
    compare_with_llama_cpp(path)


# ---- Families in every format ----

LEFT_OUT = {"llama-head-dim"}  # no block divides its rows, 40
# A rounded input chooses other experts now and then.
LEFT_OUT |= {"olmoe", "dots1", "minimax-m2", "ernie-moe", "hunyuan-moe"}
LEFT_OUT |= {"stablelm-parallel", "phi3-long", "phi3-window", "llama-longrope", "llama-dynamic"}
LEFT_OUT |= {"seed-oss", "glm4"}  # heads of 12
# Other widths that no block divides.
LEFT_OUT |= {"deepseek-v3", "mistral4", "qwen2-moe", "lfm2", "lfm2-moe"}
LEFT_OUT |= {"gemma4", "gemma4-embeddings", "gemma4-mixture"}
LEFT_OUT |= {"ministral3", "olmo3"}  # as llama and olmo2
# Mixtures again, and narrow rows.
LEFT_OUT |= {"laguna", "hy-v3", "trinity", "exaone-moe", "granite-swa", "granite-moe-swa"}
LEFT_OUT |= {"mellum", "step3", "mimo-v2", "cohere2-moe", "bailing-hybrid"}
ROWS_OF_32 = [name for name in (*DENSE, "opt") if name not in LEFT_OUT]
NARROW = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
WIDE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(scope="module")
def in_f32(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each family; those called wide have rows that blocks of 256 divide."""
    folder, paths = tmp_path_factory.mktemp("f32"), {}
    for name in ROWS_OF_32:
        golden(name, folder / name)
    cfg = {"hidden_size": 256, "moe_ffn_hidden_size": 256, "head_dim": 64, "num_hidden_layers": 2}
    cfg |= {"rope_layout": [1] * 2, "sliding_window_layout": [0] * 2}
    smallthinker(folder / "wide smallthinker", **cfg)
    cfg = json.loads((GOLDEN / "falcon-40b" / "config.json").read_text())
    cfg |= {"hidden_size": 256, "ffn_hidden_size": 512}
    checkpoints.save(folder / "wide falcon", cfg, falcon_weights(cfg))
    shutil.copy(GOLDEN / "tokenizer.model", folder / "wide falcon")
    for path in sorted(folder.iterdir()):
        out = folder / f"{path.name}.gguf"
        paths[path.name] = convert(path, outtype="f32", outfile=out, log=quiet)
    return paths


def decoded(source: Path, target: Path) -> Path:
    """The file with its matrices decoded by the gguf package."""
    held = values(source)
    return changed(source, target, tensors=lambda name, _data: held[name].astype(np.float32))


OF_32 = [(name, kind) for name in ROWS_OF_32 for kind in NARROW]
OF_256 = [(f"wide {n}", kind) for n in ("smallthinker", "falcon") for kind in (*NARROW, *WIDE)]


# In the quick circle every family and every format still occur.
@pytest.mark.parametrize(
    ("name", "kind"), pick([*OF_32[::3], *OF_256[:12:2], *OF_256[13::2]], [*OF_32, *OF_256])
)
def test_every_format(name: str, kind: str, in_f32: dict[str, Path], tmp_path: Path) -> None:
    quantize(in_f32[name], tmp_path / "q.gguf", kind, log=quiet)
    want = logits(decoded(tmp_path / "q.gguf", tmp_path / "f32.gguf"))
    error = reference.relative_error(logits(tmp_path / "q.gguf"), want)
    # Quantised products round their inputs to 8 bits, whatever the weights' format: these tiny
    # random models answer with 1.0e-2 (falcon) to 3.1e-2 (llama3), Q8_0 as much as Q2_K. A block or
    # a row in the wrong place gives 1.
    assert error < (5e-2 if kind[0] == "Q" else 2e-5)
