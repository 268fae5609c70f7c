"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Mistral Small 4: attention over latents, and
experts beside shared ones."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...rope import Rope, read_rope
from ...tensors import Output, Weights, from_weight, row_order, stacked
from ...writer import Entry, float32, uint32
from ..llama import interleaved
from .mixture import SIGMOID, Mixture

SOFTMAX = 1  # expert_gating_func


class DeepSeekV3(Mixture):
    architecture = "deepseek2"
    has_rope_factors = False
    expert_keys = ("n_routed_experts", "num_local_experts")
    choice_bias = "gate.e_score_correction_bias"
    shared = "mlp.shared_experts"
    gating = SIGMOID
    growth = stretch = 0.0  # see read_rope
    # What config.json may leave out.
    missing = {
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
    }

    def __init__(self, config: Config):
        config = config.completed(**self.missing)
        super().__init__(config)
        if self.o_bias or self.mlp_bias:
            raise self.refuse("a bias in these layers (attention_bias, mlp_bias)")
        self.halves = not config.flag("rope_interleave", True)  # GGUF rotates neighbours
        self.q_rank = 0
        if config.values.get("q_lora_rank") is not None:
            self.q_rank = config.integer("q_lora_rank")
        self.kv_rank = config.integer("kv_lora_rank")
        self.share(config.integer("n_shared_experts", default=0, least=0))
        self.expert_scale = config.number("routed_scaling_factor")
        self.normalise = self.read_routing()
        self.groups = self.read_groups()
        config.known("ep_size", "aux_loss_alpha", "seq_aux", "num_key_value_heads")

    def read_n_head_kv(self) -> int:
        """Also the widths of heads. The model has one key head, of latents."""
        config = self.config
        self.nope = config.integer("qk_nope_head_dim")
        self.v_dim = config.integer("v_head_dim")
        self.head_dim = config.integer("qk_rope_head_dim")  # what rotates
        return 1

    def dense_layers(self) -> list[bool]:
        if self.config.integer("moe_layer_freq", default=1) != 1:
            raise self.refuse("experts in some layers (moe_layer_freq)")
        first = self.config.integer("first_k_dense_replace", default=0, least=0)
        kinds = self.config.layer_switches("mlp_layer_types", self.n_layer)
        if kinds is None:
            return [i < first for i in range(self.n_layer)]
        if not set(kinds) <= {"dense", "sparse"}:
            raise ModelFormatError(
                f"{self.config.path}: mlp_layer_types has other kinds than dense and sparse"
            )
        return [kind == "dense" for kind in kinds]

    def read_routing(self) -> bool:
        """Do the weights of the chosen experts sum to 1?"""
        self.expect(scoring_func="sigmoid", topk_method="noaux_tc")
        return self.config.flag("norm_topk_prob", True)

    def read_groups(self) -> tuple[int, int]:
        """How many groups of experts there are, and of how many a token's experts are chosen."""
        n_group, n_used = (self.config.integer(key) for key in ("n_group", "topk_group"))
        if self.n_expert % n_group or n_used > n_group:
            raise ModelFormatError(
                f"{self.config.path}: {self.n_expert} experts in {n_group} groups (n_group), of "
                f"which {n_used} are chosen (topk_group)"
            )
        return n_group, n_used

    def expect(self, **values: str) -> None:
        """Raises UnsupportedModelError for other values of these keys."""
        for key, value in values.items():
            found = self.config.values.get(key)
            if found not in (None, value):
                raise self.refuse(f"{key} {found!r}")

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        rope = read_rope(self.config, self.head_dim, self.n_ctx, default_theta, whole=True)
        if rope.has_factors or rope.kind not in ("none", "yarn"):
            raise self.refuse(f"{self.architecture} with this kind of rope scaling")
        values = self.config.values.get("rope_parameters") or self.config.values.get("rope_scaling")
        values = values or {}
        values.get("max_position_embeddings")  # that of the model
        self.growth = values.get("llama_4_scaling_beta") or 0.0
        if not isinstance(self.growth, int | float) or not 0 <= self.growth < 100:
            raise ModelFormatError(f"{self.config.path}: llama_4_scaling_beta {self.growth!r}")
        # The square of 1 + stretch * ln(factor) multiplies scores, in place of YaRN's own scale of
        # cosine and sine.
        self.stretch = 0.1 * (values.get("mscale_all_dim") or 0.0) if rope.kind == "yarn" else 0.0
        if self.stretch and rope.factor > 1:
            left = rope.attention_factor * (0.1 * math.log(rope.factor) + 1)
            left = 1.0 if math.isclose(left, 1.0) else left
            rope = replace(rope, attention_factor=left)
        return rope

    def head_entries(self) -> Iterator[Entry]:
        key = f"{self.architecture}.attention"
        if self.q_rank:
            yield uint32(f"{key}.q_lora_rank", self.q_rank)
        yield uint32(f"{key}.kv_lora_rank", self.kv_rank)
        yield uint32(f"{key}.key_length", self.kv_rank + self.head_dim)
        yield uint32(f"{key}.value_length", self.kv_rank)
        yield uint32(f"{key}.key_length_mla", self.nope + self.head_dim)
        yield uint32(f"{key}.value_length_mla", self.v_dim)
        if self.growth:
            yield float32(f"{key}.temperature_scale", self.growth)
            # llama.cpp computes no such file without it.
            assert self.rope
            yield uint32(f"{key}.temperature_length", self.rope.original_ctx or self.n_ctx)

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        if self.stretch:
            key = f"{self.architecture}.rope.scaling.yarn_log_multiplier"
            yield float32(key, self.stretch)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        width, rotating = self.nope + self.head_dim, self.head_dim
        pairs = interleaved(1, rotating) if self.halves else np.arange(rotating)
        head = np.concatenate([np.arange(self.nope), self.nope + pairs])
        heads = np.arange(self.n_head)[:, None] * width + head
        q_input, q = (self.q_rank, "q_b") if self.q_rank else (self.n_embd, "q")
        if self.q_rank:
            name, shape = f"{block}.attn_q_a", (self.q_rank, self.n_embd)
            yield from self.linear(weights, f"{theirs}.q_a_proj", name, shape)
            norm = weights.take(f"{theirs}.q_a_layernorm.weight", self.q_rank)
            yield from_weight(f"{name}_norm.weight", norm)
        shape = (self.n_head * width, q_input)
        order = heads.reshape(-1) if self.halves else None
        yield from self.linear(
            weights, f"{theirs}.{q}_proj", f"{block}.attn_{q}", shape, order=order
        )
        name, shape = f"{block}.attn_kv_a_mqa", (self.kv_rank + rotating, self.n_embd)
        order = (
            np.concatenate([np.arange(self.kv_rank), self.kv_rank + pairs]) if self.halves else None
        )
        yield from self.linear(weights, f"{theirs}.kv_a_proj_with_mqa", name, shape, order=order)
        norm = weights.take(f"{theirs}.kv_a_layernorm.weight", self.kv_rank)
        yield from_weight(f"{block}.attn_kv_a_norm.weight", norm)
        yield from self.keys_and_values(weights, f"{theirs}.kv_b_proj.weight", block)
        shape = (self.n_embd, self.n_head * self.v_dim)
        name = f"{theirs}.{self.attention_out}"
        yield from self.linear(weights, name, f"{block}.attn_output", shape)

    def keys_and_values(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        """Of each head the matrices that make its keys, transposed, and its values of latents."""
        each = self.nope + self.v_dim
        weight = weights.take(theirs, self.n_head * each, self.kv_rank)
        keys, values = [], []
        for head in range(self.n_head):
            rows = np.arange(head * each, (head + 1) * each)
            key = row_order("", weight, rows[: self.nope])
            keys.append(_turned(key))
            values.append(row_order("", weight, rows[self.nope :]))
        yield stacked(f"{block}.attn_k_b.weight", keys)
        yield stacked(f"{block}.attn_v_b.weight", values)


class DeepSeekV2(DeepSeekV3):
    gating = SOFTMAX
    choice_bias = ""
    missing = {"n_shared_experts": 2, "routed_scaling_factor": 1.0}

    def read_groups(self) -> tuple[int, int]:
        method = self.config.values.get("topk_method") or "greedy"
        if method == "greedy":
            self.config.known("n_group", "topk_group")
            return 1, 1
        if method != "group_limited_greedy":
            raise self.refuse(f"topk_method {method!r}")
        return super().read_groups()

    def read_routing(self) -> bool:
        self.expect(scoring_func="softmax")
        # transformers never normalises in this family; DeepSeek's own code would.
        if self.config.flag("norm_topk_prob"):
            raise self.refuse("deepseek_v2 whose shares sum to 1 (norm_topk_prob)")
        return False


class Glm4MoeLite(DeepSeekV3):
    """GLM-4.7-Flash."""

    default_eps = 1e-5
    missing = {
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.8,
        "n_group": 1,
        "topk_group": 1,
    }


class Mistral4(DeepSeekV3):
    architecture = "mistral4"
    gating = SOFTMAX
    choice_bias = ""
    missing = {
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
    }

    def __init__(self, config: Config):
        described = [config.values.get(key) for key in ("rope_parameters", "rope_scaling")]
        if described == [None, None]:
            config = config.completed()
            config.values["rope_parameters"] = _ROTATION_OF_MISTRAL4
        super().__init__(config)

    def read_routing(self) -> bool:
        return self.config.flag("norm_topk_prob", True)


# Where config.json has none.
_ROTATION_OF_MISTRAL4 = {
    "type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def _turned(matrix: Output) -> Output:
    """The transposed matrix, which is small."""
    n_rows, n_cols = matrix.shape

    def rows(a: int, b: int) -> np.ndarray:
        return np.ascontiguousarray(matrix.rows(0, n_rows)[:, a:b].T)

    return Output(matrix.name, (n_cols, n_rows), rows)
