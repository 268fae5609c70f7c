"""convert: checkpoints that are published as codes with scales give the file of their values."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packed_files as files
import pytest
from circles import pick
from families import golden
from packed_files import pair
from powerinfer_cpp.convert import codes, convert
from powerinfer_cpp.convert.checkpoint import open_checkpoint
from safetensors.numpy import load_file

from powerinfer_cpp import ModelFormatError, UnsupportedModelError


def gguf(folder: Path, **options: Any) -> bytes:
    out = folder.parent / "out.gguf"
    options = {"outtype": "f32", "log": lambda _line: None, **options}
    return convert(folder, outfile=out, **options).read_bytes()


def projections(name: str, matrix: np.ndarray) -> bool:
    return matrix.ndim == 2 and ("_proj" in name or ".experts." in name)


def experts(name: str, matrix: np.ndarray) -> bool:
    return ".experts." in name


def of_words(name: str, matrix: np.ndarray) -> bool:
    """Whose rows are whole words of any bits, also the embedding."""
    return matrix.ndim == 2 and matrix.shape[1] % 32 == 0


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"g": group}}


UP = "model.layers.0.mlp.up_proj.weight"
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
MLX = {"group_size": 8, "bits": 4}
CASES: dict[str, tuple[str, files.Scheme, Any, Callable[[str, np.ndarray], bool]]] = {
    # Blocks that do not divide all of the matrices.
    "deepseek": (
        "deepseek-v3",
        files.fp8_blocks(10, 9),
        {**FP8, "weight_block_size": [10, 9]},
        projections,
    ),
    "minimax": (
        "minimax-m2",
        files.fp8_blocks(5, 16),
        {**FP8, "weight_block_size": [5, 16]},
        projections,
    ),
    "blocks of 128": ("qwen3", files.fp8_blocks(128, 128), FP8, projections),
    "blocks by llm-compressor": (
        "qwen3-moe",
        files.fp8_blocks(7, 8, "weight_scale"),
        compressed("float-quantized", num_bits=8, strategy="block", block_structure=[7, 8]),
        projections,
    ),
    "rows": ("llama-silu-tied", files.fp8_rows, {"quant_method": "fbgemm_fp8"}, projections),
    "whole": (
        "ministral3",
        files.fp8_whole,
        {**FP8, "weight_block_size": None, "activation_scheme": "static"},
        projections,
    ),
    "modelopt": (
        "llama-silu-tied",
        files.fp8_whole,
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        projections,
    ),
    "int8": ("qwen3", files.int8_rows, compressed("int-quantized", num_bits=8), projections),
    "kimi": (
        "deepseek-v3",
        files.grouped(4, 8),
        compressed("pack-quantized", num_bits=4, group_size=8, strategy="group"),
        experts,
    ),
    "8 bits": (
        "glm4-moe",
        files.grouped(8, 8),
        compressed("pack-quantized", num_bits=8, group_size=8),
        experts,
    ),
    "3 bits with zeros": (
        "mixtral",
        files.grouped(3, 8, zeros=True),
        compressed("pack-quantized", num_bits=3, symmetric=False),
        projections,
    ),
    "an order": (
        "llama-silu-tied",
        files.grouped(4, 8, zeros=True, order=True),
        compressed("pack-quantized", num_bits=4, actorder="group"),
        projections,
    ),
    "nvfp4": (
        "llama-silu-tied",
        files.nvfp4(modelopt=False),
        compressed("nvfp4-pack-quantized", num_bits=4),
        projections,
    ),
    "nvfp4 by modelopt": (
        "llama-silu-tied",
        files.nvfp4(modelopt=True),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        projections,
    ),
    "mxfp8": (
        "llama-silu-tied",
        files.mxfp8,
        compressed("mxfp8-quantized", num_bits=8),
        projections,
    ),
    "mxfp4": (
        "qwen3-moe",
        files.mxfp4,
        compressed("mxfp4-pack-quantized", num_bits=4),
        experts,
    ),
    **{
        f"mlx {bits}": ("llama-silu-tied", files.mlx(bits), {**MLX, "bits": bits}, of_words)
        for bits in (2, 3, 4, 5, 6, 8)
    },
}


@pytest.mark.parametrize("case", CASES)
def test_files_are_those_of_the_values(case: str, tmp_path: Path) -> None:
    name, scheme, config, packs = CASES[case]
    key = "quantization" if case.startswith("mlx") else "quantization_config"
    plain, packed = pair(name, tmp_path, scheme, {key: config}, packs)
    assert gguf(packed) == gguf(plain)
    if case in ("deepseek", "kimi", "an order"):  # columns as rows, and another format
        for options in ({"bundle": True}, {"outtype": "q8_0"}):
            assert gguf(packed, **options) == gguf(plain, **options)


@pytest.mark.slow
def test_values_are_torchs() -> None:
    import torch

    every = torch.arange(256, dtype=torch.uint8)
    kinds = {"F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2", "F8_E8M0": "e8m0fnu"}
    for name, kind in kinds.items():
        dtype = getattr(torch, f"float8_{kind}")
        want = every.view(dtype).to(torch.float32).numpy()
        assert np.array_equal(codes.TABLES[name], want, equal_nan=True)


def test_tables() -> None:
    assert np.array_equal(codes.TABLES["F8_E4M3"], files.E4M3, equal_nan=True)
    assert np.array_equal(codes.E2M1, files.FP4)
    scale = codes.TABLES["F8_E8M0"]
    assert scale[127] == 1 and scale[0] == 2.0**-127 and np.isnan(scale[255])


def in_one(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The experts of each layer in two tensors."""
    found = {n: w for n, w in weights.items() if ".experts." not in n}
    for layer in {n.split(".experts.")[0] for n in weights if ".experts." in n}:
        parts = {
            part: [
                weights[f"{layer}.experts.{i}.{part}_proj.weight"]
                for i in range(sum(n.startswith(f"{layer}.experts.") for n in weights) // 3)
            ]
            for part in ("gate", "up", "down")
        }
        both = [np.concatenate(two) for two in zip(parts["gate"], parts["up"], strict=True)]
        found[f"{layer}.experts.gate_up_proj"] = np.stack(both)
        found[f"{layer}.experts.down_proj"] = np.stack(parts["down"])
    return found


@pytest.mark.parametrize("blocks", [False, True])
def test_experts_of_a_layer_in_one_tensor(blocks: bool, tmp_path: Path) -> None:
    """With a scale for each expert, or blocks of each."""
    plain, packed = (golden("qwen3-moe", tmp_path / kind / "model") for kind in ("a", "b"))
    weights = in_one(load_file(plain / "model.safetensors"))
    tensors = files.floats(weights)
    for name in [n for n in weights if ".experts." in n]:
        stack = weights[name].astype(np.float32)
        if blocks:
            found = [files.fp8_blocks(6, 8)(matrix) for matrix in stack]
            coded = np.stack([one["weight"][1] for one, _ in found])
            scale = np.stack([one["weight_scale_inv"][1] for one, _ in found])
            values = np.stack([value for _, value in found])
        else:
            scale = np.abs(stack).max((1, 2), keepdims=True) / 448
            coded = files.nearest(stack / scale, files.E4M3)
            values = files.E4M3[coded] * scale
        weights[name], tensors[name] = values, ("F8_E4M3", coded)
        tensors[f"{name}_scale_inv"] = ("F32", scale)
        tensors[f"{name}_activation_scale"] = ("F32", np.float32(1))
    files.write(packed / "model.safetensors", tensors)
    files.write(plain / "model.safetensors", files.floats(weights))
    config = packed / "config.json"
    scheme = {**FP8, "weight_block_size": [6, 8]}
    config.write_text(config.read_text()[:-1] + f', "quantization_config": {json.dumps(scheme)}}}')
    for options in ({}, {"bundle": True}):
        assert gguf(packed, **options) == gguf(plain, **options)


# ---- MLX ----


def as_mlx(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What MLX makes of a checkpoint of gated delta nets."""
    found, stacks = {}, {}
    for name, weight in weights.items():
        if ".conv1d." in name:
            weight = np.moveaxis(weight, 2, 1)
        if name.endswith(
            ("_layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
        ):
            weight = weight + np.float32(1)
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            stacks.setdefault(f"{before}.switch_mlp.{after.partition('.')[2]}", []).append(weight)
        else:
            found[name] = weight
    return found | {name: np.stack(parts) for name, parts in stacks.items()}


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3-5", "qwen3-5-moe"])
@pytest.mark.parametrize("marked", [False, True])
def test_delta_nets_of_mlx(name: str, marked: bool, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    path = folder / "model.safetensors"
    weights = {n: w.astype(np.float32) for n, w in load_file(path).items()}
    files.write(path, files.floats(weights))
    plain = gguf(folder)
    metadata = {"format": "mlx"} if marked else {}
    files.write(path, files.floats(as_mlx(weights)), **metadata)
    assert gguf(folder) == plain
    files.write(path, files.floats(weights), format="mlx")
    with pytest.raises(UnsupportedModelError, match="MLX wrote it.*norms"):
        gguf(folder)


def test_mixtures_of_mlx(tmp_path: Path) -> None:
    """Experts in one tensor, with codes, and modules with settings of their own."""
    plain, packed = pair("qwen3-moe", tmp_path, files.mlx(4), {}, projections)
    tensors: files.Tensors = {}
    weights = load_file(plain / "model.safetensors")
    settings: dict[str, Any] = dict(MLX)
    stacks: dict[str, list[np.ndarray]] = {}
    for name, weight in weights.items():
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            stacks.setdefault(f"{before}.switch_mlp.{after.partition('.')[2]}", []).append(weight)
        elif name.endswith("q_proj.weight"):
            found, weights[name] = files.mlx(6, 16)(weight)
            module = name.removesuffix(".weight")
            settings[module] = {"group_size": 16, "bits": 6}
            tensors |= {f"{module}.{end}": tensor for end, tensor in found.items()}
        else:
            tensors[name] = ("F32", weight)
    for name, parts in stacks.items():
        found = [files.mlx(4)(part)[0] for part in parts]
        for end, (kind, _) in found[0].items():
            stack = np.stack([one[end][1] for one in found])
            tensors[f"{name.removesuffix('weight')}{end}"] = (kind, stack)
    for name in [n for n in weights if ".experts." in n]:
        weights[name] = files.mlx(4)(weights[name])[1]
    files.write(plain / "model.safetensors", files.floats(weights))
    files.write(packed / "model.safetensors", tensors, format="mlx")
    config = packed / "config.json"
    both = {"quantization": settings, "quantization_config": settings}
    config.write_text(json.dumps({**json.loads(config.read_text()), **both}))
    notes: list[str] = []
    assert gguf(packed, log=notes.append) == gguf(plain)
    assert not [note for note in notes if "quantization" in note]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bits": 8, "mode": "mxfp4"}, "no scales and biases of the mode 'mxfp4'"),
        ({"mode": "new"}, "packed by MLX in the mode 'new'"),
        ({"group_size": 0}, "groups of 0"),
        ({"bits": "4"}, "hold '4' bits"),
        ({UP[:-7]: {"bits": 5}}, f"{UP} has shape .* hold 5 bits"),
    ],
)
def test_settings_of_mlx_that_contradict_the_tensors(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    name, scheme, config, packs = CASES["mlx 4"]
    config = {"quantization": {**config, **settings}}
    _, packed = pair(name, tmp_path, scheme, config, packs)
    with pytest.raises(ModelFormatError, match=words):
        gguf(packed)


def test_four_bits_with_the_codes_of_eight(tmp_path: Path) -> None:
    """The codes of a mode have its bits."""
    name, scheme, config, packs = CASES["mlx 8"]
    config = {"quantization": {**config, "mode": "mxfp4"}}
    _, packed = pair(name, tmp_path, scheme, config, packs)
    tensors = raw(packed / "model.safetensors")
    kept = {n: w for n, w in tensors.items() if not n.endswith(".biases")}
    files.write(packed / "model.safetensors", kept)
    with pytest.raises(ModelFormatError, match="does not hold 8 bits"):
        gguf(packed)


def test_what_mlx_changes_elsewhere_is_named(tmp_path: Path) -> None:
    folder = golden("lfm2", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    moved = {n: np.moveaxis(w, 2, 1) if w.ndim == 3 else w for n, w in weights.items()}
    files.write(folder / "model.safetensors", files.floats(moved), format="mlx")
    with pytest.raises(ModelFormatError, match=r"conv\.weight has shape.*MLX wrote it"):
        gguf(folder)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("packing", "words"),
    [
        ({"quant_method": "awq", "bits": 4}, "weights packed by AWQ are not read"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by bitsandbytes"),
        ({"quant_method": "hqq"}, "by HQQ"),
        ({"quant_method": "new-one"}, "by 'new-one'"),
        (compressed("marlin-24", num_bits=4), "the format 'marlin-24'"),
        ({**compressed("dense"), "sparsity_config": {"format": "sparse-24-bitmask"}}, "bitmask"),
        (
            {**compressed("pack-quantized"), "transform_config": {"config_groups": {"a": {}}}},
            "transform_config",
        ),
    ],
)
def test_schemes_that_are_not_read(packing: Any, words: str, tmp_path: Path) -> None:
    folder = golden("qwen3", tmp_path / "model", quantization_config=packing)
    pattern = rf"config\.json: quantization_config: .*{words}.*FP8.*MLX.*--allow-unknown"
    with pytest.raises(UnsupportedModelError, match=pattern):
        gguf(folder)


DOWN = "model.layers.1.mlp.down_proj.weight"


def cut(tensors: files.Tensors, name: str, *index: Any) -> None:
    kind, values = tensors[name]
    tensors[name] = (kind, np.ascontiguousarray(values[index]))


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("rows", lambda t: t.pop(f"{DOWN}_scale"), rf"{DOWN} has codes \(F8_E4M3\) without scales"),
        ("rows", lambda t: cut(t, f"{DOWN}_scale", slice(3)), rf"{DOWN}_scale has shape \[3, 1\]"),
        (
            "rows",
            lambda t: t.update({f"{DOWN}_scale": ("I64", np.ones((32, 1), np.int64))}),
            "_scale has element type I64",
        ),
        ("kimi", lambda t: t.pop(f"{K2}_shape"), "has no matrix of words with its shape"),
        ("kimi", lambda t: cut(t, f"{K2}_packed", slice(2)), r"_packed has shape \[2, "),
        ("kimi", lambda t: t.update({f"{K2}_shape": ("I64", np.full(2, 1 << 60))}), "_packed has"),
        ("an order", lambda t: cut(t, f"{DOWN}_zero_point", 0), "_zero_point has shape"),
        (
            "an order",
            lambda t: t.update({f"{DOWN}_g_idx": ("I32", np.full(80, 99, np.int32))}),
            "_g_idx names a group without a scale",
        ),
        (
            "kimi",
            lambda t: t.update({f"{K2}_packed": ("U8", t[f"{K2}_packed"][1].view(np.uint8))}),
            "_packed has no matrix of words",
        ),
        ("mlx 4", lambda t: t.pop(f"{UP[:-7]}.biases"), "no scales and biases"),
        ("mlx 4", lambda t: cut(t, UP, slice(None), slice(1)), r"hold 4 bits for \[80, 4\]"),
    ],
)
def test_tensors_that_contradict_each_other(
    case: str, change: Callable[[files.Tensors], Any], words: str, tmp_path: Path
) -> None:
    name, scheme, config, packs = CASES[case]
    key = "quantization" if case.startswith("mlx") else "quantization_config"
    _, packed = pair(name, tmp_path, scheme, {key: config}, packs)
    tensors = raw(packed / "model.safetensors")
    change(tensors)
    files.write(packed / "model.safetensors", tensors)
    with pytest.raises(ModelFormatError, match=words) as caught:
        gguf(packed)
    assert str(packed) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("end", "words"),
    [("qweight", "GPTQ or AWQ"), ("weight.absmax", "bitsandbytes"), ("W_q", "HQQ")],
)
def test_schemes_that_only_tensors_name(end: str, words: str, tmp_path: Path) -> None:
    folder = golden("qwen3", tmp_path / "model")
    path = folder / "model.safetensors"
    tensors = files.floats(load_file(path))
    tensors[f"{UP[:-6]}{end}"] = tensors.pop(UP)
    files.write(path, tensors)
    with pytest.raises(ModelFormatError, match=f"lacks tensor {UP}.*packed by {words}"):
        gguf(folder)


K2 = "model.layers.1.mlp.experts.0.up_proj.weight"
NUMPY = {"F32": "<f4", "BF16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
NUMPY |= {"F8_E4M3": "u1", "U8": "u1", "I8": "i1"}


def raw(path: Path) -> files.Tensors:
    """The tensors of a file as they are."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found: files.Tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        a, b = (8 + size + at for at in entry["data_offsets"])
        values = np.frombuffer(data[a:b], NUMPY[entry["dtype"]])
        found[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return found


def damaged(tensors: files.Tensors, rng: np.random.Generator) -> str:
    """Changes a tensor; says how."""
    names = [n for n in tensors if ".layers.0." in n and "norm" not in n]
    name = names[rng.integers(len(names))]
    kind, values = tensors[name]
    how = rng.integers(6)
    if how == 0:
        del tensors[name]
    elif how == 1 and values.ndim:
        tensors[name] = (kind, np.ascontiguousarray(values[: len(values) // 2]))
    elif how == 2:
        tensors[name] = (kind, np.ascontiguousarray(values.reshape(-1)))
    elif how == 3 and values.ndim:
        tensors[name] = (kind, np.ascontiguousarray(values[..., :0]))
    elif how == 4:
        size = values.itemsize
        tensors[name] = ({1: "I8", 2: "F16", 4: "I32", 8: "F64"}[size], values)
    else:
        drawn = rng.integers(0, 256, values.nbytes, np.uint8)
        tensors[name] = (kind, drawn.view(values.dtype).reshape(values.shape))
    return f"{name} {how}"


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("mlx 2", "mlx 5", "mlx 8")])
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_damaged_files_are_refused_or_read(case: str, tmp_path: Path) -> None:
    name, scheme, config, packs = CASES[case]
    key = "quantization" if case.startswith("mlx") else "quantization_config"
    _, packed = pair(name, tmp_path, scheme, {key: config}, packs)
    path = packed / "model.safetensors"
    whole, rng = raw(path), np.random.default_rng(sum(case.encode()))
    for _ in range(pick(4, 200)):
        tensors = dict(whole)
        how = damaged(tensors, rng)
        files.write(path, tensors)
        try:
            gguf(packed)
        except ValueError as error:
            named = any(place in str(error) for place in ("model.layers.0.", "blk.0."))
            assert named and "\n" not in str(error), how


def test_a_part_of_a_matrix_takes_memory_for_that_part(tmp_path: Path) -> None:
    from powerinfer_cpp.convert.packed import Scheme, unpacked

    n_rows, n_cols = pick((2048, 2048), (8192, 8192))
    codes_of = np.zeros((n_rows, n_cols), np.uint8)
    scale = np.ones((n_rows // 128, n_cols // 128), np.float32)
    tensors: files.Tensors = {"a.weight": ("F8_E4M3", codes_of)}
    files.write(tmp_path / "model.safetensors", {**tensors, "a.weight_scale_inv": ("F32", scale)})
    matrix = unpacked(open_checkpoint(tmp_path), Scheme())["a.weight"].stored()
    for index in (slice(0, 64), (slice(None), slice(5, 69)), np.arange(0, n_rows, n_rows // 64)):
        tracemalloc.start()
        part = matrix[index]  # beside it are its scales, of whole blocks
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert part.size == 64 * 2048 * n_rows // 2048 and peak < 6 * part.nbytes
