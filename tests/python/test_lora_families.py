"""Adapters of every family: what peft adds to a checkpoint, in the order and scale of the GGUF."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from circles import pick
from families import GOLDEN, golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.lora.low_rank import LowRank, NotLinear
from reference import relative_error
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

ROUNDING = 2e-5  # as in test_golden.py, with an F32 cache
OPTIONS: dict[str, Any] = {
    "n_ctx": 64,
    "logits_all": True,
    "verbose": False,
    "type_k": 0,
    "type_v": 0,
}
# What no adapter can change: tables, experts, what a GGUF has as a vector or in three dimensions,
# indexers.
FIXED = re.compile(
    r".*embed.*|.*\.(experts\.\d+\..+|shared_expert_gate|kv_b_proj|index_qk_proj)"
    r"|transformer\.w[tp]e"
)
SAY_LESS = ("bailing-hybrid", "cohere2-moe", "kimi-linear", "mimo-v2", "step3")  # their GGUF
QUICK = "deepseek-v2 falcon-40b gemma4-embeddings gpt2 lfm2 llama-bias mixtral opt phi3-short "
QUICK += "laguna qwen3-5 qwen3-next stablelm"
# Those that safetensors' numpy side reads.
ALL = sorted(
    path.parent.name
    for path in GOLDEN.glob("*/model.safetensors")
    if path.parent.name != "llama-bfloat16" and (path.parent / "expected.npz").exists()
)


def adapter(
    folder: Path, terms: dict[str, tuple[np.ndarray, np.ndarray]], end: str = "", **config: Any
) -> Path:
    """A folder of peft's. terms: (A, B) by the module's name; end: behind lora_A and lora_B."""
    tensors = {}
    for module, (a, b) in terms.items():
        tensors[f"{module}.lora_A{end}.weight"] = a
        tensors[f"{module}.lora_B{end}.weight"] = b
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    known = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, **config}
    (folder / "adapter_config.json").write_text(json.dumps(known))
    return folder


def term(weight: np.ndarray, inputs_first: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A [3, inputs] and B [outputs, 3] for a weight."""
    outputs, inputs = weight.shape[::-1] if inputs_first else weight.shape
    rng = np.random.default_rng(outputs * 1000 + inputs)
    a, b = rng.standard_normal((3, inputs)) / 12, rng.standard_normal((outputs, 3)) / 4
    return a.astype(np.float32), b.astype(np.float32)


def converted(folder: Path, base: Path, out: Path, log: Callable[[str], None] = quiet) -> bytes:
    return convert(folder, base=base, outfile=out, log=log).read_bytes()


def computed(path: Path, tokens: Any, adapters: dict[Any, float]) -> np.ndarray:
    with Llama(path, **OPTIONS) as llm:
        llm.set_adapters(adapters)
        llm.eval([int(t) for t in tokens])
        return llm.scores[: len(tokens)].astype(np.float64)


@pytest.mark.parametrize("name", pick(QUICK.split(), ALL))
def test_terms_equal_a_merged_checkpoint(tmp_path: Path, name: str) -> None:
    """Of every matrix at once; the GGUF says of the base model what config.json does."""
    base = golden(name, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    merged = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in weights.items()}
    terms = {}
    for key, weight in weights.items():
        module = key.removesuffix(".weight")
        if weight.ndim != 2 or module == key or FIXED.fullmatch(module):
            continue
        inputs_first = name == "gpt2" and module != "lm_head"
        a, b = term(weight, inputs_first)
        terms[f"base_model.model.{module}"] = a, b
        merged[key] = merged[key] + (2 * (b @ a).T if inputs_first else 2 * b @ a)
    assert len(terms) >= 7
    peft = adapter(tmp_path / "peft", terms, base_model_name_or_path=str(base))
    shutil.copytree(base, tmp_path / "merged")
    save_file(merged, tmp_path / "merged" / "model.safetensors")
    tokens = np.load(GOLDEN / name / "expected.npz")["tokens"].reshape(-1)[:16]
    models = {}
    for kind in ("base", "merged"):
        models[kind] = tmp_path / f"{kind}.gguf"
        convert(tmp_path / kind, outfile=models[kind], outtype="f32", log=quiet)
    out = convert(peft, outfile=tmp_path / "adapter.gguf", log=quiet)
    want = computed(models["merged"], tokens, {})
    assert relative_error(computed(models["base"], tokens, {out: 1.0}), want) < ROUNDING
    assert relative_error(computed(models["base"], tokens, {}), want) > 1000 * ROUNDING
    if name in SAY_LESS:
        with pytest.raises(UnsupportedModelError, match="give a folder with the model's config"):
            converted(peft, models["base"], tmp_path / "again.gguf")
        return
    assert converted(peft, models["base"], tmp_path / "again.gguf") == out.read_bytes()


