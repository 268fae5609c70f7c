#!/usr/bin/env python3
"""Makes the checkpoints of this folder and what transformers computes with them.

    python tests/golden/make_golden.py               every checkpoint, from fixed seeds
    python tests/golden/make_golden.py stories-relu  the logits of the shipped model

Needs torch, transformers, sentencepiece, gguf. What it makes is small enough to travel with the
repository, so that the tests need neither torch nor transformers. Weights are stored in 16 bits;
logits are computed in float32 from the weights as stored.

A checkpoint has 2 layers, random weights and the vocabulary of tokenizer.model: 300 pieces, of
which 256 are bytes (families that have byte-level vocabularies elsewhere use it too). Weights are
scaled for attention that looks at some positions more than at others and for logits that spread
over some units; transformers' initialisation gives neither.
"""

from __future__ import annotations

import copy
import io
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from delta_net_cases import DELTA_NETS  # noqa: E402
from latent_cases import LATENTS  # noqa: E402
from mixture_cases import GPT2, MIXTURES, STARCODER2  # noqa: E402
from output_gate_cases import OUTPUT_GATES  # noqa: E402
from squared_relu_cases import SQUARED_RELU  # noqa: E402
from windowed_cases import WINDOWED  # noqa: E402

ROOT = HERE.parents[1]
N_VOCAB = 300
N_TOKENS = 48

# Enough text for 41 merged pieces.
SENTENCES = (
    "Once upon a time there was a little bear who lived near the river.",
    "The bear liked to play with his friend, a small green frog.",
    "One day they found a big red ball in the garden and they were happy.",
    "They said: this is the best day! And then they went home together.",
)

