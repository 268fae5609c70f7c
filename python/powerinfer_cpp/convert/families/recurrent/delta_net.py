"""Qwen3-Next, Qwen3.5 and 3.6: gated delta nets in most layers, gated attention in the others. OLMo
Hybrid: the same with plain attention."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...tensors import Output, Weights, column_order, from_weight, plus_one, row_order
from ...writer import Entry, array, float32, uint32
from ..dense.near_llama import Olmo2
from ..llama import Llama
from ..mixtures.mixture import GatedSharedExpert, Mixture, QwenMoe
from .states import convolution, decay, recurrent_layers, time_step

_PERIOD = 4  # of layers, of which the last one has attention
# Of the layer that predicts further tokens.
_GUESSING = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
}
_OLMO_NORMS = {
    "input_layernorm": "attention_layer_norm",
    "post_attention_layernorm": "feedforward_layer_norm",
}
_SECTIONS = [11, 11, 10]  # pairs of a rotation that turn with time, height and width of an image


class _Sizes(Llama):
    """Those of delta nets, and which layers have one."""

    kinds = ("linear_attention", "full_attention")  # of layers

    def __init__(self, config: Config):
        super().__init__(config)
        self.taps = config.integer("linear_conv_kernel_dim", default=4, least=2)
        self.read_sizes()
        if self.n_v_head % self.n_k_head:
            raise ModelFormatError(
                f"{config.path}: linear_num_value_heads {self.n_v_head} is not a multiple of "
                f"linear_num_key_heads {self.n_k_head}"
            )
        self.recurrent = self.read_kinds()

    def read_sizes(self) -> None:
        config = self.config
        self.n_k_head = config.integer("linear_num_key_heads", default=16)
        self.n_v_head = config.integer("linear_num_value_heads", default=32)
        self.k_head_dim = config.integer("linear_key_head_dim", default=128)
        self.v_head_dim = config.integer("linear_value_head_dim", default=128)

    def read_kinds(self) -> list[bool]:
        """Which layers have a delta net."""
        kinds = self.config.layer_switches("layer_types", self.n_layer)
        if kinds is None:
            return self.usual_kinds()
        if unknown := [kind for kind in kinds if kind not in self.kinds]:
            raise self.refuse(f"{self.architecture} with layers of kind {unknown[0]!r}")
        return [kind == "linear_attention" for kind in kinds]

    def usual_kinds(self) -> list[bool]:
        """The same where config.json does not say."""
        return [(i + 1) % _PERIOD != 0 for i in range(self.n_layer)]

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
        yield from recurrent_layers(self.architecture, self.recurrent + [False] * self.guesses)


class _DeltaNets(_Sizes):
    """What Qwen's share: norms that multiply by 1 + weight, except inside a delta net."""

    pairs = False
    default_part = 0.25
    rotates_partly = True
    has_rope_factors = False
    ffn_norm = "post_attention_norm"
    gates_attention = True
    mlx_adds_one = True
    defaults: dict[str, int] = {}  # of missing keys
    output_gates: tuple[str, ...] = ("swish", "silu")  # of delta nets
    guess_names = (
        *(f"{name}.weight" for name in _GUESSING.values()),
        "mtp.layers.0.input_layernorm.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.post_attention_layernorm.weight",
    )

    def __init__(self, config: Config):
        config = config.completed(head_dim=256, **self.defaults)
        self.period = config.integer("full_attention_interval", default=_PERIOD)
        super().__init__(config)
        self.head_norms = True
        if not config.flag("attn_output_gate", True):
            raise self.refuse(f"{self.architecture} whose attention has no gate")
        if config.values.get("output_gate_type") not in (None, *self.output_gates):
            raise self.refuse(f"{self.architecture} whose delta nets have another output_gate_type")
        config.known("mamba_ssm_dtype")  # of the state, which is F32 here

    def usual_kinds(self) -> list[bool]:
        return [(i + 1) % self.period != 0 for i in range(self.n_layer)]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield uint32(f"{self.architecture}.full_attention_interval", self.period)

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


