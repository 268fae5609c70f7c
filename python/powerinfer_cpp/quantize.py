"""Rewriting a GGUF in another format, a slab of rows at a time."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from .activations import default_activation
from .convert.tensors import Output
from .convert.writer import (
    FILE_TYPES,
    SLAB,
    Entry,
    Stored,
    encoded,
    fitting,
    string,
    uint32,
    write_gguf,
)
from .errors import UnsupportedModelError
from .formats import Format, decode, encode, format_by_name
from .gguf import Gguf, Tensor

_WRITTEN = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_WRITTEN += ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# llama.cpp's names of mixtures that are nearly pure; here they are pure.
_PURE = {f"Q{bits}_K_S": f"Q{bits}_K" for bits in (2, 3, 4, 5)}
_PREDICTORS = (".fc1.weight", ".fc2.weight", ".fc1_exps.weight", ".fc2_exps.weight")
# Small and delicate: experts are chosen by the one, the other is added to every input.
_EXACT = (".ffn_gate_inp.weight", "position_embd.weight")


def _is_written(name: str) -> bool:
    """The engine's codecs know the format, and how to write it."""
    try:
        fmt = format_by_name(name)
        encode(fmt, np.zeros(fmt.block, np.float32))
    except ValueError:
        return False
    return True


TYPES = tuple(name for name in _WRITTEN if _is_written(name))


def find_type(name: str) -> Format:
    """The format of a name, in any case. Raises ValueError for one that is not written."""
    upper = _PURE.get(name.upper(), name.upper())
    if upper not in TYPES:
        raise ValueError(f"type must be one of {', '.join(TYPES)}, not {name!r}")
    return format_by_name(upper)


def quantize(
    source: str | Path,
    target: str | Path,
    type_name: str,
    *,
    predictor_type: str = "Q8_0",
    allow_requantize: bool = False,
    log: Callable[[str], None],
) -> None:
    """Writes `source` to `target` with its matrices in another format.

    type_name: one of TYPES, any case; predictor_type: for fc1 and fc2. Vectors, routers and tables
    of positions keep their format; rows that no block divides get a narrower one or F16. A PWRI
    file becomes a neuron-aware GGUF, a split file one file. allow_requantize: also from formats
    that have already lost precision.

    Raises OSError, ModelFormatError, UnsupportedModelError (requantising), ValueError; nothing
    half-written remains.
    """
    matrices, predictors = find_type(type_name), find_type(predictor_type)
    with Gguf(source) as gguf:
        if any(os.path.exists(target) and os.path.samefile(file, target) for file in gguf.files):
            raise ValueError(f"{target}: input and output are the same file")
        stored = []
        for tensor in gguf.tensors:
            wanted = predictors if tensor.name.endswith(_PREDICTORS) else matrices
            stored.append(_stored(gguf, tensor, wanted, allow_requantize, log))
        architecture = str(gguf.value("general.architecture", ""))
        write_gguf(Path(target), architecture, _entries(gguf, matrices, architecture), stored)


def _stored(
    gguf: Gguf, tensor: Tensor, wanted: Format, allow: bool, log: Callable[[str], None]
) -> Stored:
    have = _format_of(gguf, tensor)
    is_weight = len(tensor.shape) > 1 and tensor.name.endswith("weight")
    is_weight = is_weight and not tensor.name.endswith(_EXACT)
    if is_weight and have.type != wanted.type:
        wanted = fitting(wanted, tensor.shape[-1], tensor.name, log)
    if not is_weight or have.type == wanted.type or tensor.n_elements == 0:
        return Stored(tensor.name, tensor.shape, have, lambda: _as_it_is(gguf.data(tensor)))
    if have.quantised and not allow:
        raise UnsupportedModelError(
            f"{gguf.files[tensor.file]}: tensor {tensor.name} is already {have.name}; quantising "
            "it again loses more (--allow-requantize does it all the same)"
        )
    row = tensor.shape[-1]
    row_bytes = have.n_bytes(row)

    def rows(a: int, b: int) -> np.ndarray:
        # Mapped anew for every slab, so that pages already used do not stay in memory.
        part = gguf.data(tensor)[a * row_bytes : b * row_bytes]
        return decode(have.type, part, (b - a) * row).reshape(b - a, row)

    matrix = Output(tensor.name, (tensor.n_elements // row, row), rows)
    return Stored(tensor.name, tensor.shape, wanted, encoded(matrix, wanted).pieces)


def _format_of(gguf: Gguf, tensor: Tensor) -> Format:
    try:
        return format_by_name(tensor.type_name)
    except ValueError:
        raise UnsupportedModelError(
            f"{gguf.files[tensor.file]}: tensor {tensor.name} has format {tensor.type_name}, "
            "which is not supported"
        ) from None


def _as_it_is(data: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(data), 4 * SLAB):
        yield data[first : first + 4 * SLAB]


def _entries(gguf: Gguf, matrices: Format, architecture: str) -> Iterator[Entry]:
    """The source's keys; those that describe its formats and parts are replaced or left out."""
    replaced = ("general.architecture", "general.alignment", "general.file_type")
    for key, value in gguf.metadata.items():
        if key in replaced or key == "general.quantization_version" or key.startswith("split."):
            continue
        kind, element = gguf.types[key]
        yield Entry(key, GGUFValueType(kind), _as_bytes(value), GGUFValueType(element))
    yield uint32("general.file_type", FILE_TYPES[matrices.name])
    if matrices.quantised:
        yield uint32("general.quantization_version", 2)
    if gguf.is_pwri:
        if "powerinfer.version" not in gguf.metadata:
            yield uint32("powerinfer.version", 1)
        if "powerinfer.ffn.activation" not in gguf.metadata:
            activation = default_activation(architecture, pwri=True)
            if activation is None:
                raise UnsupportedModelError(
                    f"{gguf.files[0]}: the activation of a PWRI file with architecture "
                    f"{architecture!r} is not known"
                )
            yield string("powerinfer.ffn.activation", activation)


def _as_bytes(value: object) -> object:
    """Strings as the bytes they were; other values as they are."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return [_as_bytes(v) for v in value] if isinstance(value, list) else value
