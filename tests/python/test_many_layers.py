"""Files of thousands of layers: what reads them takes time in proportion to their number."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from powerinfer_cpp.cli import inspect
from powerinfer_cpp.core.errors import ModelFormatError
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.plan import memory_plan

N = 3000  # and four times as many: what grows with the square takes 16 times as long

# For n layers: keys by layer such that what a layer looks for is far away from it.
KEYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "lfm2": lambda n: {  # the last layer is the first with attention
        "attention.head_count": [0] * (n - 1) + [4],
        "attention.head_count_kv": [0] * (n - 1) + [2],
        "feed_forward_length": [32 + 32 * (i % 3) for i in range(n)],
        "shortconv.l_cache": 3,
    },
    "gemma4": lambda n: {  # half of the layers read the keys and values of the first one
        "attention.head_count": 4,
        "attention.head_count_kv": [2] * n,
        "attention.key_length": 16,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [i == 0 or i >= n // 2 for i in range(n)],
        "attention.shared_kv_layers": n // 2,
        "feed_forward_length": [64] * n,
    },
    "qwen3moe": lambda n: {  # the last layer has the first experts
        "attention.head_count": [4] * n,
        "attention.head_count_kv": [2] * n,
        "feed_forward_length": 64,
        "expert_count": [0] * (n - 1) + [4],
        "expert_used_count": [0] * (n - 1) + [2],
        "expert_feed_forward_length": [32] * n,
    },
}


def write(path: Path, architecture: str, n: int) -> Path:
    """A header with a tensor for each layer: the model is refused when all layers are known."""
    keys = {
        "context_length": 128,
        "embedding_length": 64,
        "block_count": n,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **KEYS[architecture](n),
    }
    values = {f"{architecture}.{key}": value for key, value in keys.items()}
    values["general.architecture"] = architecture
    values["tokenizer.ggml.model"] = "llama"
    values["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>", "a", "b"]
    entries = b"".join(gguf_files.entry(key, value) for key, value in values.items())
    infos = []
    for i in range(n):
        name = f"blk.{i}.attn_norm.weight".encode()
        infos.append(struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 64, 0, 256 * i))
    head = struct.pack("<4sIQQ", b"GGUF", 3, n, len(values)) + entries + b"".join(infos)
    head += bytes(-len(head) % 32)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 256 * n)
    return path


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, the shortest of two tries."""
    took = []
    for _ in range(2):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return min(took)


def refused(path: Path) -> None:
    with pytest.raises(ModelFormatError, match="is missing"):
        memory_plan(str(path), {}, {})


def shown(path: Path) -> None:
    with Gguf(path) as file:
        inspect.summary(file)


@pytest.mark.parametrize("architecture", KEYS)
def test_opening_takes_time_by_layer(architecture: str, tmp_path: Path) -> None:
    few, many = (write(tmp_path / f"{n}.gguf", architecture, n) for n in (N, 4 * N))
    assert seconds(lambda: refused(many)) < 9 * seconds(lambda: refused(few))


def test_inspecting_takes_time_by_layer(tmp_path: Path) -> None:
    few, many = (write(tmp_path / f"{n}.gguf", "qwen3moe", n) for n in (N // 3, 4 * N // 3))
    assert seconds(lambda: shown(many)) < 9 * seconds(lambda: shown(few))
