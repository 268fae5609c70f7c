"""What nobody reads of config.json and of a checkpoint: refused, noted, or without effect.

Whatever a family reads counts as known (Config.values). The lists here judge the rest.
"""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from ..core.errors import UnsupportedModelError
from .config import Asked, Config

_MOST_NAMES = 5  # in a message
WAY = "allow_unknown (--allow-unknown) converts the model without"

_OFF = (False, 0)
_ON = (True, 1)
_FACTOR = (0, 1, False)


def _full(value: Any) -> bool:
    """Of layer_types: every layer is plain attention over all positions."""
    return isinstance(value, list) and all(
        kind in ("full_attention", "attention") for kind in value
    )


def _rotates(value: Any) -> bool:
    """Of a flag for each layer: all are on."""
    return isinstance(value, list) and all(flag in (1, True) for flag in value)


def _plain_rotation(value: Any) -> bool:
    """Of a rotation that nobody reads, in a model that does not rotate: it asks for nothing."""
    kinds = (value.get("rope_type"), value.get("type")) if isinstance(value, dict) else ("?",)
    return all(kind in (None, "default") for kind in kinds) and "factor" not in value


def _no_limits(value: Any) -> bool:
    """Of a limit for each layer: none has one."""
    return isinstance(value, list) and not any(value)


