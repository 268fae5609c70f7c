"""Rewrites a GGUF in another format, a slab of rows at a time."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..convert import bundles, source
from ..convert.formats import Format, format_by_name
from ..convert.stored import Fitting, Stored
from ..convert.writer import FILE_TYPES, Entry, string, uint32, write_gguf
from ..core.errors import UnsupportedModelError
from ..core.gguf import Gguf
from . import imatrix as imatrices
from . import mixes
from .mixes import MIXES, Mix, Shape

# Formats of matrices that are written.
FORMATS = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
FORMATS += ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4")
TYPES = (*FORMATS, *(name for name in MIXES if name not in FORMATS))
# A key of llama.cpp's quantiser says which importance matrix was used.
_IMATRIX_KEY = re.compile(r"quantize\.imatrix\..+")


@dataclass(frozen=True)
class Choice:
    """Formats of some tensors, as in llama.cpp.

    pure: all matrices get the format of most. output, token_embedding: of output.weight and
    token_embd.weight. tensors: pairs of a regular expression and the format of tensors in whose
    name it is found; the first that is found counts. leave_output: output.weight stays as it is.
    """

    pure: bool = False
    output: str | None = None
    token_embedding: str | None = None
    tensors: Sequence[tuple[str, str]] = ()
    leave_output: bool = False


def find_format(name: str) -> Format:
    """The format with this name, in any case. Raises ValueError if it cannot be written."""
    if name.upper() not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    return format_by_name(name)


def find_type(name: str) -> Mix:
    """The mix of formats with this name, in any case. Raises ValueError for an unknown one."""
    upper = name.upper()
    if upper not in TYPES:
        raise ValueError(f"type must be one of {', '.join(TYPES)}, not {name!r}")
    return MIXES[upper] if upper in MIXES else Mix(upper, upper, FILE_TYPES[upper])


def quantize(
    origin: str | Path,
    target: str | Path,
    type_name: str,
    *,
    predictor_type: str = "Q8_0",
    choice: Choice = Choice(),
    imatrix: str | Path | None = None,
    bundle: bool = False,
    allow_requantize: bool = False,
    log: Callable[[str], None],
) -> None:
    """Writes `origin` to `target` with its matrices in other formats.

    type_name: one of TYPES, any case: one of MIXES, or a format for all matrices. predictor_type:
    format of fc1 and fc2. choice: exceptions. imatrix: a file with the importance of columns.
    Vectors, routers and position tables keep their format; if the block size does not divide a row,
    the matrix gets a replacement or F16. A PWRI file becomes a neuron-aware GGUF, a split file a
    single file. bundle: store the rows of each neuron together. allow_requantize: also accept
    quantised matrices.

    Raises OSError, ModelFormatError, UnsupportedModelError (requantising), ValueError; an error
    leaves no partial file.
    """
    mix, predictors = find_type(type_name), find_format(predictor_type)
    inputs = None if imatrix is None else imatrices.read(imatrix)
    with Gguf(origin) as gguf:
        source.refuse_same_file(gguf, target)
        tensors = source.tensors(gguf)
        wanted = _formats(gguf, mix, choice, tensors, predictors, inputs is not None)
        stored, unknown, fitting = [], [], Fitting()
        for tensor in tensors:
            fmt = wanted.get(tensor.name, tensor.format)
            weights = None
            if inputs is not None and _can_weigh(tensor, fmt):
                weights = _importance(inputs, str(imatrix), tensor)
                if weights is None:
                    unknown.append(tensor.name)
            stored.append(_requantised(gguf, tensor, fmt, weights, allow_requantize, fitting))
        fitting.report(log)
        if unknown:
            log(f"{imatrix}: no entry for {', '.join(unknown)}: written without importance")
        entries = [e for e in source.entries(gguf) if not _IMATRIX_KEY.fullmatch(e.key)]
        entries.append(uint32("general.file_type", mix.file_type))
        if format_by_name(mix.base).quantised:
            entries.append(uint32("general.quantization_version", 2))
        if inputs is not None:
            entries += _origin(inputs, Path(str(imatrix)).name)
        if gguf.is_pwri:
            entries += source.marks(gguf)
        if bundle:
            stored, keys = bundles.bundled(stored, source.n_layer(gguf))
            entries += keys
        architecture = str(gguf.value("general.architecture", ""))
        write_gguf(Path(target), architecture, entries, stored, gguf.files)


def _formats(
    gguf: Gguf,
    mix: Mix,
    choice: Choice,
    tensors: Sequence[Stored],
    predictors: Format,
    has_imatrix: bool,
) -> dict[str, Format]:
    """Formats of matrices, whether they fit or not."""
    of_weights = [t for t in tensors if source.is_matrix(t)]
    found = {t.name: predictors for t in of_weights if source.PREDICTOR.fullmatch(t.name)}
    rows = {t.name: t.row for t in of_weights if t.name not in found}
    if mix.name in MIXES and not choice.pure:
        names = mixes.chosen(mix, _shape(gguf, has_imatrix), rows)
    else:
        names = dict.fromkeys(rows, mix.base)
    tied = "output.weight" not in rows
    for name in rows:
        override = next((fmt for part, fmt in choice.tensors if re.search(part, name)), None)
        if name == "output.weight":
            override = choice.output or override
        if name == "token_embd.weight":
            override = choice.token_embedding or override or (choice.output if tied else None)
        if override is not None:
            names[name] = override
    if choice.leave_output:
        names.pop("output.weight", None)
    return found | {name: find_format(fmt) for name, fmt in names.items()}


def _shape(gguf: Gguf, has_imatrix: bool) -> Shape:
    def size(key: str, default: int) -> int:
        value = gguf.value(f"{architecture}.{key}", default)
        value = value[0] if isinstance(value, list) and value else value  # one for each layer
        return value if isinstance(value, int) else default

    architecture = str(gguf.value("general.architecture", ""))
    heads = size("attention.head_count", 1)
    return Shape(
        architecture,
        size("block_count", 0),
        size("expert_count", 0),
        heads,
        size("attention.head_count_kv", heads),
        has_imatrix,
    )


def _can_weigh(tensor: Stored, fmt: Format) -> bool:
    """Whether the importance of columns can change how the tensor is written.

    A row of ffn_down_t has the weights of one input: within a block all are equally important.
    """
    if tensor.format.type == fmt.type or fmt.name in ("F16", "BF16", "Q8_0"):
        return False
    return ".ffn_down_t" not in tensor.name and not source.PREDICTOR.fullmatch(tensor.name)


def _importance(inputs: imatrices.Imatrix, path: str, tensor: Stored) -> np.ndarray | None:
    n_mat = tensor.shape[0] if len(tensor.shape) > 2 else 1
    try:
        return inputs.importance(tensor.name, n_mat, tensor.row)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _origin(inputs: imatrices.Imatrix, name: str) -> list[Entry]:
    """llama.cpp's keys for the importance matrix of a file."""
    return [
        string("quantize.imatrix.file", name),
        string("quantize.imatrix.dataset", ", ".join(inputs.datasets)),
        uint32("quantize.imatrix.entries_count", len(inputs.inputs)),
        uint32("quantize.imatrix.chunks_count", inputs.chunks),
    ]


def _requantised(
    gguf: Gguf,
    tensor: Stored,
    wanted: Format,
    importance: np.ndarray | None,
    allow: bool,
    fitting: Fitting,
) -> Stored:
    have = tensor.format
    if have.type == wanted.type:
        return tensor
    wanted = fitting(wanted, tensor.row, tensor.name)
    if have.type != wanted.type and have.quantised and not allow:
        what = "quantising it again loses more"
        if not wanted.quantised:
            what = f"{wanted.name} takes more memory and brings back nothing"
        raise UnsupportedModelError(
            f"{gguf.files[0]}: tensor {tensor.name} is already {have.name}; {what} "
            "(--allow-requantize allows it)"
        )
    return source.in_format(tensor, wanted, importance)
