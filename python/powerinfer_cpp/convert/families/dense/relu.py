"""Families that are sparse by nature: their activations give exact zeros."""

from collections.abc import Iterator

import numpy as np

from ....core.errors import ModelFormatError
from ...config import Config
from ...tensors import (
    Output,
    Weights,
    from_values,
    from_weight,
    plus_one,
    scaled,
    transposed,
)
from ...weight import Weight, widen
from ...writer import Entry, float32, string
from ..llama import Llama


class LlamaSparseRelu(Llama):
    """SparseLM. Its own code, which nobody runs here, computes ReLU whatever hidden_act says."""

    def __init__(self, config: Config):
        said = config.values.get("hidden_act")
        super().__init__(config)
        self.activation, self.threshold = "relu", 0.0
        if said not in (None, "relu"):
            self.notes.append(
                f"models of this type compute relu, though config.json says hidden_act {said!r}"
            )


class Arcee(Llama):
    """AFM: a Llama without a gate, whose neurons square what ReLU lets through."""

    architecture = "arcee"
    default_eps = 1e-5
    default_activation = "relu2"
    gated = False


class Jais2(Arcee):
    """LayerNorm, and biases in all matrices."""

    architecture = "jais2"
    norm_epsilon = "layer_norm_epsilon"
    pairs = False
    norm_bias = True
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config.completed(attention_bias=True, mlp_bias=True))

    def read_norm_eps(self) -> float:
        return self.config.number("layer_norm_eps", default=1e-5)


