#!/usr/bin/env python3
"""Write a large sharded Llama checkpoint, to show that conversion needs little memory.

    python scripts/make_big_checkpoint.py FOLDER [--gigabytes 20] [--shards 8]
    /usr/bin/time -v python convert.py --outtype q8_0 --outfile big.gguf FOLDER

It has layers of a 7B model in F16, as many as fit the size. Every tensor repeats one block of
random numbers, so only the disk limits the writing speed. The vocabulary is that of the default
model, padded.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 1 << 23  # elements, 16 MiB
N_EMBD, N_FF, N_KV, N_VOCAB = 4096, 14336, 1024, 32000


def shapes(n_layer: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (N_VOCAB, N_EMBD)}
    for i in range(n_layer):
        layer = f"model.layers.{i}"
        found |= {
            f"{layer}.input_layernorm.weight": (N_EMBD,),
            f"{layer}.post_attention_layernorm.weight": (N_EMBD,),
            f"{layer}.self_attn.q_proj.weight": (N_EMBD, N_EMBD),
            f"{layer}.self_attn.k_proj.weight": (N_KV, N_EMBD),
            f"{layer}.self_attn.v_proj.weight": (N_KV, N_EMBD),
            f"{layer}.self_attn.o_proj.weight": (N_EMBD, N_EMBD),
            f"{layer}.mlp.gate_proj.weight": (N_FF, N_EMBD),
            f"{layer}.mlp.up_proj.weight": (N_FF, N_EMBD),
            f"{layer}.mlp.down_proj.weight": (N_EMBD, N_FF),
        }
    return {**found, "model.norm.weight": (N_EMBD,), "lm_head.weight": (N_VOCAB, N_EMBD)}


def n_bytes(shape: tuple[int, ...]) -> int:
    return 2 * int(np.prod(shape, dtype=np.int64))


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]], block: bytes) -> None:
    """A safetensors file whose tensors repeat `block`."""
    header, at = {}, 0
    for name, shape in tensors.items():
        end = at + n_bytes(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            left = n_bytes(shape)
            while left:
                left -= file.write(block[:left])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--shards", type=int, default=8)
    args = parser.parse_args()

    each = sum(map(n_bytes, shapes(1).values())) - sum(map(n_bytes, shapes(0).values()))
    fixed = sum(map(n_bytes, shapes(0).values()))
    n_layer = max(1, round((args.gigabytes * 1e9 - fixed) / each))
    tensors = shapes(n_layer)
    total = sum(map(n_bytes, tensors.values()))
    args.folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(args.folder).free < total:
        parser.error(f"{total / 1e9:.1f} GB needed in {args.folder}")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "relu",
        "hidden_size": N_EMBD,
        "intermediate_size": N_FF,
        "num_hidden_layers": n_layer,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": N_VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (args.folder / "config.json").write_text(json.dumps(config, indent=2))
    shutil.copy(ROOT / "models" / "tokenizer.model", args.folder)
    values = np.random.default_rng(0).standard_normal(BLOCK, dtype=np.float32) * 0.02
    block, names = values.astype(np.float16).tobytes(), list(tensors)
    per_shard, index = -(-len(names) // args.shards), {}
    for i in range(args.shards):
        part = names[i * per_shard : (i + 1) * per_shard]
        file = f"model-{i + 1:05}-of-{args.shards:05}.safetensors"
        write_shard(args.folder / file, {name: tensors[name] for name in part}, block)
        index.update(dict.fromkeys(part, file))
    text = json.dumps({"weight_map": index}, indent=2)
    (args.folder / "model.safetensors.index.json").write_text(text)
    print(f"{args.folder}: {total / 1e9:.1f} GB, {n_layer} layers, {args.shards} shards")


if __name__ == "__main__":
    main()