BASE: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Families with keys of their own take none of BASE.
OF_OWN_KEYS = (
    *("falcon", "gpt2", "jais2", "lfm3", "muse_glimmer", "nemotron", "olmo_hybrid", "opt"),
    *("stablelm", "starcoder2", "step3p7"),
)
SIZES = {key: BASE[key] for key in ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id")}
FALCON: dict[str, Any] = {
    **SIZES,
    "model_type": "falcon",
    "architectures": ["FalconForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 64,
    "max_position_embeddings": 128,
    "layer_norm_epsilon": 1e-5,
    "alibi": False,
    "bias": False,
    "parallel_attn": True,
    "n_tokens": 24,
}
OPT: dict[str, Any] = {
    **SIZES,
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 32,
    "activation_function": "relu",
    "n_tokens": 24,
}
SMALL: dict[str, Any] = {"intermediate_size": 40, "num_key_value_heads": 2, "n_tokens": 24}
STABLELM: dict[str, Any] = {
    **SIZES,
    "model_type": "stablelm",
    "architectures": ["StableLmForCausalLM"],
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "n_tokens": 20,
}
PHI3: dict[str, Any] = {
    **SMALL,
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "pad_token_id": 0,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 8,
    "factor": 2.0,
    "short_factor": [1.0, 1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 9.0, 20.0],
}
# What differs from BASE. "store": type of the weights; "shard": largest file; "bin": as torch
# writes them; "n_tokens": instead of N_TOKENS; "n_ctx": of the engine,
# where results depend on it.
CASES: dict[str, dict[str, Any]] = {
    "llama-silu-tied": {"rms_norm_eps": 1e-6},
    "llama-relu-gqa": {
        "hidden_act": "relu",
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
    },
    "llama-bias": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "llama-head-dim": {
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_key_value_heads": 1,
        "head_dim": 12,
    },
    "bamboo": {
        "model_type": "bamboo",
        "architectures": ["BambooForCausalLM"],
        "hidden_act": "relu",
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    "llama-sharded": {"hidden_act": "relu", "num_key_value_heads": 2, "shard": "24KB"},
    "llama-bfloat16": {"store": "bfloat16", "num_key_value_heads": 2},
    "llama-bin": {**SMALL, "hidden_act": "relu", "bin": True},
    "llama-linear": {**SMALL, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama-llama3": {
        **SMALL,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 50000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "mistral-window": {
        **SMALL,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 7,
    },
    "mixtral": {
        **SMALL,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2-yarn": {
        **SMALL,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3": {
        **SMALL,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 12,
    },
    "falcon-7b": {**FALCON, "activation": "gelu", "multi_query": True},
    "falcon-40b": {
        **FALCON,
        "activation": "relu",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 2,
    },
    "opt": OPT,
    "llama-longrope": {**SMALL, "rope_parameters": {**LONGROPE, "rope_theta": 10000.0}},
    # Beyond max_position_embeddings, where its base grows.
    "llama-dynamic": {
        **SMALL,
        "max_position_embeddings": 16,
        "rope_scaling": {"type": "dynamic", "factor": 4.0},
        "n_ctx": 24,
    },
    "phi3-window": {**PHI3, "sliding_window": 7, "tie_word_embeddings": False},
    "phi3-short": {
        **PHI3,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.3, 2.5],
            "long_factor": [1.5, 4.0, 9.0],
        },
    },
    "phi3-long": {
        **PHI3,
        "original_max_position_embeddings": 8,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 2.5],
            "long_factor": [1.0, 2.0, 4.0, 12.5],
        },
    },
    "stablelm": {**STABLELM, "num_attention_heads": 2, "use_qkv_bias": True},
    "stablelm-parallel": {
        **STABLELM,
        "partial_rotary_factor": 0.5,
        "use_parallel_residual": True,
        "qk_layernorm": True,
    },
    "qwen3-moe": {
        **SMALL,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 12,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "gemma": {
        **SMALL,
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "num_key_value_heads": 1,
        "head_dim": 12,
    },
    # Caps that are smaller than usual, so that they show.
    "gemma2": {
        **SMALL,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 6.0,
        "sliding_window": 7,
    },
    "gemma3": {
        **SMALL,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 3,
        "intermediate_size": 32,
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "rope_theta": 500000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 7,
        "sliding_window_pattern": 3,
    },
    "gpt2": GPT2,
    "qwen2-window": {
        **SMALL,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    **MIXTURES,
    **LATENTS,
    **SQUARED_RELU,
    "starcoder2": STARCODER2,
    **DELTA_NETS,
    **OUTPUT_GATES,
    **WINDOWED,
}


def class_for(config: dict[str, Any]) -> Any:
    """transformers' class for a config.json; the automatic one does not list all."""
    import transformers

    own = {
        "mistral4": "Mistral4ForCausalLM",
        "muse_glimmer": "MuseGlimmerForConditionalGeneration",
        "step3p7": "Step3p7ForConditionalGeneration",
    }
    return getattr(transformers, own.get(config["model_type"], "AutoModelForCausalLM"))


def build(config: dict[str, Any]) -> Any:
    """transformers' model of a config.json, random weights; bamboo: ReLU on both sides."""
    import torch
    from transformers import AutoConfig

    skipped = ("model_type", "architectures", "torch_dtype", "dtype", "transformers_version")
    values = {k: v for k, v in config.items() if k not in skipped}
    is_bamboo = config["model_type"] == "bamboo"
    known = AutoConfig.for_model("llama" if is_bamboo else config["model_type"], **values)
    with torch.random.fork_rng():
        kind = class_for(config)
        make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
        model = make(known, attn_implementation="eager")
    if is_bamboo:
        for layer in model.model.layers:
            mlp = layer.mlp
            mlp.forward = lambda x, m=mlp: m.down_proj(
                torch.relu(m.gate_proj(x)) * torch.relu(m.up_proj(x))
            )
    return model.float().eval()


def logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits of every token, float32."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).logits[0].float().numpy()


def checkpoint_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """What transformers computes from the weights as they lie in the folder."""
    import torch
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "bamboo":  # which transformers does not know
        model = class_for(config).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        return logits(model.eval(), tokens)
    model = build(config)
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update({k: v.float() for k, v in load_file(path).items()})
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return logits(model, tokens)


def randomise(model: Any, seed: int) -> None:
    """Fills all weights: matrices by their inputs, norms around 1, biases of a visible size.

    Gemma's, Nemotron's, Qwen3-Next's and Muse Glimmer's norms add 1 to their weights, these except
    inside delta nets and at the end; GPT-2's matrices are [inputs, outputs].
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    kinds = ("gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next", "qwen3_5_text")
    kinds += ("qwen3_5_moe_text", "muse_glimmer", "step3p7", "qwen4_exp_text")
    adds_one = model.config.model_type in kinds
    plain = ("linear_attn.norm.weight", "language_model.norm.weight")
    for name, p in sorted(model.named_parameters()):
        values = torch.randn(p.shape, generator=generator)
        if name.endswith("scale"):
            p.data = 1 + 0.3 * values
        elif name.endswith(".weight") and p.dim() == 1:  # of a norm
            plus_one = adds_one and not name.endswith(plain)
            p.data = (0 if plus_one else 1) + 0.2 * values
        elif name.endswith("A_log"):  # states that fade over some positions
            p.data = 0.7 * values - 1.5
        elif name.endswith("bias") or p.dim() < 2:
            p.data = 0.3 * values
        elif any(part in name for part in ("embed", "lm_head", "wte", "wpe")):
            p.data = 0.5 * values
        else:
            sharp = 1.7 if any(part in name for part in ("q_proj", "k_proj", "c_attn")) else 1.2
            if "gate_up_proj" in name:  # gpt-oss clamps them
                sharp = 4.0
            if "o_proj" in name and model.config.model_type == "muse_glimmer":
                sharp = 1e-3  # so small that the epsilon of the norm behind matters
            inputs = p.shape[0 if model.config.model_type == "gpt2" else -1]
            p.data = sharp / math.sqrt(inputs) * values
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith(("correction_bias", "expert_bias")):  # of the choice of experts
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
        elif name.endswith("layer_scalar"):
            buffer.copy_(1 + 0.3 * torch.randn(buffer.shape, generator=generator))


def make(name: str, changes: dict[str, Any], seed: int) -> None:
    """Writes one checkpoint and its expected.npz."""
    import torch

    changes = dict(changes)
    store, shard = changes.pop("store", "float16"), changes.pop("shard", "1GB")
    changes.pop("n_ctx", None)
    seed = changes.pop("seed", seed)
    as_bin, n_tokens = changes.pop("bin", False), changes.pop("n_tokens", N_TOKENS)
    base = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **BASE}
    own = changes.get("model_type") in OF_OWN_KEYS
    config = changes if own else {**base, **changes}
    model = build(copy.deepcopy(config))  # transformers adds to its sections
    randomise(model, seed)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(getattr(torch, store)).save_pretrained(folder, max_shard_size=shard)
    if as_bin:
        (folder / "model.safetensors").unlink()
        torch.save(dict(model.state_dict()), folder / "pytorch_model.bin")
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
    # Ours rather than save_pretrained's: its form depends on the version, and it has no bamboo.
    config["torch_dtype"] = store
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = np.random.default_rng(seed).integers(3, N_VOCAB, n_tokens).astype(np.int32)
    tokens[0] = 1
    expected = checkpoint_logits(folder, tokens)
    np.savez_compressed(folder / "expected.npz", tokens=tokens, logits=expected)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {size / 1000:.0f} kB, logits spread over {expected.std():.2f}")


def make_tokenizer() -> None:
    """A SentencePiece vocabulary with byte fallback, so that every text has tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=N_VOCAB,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",  # others bring tables of 240 kB
        num_threads=1,
        minloglevel=2,
    )
    (HERE / "tokenizer.model").write_bytes(model.getvalue())


# ---- The shipped model -----------------------------------------------------------------------

SHIPPED = ROOT / "models" / "stories-relu.Q8_0.gguf"
STORY = (
    "Once upon a time, there was a little girl named Lily. She had a red ball that she loved very "
    "much. One day she went to the park with her mom and saw a boy who was sad. He did not have "
    "any toys. Lily wanted to help him, so she gave him her ball and said they could play together."
)
N_STORY, N_LAST, N_FIRST = 64, 8, 4
# GGUF's names of a layer's tensors, and transformers'.
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_down_t": "mlp.down_proj",
}
OF_PREDICTION = ("fc1", "fc2", "sketch", "ffn_rate")  # what transformers knows nothing of


