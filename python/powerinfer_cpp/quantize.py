"""Rewrites a GGUF in another format, a slab of rows at a time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from .convert import bundles, source
from .convert.stored import Stored, fitting
from .convert.writer import FILE_TYPES, uint32, write_gguf
from .errors import UnsupportedModelError
from .formats import Format, encode, format_by_name
from .gguf import Gguf

_WRITTEN = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_WRITTEN += ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# llama.cpp's names of nearly pure mixtures; here every matrix has the same type.
_PURE = {f"Q{bits}_K_S": f"Q{bits}_K" for bits in (2, 3, 4, 5)}


def _is_written(name: str) -> bool:
    """Whether the engine's codecs can write the format."""
    try:
        fmt = format_by_name(name)
        encode(fmt, np.zeros(fmt.block, np.float32))
    except ValueError:
        return False
    return True


TYPES = tuple(name for name in _WRITTEN if _is_written(name))


def find_type(name: str) -> Format:
    """The format with this name, in any case. Raises ValueError if it cannot be written."""
    upper = _PURE.get(name.upper(), name.upper())
    if upper not in TYPES:
        raise ValueError(f"type must be one of {', '.join(TYPES)}, not {name!r}")
    return format_by_name(upper)


def quantize(
    origin: str | Path,
    target: str | Path,
    type_name: str,
    *,
    predictor_type: str = "Q8_0",
    bundle: bool = False,
    allow_requantize: bool = False,
    log: Callable[[str], None],
) -> None:
    """Writes `origin` to `target` with its matrices in another format.

    type_name: one of TYPES, any case; predictor_type: format of fc1 and fc2. Vectors, routers and
    position tables keep their format; if the block size does not divide a row, the matrix gets a
    replacement or F16. A PWRI file becomes a neuron-aware GGUF, a split file a single file. bundle:
    store the rows of each neuron together. allow_requantize: also accept quantised matrices.

    Raises OSError, ModelFormatError, UnsupportedModelError (requantising), ValueError; an error
    leaves no partial file.
    """
    matrices, predictors = find_type(type_name), find_type(predictor_type)
    with Gguf(origin) as gguf:
        source.refuse_same_file(gguf, target)
        stored = []
        for tensor in source.tensors(gguf):
            wanted = predictors if source.PREDICTOR.fullmatch(tensor.name) else matrices
            stored.append(_requantised(gguf, tensor, wanted, allow_requantize, log))
        entries = [*source.entries(gguf), uint32("general.file_type", FILE_TYPES[matrices.name])]
        if matrices.quantised:
            entries.append(uint32("general.quantization_version", 2))
        if gguf.is_pwri:
            entries += source.marks(gguf)
        if bundle:
            stored, keys = bundles.bundled(stored, source.size(gguf, "block_count"))
            entries += keys
        architecture = str(gguf.value("general.architecture", ""))
        write_gguf(Path(target), architecture, entries, stored, gguf.files)


def _requantised(
    gguf: Gguf, tensor: Stored, wanted: Format, allow: bool, log: Callable[[str], None]
) -> Stored:
    have = tensor.format
    if not source.is_matrix(tensor) or have.type == wanted.type:
        return tensor
    wanted = fitting(wanted, tensor.row, tensor.name, log)
    if have.type != wanted.type and have.quantised and not allow:
        raise UnsupportedModelError(
            f"{gguf.files[0]}: tensor {tensor.name} is already {have.name}; quantising "
            "it again loses more (--allow-requantize allows it)"
        )
    return source.in_format(tensor, wanted)
