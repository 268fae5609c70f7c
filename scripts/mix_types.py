#!/usr/bin/env python3
"""The formats that llama.cpp's mixes give to the tensors of a few models.

The reference of tests/python/test_mixes.py:

    scripts/mix_types.py > tests/golden/mix_types.json    # needs llama-cpp-python and gguf

Each model is a GGUF of tensors with two short rows, which llama.cpp quantises by every name.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import gguf
import numpy as np

# Names and ids of llama.cpp's file types.
FILE_TYPES = {
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "TQ1_0": 36,
    "TQ2_0": 37,
}
SPLIT = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
EXPERTS = (*SPLIT[:4], "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
MODELS = {
    "llama": {"n_layer": 32, "n_head": 8, "n_head_kv": 8, "tensors": SPLIT},
    "small": {"n_layer": 4, "n_head": 8, "n_head_kv": 4, "tensors": SPLIT},
    "tied": {"n_layer": 22, "n_head": 8, "n_head_kv": 1, "tensors": SPLIT, "tied": True},
    "70b": {"n_layer": 80, "n_head": 8, "n_head_kv": 1, "tensors": SPLIT},
    "65b": {"n_layer": 80, "n_head": 8, "n_head_kv": 8, "tensors": SPLIT},
    "qwen2 72b": {"arch": "qwen2", "n_layer": 80, "n_head": 8, "n_head_kv": 8, "tensors": SPLIT},
    "qwen3": {"arch": "qwen3", "n_layer": 28, "n_head": 16, "n_head_kv": 8, "tensors": SPLIT},
    "falcon": {"arch": "falcon", "n_layer": 32, "n_head": 8, "n_head_kv": 1, "tensors": FUSED},
    "mixtral": {"n_layer": 32, "n_head": 8, "n_head_kv": 2, "n_expert": 8, "tensors": EXPERTS},
    "4 experts": {"n_layer": 16, "n_head": 8, "n_head_kv": 8, "n_expert": 4, "tensors": EXPERTS},
    "rows of 288": {"n_layer": 4, "n_head": 9, "n_head_kv": 3, "row": 288, "tensors": SPLIT},
    "imatrix": {"n_layer": 32, "n_head": 8, "n_head_kv": 8, "tensors": SPLIT, "imatrix": True},
}


def names(model: dict) -> list[str]:
    """Matrices of a model."""
    ends = ["token_embd"] if model.get("tied") else ["token_embd", "output"]
    layers = [f"blk.{i}.{part}" for i in range(model["n_layer"]) for part in model["tensors"]]
    return [f"{name}.weight" for name in ends + layers]


def write(path: Path, model: dict) -> None:
    """Writes the model, with zeros."""
    row, experts = model.get("row", 256), model.get("n_expert", 0)
    file = gguf.GGUFWriter(path, model.get("arch", "llama"))
    file.add_vocab_size(32)
    file.add_context_length(64)
    file.add_embedding_length(row)
    file.add_block_count(model["n_layer"])
    file.add_feed_forward_length(row)
    file.add_head_count(model["n_head"])
    file.add_head_count_kv(model["n_head_kv"])
    file.add_layer_norm_rms_eps(1e-5)
    file.add_layer_norm_eps(1e-5)
    if experts:
        file.add_expert_count(experts)
        file.add_expert_used_count(2)
    for name in names(model):
        shape = (experts, 2, row) if "_exps" in name else (2, row)
        file.add_tensor(name, np.zeros(shape, np.float16))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def quantised(lib, source: Path, target: Path, file_type: int, model: dict) -> dict[str, str]:
    """Formats of the tensors that llama.cpp writes."""
    params = lib.llama_model_quantize_default_params()
    params.ftype = file_type
    if model.get("imatrix"):
        values = (ctypes.c_float * 256)(*[1.0] * 256)
        data = (lib.llama_model_imatrix_data * 2)()
        data[0].name, data[0].data, data[0].size = b"blk.0.attn_q.weight", values, 256
        params.imatrix = data
    paths = (str(source).encode(), str(target).encode())
    if lib.llama_model_quantize(*paths, ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantise {source}")
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(target).tensors}


def by_part(types: dict[str, str]) -> dict[str, str]:
    """The formats of each part of a layer, layer after layer: "Q6_K*3 Q4_K"."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, kind in types.items():
        layer, _, part = name.removesuffix(".weight").removeprefix("blk.").rpartition(".")
        found.setdefault(part, []).append((int(layer or 0), kind))
    runs = {}
    for part, pairs in found.items():
        groups = [
            (kind, len(list(same))) for kind, same in groupby(kind for _, kind in sorted(pairs))
        ]
        runs[part] = " ".join(f"{kind}*{n}" if n > 1 else kind for kind, n in groups)
    return runs


def main() -> None:
    from llama_cpp import llama_cpp as lib

    @lib.llama_log_callback
    def quiet(_level, _text, _data):
        pass

    lib.llama_log_set(quiet, None)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.gguf"), Path(folder, "target.gguf")
        for case, model in MODELS.items():
            write(source, model)
            types = {
                mix: by_part(quantised(lib, source, target, file_type, model))
                for mix, file_type in FILE_TYPES.items()
            }
            found[case] = {"model": model, "types": types}
            print(case, file=sys.stderr)
    print("{")
    lines = []
    for case, values in found.items():
        types = ",\n".join(
            f"  {json.dumps(m)}: {json.dumps(t)}" for m, t in values["types"].items()
        )
        model = json.dumps(values["model"])
        lines.append(f' {json.dumps(case)}: {{"model": {model}, "types": {{\n{types}}}}}')
    print(",\n".join(lines), "\n}", sep="")


if __name__ == "__main__":
    main()
