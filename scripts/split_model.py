#!/usr/bin/env python3
"""Write a ReLU-gated Llama of a real shape with random weights, known firing rates and predictors.

    python scripts/split_model.py OUT.gguf [--shape 7B] [--type F16] [--density 0.10]

For measurements of speed (split_curve.py), not for text. How often a neuron fires is our choice:
an exponential law, by which 26 % of the neurons make 80 % of the firings, with a mean of --density,
half of it in the first layer and one and a half times in the last one. The file holds these rates
(blk.N.ffn_rate).

- Columns 0 to 31 of the residual stream hold a constant. On it the gate of neuron n carries its
  threshold, and the rest of the gate is of low rank, so that the predictor is exact.
- Columns 32 to 63 hold 0. A device that takes the GPU's place (tests/device/timed) puts a level
  there into the input of an FFN, and so decides which share of the neurons that it asks for fires.

Layers share their values, in another order in each, so the file is written at the disk's speed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import NormalDist

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

SHAPES = {  # n_embd, layers, n_ff, heads
    "7B": (4096, 32, 11008, 32),
    "13B": (5120, 40, 13824, 40),
    "tiny": (256, 2, 512, 4),
}
N_VOCAB = 32000
BLOCK = 32  # columns of the constant, and rows that stay together
LEVEL = 3.0  # the constant, in standard deviations of the other columns
SKEW = 6.2
SMALL = 0.01  # of what attention and FFN add to the residual stream
RANK = 1024


def rates(n_ff: int, density: float, order: np.ndarray) -> np.ndarray:
    """float64 [n_ff]: the exponential law with a mean of `density`, at most 0.95 each."""
    scale = density
    for _ in range(60):
        p = np.minimum(scale * SKEW * np.exp(-SKEW * order / n_ff), 0.95)
        scale *= density / p.mean()
    return np.clip(p, 1e-5, 0.95)


class Weights:
    """The values that layers share."""

    def __init__(self, shape: tuple[int, int, int, int], kind: str, density: float) -> None:
        self.d, self.layers, self.n_ff, self.heads = shape
        self.density = density
        self.type = GGMLQuantizationType[kind]
        self.rng = np.random.default_rng(1)
        d, n_ff = self.d, self.n_ff
        pred = min(RANK, d)
        rank = (pred - BLOCK) // 2
        scale = np.sqrt((BLOCK * LEVEL**2 + d - 2 * BLOCK) / d)  # of the residual stream
        self.level = LEVEL / scale
        self.spread = 1 / scale
        self.order = self.rng.permutation(n_ff)
        basis = self.normal(rank, d, 1 / np.sqrt(d))
        basis[:, : 2 * BLOCK] = 0
        mix = self.normal(n_ff, rank, 1 / np.sqrt(rank))
        gate = mix @ basis
        gate[:, BLOCK : 2 * BLOCK] = 1 / BLOCK
        self.gate = self.pack(gate)
        self.up = self.pack(self.normal(n_ff, d, 1 / np.sqrt(d)))
        down = self.normal(n_ff, d, SMALL / np.sqrt(n_ff * density))
        down[:, : 2 * BLOCK] = 0
        self.down = self.pack(down)
        out = self.normal(d, d, SMALL / np.sqrt(d))
        out[: 2 * BLOCK] = 0
        qkv = self.pack(self.normal(d, d, 1 / np.sqrt(d)))
        self.attention = {
            "attn_q": qkv,
            "attn_k": qkv,
            "attn_v": qkv,
            "attn_output": self.pack(out),
        }
        fc1 = np.zeros((pred, d), np.float32)
        fc1[:rank], fc1[rank : 2 * rank] = basis, -basis  # x = relu(x) - relu(-x)
        fc1[2 * rank : 2 * rank + BLOCK, :BLOCK] = np.eye(BLOCK)
        self.fc1 = self.pack(fc1)
        fc2 = np.zeros((n_ff, pred), np.float32)
        fc2[:, :rank], fc2[:, rank : 2 * rank] = mix, -mix
        self.fc2 = self.pack(fc2)
        self.threshold_at = 2 * rank * self.fc2.shape[1] // pred  # bytes into a row of fc2
        embed = self.normal(N_VOCAB, d, 1)
        embed[:, :BLOCK], embed[:, BLOCK : 2 * BLOCK] = LEVEL, 0
        self.embed = self.pack(embed)
        self.head = self.pack(self.normal(N_VOCAB, d, 1 / np.sqrt(d)))

    def normal(self, rows: int, cols: int, scale: float) -> np.ndarray:
        return self.rng.standard_normal((rows, cols), dtype=np.float32) * np.float32(scale)

    def pack(self, values: np.ndarray) -> np.ndarray:
        """uint8 [rows, bytes]"""
        packed = quants.quantize(np.ascontiguousarray(values, np.float32), self.type)
        return packed.reshape(len(values), -1).view(np.uint8)

    def layer(self, i: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The matrices of layer i, and how often its neurons fire."""
        density = self.density * (0.5 + i / max(1, self.layers - 1))
        rate = rates(self.n_ff, density, self.order)
        z = np.array([NormalDist().inv_cdf(1 - p) for p in rate])
        threshold = -(z * self.spread / (BLOCK * self.level))[:, None].repeat(BLOCK, 1)
        block = self.pack(threshold)
        gate, fc2 = self.gate.copy(), self.fc2.copy()
        gate[:, : block.shape[1]] = block
        fc2[:, self.threshold_at : self.threshold_at + block.shape[1]] = block
        groups = np.arange(self.n_ff).reshape(-1, BLOCK)
        rows = groups[self.rng.permutation(len(groups))].reshape(-1)
        found = dict(self.attention, ffn_gate=gate[rows], ffn_up=self.up[rows])
        found |= {"ffn_down_t": self.down[rows], "fc1": self.fc1, "fc2": fc2[rows]}
        return found, rate[rows].astype(np.float32)


