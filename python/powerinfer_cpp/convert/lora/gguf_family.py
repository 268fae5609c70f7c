"""The family of a GGUF: as if its config.json were here, with the sizes that its keys have.

What has no key is not there, so this is no way back to a checkpoint: it is enough to name its
tensors, and to know their shapes and how the file orders their rows and columns.
"""

from typing import Any

from ...core.errors import ModelFormatError, UnsupportedModelError
from ...core.gguf import Gguf
from .. import source
from ..config import Config
from ..families import FAMILIES, read_family
from ..families.family import Family

# By the end of a key, the names that families know its value by.
_SIZES = {
    "embedding_length": ("hidden_size", "n_embd"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "feed_forward_length": (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "ffn_hidden_size",
        "block_ff_dim",
    ),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim", "attention_head_dim"),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.value_length_mla": ("v_head_dim",),
    "rope.dimension_count": ("qk_rope_head_dim", "rotary_dim"),
    "expert_count": (
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "moe_num_primary_experts",
    ),
    "expert_used_count": (
        "num_experts_per_tok",
        "moe_topk",
        "moe_k",
        "moe_num_active_primary_experts",
    ),
    "expert_feed_forward_length": ("moe_intermediate_size", "moe_ffn_hidden_size"),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "expert_shared_count": (
        "n_shared_experts",
        "moe_num_shared_experts",
        "num_shared_expert",
        "num_shared_experts",
    ),
    "leading_dense_block_count": (
        "first_k_dense_replace",
        "num_dense_layers",
        "moe_layer_start_index",
    ),
    "nextn_predict_layers": ("num_nextn_predict_layers",),
    "full_attention_interval": ("full_attention_interval",),
    "hyper_connection.count": ("hc_count",),
    "hyper_connection.low_rank": ("hc_lowrank",),
    "attention.indexer.head_count": ("indexer_n_heads",),
    "attention.indexer.key_length": ("indexer_head_dim",),
    "attention.indexer.top_k": ("indexer_budget",),
    "attention.compress_ratios": ("indexer_compress_ratio",),
    "ple.ngram_size": ("ngram_size",),
    "ple.heads_per_ngram": ("heads_per_ngram",),
    "ple.conv_kernel": ("ple_conv_kernel_size",),
    "ple.eos_token_id": ("eos_token_id",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"),
    "ssm.state_size": ("linear_key_head_dim", "mamba_d_state", "ssm_state_size"),
    "ssm.group_count": ("linear_num_key_heads", "mamba_n_groups", "n_groups"),
    "ssm.time_step_rank": ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"),
}
# Families with layers of several kinds, which config.json names so.
_LFM2 = {"state": "conv", "attention": "full_attention"}
_QWEN = {"state": "linear_attention", "attention": "full_attention"}
_NEMOTRON = {"state": "M", "attention": "*", "experts": "E", "block": "-"}
_KINDS = {
    "qwen3next": _QWEN,
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "olmo-hybrid": _QWEN,
    "qwen4exp": _QWEN,
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
    "lfm3": _LFM2,
    "granitehybrid": {"state": "mamba", "attention": "attention"},
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": _NEMOTRON,
}
# By which tensor a layer is of a kind: the first that it has.
_TENSORS = {
    "shortconv.in_proj.weight": "state",
    "ssm_conv1d.weight": "state",
    "attn_output.weight": "attention",
    "ffn_gate_inp.weight": "experts",
}
# What makes a family that is not a class of one architecture.
_MADE_BY = {
    "bert": "bert",
    "gemma-embedding": "gemma3_text",
    "gemma3": "gemma3_text",
    "granitehybrid": "granitemoehybrid",
    "jina-bert-v2": "bert",
    "jina-bert-v3": "xlm-roberta",
    "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h",
    "nomic-bert": "nomic_bert",
}
# What config.json says of these, whose model_type stands for several.
_SAYS = {
    "gemma-embedding": {"use_bidirectional_attention": True},
    "jina-bert-v2": {"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    "jina-bert-v3": {"position_embedding_type": "rotary"},
}
# Whose model_type stands for several, so that config.json must name the code.
_CODE = {"bailingmoe2": ["BailingMoeV2ForCausalLM"]}
# Their files have factors of config.json in the weights, and no key for them.
_SCALED = ("falcon-h1",)
# Their keys leave out sizes that config.json has: of heads by kind of layer, groups, experts.
_SAY_LESS = ("bailingmoe3", "cohere2moe", "kimi-linear", "mimo2", "nomic-bert-moe", "step35")
# What an architecture with experts is called, where dense models share it.
_MIXTURES = {"llama": "mixtral", "granite_swa": "granitemoe_swa"}


def family_of_gguf(gguf: Gguf) -> Family:
    """The family, with its sizes.

    Raises UnsupportedModelError for architectures whose keys are not enough, ModelFormatError for
    values that contradict each other.
    """
    architecture, path = str(gguf.value("general.architecture", "")), gguf.files[0]
    types = [name for name, made in FAMILIES.items() if _architecture_of(made) == architecture]
    if architecture in _MIXTURES and gguf.value(f"{architecture}.expert_count"):
        types = [_MIXTURES[architecture]]
    if architecture in _MADE_BY:
        types = [_MADE_BY[architecture]]
    if architecture in (*_SCALED, *_SAY_LESS) or not types:
        raise UnsupportedModelError(
            f"{path}: the keys of {architecture!r} are not enough to place an adapter's changes: "
            "give a folder with the model's config.json"
        )
    values = dict(_values(gguf, architecture))
    try:
        return read_family(Config.made(path, {"model_type": types[0], **values}))
    except (ModelFormatError, UnsupportedModelError) as error:
        raise type(error)(f"{error} (a folder with the model's config.json says more)") from None


def _architecture_of(made: object) -> str | None:
    return getattr(made, "architecture", None)


def _values(gguf: Gguf, architecture: str) -> dict[str, Any]:
    """What config.json would say of the sizes."""

    def value(key: str) -> Any:
        """A key's value; of those of layers, which may be 0 where a layer lacks the part, the
        largest."""
        found = gguf.value(f"{architecture}.{key}")
        return max(found, default=None) if isinstance(found, list) else found

    shapes = {tensor.name: tensor.shape for tensor in gguf.tensors}
    n_layer, found = source.n_layer(gguf), {}
    for key, names in _SIZES.items():
        if value(key) is not None:
            found |= dict.fromkeys(names, value(key))
    embedding = shapes.get("token_embd.weight", (0, 0))
    found["num_hidden_layers"] = found["n_layer"] = n_layer
    found["vocab_size"] = embedding[0]
    found["block_auto_adjust_ff_dim"] = False  # of LFM2
    found["new_decoder_architecture"] = found.get("num_kv_heads", 1) > 1  # of Falcon
    routed = [f"blk.{i}.ffn_gate_inp.weight" in shapes for i in range(n_layer)]
    found["mlp_only_layers"] = [i for i in range(n_layer) if not routed[i]]
    found["mlp_layer_types"] = ["sparse" if here else "dense" for here in routed]
    n_embd, n_head = (
        source.size(gguf, "embedding_length"),
        source.size(gguf, "attention.head_count", layer=0),
    )
    found.setdefault("head_dim", max(1, n_embd // max(1, n_head)))
    found.setdefault("shared_intermediate_size", found.get("intermediate_size"))
    whole = value("attention.key_length_mla") or found["head_dim"]
    found["qk_nope_head_dim"] = whole - (value("rope.dimension_count") or 0)
    found.setdefault("v_head_dim", value("attention.value_length"))
    if heads := value("ssm.time_step_rank"):
        width = (value("ssm.inner_size") or 0) // heads
        found |= dict.fromkeys(("linear_value_head_dim", "mamba_d_head", "mamba_head_dim"), width)
    if architecture in _KINDS:
        kinds = [
            next((kind for end, kind in _TENSORS.items() if f"blk.{i}.{end}" in shapes), "block")
            for i in range(n_layer)
        ]
        found["layer_types"] = [_KINDS[architecture].get(kind) for kind in kinds]
    if architecture == "qwen4exp":
        heads = (found.get("ngram_size", 1) - 1) * found.get("heads_per_ngram", 1)
        found["ple_embed_dim"] = heads * (value("embedding_length_per_layer_input") or 0) or None
        found["ple_layer_ids"] = [i + 1 for i in gguf.value("qwen4exp.ple.layers") or []]
    own = {"gemma4": _of_gemma4, "laguna": _of_laguna}.get(architecture)
    found["architectures"] = _CODE.get(architecture)
    found |= _SAYS.get(architecture, {})
    return found | (own(gguf, shapes) if own else {})


def _of_laguna(gguf: Gguf, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The heads of each layer, and what has a gate."""
    n_layer = source.n_layer(gguf)
    heads = [source.size(gguf, "attention.head_count", layer=i) for i in range(n_layer)]
    gates = shapes.get("blk.0.attn_gate.weight", (0,))[0]
    return {
        "num_attention_heads_per_layer": heads,
        "gating": True if gates == heads[0] else "per-element",
    }


def _of_gemma4(gguf: Gguf, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """What differs from layer to layer."""
    n_layer = source.n_layer(gguf)

    def each(key: str) -> list[Any]:
        value = gguf.value(f"gemma4.{key}")
        return value if isinstance(value, list) else [value] * n_layer

    slides, heads = each("attention.sliding_window_pattern"), each("attention.head_count_kv")
    widths, n_shared = each("feed_forward_length"), gguf.value("gemma4.attention.shared_kv_layers")
    if not n_layer == len(slides) == len(heads) == len(widths) or None in widths + heads:
        raise ModelFormatError(f"{gguf.files[0]}: the sizes of its {n_layer} layers are missing")
    whole = [i for i in range(n_layer) if not slides[i]]
    kinds = ["sliding_attention" if slid else "full_attention" for slid in slides]
    return {
        "layer_types": kinds,
        "head_dim": gguf.value("gemma4.attention.key_length_swa"),
        "global_head_dim": gguf.value("gemma4.attention.key_length"),
        "num_key_value_heads": next((n for n, s in zip(heads, slides, strict=True) if s), heads[0]),
        "num_global_key_value_heads": heads[whole[0]] if whole else None,
        "attention_k_eq_v": bool(whole) and f"blk.{whole[0]}.attn_v.weight" not in shapes,
        "num_kv_shared_layers": n_shared or 0,
        "use_double_wide_mlp": len(set(widths)) > 1,
        "intermediate_size": min(widths),
        "hidden_size_per_layer_input": gguf.value("gemma4.embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": shapes.get("token_embd.weight", (0,))[0],
        "enable_moe_block": bool(gguf.value("gemma4.expert_count")),
        "top_k_experts": gguf.value("gemma4.expert_used_count"),
    }
