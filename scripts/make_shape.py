#!/usr/bin/env python3
"""Writes a GGUF of random weights with the shape of a published configuration.

    scripts/make_shape.py config.json gpt-oss.gguf                    # Q4_0, all layers
    scripts/make_shape.py config.json small.gguf --layers 4 --type Q8_0

For speed and memory, not for text. The file is what `convert` would write of the checkpoint whose
config.json this is, so that every engine reads it: the family's keys, tensors and types. Matrices
of the same width share their random rows, so that the file is written as fast as the disk takes it;
vectors are random around 1. --layers takes the first layers, with their kinds. Tokens are bytes and
numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from powerinfer_cpp.convert.config import Config
from powerinfer_cpp.convert.families import read_family
from powerinfer_cpp.convert.formats import Format, encode, format_by_name
from powerinfer_cpp.convert.stored import Stored, encoded
from powerinfer_cpp.convert.tensors import Output, Weights
from powerinfer_cpp.convert.weight import Weight
from powerinfer_cpp.convert.writer import Entry, array, string, uint32, write_gguf

SLAB = 1024  # rows of a width that matrices share
# Of the row widths that blocks of 256 do not divide.
NARROWER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


class Shapes(Weights):
    """A checkpoint that has every tensor that is asked for, of random numbers.

    has: names that it has where a family asks whether there is one.
    """

    def __init__(self, has: set[str], seed: int) -> None:
        super().__init__({})
        self._has, self._seed = has, seed

    def __contains__(self, name: str) -> bool:
        return name in self._has

    def take(self, name: str, *shape: int) -> Weight:
        def values() -> np.ndarray:
            rng = np.random.default_rng([self._seed, *name.encode()])
            if math.prod(shape) > 1 << 22:  # of a matrix, whose rows come from a slab
                return np.broadcast_to(np.float32(0), shape)
            return 1 + rng.standard_normal(shape, np.float32) / 8

        return Weight(name, shape, False, values)


class Slabs:
    """Encoded random rows, for all matrices of a width and format."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows: dict[tuple[int, str], np.ndarray] = {}

    def of(self, width: int, fmt: Format) -> np.ndarray:
        """uint8 [SLAB, bytes of a row]."""
        key = width, fmt.name
        if key not in self._rows:
            values = self._rng.standard_normal((SLAB, width), np.float32) / np.float32(width**0.5)
            self._rows[key] = encode(fmt, values).reshape(SLAB, -1)
        return self._rows[key]

    def matrix(self, output: Output, fmt: Format) -> Stored:
        def rows(a: int, b: int) -> np.ndarray:
            slab = self.of(output.shape[-1], fmt)
            return slab[np.arange(a, b) % SLAB].reshape(-1)

        return Stored(output.name, output.shape, fmt, rows)


def shortened(value: Any, n_all: int, n: int) -> Any:
    """A configuration with the first n of its n_all layers."""
    if isinstance(value, dict):
        return {key: shortened(of, n_all, n) for key, of in value.items()}
    if isinstance(value, list) and len(value) == n_all:
        return value[:n]
    return value


def configuration(path: Path, n_layers: int | None) -> dict[str, Any]:
    values = json.loads(path.read_text())
    values.pop("quantization_config", None)
    text = values.get("text_config", values)
    if n_layers is not None:
        n_all = text["num_hidden_layers"]
        values = shortened(values, n_all, n_layers)
        text = values.get("text_config", values)
        text["num_hidden_layers"] = n_layers
    return values


def vocabulary(n: int) -> list[Entry]:
    """Keys of a vocabulary of n tokens: three special ones, bytes, and numbers."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    texts = [*texts, *(f" {i}" for i in range(len(texts), n))][:n]
    types = [2, 3, 3, *[6] * 256]
    types = [*types, *[1] * n][:n]
    return [
        string("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", "STRING", [text.encode() for text in texts]),
        array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(n)]),
        array("tokenizer.ggml.token_type", "INT32", types),
        uint32("tokenizer.ggml.bos_token_id", 1),
        uint32("tokenizer.ggml.eos_token_id", 2),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="config.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, help="its first ones (default: all)")
    parser.add_argument("--type", default="Q4_0", help="of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    values = configuration(args.config, args.layers)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        family = read_family(Config(Path(folder)), None)
        tied = values.get("tie_word_embeddings", getattr(family, "tied", False))
        outputs = list(
            family.outputs(Shapes(set() if tied else {"lm_head.weight"}, args.seed), False)
        )
    slabs, wanted = Slabs(args.seed), format_by_name(args.type)

    def format_of(output: Output) -> Format:
        if len(output.shape) == 1 or output.exact:
            return format_by_name("F32")
        narrow = wanted
        if output.shape[-1] % narrow.block:
            narrow = format_by_name(NARROWER.get(wanted.name, "F16"))
        return narrow if output.shape[-1] % narrow.block == 0 else format_by_name("F16")

    make: Callable[[Output, Format], Stored]
    tensors = []
    for output in outputs:
        fmt = format_of(output)
        make = encoded if fmt.name == "F32" else slabs.matrix
        tensors.append(make(output, fmt))
    entries = [string("general.name", args.out.stem), *family.entries()]
    entries += vocabulary(family.n_vocab)
    write_gguf(args.out, family.architecture, entries, tensors, [])


if __name__ == "__main__":
    main()
