"""Gemma 4 (text): heads of two widths, values that may be keys, mixtures with a dense block beside
the experts, and in the smallest models embeddings for each layer."""

import re
from collections.abc import Iterator
from typing import Any

from ....core.errors import ModelFormatError, UnsupportedModelError
from ...config import Config
from ...rope import by_layer_type
from ...tensors import Output, Weights, from_weight
from ...unread import first_names
from ...writer import Entry, array, boolean, float32, of_layers, replaced, uint32
from ..dense.near_llama import layer_windows
from ..llama import Llama

_PERIOD = 6  # the last layer of each sees all positions, where config.json does not say


class Gemma4(Llama):
    architecture = "gemma4"
    pairs = False
    default_activation = "gelu_tanh"
    activation_key = "hidden_activation"
    tied = True
    # Of the checkpoints that see images and hear sound.
    left_out = re.compile(r"(model\.)?((vision|audio)_tower|embed_(vision|audio))\..+")
    # Of what config.json may leave out.
    defaults: dict[str, Any] = {
        "sliding_window": 512,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_key_value_heads": 4,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
    }
    default_turns: dict[str, Any] = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    # Of what makes the embeddings of layers: a table, and what its names begin with, in the model
    # and in a layer.
    has_table = True
    of_model = of_layer = ""

    def __init__(self, config: Config):
        text = config.section("text_config")
        whole = text.completed(**self.defaults)
        if whole.values.get("rope_parameters") is None:
            whole.values["rope_parameters"] = {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {**self.default_turns, "rope_theta": 1000000.0},
            }
        full, windowed = by_layer_type(whole)
        # The heads of layers that see all positions; those of the others have a width of their own.
        self.window_dim = full.integer("head_dim")
        said = _heads_by_layer(full)
        full.values["head_dim"] = said[0] if said else full.integer("global_head_dim")
        super().__init__(full)
        if windowed is None or self.qkv_bias:
            raise self.refuse(
                f"{self.architecture} with biases, or without rope_parameters of both kinds"
            )
        global_dim, self.head_dim, self.config = self.head_dim, self.window_dim, windowed
        self.local = self.read_rope()
        self.head_dim, self.config = global_dim, full
        if self.local.kind != "none" or self.local.divisors is not None:
            raise self.refuse(f"{self.architecture} with scaled RoPE in layers with a window")
        if full.values.get("use_bidirectional_attention") not in (None, False, "vision"):
            raise self.refuse("gemma4 with attention in both directions")
        self.slides = self.slides or [False] * self.n_layer
        self.keys_are_values = full.flag("attention_k_eq_v")
        n_kv = said[1] if said else self.global_key_heads()
        self.kv_heads = [self.n_head_kv if slides else n_kv for slides in self.slides]
        self.n_shared = full.integer("num_kv_shared_layers", default=0, least=0)
        self.first_shared = self.n_layer - self.n_shared
        wide = full.flag("use_double_wide_mlp")
        self.widths = [
            self.n_ff_dense * (2 if wide and i >= self.first_shared > 0 else 1)
            for i in range(self.n_layer)
        ]
        self.read_experts(full)
        self.width = full.integer("hidden_size_per_layer_input", default=0, least=0)
        rows = full.integer("vocab_size_per_layer_input", default=self.n_vocab)
        if self.has_table and self.width and rows != self.n_vocab:
            default = "" if text.values.peek("vocab_size_per_layer_input") else ", the default,"
            raise UnsupportedModelError(
                f"{config.path}: vocab_size_per_layer_input {rows}{default} is not vocab_size "
                f"{self.n_vocab}: a GGUF has embeddings of layers for every token"
            )
        cap = full.values.get("final_logit_softcapping")
        self.cap = full.number("final_logit_softcapping") if cap else 0.0
        if text is not config:
            config.known("vision_config", "audio_config", "tie_word_embeddings")
            self.notes.append("only the text part is converted, without images and sound")

    def global_key_heads(self) -> int:
        """The key heads of layers that see all positions."""
        n = self.config.integer("num_global_key_value_heads", default=self.n_head_kv)
        return n if self.keys_are_values else self.n_head_kv

    def read_experts(self, config: Config) -> None:
        self.expert_ff = 0
        config.known("num_experts", "top_k_experts", "moe_intermediate_size")
        if config.flag("enable_moe_block"):
            self.n_expert = config.integer("num_experts")
            self.n_expert_used = config.integer("top_k_experts")
            self.n_ff = self.expert_ff = config.integer("moe_intermediate_size")

    def read_window(self) -> tuple[int, list[bool]]:
        return layer_windows(self.config, self.n_layer, _PERIOD, last_sees_all=True)

    def pattern_entries(self) -> Iterator[Entry]:
        return iter(())

    def entries(self) -> Iterator[Entry]:
        return replaced(super().entries(), self._own_entries())

    def _own_entries(self) -> Iterator[Entry]:
        assert self.rope

        arch = self.architecture
        yield of_layers(f"{arch}.feed_forward_length", self.widths)
        yield of_layers(f"{arch}.attention.head_count_kv", self.kv_heads)
        yield uint32(f"{arch}.attention.sliding_window", self.window)
        yield array(f"{arch}.attention.sliding_window_pattern", "BOOL", self.slides)
        for kind, width in (("", self.head_dim), ("_swa", self.window_dim)):
            yield uint32(f"{arch}.attention.key_length{kind}", width)
            yield uint32(f"{arch}.attention.value_length{kind}", width)
        yield uint32(f"{arch}.rope.dimension_count_swa", self.local.n_rot)
        yield float32(f"{arch}.rope.freq_base_swa", self.local.theta)
        if self.both_sides:
            yield boolean(f"{arch}.attention.causal", False)
        else:
            yield float32(f"{arch}.final_logit_softcapping", self.cap)
            yield uint32(f"{arch}.attention.shared_kv_layers", self.n_shared)
        yield uint32(f"{arch}.embedding_length_per_layer_input", self.width)
        if self.n_expert:
            yield uint32(f"{arch}.expert_feed_forward_length", self.expert_ff)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        if self.width:
            all_layers = self.n_layer * self.width
            table = ("embed_tokens_per_layer", "per_layer_token_embd", (self.n_vocab, all_layers))
            for theirs, ours, shape in (
                *([table] if self.has_table else []),
                ("per_layer_model_projection", "per_layer_model_proj", (all_layers, self.n_embd)),
                ("per_layer_projection_norm", "per_layer_proj_norm", (self.width,)),
            ):
                weight = weights.take(f"model.{self.of_model}{theirs}.weight", *shape)
                yield from_weight(f"{ours}.weight", weight)
        yield from super().outputs(weights, transpose_down)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        i = int(block.removeprefix("blk."))
        self.n_ff_dense = self.widths[i]

        def norm(name: str, ours: str) -> Iterator[Output]:
            return self.norm(weights, f"{theirs}.{name}", f"{block}.{ours}")

        yield from norm("input_layernorm", "attn_norm")
        yield from self.attention_of(i, weights, f"{theirs}.self_attn", block)
        yield from norm("post_attention_layernorm", "post_attention_norm")
        yield from norm("pre_feedforward_layernorm", "ffn_norm")
        yield from self.ffn(weights, theirs, block, transpose_down)
        if self.n_expert:
            if transpose_down:
                raise self.refuse("neuron rows of gemma4's experts")
            yield from norm("post_feedforward_layernorm_1", "post_ffw_norm_1")
            yield from norm("pre_feedforward_layernorm_2", "pre_ffw_norm_2")
            yield from self.mixture(weights, theirs, block)
            yield from norm("post_feedforward_layernorm_2", "post_ffw_norm_2")
        yield from norm("post_feedforward_layernorm", "post_ffw_norm")
        if self.width:
            for name, ours, shape in (
                ("per_layer_input_gate", "inp_gate", (self.width, self.n_embd)),
                ("per_layer_projection", "proj", (self.n_embd, self.width)),
            ):
                name = f"{theirs}.{self.of_layer}{name}"
                yield from self.linear(weights, name, f"{block}.{ours}", shape)
            yield from norm(f"{self.of_layer}post_per_layer_input_norm", "post_norm")
        weight = weights.take(f"{theirs}.layer_scalar", 1)
        yield from_weight(f"{block}.layer_output_scale.weight", weight)

    def attention_of(self, i: int, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        head = self.window_dim if self.slides[i] else self.head_dim
        n_q, n_kv = self.n_head * head, self.kv_heads[i] * head
        lacks_v = self.keys_are_values and not self.slides[i]
        for part, rows in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            name = f"{theirs}.{part}_proj"
            if part != "q" and i >= self.first_shared:
                for unused in (f"{name}.weight", f"{theirs}.{part}_norm.weight"):
                    weights.drop(unused)  # the layer reads another one's
                continue
            if part == "v" and lacks_v:
                continue
            yield from self.linear(weights, name, f"{block}.attn_{part}", (rows, self.n_embd))
            if part != "v":
                weight = weights.take(f"{theirs}.{part}_norm.weight", head)
                yield from_weight(f"{block}.attn_{part}_norm.weight", weight)
        name = f"{theirs}.o_proj"
        yield from self.linear(weights, name, f"{block}.attn_output", (self.n_embd, n_q))

    def mixture(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        """The router with its scales, and the experts' matrices, gates and ups in one."""
        n, ff, n_embd = self.n_expert, self.expert_ff, self.n_embd
        weight = weights.take(f"{theirs}.router.proj.weight", n, n_embd)
        yield from_weight(f"{block}.ffn_gate_inp.weight", weight, exact=True)
        for name, ours, shape in (
            ("router.scale", "ffn_gate_inp.scale", (n_embd,)),
            ("router.per_expert_scale", "ffn_down_exps.scale", (n,)),
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight", (n, 2 * ff, n_embd)),
            ("experts.down_proj", "ffn_down_exps.weight", (n, n_embd, ff)),
        ):
            yield from_weight(f"{block}.{ours}", weights.take(f"{theirs}.{name}", *shape))


def _heads_by_layer(config: Config) -> tuple[int, int] | None:
    """The width of heads and the number of key heads in layers that see all positions, from
    per_layer_config, as transformers 5.24 writes it; None: config.json does not have it.

    Raises ModelFormatError if it is malformed, UnsupportedModelError for other differences between
    layers.
    """
    if config.values.get("per_layer_config") is None:
        return None
    section = config.section("per_layer_config")
    slides = layer_windows(config, config.integer("num_hidden_layers"), _PERIOD, True)[1]
    usual = {name: config.integer(name) for name in ("head_dim", "num_key_value_heads")}
    heads = [tuple(usual.values())] * len(slides)
    for key in section.values:
        where = f"{config.path}: per_layer_config: "
        if not (key.isdecimal() and int(key) < len(slides)):
            raise ModelFormatError(f"{where}{key!r} is not one of {len(slides)} layers")
        layer = section.section(key)
        if more := first_names(sorted(layer.values.keys() - usual)):
            raise UnsupportedModelError(f"{where}layers that differ in {more} are not supported")
        layer = layer.completed(**usual)
        heads[int(key)] = tuple(layer.integer(name) for name in usual)
    kinds = [{h for h, s in zip(heads, slides, strict=True) if s == slid} for slid in (True, False)]
    if kinds[0] - {tuple(usual.values())} or len(kinds[1]) != 1:
        raise UnsupportedModelError(
            f"{config.path}: per_layer_config: heads that differ among the layers with a window, "
            "or among those without, are not supported"
        )
    config.known("global_head_dim", "num_global_key_value_heads")
    width, n_kv = kinds[1].pop()
    return width, n_kv
