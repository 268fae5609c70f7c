"""What neuron rows have as a factor and matrices have beside them: scales of products, and the
weights of a norm before ffn_down (BitNet).

The engine divides what neuron rows give by the root of the mean square of their values, which is
what is left of that norm.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from ..core.gguf import Gguf
from .formats import Format, can_encode, format_by_name
from .stored import Stored, decoded, encoded
from .tensors import Output, from_values, scaled

_SCALE = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down)(?:_exps|_shexp)?)\.scale")
_NORM = re.compile(r"(blk\.\d+\.ffn)_sub_norm\.weight")
_DOWN = re.compile(r"(blk\.\d+\.ffn)_down\.weight")


def factors(tensors: Iterable[Stored], kept: tuple[str, ...]) -> dict[str, np.ndarray]:
    """By the name of a matrix, a factor [1], or of ffn_down one for each of its columns [n_ff]; of
    experts one for each [n_expert]. kept: see becomes_factor."""
    found: dict[str, np.ndarray] = {}
    for tensor in tensors:
        if match := _factor(tensor, kept):
            name = f"{match[1]}{'_down' if match.re is _NORM else ''}.weight"
            values = decoded(tensor).rows(0, 1).reshape(-1)
            found[name] = found.get(name, np.float32(1)) * values
    return found


def becomes_factor(tensor: Stored, kept: tuple[str, ...]) -> bool:
    """Whether the tensor is one that `factors` reads. kept: endings of names of those that stay."""
    return bool(_factor(tensor, kept))


def _factor(tensor: Stored, kept: tuple[str, ...]) -> re.Match[str] | None:
    if tensor.name.endswith(kept):
        return None
    return _SCALE.fullmatch(tensor.name) or _NORM.fullmatch(tensor.name)


def stays_ternary(gguf: Gguf, tensor: Stored) -> bool:
    """Whether the transpose of a matrix has the values of its format, too: BitNet's have one scale
    for all."""
    ternary = tensor.format.name in ("TQ1_0", "TQ2_0")
    return ternary and gguf.value("general.architecture") == "bitnet"


def times(output: Output, factor: np.ndarray) -> Output:
    """The matrices times a factor for all of their rows, for each of them, or for each row."""
    return scaled(output, np.repeat(factor, output.n_rows // len(factor)))


def in_own_format(output: Output, own: Format) -> Stored:
    """In Q8_0 where their format has no encoder."""
    return encoded(output, own if can_encode(own) else format_by_name("Q8_0"))


def neutral_norms(tensors: list[Stored]) -> Iterator[Stored]:
    """The tensors of a dense file, with norms of 1 where neuron rows had their weights."""
    there = {tensor.name for tensor in tensors}
    for tensor in tensors:
        yield tensor
        match = _DOWN.fullmatch(tensor.name)
        if match and (name := f"{match[1]}_sub_norm.weight") not in there:
            yield encoded(from_values(name, np.ones(tensor.row)), format_by_name("F32"))
