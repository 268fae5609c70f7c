"""EmbeddingGemma 2 against float64 numpy: windows on both sides, heads of two widths, embeddings of
layers without a table, a projection behind the last norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import quiet
from gguf_files import changed, raw
from powerinfer_cpp.convert import convert
from reference import relative_error, rms_norm, rotate

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

Weights = dict[str, np.ndarray]
LIMIT = 1e-5  # of F32 arithmetic
RADIUS = 3
# Around a page of keys (64) and a block of attention (256), and within a window.
LENGTHS = (1, 2, 4, 30, 64, 65, 257)
CONFIG: dict[str, Any] = {
    "architectures": ["EmbeddingGemma2TextModel"],
    "model_type": "embedding_gemma2_text",
    "vocab_size": 310,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 320,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
    "attention_bias": False,
    "sliding_window": RADIUS,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full") * 2 + ("full",)],
    "hidden_size_per_layer_input": 6,
    "embedding_dim": 20,
    "per_layer_config": {str(i): {"head_dim": 16, "num_key_value_heads": 1} for i in (1, 3, 4)},
}


def heads_of(layer: int) -> tuple[int, int]:
    """Width of heads, and key heads."""
    return (16, 1) if str(layer) in CONFIG["per_layer_config"] else (8, 2)


def random_weights() -> Weights:
    rng = np.random.default_rng(2)
    c, found = CONFIG, {}
    n, n_ff, n_layer = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
    width = c["hidden_size_per_layer_input"]

    def add(name: str, *shape: int) -> None:
        spread = 0.3 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1])
        values = spread * rng.standard_normal(shape) + (len(shape) == 1)
        found[f"{name}.weight"] = values.astype(np.float32)

    add("embed_tokens", c["vocab_size"], n)
    add("ple.per_layer_model_projection", n_layer * width, n)
    add("ple.per_layer_projection_norm", width)
    for i in range(n_layer):
        dim, n_kv = heads_of(i)
        q, kv, layer = c["num_attention_heads"] * dim, n_kv * dim, f"layers.{i}"
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            add(f"{layer}.self_attn.{part}_proj", rows, n)
        add(f"{layer}.self_attn.o_proj", n, q)
        for part in "qk":
            add(f"{layer}.self_attn.{part}_norm", dim)
        for part in ("gate", "up"):
            add(f"{layer}.mlp.{part}_proj", n_ff, n)
        add(f"{layer}.mlp.down_proj", n, n_ff)
        for where in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            add(f"{layer}.{where}_layernorm", n)
        add(f"{layer}.ple_block.per_layer_input_gate", width, n)
        add(f"{layer}.ple_block.per_layer_projection", n, width)
        add(f"{layer}.ple_block.post_per_layer_input_norm", n)
        found[f"{layer}.layer_scalar"] = np.array([0.5 + 0.2 * i], np.float32)
    add("norm", n)
    add("embedding_projection", c["embedding_dim"], n)
    return found


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def rows(weights: Weights, ids: list[int]) -> np.ndarray:
    """What the model gives for each token, [n, embedding_dim]."""
    c, w = CONFIG, {name: value.astype(np.float64) for name, value in weights.items()}
    n, n_embd, eps = len(ids), c["hidden_size"], c["rms_norm_eps"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm(x, w[f"{name}.weight"], eps)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T

    x = w["embed_tokens.weight"][ids] * np.sqrt(n_embd)
    own = linear("ple.per_layer_model_projection", x) / np.sqrt(n_embd)
    own = norm("ple.per_layer_projection_norm", own.reshape(n, c["num_hidden_layers"], -1))
    steps = abs(np.arange(n)[None] - np.arange(n)[:, None])
    for i, kind in enumerate(c["layer_types"]):
        layer, dim = f"layers.{i}", heads_of(i)[0]
        y = norm(f"{layer}.input_layernorm", x)
        q, k, v = (linear(f"{layer}.self_attn.{p}_proj", y).reshape(n, -1, dim) for p in "qkv")
        q, k = norm(f"{layer}.self_attn.q_norm", q), norm(f"{layer}.self_attn.k_norm", k)
        theta = c["rope_parameters"][kind]["rope_theta"]
        q, k, v = rotate(q, theta), rotate(k, theta), rms_norm(v, np.ones(dim), eps)
        k, v = (np.repeat(part, q.shape[1] // part.shape[1], axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k)
        if kind == "sliding_attention":
            scores = np.where(steps <= RADIUS, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)
        x = x + norm(f"{layer}.post_attention_layernorm", linear(f"{layer}.self_attn.o_proj", y))
        y = norm(f"{layer}.pre_feedforward_layernorm", x)
        y = gelu_tanh(linear(f"{layer}.mlp.gate_proj", y)) * linear(f"{layer}.mlp.up_proj", y)
        x = x + norm(f"{layer}.post_feedforward_layernorm", linear(f"{layer}.mlp.down_proj", y))
        y = gelu_tanh(linear(f"{layer}.ple_block.per_layer_input_gate", x)) * own[:, i]
        y = linear(f"{layer}.ple_block.per_layer_projection", y)
        x = x + norm(f"{layer}.ple_block.post_per_layer_input_norm", y)
        x = x * w[f"{layer}.layer_scalar"]
    return linear("embedding_projection", norm("norm", x))


def checkpoint(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    checkpoints.save(folder, config, weights)
    settings = {"add_bos_token": True, "add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    write_modules(folder, modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": CONFIG["embedding_dim"], "pooling_mode": "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    listed = [{"type": f"sentence_transformers.models.{t}", "path": p} for t, p in modules]
    (folder / "modules.json").write_text(json.dumps(listed))


def converted(folder: Path, log: Any = quiet) -> Path:
    return convert(folder, outtype="f32", outfile=folder.with_suffix(".gguf"), log=log)


def opened(path: Path, **options: Any) -> Llama:
    how = {"n_ctx": 300, "type_k": 0, "type_v": 0, "verbose": False, **options}
    return Llama(path, embedding=True, **how)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    return converted(checkpoint(tmp_path_factory.mktemp("gemma") / "m", CONFIG, weights))


def texts() -> list[list[int]]:
    return [[1] + [(37 * i * i + 11 * i + n) % 290 + 4 for i in range(n - 1)] for n in LENGTHS]


def vectors(llm: Llama, ids: list[list[int]]) -> np.ndarray:
    return np.array([item["embedding"] for item in llm.create_embedding(ids)["data"]])


def test_against_the_reference(path: Path, weights: Weights) -> None:
    ids = texts()
    want = [rows(weights, of).mean(0) for of in ids]
    with opened(path, n_threads=1) as one, opened(path, n_threads=2) as two:
        found = vectors(one, ids)
        assert np.array_equal(vectors(two, ids), found)
        assert np.array_equal(vectors(two, ids[::-1])[::-1], found)
        assert np.array_equal(np.concatenate([vectors(one, [of]) for of in ids]), found)
    assert found.shape == (len(ids), CONFIG["embedding_dim"])
    for ours, theirs in zip(found, want, strict=True):
        assert relative_error(ours, theirs) < LIMIT


@pytest.mark.parametrize(("kind", "row"), [(2, 0), (3, -1)])
def test_a_single_row(path: Path, weights: Weights, kind: int, row: int) -> None:
    """A row goes through the projection as the mean does."""
    ids = texts()[3]
    with opened(path, pooling_type=kind) as llm:
        assert relative_error(vectors(llm, [ids])[0], rows(weights, ids)[row]) < LIMIT


def nested(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["EmbeddingGemma2Model"],
        "model_type": "embedding_gemma2",
        "text_config": text,
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 8},
        "audio_config": None,
        "image_token_id": 300,
        "eoa_token_index": 301,
    }


def test_with_towers(tmp_path: Path, path: Path, weights: Weights) -> None:
    """Of a checkpoint that sees images and hears sound the text part is taken, with a note."""
    whole = {f"language_model.{name}": value for name, value in weights.items()}
    for name in ("vision_tower.a", "audio_tower.b", "embed_vision.embedding_projection"):
        whole[f"{name}.weight"] = np.ones((2, 2), np.float32)
    notes: list[str] = []
    folder = checkpoint(tmp_path / "m", nested(CONFIG), whole)
    made = converted(folder, notes.append)
    assert notes[0] == "note: only the text part is converted, without images and sound"
    assert raw(made) == raw(path)
    ids = texts()[:4]
    with opened(made) as ours, opened(path) as plain:
        assert np.array_equal(vectors(ours, ids), vectors(plain, ids))


def test_older_names_of_the_heads(tmp_path: Path, path: Path, weights: Weights) -> None:
    """Before transformers 5.24 wrote per_layer_config: one width and number for all such layers."""
    older = {name: value for name, value in CONFIG.items() if name != "per_layer_config"}
    older |= {"global_head_dim": 16, "num_global_key_value_heads": 1}
    made = converted(checkpoint(tmp_path / "m", older, weights))
    assert made.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("layers", "error", "said"),
    [
        ({"1": {"head_dim": 16}}, UnsupportedModelError, "heads that differ among"),
        ({"0": {"head_dim": 16}}, UnsupportedModelError, "heads that differ among"),
        ({"1": {"intermediate_size": 9}}, UnsupportedModelError, "intermediate_size"),
        ({"5": {"head_dim": 16}}, ModelFormatError, "'5' is not one of 5 layers"),
        ({"x": {"head_dim": 16}}, ModelFormatError, "'x' is not one of 5 layers"),
        ({"1": {"head_dim": 0}}, ModelFormatError, "head_dim must be an integer"),
        ({"1": 16}, ModelFormatError, "1 must be an object"),
    ],
)
def test_heads_that_a_file_cannot_tell(
    tmp_path: Path, weights: Weights, layers: Any, error: type[Exception], said: str
) -> None:
    config = {**CONFIG, "per_layer_config": layers}
    with pytest.raises(error, match=said):
        converted(checkpoint(tmp_path / "m", config, weights))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention_bias": True}, "gemma-embedding2 with biases"),
        ({"use_bidirectional_attention": False, "attn_logit_softcapping": 5.0}, "softcapping"),
        ({"hidden_size_per_layer_input": 7}, r"per_layer_model_projection.weight.*expected"),
        ({"embedding_dim": 21}, r"embedding_projection.weight.*expected"),
    ],
)
def test_other_configurations(
    tmp_path: Path, weights: Weights, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises((UnsupportedModelError, ModelFormatError), match=said):
        converted(checkpoint(tmp_path / "m", {**CONFIG, **changes}, weights))


def dense(folder: Path, name: str, n: int, n_in: int, activation: str) -> np.ndarray:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(
        json.dumps({"activation_function": f"torch.nn.modules.{activation}", "bias": False})
    )
    matrix = np.random.default_rng(n).standard_normal((n, n_in)).astype(np.float32)
    file = folder / name / "model.safetensors"
    checkpoints.save_safetensors(file, {"linear.weight": matrix}, "F32")
    return matrix


def test_a_dense_layer_behind_the_projection(tmp_path: Path, weights: Weights) -> None:
    folder = checkpoint(tmp_path / "m", CONFIG, weights)
    matrix = dense(folder, "2_Dense", 12, CONFIG["embedding_dim"], "activation.Tanh")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    write_modules(folder, modules)
    ids = texts()[3]
    with opened(converted(folder)) as llm:
        found = vectors(llm, [ids])[0]
    want = np.tanh(matrix.astype(np.float64) @ rows(weights, ids).mean(0))
    assert relative_error(found, want) < LIMIT
    dense(folder, "3_Dense", 9, 12, "linear.Identity")
    write_modules(folder, [*modules, ("Dense", "3_Dense")])
    with pytest.raises(UnsupportedModelError, match=r"3_Dense: .* the model's projection"):
        converted(folder)


@pytest.mark.parametrize(
    "name", ["per_layer_model_proj", "per_layer_proj_norm", "blk.2.inp_gate", "blk.1.attn_q_norm"]
)
def test_a_tensor_is_missing(tmp_path: Path, path: Path, name: str) -> None:
    missing = f"{name}.weight"
    without = changed(
        path, tmp_path / "m.gguf", tensors=lambda name, data: None if name == missing else data
    )
    with pytest.raises(ModelFormatError, match=name):
        opened(without)


def test_keys_and_values_of_another_layer(tmp_path: Path, path: Path) -> None:
    """Gemma 4 has such layers; here each makes room for the next one's."""
    says = changed(path, tmp_path / "m.gguf", {"gemma-embedding2.attention.shared_kv_layers": 2})
    with pytest.raises(UnsupportedModelError, match="shared_kv_layers"):
        opened(says)


def test_no_text_is_generated(path: Path) -> None:
    with opened(path) as llm, pytest.raises((ValueError, UnsupportedModelError), match="vectors"):
        llm("a", max_tokens=1)