def test_the_head_of_a_tied_model(tmp_path: Path) -> None:
    base = golden("llama-silu-tied", tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    a, b = term(weights["model.embed_tokens.weight"])
    peft = adapter(tmp_path / "peft", {"base_model.model.lm_head": (a, b)})
    converted(peft, base, tmp_path / "adapter.gguf")
    plain = convert(base, outfile=tmp_path / "plain.gguf", outtype="f32", log=quiet)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    head = weights["model.embed_tokens.weight"] + 2 * b @ a
    save_file({**weights, "lm_head.weight": head}, base / "model.safetensors")
    merged = convert(base, outfile=tmp_path / "merged.gguf", outtype="f32", log=quiet)
    tokens = range(3, 12)
    got = computed(plain, tokens, {tmp_path / "adapter.gguf": 1.0})
    assert relative_error(got, computed(merged, tokens, {})) < ROUNDING


def test_what_is_not_rounded_with_the_weights(tmp_path: Path) -> None:
    """BitNet's weights are rounded where they are used; what an adapter adds is not."""
    base = golden("bitnet", tmp_path / "base")
    rounds = {"quant_method": "bitnet", "quantization_mode": "online"}
    online = golden("bitnet", tmp_path / "online", quantization_config=rounds)
    weight = load_file(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    peft = adapter(tmp_path / "peft", {"model.layers.0.mlp.down_proj": term(weight)})
    plain = converted(peft, base, tmp_path / "adapter.gguf")
    assert converted(peft, online, tmp_path / "again.gguf") == plain


# ---- Names ---------------------------------------------------------------------------------------

Q, DOWN = "layers.1.self_attn.q_proj", "layers.0.mlp.down_proj"


def qwen(folder: Path) -> tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """A base model with images, and terms by what is behind "model."."""
    base = golden("qwen3-5", folder / "base")
    weights = load_file(base / "model.safetensors")
    names = [
        n
        for n in weights
        if n.endswith(("layers.0.self_attn.k_proj.weight", "0.mlp.up_proj.weight"))
    ]
    assert len(names) == 2
    return base, {n[len("model.") : -len(".weight")]: term(weights[n]) for n in names}


@pytest.mark.parametrize("end", ["", ".default", ".my-adapter"])
@pytest.mark.parametrize(
    "prefix",
    [
        "base_model.model.model.",
        "base_model.model.model.language_model.",
        "base_model.model.language_model.model.",
        "base_model.model.",  # of a model without a head
        "model.",
        "_orig_mod.base_model.model.model.",
        "module.base_model.model.model.",
    ],
)
def test_names_of_the_same_modules(tmp_path: Path, prefix: str, end: str) -> None:
    base, terms = qwen(tmp_path)
    usual = {f"base_model.model.model.{k}": v for k, v in terms.items()}
    want = converted(adapter(tmp_path / "x" / "peft", usual), base, tmp_path / "a.gguf")
    other = {prefix + k: v for k, v in terms.items()}
    got = converted(adapter(tmp_path / "y" / "peft", other, end), base, tmp_path / "b.gguf")
    assert got == want


def test_a_family_with_another_root(tmp_path: Path) -> None:
    """transformers 5 calls Falcon's `transformer.` so, too; OPT's base model begins later."""
    base = golden("opt", tmp_path / "base")
    weight = load_file(base / "model.safetensors")["model.decoder.layers.0.fc1.weight"]
    names = ("base_model.model.model.decoder.", "base_model.model.decoder.", "base_model.model.")
    found = set()
    for i, name in enumerate(names):
        peft = adapter(tmp_path / str(i) / "peft", {f"{name}layers.0.fc1": term(weight)})
        found.add(converted(peft, base, tmp_path / f"{i}.gguf"))
    assert len(found) == 1


def test_what_is_beside_the_text_is_left_out(tmp_path: Path) -> None:
    base, terms = qwen(tmp_path)
    text = {f"base_model.model.model.language_model.{k}": v for k, v in terms.items()}
    want = converted(adapter(tmp_path / "x" / "peft", text), base, tmp_path / "a.gguf")
    image = {"base_model.model.model.visual.blocks.0.attn.proj": term(np.ones((8, 8)))}
    draft = {"base_model.model.mtp.layers.0.mlp.up_proj": term(np.ones((8, 8)))}
    notes: list[str] = []
    both = adapter(tmp_path / "y" / "peft", {**text, **image, **draft})
    assert converted(both, base, tmp_path / "b.gguf", notes.append) == want
    assert len(notes) == 1 and "visual.blocks.0.attn.proj" in notes[0] and "mtp" in notes[0]


@pytest.mark.parametrize(
    ("name", "modules", "match"),
    [
        ("llama-bias", [f"vision_tower.encoder.{Q}"], "no language model"),
        ("llama-bias", [f"model.{Q}", f"language_model.{DOWN}"], "of two models"),
        ("llama-bias", [f"model.{Q}x"], "no matrix of a llama model"),
        ("llama-bias", ["score"], "no matrix of a llama model"),
        ("llama-bias", ["model.embed_tokens"], "looked up"),
        ("mixtral", ["model.layers.1.block_sparse_moe.experts.2.w1"], "one of several experts"),
        ("deepseek-v2", ["model.layers.0.self_attn.kv_b_proj"], "attn_k_b"),
        ("qwen2-moe", ["model.layers.1.mlp.shared_expert_gate"], "ffn_gate_inp_shexp"),
    ],
)
def test_modules_that_are_refused(
    tmp_path: Path, name: str, modules: list[str], match: str
) -> None:
    base = golden(name, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    some = np.ones((32, 32))
    peft = adapter(tmp_path / "peft", {m: term(weights.get(f"{m}.weight", some)) for m in modules})
    with pytest.raises(UnsupportedModelError, match=match) as error:
        converted(peft, base, tmp_path / "x.gguf")
    assert str(peft) in str(error.value)
    assert not (tmp_path / "x.gguf").exists()


def test_a_file_of_two_adapters(tmp_path: Path) -> None:
    base, terms = qwen(tmp_path)
    peft = adapter(tmp_path / "peft", {f"model.{k}": v for k, v in terms.items()}, ".first")
    tensors = load_file(peft / "adapter_model.safetensors")
    other = {k.replace(".first.", ".second."): v for k, v in tensors.items()}
    save_file({**tensors, **other}, peft / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"several adapters \(first, second\)"):
        converted(peft, base, tmp_path / "x.gguf")


# ---- The base model ------------------------------------------------------------------------------


def test_bases_that_do_not_say_enough(tmp_path: Path) -> None:
    base, terms = qwen(tmp_path)
    peft = adapter(tmp_path / "peft", {f"model.{k}": v for k, v in terms.items()})
    out = tmp_path / "x.gguf"
    other = golden("llama-bias", tmp_path / "other")
    gguf = convert(other, outfile=tmp_path / "other.gguf", outtype="f32", log=quiet)
    for wrong, match in (
        (gguf, "does not fit the base model's|no matrix of a llama"),
        (base / "config.json", "config.json"),
        (tmp_path / "none", "none"),
    ):
        with pytest.raises((ModelFormatError, UnsupportedModelError, OSError), match=match):
            converted(peft, wrong, out)
    with pytest.raises(ValueError, match="give its GGUF, or a folder"):
        convert(peft, outfile=out, log=quiet)
    assert not out.exists()


# ---- The product of two matrices -----------------------------------------------------------------


def test_a_product_is_changed_as_the_matrix_is() -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(s).astype(np.float32) for s in ((6, 2), (2, 5)))
    product, matrix = LowRank(left, right), left @ right
    rows, columns = np.array([3, 1, 4]), np.array([4, 0, 1, 2])
    by_row = np.arange(6, dtype=np.float32)[:, None]
    by_column = np.arange(5, dtype=np.float32)
    for change in (
        lambda m: m[1:4],
        lambda m: m[rows],
        lambda m: m[:, columns],
        lambda m: m[2:5][:, 1:3].T,
        lambda m: m * np.float32(3),
        lambda m: by_row * m,
        lambda m: m * by_column,
        lambda m: m.T * by_column[:, None],
        lambda m: np.copy(m.T, order="C").astype(np.float32),
        lambda m: m.reshape(-1, 5)[::2],
    ):
        got = change(product)
        want = change(matrix)
        assert isinstance(got, LowRank) and got.shape == want.shape
        assert np.allclose(got.left @ got.right, want, atol=1e-6)
    for refused in (
        lambda m: m + 1,
        lambda m: np.abs(m),
        lambda m: m[0],
        lambda m: m[rows, columns[:3], 0],
        lambda m: m.reshape(5, 6),
        lambda m: m.astype(np.int8),
        lambda m: m * m,
        lambda m: m * np.ones((6, 5)),
        lambda m: np.concatenate([m, m]),
        lambda m: np.ascontiguousarray(m),
        lambda m: np.asarray(m),
    ):
        with pytest.raises(NotLinear):
            refused(product)
