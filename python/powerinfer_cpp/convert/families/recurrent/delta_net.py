"""Qwen3-Next, Qwen3.5 and 3.6: gated delta nets in most layers, gated attention in the others."""

import re
from collections.abc import Iterator

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...tensors import Output, Weights, column_order, from_weight, plus_one, row_order
from ...writer import Entry, array, uint32
from ..llama import Llama
from ..mixtures.mixture import GatedSharedExpert, Mixture, QwenMoe
from .states import convolution, decay, recurrent_layers, time_step

_KINDS = ("linear_attention", "full_attention")
_PERIOD = 4  # of layers, of which the last one has attention
# Of the layer that predicts further tokens.
_GUESSING = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
}
_SECTIONS = [11, 11, 10]  # pairs of a rotation that turn with time, height and width of an image


class _DeltaNets(Llama):
    """What all share: norms that multiply by 1 + weight, except inside a delta net."""

    pairs = False
    default_part = 0.25
    rotates_partly = True
    has_rope_factors = False
    ffn_norm = "post_attention_norm"
    gates_attention = True
    mlx_adds_one = True
    guess_names = (
        *(f"{name}.weight" for name in _GUESSING.values()),
        "mtp.layers.0.input_layernorm.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.post_attention_layernorm.weight",
    )

    def __init__(self, config: Config):
        config = config.completed(head_dim=256)
        super().__init__(config)
        self.head_norms = True
        if not config.flag("attn_output_gate", True):
            raise self.refuse(f"{self.architecture} whose attention has no gate")
        if config.values.get("output_gate_type") not in (None, "swish", "silu"):
            raise self.refuse(f"{self.architecture} whose delta nets have another output_gate_type")
        config.known("mamba_ssm_dtype")  # of the state, which is F32 here
        self.taps = config.integer("linear_conv_kernel_dim", default=4, least=2)
        self.n_k_head = config.integer("linear_num_key_heads", default=16)
        self.n_v_head = config.integer("linear_num_value_heads", default=32)
        self.k_head_dim = config.integer("linear_key_head_dim", default=128)
        self.v_head_dim = config.integer("linear_value_head_dim", default=128)
        if self.n_v_head % self.n_k_head:
            raise ModelFormatError(
                f"{config.path}: linear_num_value_heads {self.n_v_head} is not a multiple of "
                f"linear_num_key_heads {self.n_k_head}"
            )
        self.period = config.integer("full_attention_interval", default=_PERIOD)
        self.recurrent = self.read_kinds()

    def read_kinds(self) -> list[bool]:
        """Which layers have a delta net."""
        kinds = self.config.layer_switches("layer_types", self.n_layer)
        if kinds is None:
            return [(i + 1) % self.period != 0 for i in range(self.n_layer)]
        if unknown := [kind for kind in kinds if kind not in _KINDS]:
            raise self.refuse(f"{self.architecture} with layers of kind {unknown[0]!r}")
        return [kind == "linear_attention" for kind in kinds]

    @property
    def k_dim(self) -> int:
        return self.n_k_head * self.k_head_dim

    @property
    def v_dim(self) -> int:
        return self.n_v_head * self.v_head_dim

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        key = f"{self.architecture}.ssm"
        yield uint32(f"{key}.conv_kernel", self.taps)
        yield uint32(f"{key}.state_size", self.k_head_dim)
        yield uint32(f"{key}.group_count", self.n_k_head)
        yield uint32(f"{key}.time_step_rank", self.n_v_head)
        yield uint32(f"{key}.inner_size", self.v_dim)
        yield uint32(f"{self.architecture}.full_attention_interval", self.period)
        recurrent = self.recurrent + [False] * self.guesses
        yield from recurrent_layers(self.architecture, recurrent)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        yield plus_one(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd))

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        return plus_one(ours, weights.take(f"{theirs}_norm.weight", self.head_dim))

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        i = int(block.removeprefix("blk."))
        if i == self.n_layer or not self.recurrent[i]:
            yield from super().attention(weights, theirs, block)
            return
        theirs = theirs.removesuffix("self_attn") + "linear_attn"
        heads = self.head_order()
        rows = self.value_rows(heads)
        yield from self.inputs(weights, theirs, block, heads)
        channels = np.concatenate([np.arange(2 * self.k_dim), 2 * self.k_dim + rows])
        name = f"{block}.ssm_conv1d"
        n = len(channels)
        yield convolution(weights, f"{theirs}.conv1d", name, n, self.taps, channels)
        yield time_step(weights, f"{theirs}.dt_bias", f"{block}.ssm_dt.bias", self.n_v_head, heads)
        yield decay(weights, f"{theirs}.A_log", f"{block}.ssm_a", self.n_v_head, heads)
        weight = weights.take(f"{theirs}.norm.weight", self.v_head_dim)
        yield from_weight(f"{block}.ssm_norm.weight", weight)
        weight = weights.take(f"{theirs}.out_proj.weight", self.n_embd, self.v_dim)
        yield column_order(f"{block}.ssm_out.weight", weight, rows)

    def guessing_layer(self, weights: Weights, block: str) -> Iterator[Output]:
        yield from self.joined(weights, _GUESSING, block)
        yield from self.layer(weights, "mtp.layers.0", block, False)

    def head_order(self) -> np.ndarray:
        """Which head of values of the checkpoint is where in the GGUF."""
        return np.arange(self.n_v_head)

    def value_rows(self, heads: np.ndarray) -> np.ndarray:
        """The rows of these heads of values."""
        return (heads[:, None] * self.v_head_dim + np.arange(self.v_head_dim)).reshape(-1)

    def inputs(
        self, weights: Weights, theirs: str, block: str, heads: np.ndarray
    ) -> Iterator[Output]:
        """The matrices that a delta net's input meets."""
        raise NotImplementedError


