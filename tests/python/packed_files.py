"""Packs weights of tiny checkpoints as publishers do, and gives the values that they stand for.

Written from the formats' descriptions; none of it is the converter's. A scheme is a function of a
matrix: its tensors by what their names end with, each with its element type in safetensors, and the
values that they stand for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import to_bf16
from families import golden
from safetensors.numpy import load_file, save_file

Tensors = dict[str, tuple[str, np.ndarray]]  # element type and bits, by name
Scheme = Callable[[np.ndarray], tuple[Tensors, np.ndarray]]

# A code's exponent and mantissa are the middle bits of a half, whose exponent is 8 lower.
_CODES = np.arange(256, dtype=np.uint16)
_HALVES = ((_CODES & 0x80) << 8 | (_CODES & 0x7F) << 7).view(np.float16).astype(np.float32)
E4M3 = np.where(_CODES & 0x7F == 0x7F, np.float32(np.nan), _HALVES * 256)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The code of the table's value that is nearest to each."""
    order = np.argsort(np.nan_to_num(table, nan=np.inf), kind="stable")[: np.isfinite(table).sum()]
    ends = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(ends, values)].astype(np.uint8)


def bf16(values: np.ndarray) -> tuple[tuple[str, np.ndarray], np.ndarray]:
    """A tensor of BF16, and the values that it holds."""
    bits = to_bf16(values)
    return ("BF16", bits), (bits.astype(np.uint32) << 16).view(np.float32)


def of_blocks(matrix: np.ndarray, height: int, width: int) -> np.ndarray:
    """The largest magnitude of each block, those at the ends may be cut."""
    rows, cols = (range(0, n, size) for n, size in zip(matrix.shape, (height, width), strict=True))
    found = [[np.abs(matrix[r : r + height, c : c + width]).max() for c in cols] for r in rows]
    return np.array(found, np.float32) + np.float32(1e-9)


def spread(scale: np.ndarray, height: int, width: int, shape: tuple[int, ...]) -> np.ndarray:
    return scale.repeat(height, 0).repeat(width, 1)[: shape[0], : shape[1]]


