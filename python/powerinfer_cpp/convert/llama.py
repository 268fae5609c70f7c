"""Families with Llama's layer: llama, and bamboo, which differs in the activation alone."""

import re
from collections.abc import Iterator

import numpy as np

from ..errors import ModelFormatError
from .checkpoint import Weight
from .config import Config, Hyperparameters
from .tensors import Output, check_shape, from_weight, row_order, transposed

# model_type -> (GGUF architecture, activation of a GGUF without the key)
FAMILIES = {"llama": ("llama", "silu"), "bamboo": ("bamboo", "drelu")}

# Buffers that old checkpoints hold and that follow from config.json.
IGNORED = re.compile(r"(model\.layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|rope\.freqs")


def hyperparameters(config: Config, activation: str | None) -> Hyperparameters:
    """Sizes from config.json; `activation` overrides the file's.

    Raises ModelFormatError for sizes that contradict each other.
    """
    architecture, default = FAMILIES[config.model_type()]
    found = config.activation() or "silu"
    if architecture == "bamboo" and found == "relu":
        found = "drelu"  # Bamboo's own code applies hidden_act to gate and to up
    n_embd, n_head = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=n_embd // n_head)
    n_head_kv = config.integer("num_key_value_heads", default=n_head)
    n_ctx = config.integer("max_position_embeddings", "max_sequence_length")
    config.refuse_sliding_window(n_ctx)
    if n_head % n_head_kv:
        raise ModelFormatError(
            f"{config.path}: {n_head} heads are no multiple of {n_head_kv} key-value heads"
        )
    if head_dim % 2:
        raise ModelFormatError(f"{config.path}: head_dim {head_dim} is odd")
    return Hyperparameters(
        architecture=architecture,
        n_vocab=config.integer("vocab_size"),
        n_ctx=n_ctx,
        n_embd=n_embd,
        n_layer=config.integer("num_hidden_layers"),
        n_ff=config.integer("intermediate_size"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        rms_eps=config.number("rms_norm_eps", default=1e-6),
        rope_theta=config.rope_theta(),
        activation=activation or found,
        default_activation=default,
        tied=config.flag("tie_word_embeddings"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
    )


def interleaved(n_head: int, head_dim: int) -> np.ndarray:
    """Row order [n_head * head_dim] that pairs what a rotation turns.

    transformers turns element i of a head with element i + head_dim/2; GGUF's llama turns 2i with
    2i + 1. Row r of the result is row order[r] of the checkpoint.
    """
    rows = np.arange(n_head * head_dim).reshape(n_head, 2, head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def outputs(
    weights: dict[str, Weight], hp: Hyperparameters, transpose_down: bool
) -> Iterator[Output]:
    """The GGUF's tensors in file order.

    transpose_down: ffn_down_t [n_ff, n_embd], a row per neuron, instead of ffn_down. Every weight
    must be used: raises ModelFormatError for unknown, missing and misshapen ones.
    """
    left = {name: w for name, w in weights.items() if not IGNORED.fullmatch(name)}

    def take(name: str, *shape: int) -> Weight:
        weight = left.pop(name, None)
        if weight is None:
            raise ModelFormatError(f"the checkpoint lacks tensor {name} {list(shape)}")
        return check_shape(weight, shape)

    n_q, n_kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
    linear = [  # checkpoint, GGUF, rows, columns, bias, row order
        ("self_attn.q_proj", "attn_q", n_q, hp.n_embd, hp.attention_bias, hp.n_head),
        ("self_attn.k_proj", "attn_k", n_kv, hp.n_embd, hp.attention_bias, hp.n_head_kv),
        ("self_attn.v_proj", "attn_v", n_kv, hp.n_embd, hp.attention_bias, None),
        ("self_attn.o_proj", "attn_output", hp.n_embd, n_q, hp.attention_bias, None),
        ("mlp.gate_proj", "ffn_gate", hp.n_ff, hp.n_embd, hp.mlp_bias, None),
        ("mlp.up_proj", "ffn_up", hp.n_ff, hp.n_embd, hp.mlp_bias, None),
        ("mlp.down_proj", "ffn_down", hp.n_embd, hp.n_ff, hp.mlp_bias, None),
    ]
    found = [
        from_weight("token_embd.weight", take("model.embed_tokens.weight", hp.n_vocab, hp.n_embd))
    ]
    for layer in range(hp.n_layer):
        source, target = f"model.layers.{layer}.", f"blk.{layer}."
        for theirs, ours in (
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ):
            weight = take(f"{source}{theirs}.weight", hp.n_embd)
            found.append(from_weight(f"{target}{ours}.weight", weight))
        for theirs, ours, rows, columns, bias, heads in linear:
            order = None if heads is None else interleaved(heads, hp.head_dim)
            turned = transpose_down and ours == "ffn_down"
            name = f"{target}{ours}_t" if turned else f"{target}{ours}"
            weight = take(f"{source}{theirs}.weight", rows, columns)
            found.append(
                transposed(f"{name}.weight", weight)
                if turned
                else row_order(f"{name}.weight", weight, order)
            )
            if bias:
                found.append(row_order(f"{name}.bias", take(f"{source}{theirs}.bias", rows), order))
    found.append(from_weight("output_norm.weight", take("model.norm.weight", hp.n_embd)))
    if hp.tied:
        left.pop("lm_head.weight", None)  # a copy of the embedding
    else:
        head = take("lm_head.weight", hp.n_vocab, hp.n_embd)
        found.append(from_weight("output.weight", head))
    if left:
        names = sorted(left)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise ModelFormatError(
            f"the checkpoint holds tensors that its config.json does not explain: "
            f"{', '.join(names[:5])}{more}"
        )
    return iter(found)