class Qwen3Next(_DeltaNets, GatedSharedExpert, QwenMoe):
    """The checkpoint has the rows of each head of keys together, with those of its values."""

    architecture = "qwen3next"
    shared = "mlp.shared_expert"
    default_normalise = True

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_ff_shared = config.integer("shared_expert_intermediate_size", default=512)

    def inputs(
        self, weights: Weights, theirs: str, block: str, heads: np.ndarray
    ) -> Iterator[Output]:
        del heads  # as in the checkpoint
        d, per = self.k_head_dim, self.v_dim // self.n_k_head
        rows = np.arange(2 * self.k_dim + 2 * self.v_dim).reshape(self.n_k_head, -1)
        q, k, v, z = np.split(rows, [d, 2 * d, 2 * d + per], axis=1)
        weight = weights.take(f"{theirs}.in_proj_qkvz.weight", rows.size, self.n_embd)
        qkv = np.concatenate([part.reshape(-1) for part in (q, k, v)])
        yield row_order(f"{block}.attn_qkv.weight", weight, qkv)
        yield row_order(f"{block}.attn_gate.weight", weight, z.reshape(-1))
        weight = weights.take(f"{theirs}.in_proj_ba.weight", 2 * self.n_v_head, self.n_embd)
        yield from_weight(f"{block}.ssm_ba.weight", weight)


class Qwen35(_DeltaNets):
    """The GGUF has the heads of values in tiles: head h is served by head h % n_k_head of keys."""

    architecture = "qwen35"
    # Of the checkpoints that see images.
    left_out = re.compile(r"(model\.)?visual\..+|vision_tower\..+")

    def __init__(self, config: Config):
        text = config.section("text_config")
        if text is not config:
            tied = config.values.get("tie_word_embeddings")
            text = text.completed(tie_word_embeddings=tied)
            config.known("vision_config", "language_model_only")
        super().__init__(text)
        if text is not config:
            self.notes.append("only the text part is converted, without images")
        self.sections = self.read_sections()

    def read_sections(self) -> list[int]:
        """Which pairs turn with what of an image; all positions of a text are alike."""
        found = _SECTIONS
        for key in ("rope_parameters", "rope_scaling"):
            rotation = self.config.values.get(key)
            if isinstance(rotation, dict) and rotation.get("mrope_section") is not None:
                found = rotation["mrope_section"]
        if not (isinstance(found, list) and len(found) <= 4 and all(type(n) is int for n in found)):
            raise ModelFormatError(f"{self.config.path}: mrope_section must be a list of integers")
        return [*found, 0, 0, 0, 0][:4]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield array(f"{self.architecture}.rope.dimension_sections", "INT32", self.sections)

    def head_order(self) -> np.ndarray:
        return np.arange(self.n_v_head).reshape(self.n_k_head, -1).T.reshape(-1)

    def inputs(
        self, weights: Weights, theirs: str, block: str, heads: np.ndarray
    ) -> Iterator[Output]:
        rows, n_qk = self.value_rows(heads), 2 * self.k_dim
        for name, ours, order in (
            ("in_proj_qkv", "attn_qkv", np.concatenate([np.arange(n_qk), n_qk + rows])),
            ("in_proj_z", "attn_gate", rows),
            ("in_proj_b", "ssm_beta", heads),
            ("in_proj_a", "ssm_alpha", heads),
        ):
            shape = (len(order), self.n_embd)
            yield from self.linear(
                weights, f"{theirs}.{name}", f"{block}.{ours}", shape, order=order
            )


class Qwen35Moe(Qwen35, GatedSharedExpert, Mixture):
    architecture = "qwen35moe"
    shared = "mlp.shared_expert"

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_ff_shared = self.config.integer("shared_expert_intermediate_size", default=512)