class NanoChat(Arcee):
    """Norms without weights, also of the embedding and of heads that have rotated.

    Heads turn the other way round. With the halves of each head exchanged that is the usual way,
    and neither a norm without weights nor a product of queries and keys depends on their order.
    """

    architecture = "nanochat"
    pairs = False
    default_eps = 1e-6

    def __init__(self, config: Config):
        config = config.completed(final_logit_softcapping=15.0)
        super().__init__(config)
        self.head_norms = True
        capped = config.values.get("final_logit_softcapping") is not None
        self.cap = config.number("final_logit_softcapping") if capped else 0.0

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield float32("nanochat.final_logit_softcapping", self.cap)

    def rotated(self, heads: int) -> np.ndarray:
        halves = np.arange(heads * self.head_dim).reshape(heads, 2, self.head_dim // 2)
        return halves[:, ::-1].reshape(-1)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        yield from_values(f"{ours}.weight", np.ones(self.n_embd))

    def head_norm(self, weights: Weights, theirs: str, _heads: int, ours: str) -> Output:
        return from_values(ours, np.ones(self.head_dim))

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        shape = (self.n_ff, self.n_embd)
        yield from self.linear(weights, f"{theirs}.mlp.fc1", f"{block}.ffn_up", shape)
        yield from self.down(weights, f"{theirs}.mlp.fc2", block, transpose_down, bias=False)


class Nemotron(Arcee):
    """Minitron and Nemotron-4: LayerNorm whose weights are stored less 1."""

    architecture = "nemotron"
    norm_epsilon = "layer_norm_epsilon"
    pairs = False
    default_part = 0.5
    rotates_partly = True
    has_rope_factors = False

    def read_norm_eps(self) -> float:
        return self.config.number("norm_eps", default=1e-5)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        yield plus_one(f"{ours}.weight", weights.take(f"{theirs}.weight", self.n_embd))
        yield from_weight(f"{ours}.bias", weights.take(f"{theirs}.bias", self.n_embd))


class BitNet(Llama):
    """BitNet b1.58: weights of -1, 0 and 1 with a factor, and norms inside attention and FFN.

    Inputs are rounded to 8 bits in training, and by transformers; here they stay as they are.
    """

    architecture = "bitnet"
    pairs = False
    default_eps = 1e-5
    default_theta = 500000.0
    default_activation = "relu2"
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config)
        if self.activation not in ("relu2", "silu"):
            raise self.refuse(f"bitnet with hidden_act {config.values.get('hidden_act')!r}")
        self.online = self.divides = False
        if config.values.get("quantization_config") is not None:
            self.read_packing(config.section("quantization_config"))

    def read_packing(self, packing: Config) -> None:
        """How weights become -1, 0 and 1: offline they are, online each use rounds them."""
        values = packing.values
        method, mode = values.get("quant_method"), values.get("quantization_mode", "offline")
        if method != "bitnet" or mode not in ("offline", "online"):
            raise self.refuse(f"quantization_config of {method!r}, {mode!r}")
        if values.get("use_rms_norm"):
            raise self.refuse("bitnet with a norm before each product (use_rms_norm)")
        if values.get("modules_to_not_convert") not in (None, [], ["lm_head"]):
            raise self.refuse("bitnet with modules_to_not_convert")
        self.config.known("quantization_config")
        self.online = mode == "online"
        # The two classes of transformers store the factor or its inverse.
        self.divides = values.get("linear_class", "bitlinear") == "bitlinear"

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield string("bitnet.hidden_activation", self.activation)

    def matrix(self, weights: Weights, name: str, rows: int, cols: int) -> tuple[Weight, float]:
        """A matrix and the factor of its values."""
        if f"{name}.weight_scale" not in weights:
            weight = weights.take(f"{name}.weight", rows, cols)
            # What an adapter adds is not rounded.
            rounds = self.online and not weights.of_adapter
            return _rounded(weight) if rounds else (weight, 1.0)
        packed = weights.take_bytes(f"{name}.weight", -(-rows // 4), cols)
        found = weights.take(f"{name}.weight_scale", 1)
        factor = float(widen(found.stored(), found.bf16)[0])
        if not (np.isfinite(factor) and factor > 0):
            raise self.refuse(f"{name}.weight_scale of {factor}")
        return _unpacked(packed, rows), 1 / factor if self.divides else factor

    def linear(
        self,
        weights: Weights,
        theirs: str,
        ours: str,
        shape: tuple[int, int],
        bias: bool = False,
        order: np.ndarray | None = None,
    ) -> Iterator[Output]:
        weight, factor = self.matrix(weights, theirs, *shape)
        yield scaled(from_weight(f"{ours}.weight", weight), factor)
        if bias:
            yield from_weight(f"{ours}.bias", weights.take(f"{theirs}.bias", shape[0]))

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        norm = weights.take(f"{theirs}.attn_sub_norm.weight", self.n_q)
        yield from_weight(f"{block}.attn_sub_norm.weight", norm)

    def down(
        self, weights: Weights, theirs: str, block: str, turn: bool, bias: bool
    ) -> Iterator[Output]:
        if bias:
            raise self.refuse("bitnet with mlp_bias")
        weight, factor = self.matrix(weights, theirs, self.n_embd, self.n_ff)
        norm = weights.take(f"{theirs.rpartition('.')[0]}.ffn_sub_norm.weight", self.n_ff)
        if not turn:
            yield scaled(from_weight(f"{block}.ffn_down.weight", weight), factor)
            yield from_weight(f"{block}.ffn_sub_norm.weight", norm)
            return
        # The norm's weights become part of the neurons' rows; the engine divides the finished sum.
        factors = factor * widen(norm.stored(), norm.bf16).astype(np.float32)
        yield scaled(transposed(f"{block}.ffn_down_t.weight", weight), factors)


def _unpacked(packed: Weight, n_rows: int) -> Weight:
    """Values from bytes with four each: row r of the bytes has rows r, r + a quarter, ..., two bits
    each from the lowest on, one more than the value. Raises ModelFormatError for the code 3."""

    def stored() -> np.ndarray:
        codes = packed.stored()
        rows = np.concatenate([(codes >> shift) & 3 for shift in (0, 2, 4, 6)])[:n_rows]
        if (rows == 3).any():
            raise ModelFormatError(f"tensor {packed.name} has codes beyond -1, 0 and 1")
        return rows.astype(np.int8) - np.int8(1)

    return Weight(packed.name, (n_rows, packed.shape[1]), False, stored)


def _rounded(weight: Weight) -> tuple[Weight, float]:
    """What each use makes of a weight: multiples -1, 0 and 1 of the mean magnitude."""
    values = widen(weight.stored(), weight.bf16)
    factor = max(float(np.abs(values).mean(dtype=np.float64)), 1e-5)

    def stored() -> np.ndarray:
        multiples = widen(weight.stored(), weight.bf16) / np.float32(factor)
        return np.clip(np.rint(multiples), -1, 1).astype(np.int8)

    return Weight(weight.name, weight.shape, False, stored), factor
