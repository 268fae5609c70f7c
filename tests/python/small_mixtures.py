"""Ordinary GGUFs of small mixtures of experts with random weights, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFValueType
from powerinfer_cpp.convert.formats import Format, encode, format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import Entry, array, float32, string, uint32, write_gguf

TEMPLATE = """{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"""
N_VOCAB = 512


def floats(name: str, values: np.ndarray) -> Stored:
    flat = np.ascontiguousarray(values, np.float32)
    data = flat.reshape(-1, flat.shape[-1]).view(np.uint8)
    fmt = format_by_name("F32")
    return Stored(name, flat.shape, fmt, lambda a, b: data[a:b].reshape(-1))


def nvfp4(values: np.ndarray) -> np.ndarray:
    """Blocks near these values: the engine has no encoder for the format."""
    halves = gguf.quants.NVFP4.ue4m3_to_fp32(np.arange(127, dtype=np.uint8))
    groups = values.reshape(-1, 4, 16)
    scale = np.searchsorted(halves, np.abs(groups).max(-1) / 12).clip(1, 126).astype(np.uint8)
    sizes = np.abs(groups) / halves[scale][..., None]
    levels = np.array(gguf.quants.NVFP4.kvalues[:8], dtype=np.float32)
    codes = np.abs(sizes[..., None] - levels).argmin(-1).astype(np.uint8) | (groups < 0) * np.uint8(
        8
    )
    bytes_of = codes[..., :8] | codes[..., 8:] << 4
    return np.concatenate([scale, bytes_of.reshape(-1, 32)], axis=-1).reshape(-1)


@dataclass(frozen=True)
class Mixture:
    """What a file is like."""

    family: str = "qwen3moe"  # or qwen2moe, or smallthinker, gpt-oss, or llama: Mixtral
    type: str = "Q4_K"  # of matrices
    down: str = "Q6_K"  # of down in every other layer, as K_M files have it
    experts: str = "stacked"  # fused: gate and up are one tensor; single: a tensor for each expert
    width: int = 256
    n_ff: int = 256
    n_layer: int = 3
    n_expert: int = 32
    n_used: int = 3
    n_ff_shared: int = 0  # of an expert that every token computes, with a share of its own
    uneven: bool = False  # layers differ in experts and neurons, the first has no experts
    tied: bool = False  # the embedding is the head
    scaled: bool = False  # a factor beside each matrix in blocks, for experts one each
    scaled: bool = False  # a factor beside each matrix of a layer, for experts one each
    parts: int = 1  # files
    seed: int = 1

    def write(self, path: Path) -> Path:
        """Writes it, in parts beside `path`. The file to open."""
        tensors = list(self._tensors())
        if self.scaled:
            tensors += self._factors(tensors)
        if self.parts == 1:
            write_gguf(path, self.family, self._keys(), tensors)
            return path
        each = -(-len(tensors) // self.parts)
        for i in range(self.parts):
            of = [
                Entry("split.no", GGUFValueType.UINT16, i),
                Entry("split.count", GGUFValueType.UINT16, self.parts),
                Entry("split.tensors.count", GGUFValueType.INT32, len(tensors)),
            ]
            keys = of if i else self._keys() + of
            part = tensors[i * each : (i + 1) * each]
            write_gguf(self.part(path, i), "" if i else self.family, keys, part)
        return self.part(path, 0)

    def part(self, path: Path, i: int) -> Path:
        """The file with this part, counted from 0."""
        return path.with_name(f"{path.stem}-{i + 1:05}-of-{self.parts:05}.gguf")

    def _tensors(self) -> Iterator[Stored]:
        rng = np.random.default_rng(self.seed)
        width, head = self.width, self.width // 4
        # Experts have rows of a pool, each others: encoding all of them would take long.
        pools: dict[tuple[int, str], np.ndarray] = {}

        def blocks(fmt: Format, values: np.ndarray) -> np.ndarray:
            data = nvfp4(values) if fmt.name == "NVFP4" else encode(fmt, values)
            return data.reshape(len(values), -1)

        def matrix(name: str, shape: tuple[int, ...], kind: str, size: float = 1) -> Stored:
            cols, fmt = shape[-1], format_by_name(kind)
            if (cols, kind) not in pools:
                values = rng.standard_normal((1024, cols), np.float32) / np.float32(np.sqrt(cols))
                pools[cols, kind] = blocks(fmt, values)
            pool, n = pools[cols, kind], int(np.prod(shape[:-1]))
            if size != 1:
                values = rng.standard_normal((n, cols), np.float32)
                pool = blocks(fmt, values * np.float32(size / np.sqrt(cols)))
                return Stored(name, shape, fmt, lambda a, b: pool[a:b].reshape(-1))
            ids = rng.integers(0, len(pool), n)
            return Stored(name, shape, fmt, lambda a, b: pool[ids[a:b]].reshape(-1))

        def norm(name: str, n: int) -> Stored:
            return floats(name, 1 + rng.standard_normal(n) / 5)

        yield matrix("token_embd.weight", (N_VOCAB, width), self.type, 4)
        yield norm("output_norm.weight", width)
        if not self.tied:
            head_type = "Q6_K" if width % 256 == 0 else "Q8_0"
            yield matrix("output.weight", (N_VOCAB, width), head_type, 3)
        for i in range(self.n_layer):
            blk = f"blk.{i}."
            before = "post_attention_norm" if self.family == "gpt-oss" else "ffn_norm"
            for name in ("attn_norm", before):
                yield norm(f"{blk}{name}.weight", width)
            if self.family == "qwen3moe":
                for name in ("attn_q_norm", "attn_k_norm"):
                    yield norm(f"{blk}{name}.weight", head)
            for name, rows in (("q", width), ("k", width // 2), ("v", width // 2)):
                yield matrix(f"{blk}attn_{name}.weight", (rows, width), self.type)
            yield matrix(f"{blk}attn_output.weight", (width, width), self.type)
            n_expert, n_ff = self._experts(i), self._neurons(i)
            down = self.down if i % 2 == 0 else self.type
            if not n_expert:
                yield matrix(f"{blk}ffn_gate.weight", (n_ff, width), self.type)
                yield matrix(f"{blk}ffn_up.weight", (n_ff, width), self.type)
                yield matrix(f"{blk}ffn_down.weight", (width, n_ff), down)
                continue
            router = rng.standard_normal((n_expert, width)) / np.sqrt(width)
            yield floats(f"{blk}ffn_gate_inp.weight", router * 3)
            if shared := self.n_ff_shared:
                share = rng.standard_normal(width) / np.sqrt(width)
                yield floats(f"{blk}ffn_gate_inp_shexp.weight", share)
                yield matrix(f"{blk}ffn_gate_shexp.weight", (shared, width), self.type)
                yield matrix(f"{blk}ffn_up_shexp.weight", (shared, width), self.type)
                yield matrix(f"{blk}ffn_down_shexp.weight", (width, shared), self.type)
            if self.family == "gpt-oss":
                yield floats(f"{blk}attn_sinks.weight", rng.standard_normal(4))
                yield floats(f"{blk}ffn_gate_inp.bias", rng.standard_normal(n_expert))
                for name, n in (("gate", n_ff), ("up", n_ff), ("down", width)):
                    bias = rng.standard_normal((n_expert, n)) / 4
                    yield floats(f"{blk}ffn_{name}_exps.bias", bias)
            gate_up = {"gate": (n_ff, width), "up": (n_ff, width)}
            if self.experts == "fused":
                gate_up = {"gate_up": (2 * n_ff, width)}
            shapes = {name: (shape, self.type) for name, shape in gate_up.items()}
            shapes["down"] = (width, n_ff), down
            for name, (shape, kind) in shapes.items():
                if self.experts != "single":
                    yield matrix(f"{blk}ffn_{name}_exps.weight", (n_expert, *shape), kind)
                    continue
                for e in range(n_expert):
                    yield matrix(f"{blk}ffn_{name}.{e}.weight", shape, kind)

    def _factors(self, tensors: list[Stored]) -> list[Stored]:
        rng, found = np.random.default_rng(self.seed), []
        for tensor in tensors:
            if tensor.format.quantised and tensor.name != "token_embd.weight":
                n = tensor.shape[0] if len(tensor.shape) == 3 else 1
                name = tensor.name.removesuffix("weight") + "scale"
                found.append(floats(name, rng.uniform(0.7, 1.5, n)))
        return found

    def _experts(self, layer: int) -> int:
        if not self.uneven:
            return self.n_expert
        return self.n_expert - 4 * layer if layer else 0

    def _neurons(self, layer: int) -> int:
        return self.n_ff * (1 + layer * self.uneven)

    def _by_layer(self, key: str, of: Callable[[int], int]) -> Entry:
        values = [of(i) for i in range(self.n_layer)]
        name = f"{self.family}.{key}"
        return array(name, "UINT32", values) if self.uneven else uint32(name, values[0])

    def _keys(self) -> list[Entry]:
        words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
        kinds = [2, 3, 3] + [6] * 256 + [1] * (N_VOCAB - len(words))
        words += [f"▁w{i}" for i in range(N_VOCAB - len(words))]
        sizes = {
            "context_length": 512,
            "embedding_length": self.width,
            "block_count": self.n_layer,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
        }
        if self.family != "llama":
            sizes |= {f"attention.{name}_length": self.width // 4 for name in ("key", "value")}
        if self.n_ff_shared:
            sizes["expert_shared_feed_forward_length"] = self.n_ff_shared
        return [
            *(uint32(f"{self.family}.{key}", value) for key, value in sizes.items()),
            self._by_layer("feed_forward_length", self._neurons),
            self._by_layer("expert_count", self._experts),
            self._by_layer("expert_used_count", lambda i: min(self.n_used, self._experts(i))),
            float32(f"{self.family}.attention.layer_norm_rms_epsilon", 1e-5),
            string("tokenizer.ggml.model", "llama"),
            array("tokenizer.ggml.tokens", "STRING", words),
            array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(N_VOCAB)]),
            array("tokenizer.ggml.token_type", "INT32", kinds),
            uint32("tokenizer.ggml.bos_token_id", 1),
            uint32("tokenizer.ggml.eos_token_id", 2),
            string("tokenizer.chat_template", TEMPLATE),
        ]