def fp8_blocks(height: int, width: int, name: str = "weight_scale_inv") -> Scheme:
    def pack(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
        scale = of_blocks(matrix, height, width) / 448
        wide = spread(scale, height, width, matrix.shape)
        codes = nearest(matrix / wide, E4M3)
        return {"weight": ("F8_E4M3", codes), name: ("F32", scale)}, E4M3[codes] * wide

    return pack


def fp8_rows(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    stored, scale = bf16(of_blocks(matrix, 1, matrix.shape[1]) / 448 * np.float32(1.01))
    codes = nearest(matrix / scale, E4M3)
    return {"weight": ("F8_E4M3", codes), "weight_scale": stored}, E4M3[codes] * scale


def fp8_whole(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """With scales of inputs and of a cache, which change no weight."""
    scale = np.float32(np.abs(matrix).max() / 448)
    codes = nearest(matrix / scale, E4M3)
    other = ("F32", np.float32(0.3))
    tensors = {"weight": ("F8_E4M3", codes), "weight_scale": ("F32", scale), "input_scale": other}
    return tensors | {"k_scale": other}, E4M3[codes] * scale


def int8_rows(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    scale = of_blocks(matrix, 1, matrix.shape[1]) / 127
    codes = np.rint(matrix / scale).astype(np.int8)
    return {"weight": ("I8", codes), "weight_scale": ("F32", scale)}, codes * scale


def in_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of each row in words of 32 bits, as many as fit, the first one lowest."""
    each = 32 // bits
    padded = np.pad(codes.astype(np.uint32), ((0, 0), (0, -codes.shape[1] % each)))
    words = padded.reshape(len(codes), -1, each) << (bits * np.arange(each, dtype=np.uint32))
    return np.bitwise_or.reduce(words, axis=2).view(np.int32)


def grouped(bits: int, size: int, zeros: bool = False, order: bool = False) -> Scheme:
    """compressed-tensors' pack-quantized. order: columns of a group are not neighbours."""

    def pack(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
        n_rows, n_cols = matrix.shape
        group = np.arange(n_cols) // size
        if order:
            group = np.random.default_rng(n_cols).permutation(group)
        n = n_cols // size
        low, high = (
            np.stack([f(matrix[:, group == g], axis=1) for g in range(n)], axis=1)
            for f in (np.min, np.max)
        )
        top = (1 << bits) - 1
        step = (high - low) / top if zeros else np.maximum(-low, high) / (1 << (bits - 1))
        stored, scale = bf16(step * 1.02 + 1e-9)
        zero = np.full((n_rows, n), 1 << (bits - 1))
        if zeros:
            zero = np.clip(np.rint(-low / scale), 0, top).astype(int)
        codes = np.clip(np.rint(matrix / scale[:, group]) + zero[:, group], 0, top).astype(int)
        tensors = {
            "weight_packed": ("I32", in_words(codes, bits)),
            "weight_scale": stored,
            "weight_shape": ("I64", np.array(matrix.shape, np.int64)),
        }
        if zeros:
            tensors["weight_zero_point"] = ("I32", np.ascontiguousarray(in_words(zero.T, bits).T))
        if order:
            tensors["weight_g_idx"] = ("I32", group.astype(np.int32))
        found = (codes - zero[:, group]).astype(np.float32) * scale[:, group]
        return tensors, found

    return pack


def in_bytes(codes: np.ndarray) -> np.ndarray:
    """Two codes of four bits in a byte, the first one lowest."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def nvfp4(modelopt: bool) -> Scheme:
    def pack(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
        largest = of_blocks(matrix, 1, 8) / 6
        whole = np.float32(2.0 ** np.floor(np.log2(448 / largest.max())))
        scale = nearest(largest * whole, E4M3)
        wide = spread(E4M3[scale] / whole, 1, 8, matrix.shape)
        codes = nearest(matrix / np.maximum(wide, 1e-20), FP4)
        tensors = {"weight_scale": ("F8_E4M3", scale)}
        if modelopt:
            tensors["weight"] = ("U8", in_bytes(codes))
            tensors["weight_scale_2"] = ("F32", 1 / whole)
        else:
            tensors["weight_packed"] = ("U8", in_bytes(codes))
            tensors["weight_global_scale"] = ("F32", whole.reshape(1))
        return tensors, FP4[codes] * wide

    return pack


def mxfp4(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    exponent = np.ceil(np.log2(of_blocks(matrix, 1, 8) / 6))
    wide = spread(np.exp2(exponent).astype(np.float32), 1, 8, matrix.shape)
    codes = nearest(matrix / wide, FP4)
    scale = (exponent + 127).astype(np.uint8)
    return {"weight_packed": ("U8", in_bytes(codes)), "weight_scale": ("U8", scale)}, (
        FP4[codes] * wide
    )


def mxfp8(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
    exponent = np.ceil(np.log2(of_blocks(matrix, 1, 8) / 448))
    wide = spread(np.exp2(exponent).astype(np.float32), 1, 8, matrix.shape)
    codes = nearest(matrix / wide, E4M3)
    scale = (exponent + 127).astype(np.uint8)
    return {"weight": ("F8_E4M3", codes), "weight_scale": ("U8", scale)}, E4M3[codes] * wide


def mlx(bits: int, size: int = 8) -> Scheme:
    """MLX's affine groups: a stream of bits, the first one lowest."""

    def pack(matrix: np.ndarray) -> tuple[Tensors, np.ndarray]:
        low = -of_blocks(np.minimum(matrix, 0), 1, size)
        high = of_blocks(np.maximum(matrix, 0), 1, size)
        scales, scale = bf16((high - low) / ((1 << bits) - 1))
        biases, bias = bf16(low)
        scale, bias = (spread(values, 1, size, matrix.shape) for values in (scale, bias))
        codes = np.clip(np.rint((matrix - bias) / scale), 0, (1 << bits) - 1).astype(np.uint8)
        stream = np.unpackbits(codes[..., None], axis=2, count=bits, bitorder="little")
        words = np.packbits(stream.reshape(len(matrix), -1), axis=1, bitorder="little")
        tensors = {"weight": ("U32", words.view(np.uint32)), "scales": scales, "biases": biases}
        return tensors, codes.astype(np.float32) * scale + bias

    return pack


def write(path: Path, tensors: Tensors, **metadata: str) -> None:
    """A safetensors file of any element types."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (kind, values) in tensors.items():
        end = at + values.nbytes
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(values.tobytes() for _, values in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def floats(weights: dict[str, np.ndarray]) -> Tensors:
    return {name: ("F32", np.asarray(w, np.float32)) for name, w in weights.items()}


def pair(
    name: str,
    folder: Path,
    scheme: Scheme,
    config: dict[str, Any],
    packs: Callable[[str, np.ndarray], bool],
) -> tuple[Path, Path]:
    """A checkpoint of tests/golden with packed matrices, and the same with the values they stand
    for, in folders of one name. config: what config.json gets; packs: of a name and a matrix."""
    plain, packed = golden(name, folder / "plain" / "model"), folder / "packed" / "model"
    shutil.copytree(plain, packed)
    path = packed / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    weights = {n: w.astype(np.float32) for n, w in load_file(plain / "model.safetensors").items()}
    tensors = floats(weights)
    for theirs, matrix in weights.items():
        if packs(theirs, matrix):
            found, weights[theirs] = scheme(matrix)
            del tensors[theirs]
            module = theirs.removesuffix("weight")
            tensors |= {f"{module}{end}": tensor for end, tensor in found.items()}
    assert len(tensors) > len(weights)
    write(packed / "model.safetensors", tensors)
    save_file(weights, plain / "model.safetensors")
    return plain, packed