class OlmoHybrid(_Sizes, Olmo2):
    """Norms before both parts of layers with a delta net, behind those of the others.

    A delta net may take back more of its state than it holds (beta up to 2), and its convolutions
    are those of queries, keys and values apart. Attention rotates only if config.json has a base.
    """

    architecture = "olmo-hybrid"
    default_eps = 1e-6
    has_rope_factors = True

    def __init__(self, config: Config):
        super().__init__(config)
        if self.activation != "silu":
            raise self.refuse(f"olmo_hybrid with hidden_act {config.values['hidden_act']!r}")
        self.beta_scale = 2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0
        for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor"):
            config.known(f"linear_{name}")  # how training begins

    def read_sizes(self) -> None:
        config, n = self.config, self.n_head
        self.n_k_head = config.integer("linear_num_key_heads", default=n)
        self.n_v_head = config.integer("linear_num_value_heads", default=n)
        width = max(1, int(0.75 * self.n_embd / self.n_k_head))
        self.k_head_dim = config.integer("linear_key_head_dim", default=width)
        self.v_head_dim = config.integer("linear_value_head_dim", default=2 * self.k_head_dim)

    def usual_kinds(self) -> list[bool]:
        kinds = super().usual_kinds()
        return kinds if not all(kinds) else [*kinds[:-1], False]

    def uses_rope(self) -> bool:
        """A base of null stands for none, a missing one for the usual."""
        values = self.config.values
        rotation = values.get("rope_parameters") or values.get("rope_scaling") or {}
        of_rotation = isinstance(rotation, dict) and "rope_theta" in rotation
        where = rotation if of_rotation else values
        return "rope_theta" not in where or where["rope_theta"] is not None

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32("olmo-hybrid.ssm.beta_scale", self.beta_scale)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        """Published checkpoints have other names than transformers' modules."""
        layer, _, name = theirs.rpartition(".")
        published = f"{layer}.{_OLMO_NORMS.get(name, name)}"
        name = published if f"{published}.weight" in weights else theirs
        yield from super().norm(weights, name, ours, bias)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        norms_before = self.recurrent[int(block.removeprefix("blk."))]
        of = Llama if norms_before else Olmo2
        yield from of.layer(self, weights, theirs, block, transpose_down)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        if self.recurrent[int(block.removeprefix("blk."))]:
            theirs = theirs.removesuffix("self_attn") + "linear_attn"
            yield from self.delta_net(weights, theirs, block)
        else:
            yield from super().attention(weights, theirs, block)

    def delta_net(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        n, n_embd, widths = self.n_v_head, self.n_embd, (self.k_dim, self.k_dim, self.v_dim)
        parts = [
            weights.take(f"{theirs}.{part}_proj.weight", width, n_embd)
            for part, width in zip("qkv", widths, strict=True)
        ]
        yield weights.joined(f"{block}.attn_qkv.weight", parts)
        for name, ours, rows in (
            ("g_proj", "attn_gate", self.v_dim),
            ("b_proj", "ssm_beta", n),
            ("a_proj", "ssm_alpha", n),
        ):
            yield from self.linear(weights, f"{theirs}.{name}", f"{block}.{ours}", (rows, n_embd))
        # transformers 5 has the channels of all in one, and stores that in three equal parts.
        names = [f"{theirs}.{part}_conv1d.weight" for part in "qkv"]
        names = names if names[0] in weights else [f"{theirs}.conv1d.weight"]
        taken = weights.take_parts(names, sum(widths), 1, self.taps)
        rows = [part.reshaped(part.shape[0], self.taps) for part in taken]
        yield replace(weights.joined(f"{block}.ssm_conv1d.weight", rows), exact=True)
        yield time_step(weights, f"{theirs}.dt_bias", f"{block}.ssm_dt.bias", n)
        yield decay(weights, f"{theirs}.A_log", f"{block}.ssm_a", n)
        norm = weights.take(f"{theirs}.o_norm.weight", self.v_head_dim)
        yield from_weight(f"{block}.ssm_norm.weight", norm)
        shape = (n_embd, self.v_dim)
        yield from self.linear(weights, f"{theirs}.o_proj", f"{block}.ssm_out", shape)
