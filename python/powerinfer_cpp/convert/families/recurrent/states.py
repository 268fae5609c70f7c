"""Tensors and keys that families with a state in some layers share, and Mamba-2
(arXiv 2405.21060)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....core.errors import UnsupportedModelError
from ...config import Config
from ...tensors import Output, Weights, computed, from_weight, row_order, scaled
from ...weight import Weight
from ...writer import Entry, array, uint32

MAMBA = ("mamba", "linear_attention")  # names of layers in transformers 4 and 5
ATTENTION = ("attention", "full_attention")


def convolution(
    weights: Weights,
    theirs: str,
    ours: str,
    channels: int,
    taps: int,
    order: np.ndarray | None = None,
) -> Output:
    """The weights of a causal convolution over each channel, [channels, taps]: always F32.

    order: row r is the checkpoint's row order[r].
    """
    weight = weights.take(f"{theirs}.weight", channels, 1, taps).reshaped(channels, taps)
    return replace(row_order(f"{ours}.weight", weight, order), exact=True)


def decay(
    weights: Weights, theirs: str, ours: str, n_head: int, order: np.ndarray | None = None
) -> Output:
    """What the state of a head fades by, from its logarithm: negative."""

    def values(log: np.ndarray) -> np.ndarray:
        return -np.exp(log if order is None else log[order])

    return computed(ours, weights.take(theirs, n_head), values)


def time_step(
    weights: Weights, theirs: str, ours: str, n_head: int, order: np.ndarray | None = None
) -> Output:
    """The bias of the time step of each head."""
    weight = weights.take(theirs, n_head)
    return from_weight(ours, weight) if order is None else row_order(ours, weight, order)


def column(vector: Output) -> Output:
    """A vector as a matrix with a value in each row, which stays F32."""

    def rows(a: int, b: int) -> np.ndarray:
        return vector.rows(0, 1).reshape(-1, 1)[a:b]

    return replace(vector, shape=(vector.row, 1), rows=rows, exact=True)


def recurrent_layers(architecture: str, recurrent: list[bool]) -> Iterator[Entry]:
    """Which layers have a state instead of attention."""
    yield array(f"{architecture}.attention.recurrent_layers", "BOOL", recurrent)


@dataclass(frozen=True)
class Mamba2:
    """Sizes of a layer.

    n_group: of heads that share B and C, whose width is n_state. taps: columns of the convolution.
    norms: groups of values that are normalised together; 0: there is no norm.
    """

    n_head: int
    head_dim: int
    n_group: int
    n_state: int
    taps: int
    conv_bias: bool
    norms: int

    @property
    def inner(self) -> int:
        return self.n_head * self.head_dim

    @property
    def parts(self) -> tuple[int, ...]:
        """Rows of z, x, B, C and dt in the projection of the input."""
        shared = self.n_group * self.n_state
        return self.inner, self.inner, shared, shared, self.n_head

    def entries(self, arch: str) -> Iterator[Entry]:
        for key, value in (
            ("conv_kernel", self.taps),
            ("inner_size", self.inner),
            ("state_size", self.n_state),
            ("time_step_rank", self.n_head),
            ("group_count", self.n_group),
        ):
            yield uint32(f"{arch}.ssm.{key}", value)

    def outputs(
        self,
        weights: Weights,
        theirs: str,
        block: str,
        n_embd: int,
        factors: tuple[float, ...] = (1,) * 5,
        out_factor: float = 1,
    ) -> Iterator[Output]:
        """The tensors of a layer. factors: of the parts of the projection; out_factor: of what the
        layer gives."""

        def take(name: str, *shape: int) -> Weight:
            return weights.take(f"{theirs}.{name}", *shape)

        channels = sum(self.parts[1:4])
        into = from_weight(
            f"{block}.ssm_in.weight", take("in_proj.weight", sum(self.parts), n_embd)
        )
        if any(factor != 1 for factor in factors):
            into = scaled(into, np.repeat(np.array(factors, np.float32), self.parts))
        yield into
        ours = f"{block}.ssm_conv1d"
        yield convolution(weights, f"{theirs}.conv1d", ours, channels, self.taps)
        if self.conv_bias:
            yield from_weight(f"{ours}.bias", take("conv1d.bias", channels))
        yield time_step(weights, f"{theirs}.dt_bias", f"{block}.ssm_dt.bias", self.n_head)
        yield column(decay(weights, f"{theirs}.A_log", f"{block}.ssm_a", self.n_head))
        yield column(from_weight(f"{block}.ssm_d", take("D", self.n_head)))
        if self.norms:
            norm = take("norm.weight", self.inner).reshaped(self.norms, self.inner // self.norms)
            yield from_weight(f"{block}.ssm_norm.weight", norm, exact=True)
        out = from_weight(f"{block}.ssm_out.weight", take("out_proj.weight", n_embd, self.inner))
        yield out if out_factor == 1 else scaled(out, out_factor)


# How Granite 4 and Falcon-H1 call the sizes that read_mamba() asks for.
MAMBA_KEYS = {
    "n_head": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "n_group": "mamba_n_groups",
    "n_state": "mamba_d_state",
    "taps": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
}


def read_mamba(config: Config, names: dict[str, str], norms: bool = True) -> Mamba2:
    """The sizes. names: config.json's of n_head, head_dim, n_group, n_state, taps and conv_bias.
    norms: each group's values are normalised. Raises ModelFormatError, UnsupportedModelError."""
    n_group = config.integer(names["n_group"])
    found = Mamba2(
        config.integer(names["n_head"]),
        config.integer(names["head_dim"]),
        n_group,
        config.integer(names["n_state"]),
        config.integer(names["taps"], default=4, least=2),
        config.flag(names["conv_bias"], True),
        n_group if norms else 0,
    )
    if found.n_head % n_group:
        raise refused(config, f"{found.n_head} heads of Mamba-2 in {n_group} groups")
    for key in ("use_bias", "mamba_proj_bias"):
        if config.flag(key):
            raise refused(config, f"Mamba-2 whose projections have biases ({key})")
    act = config.values.get("mamba_hidden_act")
    if act not in (None, "silu"):
        raise refused(config, f"Mamba-2 with mamba_hidden_act {act!r}")
    if _limits(config.values.get("time_step_limit")) != (0.0, math.inf):
        raise refused(config, "a time_step_limit other than 0 and Infinity")
    # How time steps begin in training, sizes that follow from others, how it is computed.
    config.known("time_step_min", "time_step_max", "time_step_floor", "time_step_rank")
    config.known("mamba_dt_min", "mamba_dt_max", "mamba_dt_init_floor", "mamba_dt_rank")
    config.known("expand", "mamba_expand", "chunk_size", "mamba_chunk_size")
    config.known("use_mamba_kernels", "mamba_ssm_cache_dtype", "residual_in_fp32")
    config.known("rescale_prenorm_residual", "num_logits_to_keep")
    return found


def refused(config: Config, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{config.path}: {what} is not supported")


def _limits(value: Any) -> tuple[float, ...] | None:
    """The limits of time steps. Infinity is no JSON, so some files have it in other forms."""
    if value is None:
        return 0.0, math.inf
    if not isinstance(value, list):
        return None
    found = [v.get("__float__") if isinstance(v, dict) else v for v in value]
    try:
        return tuple(float(v) for v in found)
    except (TypeError, ValueError):
        return None
