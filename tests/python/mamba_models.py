"""Tiny checkpoints of families with Mamba-2 layers, and their forward pass in float64 numpy: a
recurrence position by position, on a Hugging Face checkpoint's own names and layout.

Written from the models' description, not from the engine. transformers is no reference for
Nemotron-H: in prompts it clamps time steps from below, which the published models do not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from families import GOLDEN
from reference import rms_norm, rotate
from safetensors.numpy import load_file, save_file

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_bias": False,
}
NEMOTRON: dict[str, Any] = {
    **SIZES,
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "head_dim": 12,
    "intermediate_size": 40,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
GRANITE: dict[str, Any] = {
    **SIZES,
    "model_type": "granitemoehybrid",
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "position_embedding_type": "nope",
    "attention_multiplier": 0.4,
    "embedding_multiplier": 5.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "tie_word_embeddings": True,
}
FALCON: dict[str, Any] = {
    **SIZES,
    "model_type": "falcon_h1",
    "architectures": ["FalconH1ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "intermediate_size": 40,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e11,
    "mlp_bias": False,
    "projectors_bias": False,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 0.6,
    "embedding_multiplier": 2.0,
    "key_multiplier": 0.4,
    "lm_head_multiplier": 0.3,
    "mlp_multipliers": [1.6, 0.7],
    "ssm_in_multiplier": 1.5,
    "ssm_multipliers": [0.7, 1.4, 0.6, 1.6, 0.5],
    "ssm_out_multiplier": 0.6,
    "tie_word_embeddings": False,
}


def of_nemotron(n_head: int, head_dim: int, n_group: int, n_state: int) -> dict[str, Any]:
    return {
        "mamba_num_heads": n_head,
        "mamba_head_dim": head_dim,
        "n_groups": n_group,
        "ssm_state_size": n_state,
    }


def of_others(
    n_head: int, head_dim: int, n_group: int, n_state: int, taps: int = 4
) -> dict[str, Any]:
    return {
        "mamba_n_heads": n_head,
        "mamba_d_head": head_dim,
        "mamba_n_groups": n_group,
        "mamba_d_state": n_state,
        "mamba_d_conv": taps,
    }


MODELS: dict[str, dict[str, Any]] = {
    "nemotron": {**NEMOTRON, **of_nemotron(3, 8, 3, 5), "hybrid_override_pattern": "M-*M"},
    "nemotron-wide": {
        **NEMOTRON,
        **of_nemotron(4, 20, 2, 33),
        "layers_block_type": ["mlp", "mamba", "attention", "mamba"],
        "conv_kernel": 3,
        "use_conv_bias": False,
    },
    "nemotron-moe": {
        **NEMOTRON,
        **EXPERTS,
        **of_nemotron(4, 8, 2, 16),
        "hybrid_override_pattern": "EM*E",
    },
    "nemotron-groups": {
        **NEMOTRON,
        **EXPERTS,
        **of_nemotron(4, 16, 1, 8),
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
        "n_group": 3,
        "topk_group": 2,
        "n_shared_experts": 0,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
    },
    "nemotron-narrow": {
        **NEMOTRON,
        **EXPERTS,
        **of_nemotron(2, 24, 2, 6),
        "hybrid_override_pattern": "M*EME",
        "moe_latent_size": 20,
    },
    "nemotron-attention": {
        **NEMOTRON,
        **of_nemotron(3, 8, 3, 5),
        "hybrid_override_pattern": "*-",
    },
    "nemotron-without": {  # attention
        **NEMOTRON,
        **of_nemotron(2, 12, 1, 6),
        "hybrid_override_pattern": "M-M",
    },
    "granite-without": {
        **GRANITE,
        **of_others(4, 16, 2, 8, taps=3),
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "mamba"],
        "position_embedding_type": "rope",
    },
    "granite": {
        **GRANITE,
        **of_others(4, 16, 1, 8),
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
    },
    "granite-moe": {
        **GRANITE,
        **of_others(8, 8, 2, 5),
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "position_embedding_type": "rope",
        "mamba_conv_bias": False,
    },
    "granite-attention": {
        **GRANITE,
        "num_hidden_layers": 2,
        "layer_types": ["attention", "attention"],
        "position_embedding_type": "rope",
    },
    "granite-attention-moe": {
        **GRANITE,
        "num_hidden_layers": 2,
        "layer_types": ["attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "falcon": {**FALCON, **of_others(4, 12, 1, 24)},
    "falcon-normed": {
        **FALCON,
        **of_others(6, 8, 3, 7, taps=2),
        "mamba_rms_norm": True,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
}
# Those with a state, whose layers are of every kind.
RECURRENT = [name for name in MODELS if "attention" not in name]


def kinds_of(cfg: dict[str, Any]) -> list[str]:
    """mamba, attention, mlp or moe of Nemotron's layers; the others' are mamba, attention or both,
    each with a feed-forward block."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    newer = {"linear_attention": "mamba", "full_attention": "attention"}
    for key in ("hybrid_override_pattern", "layers_block_type", "layer_types"):
        if key in cfg:
            return [letters.get(kind, newer.get(kind, kind)) for kind in cfg[key]]
    return ["both"] * cfg["num_hidden_layers"]


