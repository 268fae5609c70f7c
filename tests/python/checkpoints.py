"""Tiny Hugging Face checkpoints and predictor folders with random weights, for tests."""

from __future__ import annotations

import functools
import io
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "the quick brown fox jumps over the lazy dog; a small model tells a short story to a child. "
N_VOCAB = 320


@functools.cache
def tokenizer(model_type: str = "bpe") -> bytes:
    """A SentencePiece model of 300 pieces with byte fallback."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 50),
        model_writer=out,
        vocab_size=300,
        model_type=model_type,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=model_type == "bpe",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=2,
        user_defined_symbols=["<name>"],
    )
    return out.getvalue()


def config(**changes: Any) -> dict[str, Any]:
    """config.json of a Llama with two layers, as transformers 5 writes it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "vocab_size": N_VOCAB,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **changes,
    }


def weights(cfg: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights of every tensor in `cfg`."""
    rng = np.random.default_rng(seed)
    e, f, v = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
    head_dim = cfg.get("head_dim") or e // cfg["num_attention_heads"]
    q, kv = cfg["num_attention_heads"] * head_dim, cfg["num_key_value_heads"] * head_dim

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {"model.embed_tokens.weight": normal(v, e) * 8, "model.norm.weight": 1 + normal(e)}
    for i in range(cfg["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{norm}.weight"] = 1 + normal(e)
        for name, shape, bias in (
            ("self_attn.q_proj", (q, e), "attention_bias"),
            ("self_attn.k_proj", (kv, e), "attention_bias"),
            ("self_attn.v_proj", (kv, e), "attention_bias"),
            ("self_attn.o_proj", (e, q), "attention_bias"),
            ("mlp.gate_proj", (f, e), "mlp_bias"),
            ("mlp.up_proj", (f, e), "mlp_bias"),
            ("mlp.down_proj", (e, f), "mlp_bias"),
        ):
            found[f"{layer}.{name}.weight"] = normal(*shape) * 2
            if cfg[bias]:
                found[f"{layer}.{name}.bias"] = normal(shape[0]) * 2
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = normal(v, e) * 4
    return found


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits of the float32 values, cut to BF16."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def save_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    """Writes the format by hand, since numpy has no BF16."""
    convert = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    header, blobs, at = {}, [], 0
    for name, values in tensors.items():
        blob = (to_bf16(values) if dtype == "BF16" else values.astype(convert[dtype])).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def save(
    folder: Path,
    cfg: dict[str, Any],
    tensors: dict[str, np.ndarray],
    dtype: str = "F32",
    shards: int = 1,
) -> Path:
    """A model folder: config, tokenizer, weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "tokenizer.model").write_bytes(tokenizer())
    if shards == 1:
        save_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    names, index = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_safetensors(folder / file, part, dtype)
        index.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A model folder with F32 weights; changes: of config.json."""
    cfg = config(**changes)
    return save(folder, cfg, weights(cfg, seed))


# ---- torch files without torch ----


def save_torch(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A torch zip checkpoint, as torch.save lays it out."""
    kinds = {
        np.dtype(np.float32): "FloatStorage",
        np.dtype(np.float16): "HalfStorage",
        np.dtype(np.int16): "ShortStorage",
        np.dtype(np.uint8): "ByteStorage",
        np.dtype(np.bool_): "BoolStorage",
    }
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storages = {name: type(name, (), {"__module__": "torch"}) for name in kinds.values()}
    torch.__dict__.update(storages)

    def rebuild() -> None: ...

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild

    class Storage:
        def __init__(self, key: str, values: np.ndarray):
            self.key, self.values = key, values

    class Tensor:
        def __init__(self, storage: Storage):
            self.storage = storage

        def __reduce__(self) -> Any:
            values = self.storage.values
            stride = tuple(s // values.itemsize for s in values.strides)
            return rebuild, (self.storage, 0, values.shape, stride, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Storage):
                kind = storages[kinds[value.values.dtype]]
                return "storage", kind, value.key, "cpu", value.values.size
            return None

    data = io.BytesIO()
    stored = {
        name: Tensor(Storage(str(i), values)) for i, (name, values) in enumerate(tensors.items())
    }
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        Pickler(data, protocol=2).dump(stored)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", data.getvalue())
        archive.writestr(f"{path.stem}/byteorder", "little")
        for i, values in enumerate(tensors.values()):
            archive.writestr(f"{path.stem}/data/{i}", values.tobytes())


def predictors(
    folder: Path,
    cfg: dict[str, Any],
    ranks: tuple[int, ...] = (32, 24),
    threshold: float | None = 0.25,
) -> dict[str, np.ndarray]:
    """A predictor folder; returns its tensors by their names in the GGUF."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, found = np.random.default_rng(1), {}
    for layer, rank in enumerate(ranks):
        part = {
            "fc1.weight": rng.standard_normal((rank, cfg["hidden_size"])).astype(np.float16),
            "fc2.weight": rng.standard_normal((cfg["intermediate_size"], rank)).astype(np.float16),
        }
        save_torch(folder / f"model_{layer}.pt", part)
        found.update({f"blk.{layer}.{name}": values for name, values in part.items()})
    if threshold is not None:
        (folder / "config.json").write_text(json.dumps({"sparse_threshold": threshold}))
    return found