def _no_layers(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= 0


# Keys of transformers' configurations that change results, and the values with which they do not:
# what the families here compute anyway. null is always such a value. * stands for any text.
_DECISIVE: dict[str, tuple[Any, ...] | Callable[[Any], bool]] = {
    # attention
    "is_causal": _ON,
    "use_bidirectional_attention": _OFF,
    "bidirectional": _OFF,
    "attn_logit_softcapping": _OFF,
    "attention_multiplier": (),
    "attention_scale*": (),
    "attn_scale": (),
    "attn_temperature_tuning": _OFF,
    "query_pre_attn_scalar": (),
    "scale_attn_weights": _ON,
    "scale_attn_by_inverse_layer_idx": _OFF,
    "clip_qkv": _OFF,
    "attn_config": (),
    "attention_bias": _OFF,
    "attention_out_bias": _OFF,
    "attention_qkv_bias": _OFF,
    "qkv_bias": _OFF,
    "use_qkv_bias": _OFF,
    "add_qkv_bias": _OFF,
    "qk_norm": _OFF,
    "use_qk_norm": _OFF,
    "qk_layernorm": _OFF,
    "use_qk_layernorm": _OFF,
    "attention_sinks": _OFF,
    "use_attention_sinks": _OFF,
    "num_kv_shared_layers": _OFF,
    "*_lora_rank": _OFF,
    "qk_nope_head_dim": (),
    "qk_rope_head_dim": (),
    "v_head_dim": (),
    "value_head_dim": (),
    "multi_query": _OFF,
    "alibi": _OFF,
    "use_alibi": _OFF,
    "position_embedding_type": ("absolute", "rope", "rotary"),
    "add_cross_attention": _OFF,
    "is_encoder_decoder": _OFF,
    "cross_attention_layers": (),
    # windows and kinds of layers
    "sliding_window": _no_layers,
    "sliding_window_*": (),
    "use_sliding_window": _OFF,
    "max_window_layers": (),
    "attention_chunk_size": _OFF,
    "layer_types": _full,
    "layers_block_type": _full,
    "hybrid_*": (),
    "attn_layer_*": (),
    "full_attention_interval": _FACTOR,
    "linear_*_head*": (),
    "linear_conv_kernel_dim": (),
    "mamba_*": (),
    "ssm_*": (),
    # rotation
    "rope_scaling": _plain_rotation,
    "rope_parameters": _plain_rotation,
    "rope_local_base_freq": (),
    "rotary_pct": (1,),
    "rope_pct": (1,),
    "rotary_dim": (),
    "rotary_emb_base": (),
    "partial_rotary_factor": (1,),
    "no_rope_layers": _rotates,
    "no_rope_layer_interval": (),
    "nope_layer_interval": (),
    "use_rope": _ON,
    "rope_interleave*": _OFF,
    "use_mrope": _OFF,
    "dual_chunk_attention_config": (),
    # scales of x, logits
    "residual_multiplier": (1,),
    "residual_scale": (1,),
    "scale_depth": (),
    "scale_emb": (1,),
    "embedding_multiplier": (1,),
    "embedding_scale": (1,),
    "scale_embedding": _OFF,
    "normalize_embedding": _OFF,
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "lm_head_multiplier": (1,),
    "final_logit_softcapping": _OFF,
    "dim_model_base": (),
    "*_multipliers": (),
    # norms, biases, FFN
    "parallel_attn": _OFF,
    "use_parallel_residual": _OFF,
    "parallel_residual": _OFF,
    "do_layer_norm_before": _ON,
    "apply_residual_connection_post_layernorm": _OFF,
    "use_post_norm": _OFF,
    "norm_after": _OFF,
    "layer_norm_elementwise_affine": _ON,
    "mlp_bias": _OFF,
    "use_mlp_bias": _OFF,
    "bias": _OFF,
    "use_bias": _OFF,
    "enable_bias": _ON,
    "lm_head_bias": _OFF,
    "add_bias_linear": _OFF,
    "norm_eps": (),
    "hidden_activation": (),
    "hidden_act_param": _OFF,
    "activation_sparsity_pattern": (),
    "swiglu_limit": (),
    "*swiglu_limit_list": _no_limits,
    "use_gated_mlp": _ON,
    "use_double_wide_mlp": _OFF,
    "hidden_size_per_layer_input": _OFF,
    "word_embed_proj_dim": (),
    "pruned_heads": (),
    # experts
    "num_experts": _FACTOR,
    "num_local_experts": _FACTOR,
    "n_routed_experts": _FACTOR,
    "num_shared_experts": _OFF,
    "n_shared_experts": _OFF,
    "shared_expert_intermediate_size": _OFF,
    "shared_intermediate_size": _OFF,
    "num_experts_per_tok": _FACTOR,
    "moe_*": _OFF,
    "norm_topk_prob": _ON,
    "routed_scaling_factor": (1,),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy",),
    "topk_group": _FACTOR,
    "n_group": _FACTOR,
    "first_k_dense_replace": _OFF,
    "decoder_sparse_step": (1,),
    "mlp_only_layers": (),
    "interleave_moe_layer_step": _FACTOR,
    "router_scaling_factor": (1,),
    # how weights are stored and shared
    "tie_word_embeddings": _OFF,
    "quantization_config": (),
    "compression_config": (),
    "vision_config": (),
    "audio_config": (),
    "text_config": (),
}

# Keys inside rope_parameters and rope_scaling that change nothing where nobody reads them. All
# others there change the rotation.
_ROPE = re.compile(r"(.*\.)?(rope_parameters|rope_scaling)(\..*)?")
_HARMLESS_ROPE = (
    "finetuned",
    "mrope_*",  # a text has the same position in all sections
    "original_max_position_embeddings",  # of kinds that do not use it
    "type",
    "rope_type",
)

# Keys without effect on results: of training, of generation, of other tasks, of the code.
_HARMLESS = (
    "_*",
    "architectures",
    "auto_map",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_*",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_layer_norm",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_*_token_id",
    "fuse_*",
    "gradient_checkpointing*",
    "id2label",
    "init_device",
    "init_method_std",
    "init_std",
    "initializer_*",
    "is_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "layer_norm_epsilon",
    "layer_norm_eps",
    "layerdrop",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "mm_*",
    "model_max_length",
    "model_type",  # of a part
    "mtp_*",
    "n_ctx",
    "n_special",
    "no_repeat_ngram_size",
    "num_beam*",
    "num_labels",
    "num_ln_in_parallel_attn",
    "num_return_sequences",
    "original_max_position_embeddings",  # of kinds of rotation that do not use it
    "output_*",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",  # the order of sums
    "problem_type",
    "reorder_and_upcast_attn",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict*",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_z_loss_coef",
    "rope_theta",  # of a model that does not rotate
    "sep_token_id",
    "seq_length",
    "summary_*",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "typical_p",
    "unsloth_*",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn*",
    "vocab_size_per_layer_input",
    "*_dropout",
    "*_drop",
    "*_pdrop",
    "*dropout*",
    "*_token_id",
    "*_token_ids",
    "*_token_index",
    "encoder_no_repeat_ngram_size",
)

# Tensors that change nothing where no family takes them: what follows from config.json, and masks.
HARMLESS_TENSORS = re.compile(
    r"(.+\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|.+\.maybe_rotary\.inv_freq|rope\.freqs"
    r"|(.+\.)?(attn|attention|self_attn|self_attention)\.(masked_bias|mask|causal_mask)"
    r"|(.+\.)?h\.\d+\.attn\.bias|(.+\.)?position_ids"
)
# Layers that predict further tokens for drafts, which no other layer reads.
DRAFT_TENSORS = re.compile(r"(.+\.)?mtp(_(block|emb_norm|hidden_norm|linear_proj))?\..+")


def first_names(names: list[str]) -> str:
    """Names for a message: five at most, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def judge_keys(config: Config, allow_unknown: bool) -> Iterator[str]:
    """Yields notes about keys that nobody has read.

    Raises UnsupportedModelError, naming file and key, for one that changes results by its value;
    with allow_unknown these are a note too.
    """
    decisive, unknown = [], []
    for name, value in _unread(config.values):
        key = name.rpartition(".")[2]
        if value is None or value in ([], {}, ""):
            continue
        if _ROPE.fullmatch(name) and "." in name:
            factor = key in ("factor", "attention_factor") and value == 1
            if not factor and not _among(key, _HARMLESS_ROPE):
                decisive.append((name, value))
            continue
        pattern = next((p for p in _DECISIVE if fnmatchcase(key, p)), None)
        if pattern is not None:
            neutral = _DECISIVE[pattern]
            same = neutral(value) if callable(neutral) else _is_one_of(value, neutral)
            if not same:
                decisive.append((name, value))
        elif not _among(key, _HARMLESS):
            unknown.append(name)
    if decisive and not allow_unknown:
        name, value = decisive[0]
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        raise UnsupportedModelError(
            f"{config.path}: {name} {shown} changes results and is not supported here; {WAY}"
        )
    if decisive:
        names = first_names([name for name, _ in decisive])
        yield f"{config.path}: converted without keys that change results: {names}"
    if unknown:
        yield f"{config.path}: unknown keys are not used: {first_names(unknown)}"


def _unread(values: Asked, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names, with those of the objects around them, and values of what nobody asked for."""
    for key, value in values.items():
        if isinstance(value, Asked) and (key in values.asked or _ROPE.fullmatch(prefix + key)):
            if key not in values.asked and not prefix and value:
                yield key, value  # nobody reads this rotation at all
            else:
                yield from _unread(value, f"{prefix}{key}.")
        elif key not in values.asked:
            yield f"{prefix}{key}", value


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    number = isinstance(value, bool | int | float)
    return any(value == n and number == isinstance(n, bool | int | float) for n in neutral)


def _among(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
