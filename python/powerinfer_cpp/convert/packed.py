"""Checkpoints whose weights are published as codes with scales: FP8, integers, FP4, and MLX's.

config.json says the scheme, and the names of a weight's tensors what belongs to it. What comes out
is a checkpoint of weights, which families read like any other; the scales of activations and of KV
caches, for which nothing here needs one, are left out.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .codes import E2M1, Grid, bit_fields, coded, elements, grid_of
from .config import Asked, Config
from .unread import WAY
from .weight import Weight

# By config.json's quant_method: what is not read.
_UNREAD = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "vptq": "VPTQ",
    "higgs": "HIGGS",
    "spqr": "SpQR",
    "eetq": "EETQ",
    "exl2": "EXL2",
    "exl3": "EXL3",
    "quanto": "Quanto",
    "torchao": "torchao",
    "auto-round": "AutoRound",
    "mxfp4": "MXFP4 as gpt-oss has it",
    "bitnet": "BitNet",
}
# By the names of tensors, where config.json says nothing.
_TELLING = {".qweight": "GPTQ or AWQ", ".absmax": "bitsandbytes", ".SCB": "bitsandbytes"}
_TELLING |= {".W_q": "HQQ", ".codebooks": "AQLM", ".trellis": "EXL3"}
_READ = "FP8, compressed-tensors, ModelOpt's NVFP4, and MLX"
# Those of which the tensors say the rest.
_BY_NAMES = ("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "quark")
_FP4 = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_FORMATS = (
    *_FP4,
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",  # the groups say their own
)
_KEYS = ("quantization_config", "compression_config", "quantization")
_BLOCK = (128, 128)  # rows and columns that share a scale of FP8, where config.json does not say
_OF_ACTIVATIONS = re.compile(
    r".+(\.(input|output|prob|q|k|v|kv)_(scale|zero_point|global_scale)"
    r"|\.input_scale_ub|[._](activation|input)_scale)"
)
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Scheme:
    """What config.json says of how weights are packed.

    where: file and key, "" if it says nothing. blocks: rows and columns that may share a scale.
    bits: that integers may have. fp4: are bytes of a packed weight two floats of 4 bits? mlx: the
    settings of MLX, also by module.
    """

    where: str = ""
    blocks: tuple[tuple[int, int], ...] = (_BLOCK,)
    bits: tuple[int, ...] = ()
    fp4: bool = False
    mlx: dict[str, Any] = field(default_factory=dict)


def read_scheme(config: Config, allow_unknown: bool) -> Scheme:
    """What config.json says, unless the family reads it itself.

    Raises UnsupportedModelError, which names the scheme, for one that is not read (with
    allow_unknown its key stays unknown), ModelFormatError for contradictions.
    """
    for part in (config.values, config.values.peek("text_config")):
        for key in _KEYS if isinstance(part, Asked) else ():
            packing = part.peek(key)
            if not packing or key in part.asked:
                continue
            where = f"{config.path}: {key}"
            if not isinstance(packing, Asked):
                raise ModelFormatError(f"{where} must be an object")
            try:
                scheme = _scheme(where, packing)
            except UnsupportedModelError:
                if allow_unknown:
                    return Scheme()
                raise
            for known in _KEYS:  # MLX writes two that are alike
                if isinstance(value := part.get(known), Asked):
                    value.know_all()
            return scheme
    return Scheme()


def _scheme(where: str, packing: dict[str, Any]) -> Scheme:
    method = packing.get("quant_method")
    if method is None and "group_size" in packing and "bits" in packing:
        return Scheme(where, mlx=packing)
    if method is None:  # before all of them named themselves
        method = "compressed-tensors" if "config_groups" in packing else "bitsandbytes"
    if method in _BY_NAMES:
        return Scheme(where, (*_blocks(where, packing.get("weight_block_size")), _BLOCK))
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(where, packing)
    name = _UNREAD.get(str(method), repr(method))
    raise _refused(where, f"weights packed by {name}")


def _refused(where: str, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{where}: {what} are not read, only those of {_READ}: convert the checkpoint that was "
        f"packed; {WAY}"
    )


def told_by_names(checkpoint: dict[str, Weight]) -> str:
    """The scheme that is not read, by which names of tensors say that weights are packed; "" if
    none does."""
    ends = {"." + name.rpartition(".")[2] for name in checkpoint}
    return next((scheme for end, scheme in _TELLING.items() if end in ends), "")


def _compressed(where: str, packing: dict[str, Any]) -> Scheme:
    """Of the package compressed-tensors, which llm-compressor writes."""
    groups = packing.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise ModelFormatError(f"{where}: config_groups must be an object of objects")
    formats = [packing.get("format"), *(group.get("format") for group in groups.values())]
    for kind in [*formats, _inner(packing, "sparsity_config").get("format")]:
        if kind not in (None, *_FORMATS):
            raise _refused(where, f"weights of compressed-tensors in the format {kind!r}")
    if _inner(packing, "transform_config").get("config_groups"):
        raise _refused(where, "weights of compressed-tensors that are rotated (transform_config)")
    blocks: list[tuple[int, int]] = []
    bits: list[int] = []
    for group in groups.values():
        weights = _inner(group, "weights")
        blocks += _blocks(where, weights.get("block_structure"))
        if (n := weights.get("num_bits")) is not None:
            if type(n) is not int or not 1 <= n <= 8:
                raise _refused(where, f"weights of compressed-tensors with {n!r} bits")
            bits.append(n)
    fp4 = any(kind in _FP4 for kind in formats)
    return Scheme(where, (*blocks, _BLOCK), tuple(bits), fp4)


def _inner(packing: dict[str, Any], key: str) -> dict[str, Any]:
    value = packing.get(key)
    return value if isinstance(value, dict) else {}


def _blocks(where: str, block: Any) -> list[tuple[int, int]]:
    """Rows and columns of a block, as a list or as "128x128"."""
    if block is None:
        return []
    sides = block.split("x") if isinstance(block, str) else block
    if isinstance(sides, list) and len(sides) == 2:
        found = [int(n) if str(n).isdecimal() and len(str(n)) < 10 else 0 for n in sides]
        if all(found):
            return [(found[0], found[1])]
    raise ModelFormatError(f"{where}: {block!r} is not a block of rows and columns")


def unpacked(checkpoint: dict[str, Weight], scheme: Scheme) -> dict[str, Weight]:
    """The checkpoint with weights in the places of their codes.

    Raises ModelFormatError, which names the tensor, for scales that are missing or do not fit.
    """
    left = dict(checkpoint)
    found = dict(_weights(left, scheme))
    if not found:
        return checkpoint
    return {n: w for n, w in left.items() if not _OF_ACTIVATIONS.fullmatch(n)} | found


def _weights(left: dict[str, Weight], scheme: Scheme) -> Iterator[tuple[str, Weight]]:
    """Weights by the names of compressed-tensors, transformers and ModelOpt; takes what they are
    made of from `left`."""
    for name in list(left):
        weight = left.get(name)
        if weight is None or not weight.codes or name.endswith(("_scale", "_scale_inv")):
            continue
        whole = name.removesuffix("_packed")
        if whole != name and f"{whole}_scale" in left:
            del left[name]
            yield whole, _packed(whole, weight, left, scheme)
        elif weight.codes == "U8" and f"{name}_scale_2" in left:
            del left[name]
            yield name, _fp4(name, weight, left, f"{name}_scale_2")
        elif weight.codes in ("F8_E4M3", "F8_E5M2", "I8") and len(weight.shape) > 1:
            scale = left.pop(f"{name}_scale_inv", None) or left.pop(f"{name}_scale", None)
            if scale is None and (scheme.where or weight.codes == "I8"):
                why = f"codes ({weight.codes}) without scales"
                left[name] = replace(weight, unsupported=why)  # somebody may not need it
                continue
            del left[name]
            zero = left.pop(f"{name}_zero_point", None)
            scales = [] if scale is None else [grid_of(scale, weight.shape, scheme.blocks)]
            zeros = None if zero is None else grid_of(zero, weight.shape, scheme.blocks)
            yield name, coded(name, weight.shape, elements(weight), scales, zeros)


def _packed(name: str, weight: Weight, left: dict[str, Weight], scheme: Scheme) -> Weight:
    """A weight of compressed-tensors with several codes in a word or a byte."""
    shape = left.pop(f"{name}_shape", None)
    if weight.codes == "U8" and scheme.fp4:
        return _fp4(name, weight, left, f"{name}_global_scale", inverse=True)
    words = weight.shape
    if weight.codes != "I32" or len(words) != 2 or shape is None or shape.shape != (2,):
        raise ModelFormatError(f"tensor {name}_packed has no matrix of words with its shape")
    n_rows, row = (int(n) for n in _stored(shape))
    fitting = [n for n in scheme.bits if -(-row // (32 // n)) == words[1]]
    if n_rows != words[0] or not 0 < row < _LARGEST or not fitting:
        raise ModelFormatError(
            f"tensor {name}_packed has shape {list(words)}, which does not hold {n_rows} rows of "
            f"{row} codes of {' or '.join(map(str, scheme.bits)) or 'unknown'} bits"
        )
    bits = fitting[0]
    scale = left.pop(f"{name}_scale")
    groups = left.pop(f"{name}_g_idx", None)
    order = None if groups is None else _order(groups, row, scale)
    scales = grid_of(scale, (n_rows, row), scheme.blocks, order)
    zero = left.pop(f"{name}_zero_point", None)
    if zero is None:
        middle = np.float32(1 << (bits - 1))
        zeros = Grid(lambda rows: np.full((len(rows), 1), middle), n_rows, n_rows, 1, row)
    else:
        zeros = _packed_zeros(zero, bits, scales, (n_rows, row))
    return coded(name, (n_rows, row), bit_fields(weight, bits, 4), [scales], zeros)


def _packed_zeros(zero: Weight, bits: int, scales: Grid, shape: tuple[int, ...]) -> Grid:
    """What is subtracted from codes: several rows in a word, the first one lowest."""
    per_word, mask = 32 // bits, (1 << bits) - 1
    n_columns = -(-shape[1] // scales.width)
    if zero.codes != "I32" or zero.shape != (-(-scales.per // per_word), n_columns):
        raise ModelFormatError(
            f"tensor {zero.name} has shape {list(zero.shape)}, unlike its scales"
        )

    def read(rows: np.ndarray) -> np.ndarray:
        words = zero.stored()[rows // per_word].astype(np.int64)
        return (words >> (bits * (rows % per_word))[:, None] & mask).astype(np.float32)

    return Grid(read, scales.n_rows, scales.per, scales.height, scales.width, scales.order)


def _order(groups: Weight, row: int, scale: Weight) -> Callable[[], np.ndarray] | None:
    """Which group of scales a column has, if they do not follow each other."""
    if groups.shape != (row,) or groups.codes not in ("I32", "I64"):
        raise ModelFormatError(f"tensor {groups.name} does not have a group for each column")
    found = _stored(groups)
    if found.min() < 0:
        return None  # written where there is no order
    if found.max() >= (scale.shape[-1] if scale.shape else 1):
        raise ModelFormatError(f"tensor {groups.name} names a group without a scale")
    return lambda: _stored(groups)


def _fp4(
    name: str, weight: Weight, left: dict[str, Weight], whole: str, inverse: bool = False
) -> Weight:
    """A weight of NVFP4, or of MXFP4, which lacks the tensor `whole`: a number that all scales are
    multiplied by, or with `inverse` divided."""
    scale, factor = left.pop(f"{name}_scale", None), left.pop(whole, None)
    if scale is None or len(weight.shape) < 2:
        raise ModelFormatError(f"tensor {weight.name} has codes (FP4) without scales")
    shape = (*weight.shape[:-1], 2 * weight.shape[-1])
    scales = [grid_of(scale, shape)]
    if factor is not None:
        of_all = grid_of(factor, shape)
        turned = replace(of_all, read=lambda rows: 1 / of_all.read(rows))
        scales.append(turned if inverse else of_all)
    return coded(name, shape, bit_fields(weight, 4, 1, E2M1), scales)


def _stored(weight: Weight) -> np.ndarray:
    """A few integers. Raises ModelFormatError for other elements."""
    if weight.codes not in ("I32", "I64"):
        raise ModelFormatError(f"tensor {weight.name} does not hold integers")
    return weight.stored()
