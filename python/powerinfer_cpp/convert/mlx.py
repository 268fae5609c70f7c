"""Checkpoints of MLX: weights as groups of codes, and what it changes of other tensors."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .codes import E2M1, TABLES, bit_fields, coded, grid_of
from .families.family import Family
from .weight import Weight, widen

# Of MLX's modes: the values of codes, and the element type that scales are bytes of.
_MODES: dict[str, tuple[np.ndarray | None, str]] = {
    "affine": (None, ""),
    "mxfp4": (E2M1, "F8_E8M0"),
    "nvfp4": (E2M1, "F8_E4M3"),
    "mxfp8": (TABLES["F8_E4M3"], "F8_E8M0"),
}
_LARGEST = 1 << 31
_EXPERTS = re.compile(r"(.+)\.switch_mlp\.(\w+)_proj\.weight")
_CONVOLUTION = re.compile(r".+\.conv1d\.weight")
# The norms that MLX changes.
_NORM = re.compile(r"(.+\.)?((input|post_attention)_layernorm|model\.norm|[qk]_norm)\.weight")


def unpacked(checkpoint: dict[str, Weight], settings: dict[str, Any]) -> dict[str, Weight]:
    """The checkpoint with weights in the places of their codes, scales and biases.

    settings: of config.json, also by module. Raises ModelFormatError, which names the tensor, for
    scales that do not fit.
    """
    left = dict(checkpoint)
    found = dict(_weights(left, settings))
    return left | found


def _weights(left: dict[str, Weight], settings: dict[str, Any]) -> Iterator[tuple[str, Weight]]:
    """Takes what weights are made of from `left`."""
    for name in [n for n, w in left.items() if n.endswith(".weight") and w.codes == "U32"]:
        module = name.removesuffix(".weight")
        scale = left.pop(f"{module}.scales", None)
        if scale is None:
            continue
        size, bits, mode = _of_module(settings, module)
        if mode not in _MODES:
            raise UnsupportedModelError(f"tensor {name} is packed by MLX in the mode {mode!r}")
        table, kind = _MODES[mode]
        weight, biases = left.pop(name), left.pop(f"{module}.biases", None)
        if (biases is None) != (mode != "affine") or len(scale.shape) < 2:
            raise ModelFormatError(f"tensor {name} has no scales and biases of the mode {mode!r}")
        given = isinstance(size, int) and isinstance(bits, int) and size > 0 and 1 <= bits <= 8
        given = given and (table is None or len(table) == 1 << bits)
        row = scale.shape[-1] * size if given else 0
        if not 0 < row < _LARGEST or row % 8 or weight.shape[-1] * 32 != row * bits:
            raise ModelFormatError(
                f"tensor {name} has shape {list(weight.shape)}, which does not hold {bits!r} bits "
                f"for {list(scale.shape)} groups of {size!r}"
            )
        shape = (*weight.shape[:-1], row)
        scales = [grid_of(scale, shape, kind=kind)]
        added = None if biases is None else grid_of(biases, shape)
        yield name, coded(name, shape, bit_fields(weight, bits, bits, table), scales, None, added)


def _of_module(settings: dict[str, Any], module: str) -> tuple[Any, Any, str]:
    """Size of groups, bits and mode of a module: its own, else those of all."""
    own = settings.get(module)
    own = own if isinstance(own, dict) else {}
    size, bits, mode = (own.get(key, settings.get(key)) for key in ("group_size", "bits", "mode"))
    return size, bits, str(mode or "affine")


def restored(checkpoint: dict[str, Weight], family: Family) -> dict[str, Weight]:
    """The checkpoint with what MLX changes of it changed back: the experts of a layer are one
    tensor, and in gated delta nets convolutions have other dimensions and norms hold 1 + weight.

    Raises UnsupportedModelError if the files say that MLX wrote them, and the convolutions do not:
    then nobody knows what the norms hold.
    """
    found: dict[str, Weight] = {}
    moved = False
    for name, weight in checkpoint.items():
        experts = _EXPERTS.fullmatch(name)
        part = family.expert_parts.get(experts[2]) if experts else None
        if experts and part and weight.shape[:1] == (family.n_expert,) and 0 not in weight.shape:
            for i in range(family.n_expert):
                theirs = f"{experts[1]}.experts.{i}.{part}.weight"
                found[theirs] = replace(weight.of(i), name=theirs)
        elif family.mlx_adds_one and _is_moved(name, weight):
            found[name] = weight.reshaped(weight.shape[0], 1, weight.shape[1])
            moved = True
        else:
            found[name] = weight
    if not family.mlx_adds_one or not (moved or family.of_mlx):
        return found
    family.guess_names = ()  # MLX's builds differ in what the norms of that layer hold
    if not moved:
        raise UnsupportedModelError(
            "the checkpoint says that MLX wrote it, but its convolutions are not as MLX writes "
            "them, so what its norms hold is not known: convert the original checkpoint"
        )
    return {n: _minus_one(w) if _NORM.fullmatch(n) else w for n, w in found.items()}


def _is_moved(name: str, weight: Weight) -> bool:
    """Is it a convolution [channels, taps, 1], where others have [channels, 1, taps]?"""
    shape = weight.shape
    return bool(_CONVOLUTION.fullmatch(name)) and len(shape) == 3 and shape[1] > 1 == shape[2]


def _minus_one(weight: Weight) -> Weight:
    """The norm's weight without the 1, which float32 holds as it was."""
    return replace(weight, bf16=False, stored=lambda: widen(weight.stored(), weight.bf16) - 1)