def write(path: Path, weights: Weights) -> None:
    w = GGUFWriter(path, "llama")
    w.add_uint32("powerinfer.version", 1)
    w.add_string("powerinfer.ffn.activation", "relu")
    w.add_context_length(4096)
    w.add_embedding_length(weights.d)
    w.add_block_count(weights.layers)
    w.add_feed_forward_length(weights.n_ff)
    w.add_rope_dimension_count(weights.d // weights.heads)
    w.add_head_count(weights.heads)
    w.add_head_count_kv(weights.heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    special = ["<unk>", "<s>", "</s>"]
    w.add_token_list(special + [f"▁{i}" for i in range(len(special), N_VOCAB)])
    w.add_token_scores([0.0] * N_VOCAB)
    w.add_token_types([2, 3, 3] + [1] * (N_VOCAB - 3))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    ones = np.ones(weights.d, np.float32)
    f32 = GGMLQuantizationType.F32

    def tensors():
        yield "token_embd.weight", weights.embed, weights.type
        yield "output_norm.weight", ones, f32
        yield "output.weight", weights.head, weights.type
        for i in range(weights.layers):
            matrices, rate = weights.layer(i)
            yield f"blk.{i}.attn_norm.weight", ones, f32
            yield f"blk.{i}.ffn_norm.weight", ones, f32
            yield f"blk.{i}.ffn_rate", rate, f32
            for name, data in matrices.items():
                yield f"blk.{i}.{name}.weight", data, weights.type

    state = weights.rng.bit_generator.state
    for name, data, kind in tensors():
        block, size = quants.GGML_QUANT_SIZES[kind]
        shape = data.shape if data.ndim == 1 else (len(data), data.shape[1] * block // size)
        w.add_tensor_info(name, shape, np.dtype(np.float32), data.nbytes, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    weights.rng.bit_generator.state = state  # the same order of the neurons again
    file = w.fout[0]
    for _, data, _ in tensors():
        file.write(bytes(-file.tell() % 32))
        file.write(data.tobytes())
    file.write(bytes(-file.tell() % 32))
    w.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="7B")
    parser.add_argument("--type", choices=("F16", "Q8_0", "Q4_0"), default="F16")
    parser.add_argument("--density", type=float, default=0.10, help="mean share that fires")
    args = parser.parse_args()
    write(args.out, Weights(SHAPES[args.shape], args.type, args.density))


if __name__ == "__main__":
    main()