def from_rotary_pairs(w: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of GGUF's q and k, whose rotary pairs are neighbours, in transformers' two halves."""
    rows, cols = w.shape
    pairs = w.reshape(n_head, rows // n_head // 2, 2, cols)
    return pairs.swapaxes(1, 2).reshape(rows, cols)


def round_inputs(model: Any, neuron_rows: bool) -> None:
    """Lets matrix products round their input to 8 bits: d * q, |q| <= 127, d for 32 values.

    neuron_rows: all but the down projections, whose rows are added up in floats.
    """
    import torch

    def rounded(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        blocks = inputs[0].reshape(-1, 32)
        d = blocks.abs().amax(dim=1, keepdim=True) / 127
        q = torch.round(blocks / torch.where(d > 0, d, 1))
        return ((q * d).reshape(inputs[0].shape),)

    for name, module in model.named_modules():
        exempt = neuron_rows and name.endswith("down_proj")
        if isinstance(module, torch.nn.Linear) and not exempt:
            module.register_forward_pre_hook(rounded)


def shipped_logits(path: Path, tokens: np.ndarray, rounded: bool = False) -> np.ndarray:
    """Logits by transformers from the weights of a GGUF as gguf's own codecs decode them.

    rounded: with the inputs of products in 8 bits, as the engine has them for quantised weights.
    """
    import gguf
    import torch

    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    n_head, n_head_kv = value("attention.head_count"), value("attention.head_count_kv")
    weights = {}
    for t in reader.tensors:
        part = t.name.split(".")
        if part[0] == "blk" and part[2] in OF_PREDICTION:
            continue
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if part[0] == "blk":
            if part[2] == "ffn_down_t":
                w = w.T
            if part[2] in ("attn_q", "attn_k"):
                w = from_rotary_pairs(w, n_head if part[2] == "attn_q" else n_head_kv)
            name = f"model.layers.{part[1]}.{NAMES[part[2]]}.weight"
        else:
            name = {
                "token_embd.weight": "model.embed_tokens.weight",
                "output_norm.weight": "model.norm.weight",
                "output.weight": "lm_head.weight",
            }[t.name]
        weights[name] = torch.from_numpy(np.ascontiguousarray(w))
    activation = reader.fields.get("powerinfer.ffn.activation")
    config = {
        **BASE,
        "model_type": "llama",
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": n_head,
        "num_key_value_heads": n_head_kv,
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "hidden_act": activation.contents() if activation else "silu",
        "tie_word_embeddings": "lm_head.weight" not in weights,
    }
    model = build(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    if rounded:
        round_inputs(model, any(".ffn_down_t." in t.name for t in reader.tensors))
    return logits(model, tokens)


def make_shipped(path: Path = SHIPPED) -> None:
    """Writes stories-relu.npz: tokens of a story, logits of the last, rounded ones of the first."""
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(str(ROOT / "models" / "tokenizer.model"))
    tokens = np.array([tokenizer.bos_id(), *tokenizer.encode(STORY)], np.int32)[:N_STORY]
    assert len(tokens) == N_STORY
    expected = shipped_logits(path, tokens)[-N_LAST:]
    rounded = shipped_logits(path, tokens, rounded=True)[:N_FIRST]
    out = HERE / "stories-relu.npz"
    np.savez_compressed(out, tokens=tokens, logits=expected, rounded=rounded)
    print(f"stories-relu: logits spread over {expected.std():.2f}")


def main(names: list[str]) -> None:
    """Makes what is named, or every checkpoint."""
    makers: dict[str, Callable[[], None]] = {"stories-relu": make_shipped}
    for seed, (name, changes) in enumerate(CASES.items(), 1):
        makers[name] = lambda n=name, c=changes, s=seed: make(n, c, s)
    if unknown := set(names) - set(makers):
        sys.exit(f"make_golden.py: error: unknown: {', '.join(sorted(unknown))}")
    if not names:
        make_tokenizer()
    for name in names or CASES:
        makers[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