def mamba_sizes(cfg: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """Heads, their width, groups, width of a state, taps."""
    if cfg["model_type"] == "nemotron_h":
        keys = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    else:
        parts = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
        keys = tuple(f"mamba_{part}" for part in parts)
    h, p, g, n, taps = (cfg[key] for key in keys)
    return h, p, g, n, taps


# ---- Weights ----


def weights_of(cfg: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights by the names of the checkpoints."""
    rng = np.random.default_rng(seed)
    e, v = cfg["hidden_size"], cfg["vocab_size"]
    head = cfg.get("head_dim") or e // cfg["num_attention_heads"]
    q, kv = head * cfg["num_attention_heads"], head * cfg["num_key_value_heads"]
    found: dict[str, np.ndarray] = {}

    def matrix(name: str, *shape: int, scale: float = 1.5) -> None:
        values = scale * rng.standard_normal(shape) / np.sqrt(shape[-1])
        found[f"{name}.weight"] = values.astype(np.float32)

    def vector(name: str, n: int, mean: float = 1.0, spread: float = 0.2) -> None:
        found[name] = (mean + spread * rng.standard_normal(n)).astype(np.float32)

    def attention(name: str) -> None:
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            matrix(f"{name}.{part}_proj", rows, e)
        matrix(f"{name}.o_proj", e, q)

    def mamba(name: str) -> None:
        h, p, g, n, taps = mamba_sizes(cfg)
        inner, channels = h * p, h * p + 2 * g * n
        matrix(f"{name}.in_proj", inner + channels + h, e)
        matrix(f"{name}.conv1d", channels, 1, taps)
        if cfg.get("use_conv_bias", cfg.get("mamba_conv_bias")):
            vector(f"{name}.conv1d.bias", channels, 0, 0.5)
        vector(f"{name}.dt_bias", h, -3, 2)
        vector(f"{name}.A_log", h, 0.5, 1)
        vector(f"{name}.D", h)
        if cfg.get("mamba_rms_norm", True):
            vector(f"{name}.norm.weight", inner)
        matrix(f"{name}.out_proj", e, inner)

    def experts(name: str, gated: bool) -> None:
        if gated:
            n, ff = cfg["num_local_experts"], cfg["intermediate_size"]
            matrix(f"{name}.router.layer", n, e)
            matrix(f"{name}.input_linear", n, 2 * ff, e)
            matrix(f"{name}.output_linear", n, e, ff)
            return
        n, ff = cfg["n_routed_experts"], cfg["moe_intermediate_size"]
        matrix(f"{name}.gate", n, e)
        vector(f"{name}.gate.e_score_correction_bias", n, 0, 0.1)
        width = cfg.get("moe_latent_size") or e
        if width != e:
            matrix(f"{name}.fc1_latent_proj", width, e)
            matrix(f"{name}.fc2_latent_proj", e, width)
        for i in range(n):
            matrix(f"{name}.experts.{i}.up_proj", ff, width)
            matrix(f"{name}.experts.{i}.down_proj", width, ff)
        if cfg["n_shared_experts"]:
            block(f"{name}.shared_experts", cfg["moe_shared_expert_intermediate_size"])

    def block(name: str, ff: int, gated: bool = False) -> None:
        for part in ("gate", "up") if gated else ("up",):
            matrix(f"{name}.{part}_proj", ff, e)
        matrix(f"{name}.down_proj", e, ff)

    family, kinds = cfg["model_type"], kinds_of(cfg)
    table = "backbone.embeddings" if family == "nemotron_h" else "model.embed_tokens"
    matrix(table, v, e, scale=3)
    for i, kind in enumerate(kinds):
        if family == "nemotron_h":
            layer = f"backbone.layers.{i}"
            vector(f"{layer}.norm.weight", e)
            if kind == "mamba":
                mamba(f"{layer}.mixer")
            elif kind == "attention":
                attention(f"{layer}.mixer")
            elif kind == "moe":
                experts(f"{layer}.mixer", False)
            else:
                block(f"{layer}.mixer", cfg["intermediate_size"])
            continue
        layer = f"model.layers.{i}"
        vector(f"{layer}.input_layernorm.weight", e)
        if kind != "attention":
            mamba(f"{layer}.mamba")
        if kind != "mamba":
            attention(f"{layer}.self_attn")
        if family == "falcon_h1":
            vector(f"{layer}.pre_ff_layernorm.weight", e)
            block(f"{layer}.feed_forward", cfg["intermediate_size"], True)
            continue
        vector(f"{layer}.post_attention_layernorm.weight", e)
        if cfg["num_local_experts"]:
            experts(f"{layer}.block_sparse_moe", True)
        matrix(f"{layer}.shared_mlp.input_linear", 2 * cfg["shared_intermediate_size"], e)
        matrix(f"{layer}.shared_mlp.output_linear", e, cfg["shared_intermediate_size"])
    if cfg.get("mtp_hybrid_override_pattern"):
        matrix("mtp.layers.0.eh_proj", e, 2 * e)
        for i, norm in enumerate(("enorm", "hnorm", "norm", "norm", "final_layernorm")):
            vector(f"mtp.layers.{i // 3}.{norm}.weight", e)
        attention("mtp.layers.0.mixer")
        experts("mtp.layers.1.mixer", False)
    last = {"nemotron_h": "backbone.norm_f", "falcon_h1": "model.final_layernorm"}
    vector(last.get(family, "model.norm") + ".weight", e)
    if not cfg["tie_word_embeddings"]:
        matrix("lm_head", v, e, scale=3)
    return found


def checkpoint(name: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A folder with config.json (None removes a key), weights and a tokenizer."""
    cfg = {k: v for k, v in {**MODELS[name], **changes}.items() if v is not None}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(cfg))
    shutil.copy(GOLDEN / "tokenizer.model", folder)
    save_file(weights_of(cfg, seed), folder / "model.safetensors")
    return folder


# ---- The forward pass ----


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    cfg = json.loads((folder / "config.json").read_text())
    return cfg, load_file(folder / "model.safetensors")


def logits(cfg: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """float64 [n_tokens, n_vocab]."""
    return Reference(cfg, weights).logits(tokens)


def guesses(cfg: dict[str, Any], weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """float64 [n_tokens - 1, n_vocab]: what the layer of multi-token prediction says of the token
    behind tokens[i + 1], from the model's row i."""
    return Reference(cfg, weights).guesses(tokens)


class Reference:
    def __init__(self, cfg: dict[str, Any], weights: dict[str, np.ndarray]):
        self.cfg, self.kinds = cfg, kinds_of(cfg)
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.eps = cfg.get("layer_norm_epsilon", cfg.get("rms_norm_eps"))
        self.factor = {k: v for k, v in cfg.items() if "multiplier" in k}

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, self.w[f"{name}.weight"], self.eps)

    def logits(self, tokens: list[int]) -> np.ndarray:
        tied = self.cfg["tie_word_embeddings"]
        y = self.linear(self.last(tokens), self.table() if tied else "lm_head")
        return y * self.factor.get("lm_head_multiplier", 1) / self.cfg.get("logits_scaling", 1)

    def table(self) -> str:
        nemotron = self.cfg["model_type"] == "nemotron_h"
        return "backbone.embeddings" if nemotron else "model.embed_tokens"

    def guesses(self, tokens: list[int]) -> np.ndarray:
        # Nemotron's: attention and experts are two layers, and the last norm is a LayerNorm.
        attention, experts = "mtp.layers.0", "mtp.layers.1"
        token = self.norm(self.w["backbone.embeddings.weight"][tokens[1:]], f"{attention}.enorm")
        row = self.norm(self.last(tokens)[:-1], f"{attention}.hnorm")
        x = self.linear(np.concatenate([token, row], -1), f"{attention}.eh_proj")
        x = x + self.attention(self.norm(x, f"{attention}.norm"), f"{attention}.mixer")
        x = x + self.experts(self.norm(x, f"{experts}.norm"), f"{experts}.mixer")
        x = x - x.mean(-1, keepdims=True)
        return self.linear(self.norm(x, f"{experts}.final_layernorm"), "lm_head")

    def last(self, tokens: list[int]) -> np.ndarray:
        """What the head reads."""
        family = self.cfg["model_type"]
        layer = {"nemotron_h": self.nemotron, "falcon_h1": self.falcon}.get(family, self.granite)
        x = self.w[f"{self.table()}.weight"][tokens] * self.factor.get("embedding_multiplier", 1)
        for i, kind in enumerate(self.kinds):
            x = layer(x, i, kind)
        last = {"nemotron_h": "backbone.norm_f", "falcon_h1": "model.final_layernorm"}
        return self.norm(x, last.get(family, "model.norm"))

    def nemotron(self, x: np.ndarray, i: int, kind: str) -> np.ndarray:
        name = f"backbone.layers.{i}"
        y, mixer = self.norm(x, f"{name}.norm"), f"{name}.mixer"
        if kind == "mamba":
            return x + self.mamba(y, mixer, self.cfg["n_groups"])
        if kind == "attention":
            return x + self.attention(y, mixer)
        return x + (self.experts(y, mixer) if kind == "moe" else self.squared(y, mixer))

    def granite(self, x: np.ndarray, i: int, kind: str) -> np.ndarray:
        name, factor = f"model.layers.{i}", self.factor["residual_multiplier"]
        y = self.norm(x, f"{name}.input_layernorm")
        if kind == "mamba":
            x = x + factor * self.mamba(y, f"{name}.mamba", self.cfg["mamba_n_groups"])
        else:
            scale = self.factor["attention_multiplier"]
            turns = self.cfg["position_embedding_type"] == "rope"
            x = x + factor * self.attention(y, f"{name}.self_attn", scale, turns)
        y = self.norm(x, f"{name}.post_attention_layernorm")
        mlp = f"{name}.shared_mlp"
        into, out = self.w[f"{mlp}.input_linear.weight"], self.w[f"{mlp}.output_linear.weight"]
        z = _gated(y, into, out)
        if self.cfg["num_local_experts"]:
            moe = f"{name}.block_sparse_moe"
            scores = self.linear(y, f"{moe}.router.layer")
            into, out = self.w[f"{moe}.input_linear.weight"], self.w[f"{moe}.output_linear.weight"]
            for t in range(len(y)):
                chosen = np.argsort(-scores[t])[: self.cfg["num_experts_per_tok"]]
                share = np.exp(scores[t, chosen] - scores[t].max())
                for e, weight in zip(chosen, share / share.sum(), strict=True):
                    z[t] += weight * _gated(y[t], into[e], out[e])
        return x + factor * z

    def falcon(self, x: np.ndarray, i: int, _kind: str) -> np.ndarray:
        name, f = f"model.layers.{i}", self.factor
        y = self.norm(x, f"{name}.input_layernorm")
        groups = self.cfg["mamba_n_groups"] if self.cfg["mamba_rms_norm"] else 0
        h, p, g, n, _ = mamba_sizes(self.cfg)
        each = np.repeat(f["ssm_multipliers"], [h * p, h * p, g * n, g * n, h])
        mixed = self.mamba(y * f["ssm_in_multiplier"], f"{name}.mamba", groups, each)
        attended = self.attention(
            y * f["attention_in_multiplier"], f"{name}.self_attn", 0, True, f["key_multiplier"]
        )
        x = x + mixed * f["ssm_out_multiplier"] + attended * f["attention_out_multiplier"]
        y, mlp = self.norm(x, f"{name}.pre_ff_layernorm"), f"{name}.feed_forward"
        gate = self.linear(y, f"{mlp}.gate_proj") * f["mlp_multipliers"][0]
        values = silu(gate) * self.linear(y, f"{mlp}.up_proj")
        return x + self.linear(values, f"{mlp}.down_proj") * f["mlp_multipliers"][1]

    def attention(
        self, y: np.ndarray, name: str, scale: float = 0, turns: bool = False, of_keys: float = 1
    ) -> np.ndarray:
        n, heads = len(y), self.cfg["num_attention_heads"]
        q, k, v = (self.linear(y, f"{name}.{part}_proj") for part in "qkv")
        q = q.reshape(n, heads, -1)
        head_dim = q.shape[-1]
        k, v = (part.reshape(n, -1, head_dim) for part in (k * of_keys, v))
        if turns:
            theta = self.cfg.get("rope_theta", 10000.0)
            q, k = rotate(q, theta), rotate(k, theta)
        k, v = (np.repeat(part, heads // k.shape[1], axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * (scale or head_dim**-0.5)
        scores += np.triu(np.full((n, n), -np.inf), 1)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        return self.linear(np.einsum("hqk,khd->qhd", share, v).reshape(n, -1), f"{name}.o_proj")

    def squared(self, y: np.ndarray, name: str) -> np.ndarray:
        return self.linear(
            np.maximum(self.linear(y, f"{name}.up_proj"), 0) ** 2, f"{name}.down_proj"
        )

    def experts(self, y: np.ndarray, name: str) -> np.ndarray:
        cfg, n = self.cfg, self.cfg["n_routed_experts"]
        p = 1 / (1 + np.exp(-self.linear(y, f"{name}.gate")))
        choice = p + self.w[f"{name}.gate.e_score_correction_bias"]
        groups = np.sort(choice.reshape(len(y), cfg["n_group"], -1), -1)[..., -2:].sum(-1)
        x = self.linear(y, f"{name}.fc1_latent_proj") if cfg.get("moe_latent_size") else y
        out = np.zeros_like(x)
        for t in range(len(y)):
            allowed = np.argsort(-groups[t])[: cfg["topk_group"]]
            inside = np.isin(np.arange(n) // (n // cfg["n_group"]), allowed)
            scores = np.where(inside, choice[t], -np.inf)
            chosen = np.argsort(-scores)[: cfg["num_experts_per_tok"]]
            share = p[t, chosen] / (p[t, chosen].sum() if cfg["norm_topk_prob"] else 1)
            for e, weight in zip(chosen, share * cfg["routed_scaling_factor"], strict=True):
                out[t] += weight * self.squared(x[t], f"{name}.experts.{e}")
        if cfg.get("moe_latent_size"):
            out = self.linear(out, f"{name}.fc2_latent_proj")
        return out + (self.squared(y, f"{name}.shared_experts") if cfg["n_shared_experts"] else 0)

    def mamba(
        self, y: np.ndarray, name: str, norms: int, factors: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """norms: groups of values that are normalised together, 0 for no norm."""
        w, (h, p, g, n, taps) = self.w, mamba_sizes(self.cfg)
        inner, channels = h * p, h * p + 2 * g * n
        z, u, dt = np.split(
            self.linear(y, f"{name}.in_proj") * factors, [inner, inner + channels], axis=-1
        )
        padded = np.concatenate([np.zeros((taps - 1, channels)), u])
        kernel = w[f"{name}.conv1d.weight"].reshape(channels, taps)
        u = sum(padded[j : j + len(u)] * kernel[:, j] for j in range(taps))
        u = silu(u + w.get(f"{name}.conv1d.bias", 0.0))
        dt = np.logaddexp(0, dt + w[f"{name}.dt_bias"])
        a, d = -np.exp(w[f"{name}.A_log"]), w[f"{name}.D"]
        x, b, c = np.split(u, [inner, inner + g * n], axis=-1)
        x = x.reshape(-1, h, p)
        b, c = (np.repeat(part.reshape(-1, g, n), h // g, axis=1) for part in (b, c))
        state, out = np.zeros((h, p, n)), np.zeros_like(x)
        for t in range(len(y)):
            state *= np.exp(dt[t] * a)[:, None, None]
            state += (dt[t][:, None] * x[t])[:, :, None] * b[t][:, None, :]
            out[t] = np.einsum("hpn,hn->hp", state, c[t]) + d[:, None] * x[t]
        values = out.reshape(-1, inner) * silu(z)
        if norms:
            weight = w[f"{name}.norm.weight"].reshape(norms, -1)
            values = rms_norm(values.reshape(len(y), norms, -1), weight, self.eps)
        return self.linear(values.reshape(len(y), inner), f"{name}.out_proj")


def _gated(y: np.ndarray, into: np.ndarray, out: np.ndarray) -> np.ndarray:
    gate, up = np.split(y @ into.T, 2, axis=-1)
    return (silu(gate) * up) @ out.T
