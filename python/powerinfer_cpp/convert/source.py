"""Tensors and keys of a GGUF or PWRI file that is the source of another file."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from ..core.errors import ModelFormatError, UnsupportedModelError
from ..core.gguf import Gguf, Tensor
from . import bundles
from .activations import default_activation
from .formats import Format, format_by_name
from .stored import Stored, decoded, encoded
from .writer import Entry, refuse_inputs, string, uint32

PREDICTOR = re.compile(r"blk\.(\d+)\.(?:fc[12]|sketch)(_exps)?\.(?:weight|bias)")
# Kept unchanged: routers, tables of positions and types, norms and what is behind the last layer
# of an encoder are small and sensitive, sketches are bits.
_EXACT = (
    ".ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
    "cls.weight",
    "cls.output.weight",
    "dense_2.weight",
    "dense_3.weight",
    ".attn_q_norm.weight",  # a row per head
    ".attn_k_norm.weight",
    ".ssm_conv1d.weight",  # these are few numbers
    ".ssm_conv1d_q.weight",
    ".ssm_conv1d_k.weight",
    ".ssm_conv1d_v.weight",
    ".ssm_norm.weight",
    ".ple_conv1d.weight",
    ".shortconv.conv.weight",
    ".sketch.weight",
    ".sketch_exps.weight",
)
# Keys that describe only the old file.
_LEFT_OUT = re.compile(
    r"general\.(architecture|alignment|file_type|quantization_version)|split\..+"
)

_SILU_TOKENS = 32002  # of the first models of BitNet


def tensors(gguf: Gguf) -> list[Stored]:
    """Every tensor, with bundles split.

    Raises UnsupportedModelError for unknown formats, ModelFormatError for bundles that contradict
    their keys.
    """
    found = [stored(gguf, tensor) for tensor in gguf.tensors]
    if bundles.VERSION not in gguf.metadata:
        return found
    try:
        return list(bundles.unbundled(found, gguf.value, lambda experts: width(gguf, experts)))
    except ModelFormatError as error:
        raise type(error)(f"{gguf.files[0]}: {error}") from None


def stored(gguf: Gguf, tensor: Tensor) -> Stored:
    """A tensor as stored. Raises UnsupportedModelError for an unknown format."""
    try:
        fmt = format_by_name(tensor.type_name)
    except ValueError:
        raise UnsupportedModelError(
            f"{gguf.files[tensor.file]}: tensor {tensor.name} has format {tensor.type_name}, "
            "which is not supported"
        ) from None
    row_bytes = fmt.n_bytes(tensor.shape[-1])

    def rows(a: int, b: int) -> np.ndarray:
        # Mapped again for every slab, so that used pages do not stay in memory.
        return gguf.data(tensor)[a * row_bytes : b * row_bytes]

    return Stored(tensor.name, tensor.shape, fmt, rows)


def size(gguf: Gguf, *keys: str, layer: int | None = None) -> int:
    """The first of the architecture's sizes that is present, or an array of it for each layer.

    layer: the one whose size it is, where they differ. Raises ModelFormatError if none is.
    """
    architecture = gguf.value("general.architecture", "")
    for key in keys:
        value = gguf.value(f"{architecture}.{key}")
        if value is not None:
            if isinstance(value, list) and layer is not None and layer < len(value):
                value = value[layer]
            if isinstance(value, list) and len(set(value)) == 1:
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
                break
            return value
    raise ModelFormatError(f"{gguf.files[0]}: {architecture}.{keys[0]} is missing or not a size")


def n_layer(gguf: Gguf) -> int:
    """Layers, without those behind them that guess tokens. Raises ModelFormatError."""
    key = f"{gguf.value('general.architecture', '')}.nextn_predict_layers"
    guessing = size(gguf, "nextn_predict_layers") if gguf.value(key) is not None else 0
    return max(0, size(gguf, "block_count") - guessing)


def width(gguf: Gguf, experts: str = "") -> int:
    """Values of a row that feed-forward blocks read; experts: "_exps" for those that a router
    chooses, which may read a narrower row."""
    latent = f"{gguf.value('general.architecture')}.moe_latent_size"
    if experts == "_exps" and gguf.value(latent):
        return size(gguf, "moe_latent_size")
    return size(gguf, "embedding_length")


def activation(gguf: Gguf) -> str:
    """The activation of the FFN, named or default. Raises UnsupportedModelError if unknown."""
    architecture = str(gguf.value("general.architecture", ""))
    found = gguf.value("powerinfer.ffn.activation")
    if found is None and architecture == "bitnet":
        found = gguf.value("bitnet.hidden_activation", _of_bitnet(gguf))
    if found is None:
        found = default_activation(architecture, gguf.is_pwri)
    if not isinstance(found, str):
        kind = "PWRI" if gguf.is_pwri else "GGUF"
        raise UnsupportedModelError(
            f"{gguf.files[0]}: the activation of a {kind} file with architecture "
            f"{architecture!r} is not known"
        )
    return found


def _of_bitnet(gguf: Gguf) -> str | None:
    """As the engine has it: the first models are told by their vocabulary; None for others."""
    tokens = gguf.value("tokenizer.ggml.tokens")
    return "silu" if isinstance(tokens, list) and len(tokens) == _SILU_TOKENS else None


def is_matrix(stored: Stored) -> bool:
    """Whether the tensor gets the requested format."""
    is_weight = len(stored.shape) > 1 and stored.name.endswith("weight") and stored.n_elements > 0
    return is_weight and not stored.name.endswith(_EXACT)


def in_format(stored: Stored, wanted: Format, importance: np.ndarray | None = None) -> Stored:
    """The tensor in a format that fits its rows; unchanged if it already has that format.

    importance: as in `encoded`.
    """
    if stored.format.type == wanted.type:
        return stored
    return encoded(decoded(stored), wanted, importance)


def entries(gguf: Gguf, keep: Callable[[str], bool] = lambda _key: True) -> Iterator[Entry]:
    """The source's keys except those of its format, its parts and its bundles."""
    for key in gguf.metadata:
        if not (_LEFT_OUT.fullmatch(key) or bundles.KEYS.fullmatch(key)) and keep(key):
            yield entry(gguf, key)


def entry(gguf: Gguf, key: str) -> Entry:
    """A key with its value and type."""
    kind, element = gguf.types[key]
    value = _as_bytes(gguf.metadata[key])
    return Entry(key, GGUFValueType(kind), value, GGUFValueType(element))


def marks(gguf: Gguf) -> Iterator[Entry]:
    """Keys that a neuron-aware GGUF needs and a PWRI file may not have."""
    if "powerinfer.version" not in gguf.metadata:
        yield uint32("powerinfer.version", 1)
    if "powerinfer.ffn.activation" not in gguf.metadata:
        yield string("powerinfer.ffn.activation", activation(gguf))


def refuse_same_file(gguf: Gguf, target: str | Path) -> None:
    """Raises ValueError if the target is the source, which is still being read."""
    refuse_inputs(Path(target), gguf.files)


def _as_bytes(value: object) -> object:
    """Strings as their original bytes; other values unchanged."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return [_as_bytes(v) for v in value] if isinstance(value, list) else value
