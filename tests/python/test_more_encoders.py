"""Jina's second embedding models and Nomic's with experts, against float64 numpy; what pairs share.

The reference computes on the checkpoint's own names, from what their published code does.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import tiny
from gguf_files import changed, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.session import Session
from scipy.special import erf

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

Weights = dict[str, np.ndarray]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
TEXTS = ["a bear", "the small frog of the river", "", "unballing " * 30, "x y z"]
WIDTH, N_FF, LAYERS = 24, 20, 3

JINA: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["JinaBertModel"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,  # of which ALiBi needs slopes between those of 4 and of 8
    "intermediate_size": N_FF,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "vocab_size": len(VOCAB),
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
}
MOE: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    **{"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 3, "n_inner": N_FF, "n_positions": 512},
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    **{"rotary_emb_base": 10000, "rotary_emb_fraction": 1.0},
    **{"qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    **{"num_experts": 5, "moe_top_k": 2, "moe_every_n_layers": 2, "num_shared_experts": 0},
    **{"moe_normalize_expert_weights": False, "expert_choice_router": False, "ffn_div": 1},
    "type_vocab_size": 1,
    "vocab_size": len(VOCAB),
}


# ---- Checkpoints ---------------------------------------------------------------------------------


def linear(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def jina_shapes(code: bool) -> dict[str, tuple[int, ...]]:
    found = {
        "embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **norm("embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        names = (*(f"self.{part}" for part in ("query", "key", "value")), "output.dense")
        for name in names:
            found |= linear(f"{layer}.attention.{name}", WIDTH, WIDTH)
        found |= norm(f"{layer}.attention.output.LayerNorm")
        up, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
        found |= linear(f"{layer}.mlp.{up}", 2 * N_FF, WIDTH, False)
        found |= linear(f"{layer}.mlp.{down}", WIDTH, N_FF)
        ends = ("attention.self.layer_norm_q", "attention.self.layer_norm_k")
        for name in (*ends, "layer_norm_1", "layer_norm_2") if code else ("mlp.layernorm",):
            found |= norm(f"{layer}.{name}")
    return found


def moe_shapes() -> dict[str, tuple[int, ...]]:
    found = {
        "embeddings.word_embeddings.weight": (len(VOCAB), WIDTH),
        "embeddings.token_type_embeddings.weight": (1, WIDTH),
        **norm("emb_ln"),
    }
    n = MOE["num_experts"]
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        found |= linear(f"{layer}.attn.Wqkv", 3 * WIDTH, WIDTH)
        found |= linear(f"{layer}.attn.out_proj", WIDTH, WIDTH)
        found |= norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
        if i % 2:
            found |= linear(f"{layer}.mlp.router.layer", n, WIDTH, False)
            found |= {f"{layer}.mlp.experts.mlp.w{j}": (n * N_FF, WIDTH) for j in (1, 2)}
            found[f"{layer}.mlp.experts.bias"] = (WIDTH,)
        else:
            found |= linear(f"{layer}.mlp.fc1", N_FF, WIDTH)
            found |= linear(f"{layer}.mlp.fc2", WIDTH, N_FF)
    return found


def written(
    folder: Path, cfg: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int = 3
) -> tuple[Path, Weights]:
    """A checkpoint with random weights, and these."""
    rng = np.random.default_rng(seed)
    weights = {
        name: (
            1 + 0.2 * rng.standard_normal(shape)
            if "norm" in name.lower().replace("emb_ln", "norm") and name.endswith("weight")
            else rng.standard_normal(shape) / math.sqrt(shape[-1] if len(shape) > 1 else 9)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True)
    checkpoints.save_safetensors(folder / "model.safetensors", weights, "F32")
    (folder / "config.json").write_text(json.dumps(cfg))
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder, weights


# ---- Reference -----------------------------------------------------------------------------------


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def product(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T.astype(np.float64) + w.get(f"{name}.bias", 0.0)


def normed(w: Weights, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, bias: np.ndarray | float
) -> np.ndarray:
    q, k, v = (part.reshape(len(part), heads, -1) for part in (q, k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]) + bias
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", share, v).reshape(len(q), -1)


def slopes(heads: int) -> list[float]:
    """As the paper's code finds them (arXiv 2108.12409)."""
    if math.log2(heads).is_integer():
        first = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [first ** (i + 1) for i in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


def jina(w: Weights, ids: list[int], types: list[int] | int = 0) -> np.ndarray:
    eps, heads, n = JINA["layer_norm_eps"], JINA["num_attention_heads"], len(ids)
    steps = abs(np.arange(n)[None] - np.arange(n)[:, None])
    bias = -np.array(slopes(heads))[:, None, None] * steps
    x = w["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = normed(w, "embeddings.LayerNorm", x, eps)
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        own = f"{layer}.attention.self"
        q, k, v = (product(w, f"{own}.{part}", x) for part in ("query", "key", "value"))
        code = f"{own}.layer_norm_q.weight" in w
        if code:
            q, k = (normed(w, f"{own}.layer_norm_{p}", y, eps) for p, y in (("q", q), ("k", k)))
        y = product(w, f"{layer}.attention.output.dense", attend(q, k, v, heads, bias))
        y = normed(w, f"{layer}.attention.output.LayerNorm", x + y, eps)
        x = normed(w, f"{layer}.layer_norm_1", x + y, eps) if code else y
        if code:
            up, gate = np.split(product(w, f"{layer}.mlp.up_gated_layer", x), 2, axis=-1)
            y = product(w, f"{layer}.mlp.down_layer", up * gelu(gate))
            x = normed(w, f"{layer}.layer_norm_2", x + y, eps)
        else:
            gate, up = np.split(product(w, f"{layer}.mlp.gated_layers", x), 2, axis=-1)
            y = product(w, f"{layer}.mlp.wo", up * gelu(gate))
            x = normed(w, f"{layer}.mlp.layernorm", x + y, eps)
    return x


def turned(x: np.ndarray, heads: int) -> np.ndarray:
    """RoPE with pairs (i, i + half of a head)."""
    n, half = len(x), x.shape[1] // heads // 2
    angles = np.outer(np.arange(n), MOE["rotary_emb_base"] ** (-np.arange(half) / half))
    a, b = np.split(x.reshape(n, heads, 2 * half), 2, axis=-1)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(n, -1)


def experts(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """The sum of the chosen experts times their shares of all, and the bias."""
    n, used = MOE["num_experts"], MOE["moe_top_k"]
    scores = product(w, f"{name}.router.layer", x)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    up, down = (w[f"{name}.experts.mlp.w{j}"].reshape(n, N_FF, WIDTH) for j in (1, 2))
    found = np.tile(w[f"{name}.experts.bias"].astype(np.float64), (len(x), 1))
    for t, row in enumerate(x):
        for e in np.argsort(-share[t])[:used]:
            found[t] += share[t, e] * (gelu(up[e].astype(np.float64) @ row) @ down[e])
    return found


def moe(w: Weights, ids: list[int]) -> np.ndarray:
    eps, heads = MOE["layer_norm_epsilon"], MOE["n_head"]
    x = w["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = normed(w, "emb_ln", x + w["embeddings.token_type_embeddings.weight"][0], eps)
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}"
        q, k, v = np.split(product(w, f"{layer}.attn.Wqkv", x), 3, axis=-1)
        y = attend(turned(q, heads), turned(k, heads), v, heads, 0.0)
        x = normed(w, f"{layer}.norm1", x + product(w, f"{layer}.attn.out_proj", y), eps)
        if i % 2:
            y = experts(w, f"{layer}.mlp", x)
        else:
            y = product(w, f"{layer}.mlp.fc2", gelu(product(w, f"{layer}.mlp.fc1", x)))
        x = normed(w, f"{layer}.norm2", x + y, eps)
    return x


# ---- Tests ---------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {
    "jina": (JINA, jina_shapes(False), jina),
    "jina-code": (JINA, jina_shapes(True), jina),
    "moe": (MOE, moe_shapes(), moe),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Weights, list[str]]]:
    found = {}
    for name, (cfg, shapes, _) in KINDS.items():
        folder, weights = written(tmp_path_factory.mktemp("more") / name, cfg, shapes)
        notes: list[str] = []
        found[name] = (convert(folder, outtype="f32", log=notes.append), weights, notes)
    return found


def vectors(path: Path, n_threads: int = 1) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Of all texts together, of each alone, and their ids."""
    with Llama(str(path), embedding=True, n_threads=n_threads, n_ctx=512, verbose=False) as llm:
        together = np.array(llm.embed(TEXTS))
        alone = np.array([llm.embed(text) for text in TEXTS])
        ids = [llm.tokenize(text.encode()) for text in TEXTS]
    return together, alone, ids


def off(ours: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("name", KINDS)
def test_vectors(made: dict[str, Any], name: str) -> None:
    path, weights, notes = made[name]
    together, alone, ids = vectors(path)
    assert all(of[0] == 2 and of[-1] == 3 for of in ids)  # [CLS] and [SEP]
    reference = KINDS[name][2]
    wanted = np.array([reference(weights, of).mean(0) for of in ids])
    assert off(together, wanted) < 2e-6
    assert np.array_equal(together, alone)
    assert np.array_equal(together, vectors(path, 2)[0])
    assert notes == []


def test_scores(tmp_path: Path) -> None:
    """Of the first row, by a matrix with tanh and another one."""
    dense, score = "pooler.dense", "classifier"
    kinds = {"architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    shapes = {n: of for n, of in jina_shapes(False).items() if "pooler" not in n}
    head = linear(dense, WIDTH, WIDTH) | linear(score, 1, WIDTH)
    folder, weights = written(tmp_path / "jina", {**JINA, **kinds}, shapes | head)
    path = convert(folder, outtype="f32", log=lambda _: None)
    documents = ["the river", "", "frogs and bears " * 20]
    with Llama(str(path), embedding=True, n_ctx=512, verbose=False) as llm:
        raw = llm.rank("small bear", documents, raw_scores=True)
        usual = llm.rank("small bear", documents)
        best = llm.rank("small bear", documents, top_n=1)
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="top_n must be at least 1"):
                llm.rank("small bear", documents, top_n=wrong)
        query = llm.tokenize(b"small bear")
        ids = [query + llm.tokenize(document.encode())[1:] for document in documents]
    wanted = []
    for of in ids:
        types = [0] * len(query) + [1] * (len(of) - len(query))
        rows = jina(weights, of, types)
        wanted.append(product(weights, score, np.tanh(product(weights, dense, rows[0])))[0])
    assert off(np.array(raw), np.array(wanted)) < 2e-6
    assert off(np.array(usual), 1 / (1 + np.exp(-np.array(wanted)))) < 2e-6
    top = int(np.argmax(usual))
    assert best == [s if i == top else -math.inf for i, s in enumerate(usual)]


@pytest.mark.parametrize("of_gguf", [False, True])
def test_adapters_of_peft(made: dict[str, Any], tmp_path: Path, of_gguf: bool) -> None:
    path, weights, _ = made["jina-code"]
    rng = np.random.default_rng(8)
    changed_by: dict[str, np.ndarray] = {}
    merged = dict(weights)
    for module in ("encoder.layer.1.attention.self.query", "encoder.layer.0.mlp.up_gated_layer"):
        rows, columns = weights[f"{module}.weight"].shape
        a, b = (rng.standard_normal(n).astype(np.float32) for n in ((3, columns), (rows, 3)))
        changed_by[f"base_model.model.{module}.lora_A.weight"] = a
        changed_by[f"base_model.model.{module}.lora_B.weight"] = b
        merged[f"{module}.weight"] = weights[f"{module}.weight"] + 0.5 * (b @ a)
    folder = tmp_path / "peft"
    folder.mkdir()
    checkpoints.save_safetensors(folder / "adapter_model.safetensors", changed_by, "F32")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 3, "lora_alpha": 1.5}))
    base = path if of_gguf else path.parent / "jina-code"
    adapter = convert(folder, base=base, log=lambda _: None)
    how: dict[str, Any] = {"embedding": True, "n_ctx": 512, "verbose": False}
    with Llama(str(path), lora_path=str(adapter), **how) as llm:
        found = np.array(llm.embed(TEXTS))
        ids = [llm.tokenize(text.encode()) for text in TEXTS]
    assert off(found, np.array([jina(merged, of).mean(0) for of in ids])) < 2e-6


def test_each_step_counts(made: dict[str, Any]) -> None:
    """The reference moves by far more than the limit when something is left out."""
    ids = [2, 5, 9, 30, 7, 3]
    for name, parts in (
        ("jina-code", ("layer_norm_q", "layer_norm_1", "output.LayerNorm", "down_layer.bias")),
        ("moe", ("experts.bias", "router", "fc1.bias", "Wqkv.bias")),
    ):
        weights, reference = made[name][1], KINDS[name][2]
        whole = reference(weights, ids).mean(0)
        for part in parts:
            less = {n: 0.5 * w if part in n else w for n, w in weights.items()}
            assert off(reference(less, ids).mean(0), whole) > 1e-3, part


def test_files_of_llama_cpp(made: dict[str, Any], tmp_path: Path) -> None:
    """Its converter leaves the rows of gates and of what they multiply in one matrix, in the order
    that the checkpoint has them."""
    path = made["jina-code"][0]
    tensors = values(path)
    fused = {}
    for i in range(LAYERS):
        fused[f"blk.{i}.ffn_up.weight"] = np.concatenate(
            [tensors[f"blk.{i}.ffn_{part}.weight"] for part in ("up", "gate")]
        )

    def replaced(name: str, data: np.ndarray) -> np.ndarray | None:
        return fused.get(name, None if "ffn_gate" in name else data)

    theirs = changed(path, tmp_path / "theirs.gguf", tensors=replaced)
    assert np.array_equal(vectors(theirs)[0], vectors(path)[0])


def test_a_bias_of_experts_that_adds_nothing(tmp_path: Path) -> None:
    """llama.cpp has no place for it."""
    folder, weights = written(tmp_path / "moe", MOE, moe_shapes())
    quiet = {n: np.zeros_like(w) if "experts.bias" in n else w for n, w in weights.items()}
    checkpoints.save_safetensors(folder / "model.safetensors", quiet, "F32")
    path = convert(folder, outtype="f32", log=lambda _: None)
    assert not [name for name in values(path) if name.endswith("exps.bias")]
    together, _, ids = vectors(path)
    assert off(together, np.array([moe(quiet, of).mean(0) for of in ids])) < 2e-6


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("jina", {"feed_forward_type": "reglu"}, "feed_forward_type 'reglu'"),
        ("jina", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("moe", {"moe_normalize_expert_weights": True}, "moe_normalize_expert_weights"),
        ("moe", {"num_shared_experts": 1}, "num_shared_experts"),
        ("moe", {"expert_choice_router": True}, "expert_choice_router"),
        ("moe", {"activation_function": "swiglu"}, "activation_function 'swiglu'"),
        ("moe", {"ffn_div": 2}, "ffn_div"),
    ],
)
def test_refused(tmp_path: Path, name: str, values: dict[str, Any], message: str) -> None:
    folder, _ = written(tmp_path / "refused", {**KINDS[name][0], **values}, KINDS[name][1])
    with pytest.raises(UnsupportedModelError, match=message):
        convert(folder)


def test_a_neuron_aware_file_is_refused(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "jina", JINA, jina_shapes(False))
    with pytest.raises(UnsupportedModelError, match="neuron-aware file of jina-bert-v2"):
        convert(folder, bundle=True)


def test_layers_of_experts_are_those_of_the_key(made: dict[str, Any], tmp_path: Path) -> None:
    key = "nomic-bert-moe.moe_every_n_layers"
    wrong = changed(made["moe"][0], tmp_path / "wrong.gguf", {key: 1})
    with pytest.raises(ModelFormatError, match=f"{key} is 1, but layer"):
        Llama(str(wrong), embedding=True, verbose=False)


# ---- What texts begin with -----------------------------------------------------------------------


@pytest.mark.parametrize("n_batch", [256, 128])
def test_a_common_beginning_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_batch: int
) -> None:
    """Where only the last row counts, the bits are those of each text alone."""
    path = tiny.make(tmp_path)
    rng = np.random.default_rng(5)
    first = [1, *rng.integers(3, 260, 71).tolist()]
    texts = [first + rng.integers(3, 260, n).tolist() for n in rng.integers(1, 40, 40)]
    texts[7] = first + texts[8][72:]  # the same once more
    computed = 0
    evaluate = Session.eval

    def counted(self: Session, tokens: np.ndarray, *more: Any, **named: Any) -> None:
        nonlocal computed
        computed += len(tokens)
        evaluate(self, tokens, *more, **named)

    monkeypatch.setattr(Session, "eval", counted)
    how: dict[str, Any] = {"n_ctx": 128, "n_batch": n_batch, "verbose": False}
    with Llama(str(path), embedding=True, pooling_type=3, **how) as llm:
        together, n_together = llm.embed(texts), computed
        alone = [llm.embed(text) for text in texts]
        assert n_together == 72 + sum(len(text) - 72 for text in texts)
        assert computed == n_together + sum(len(text) for text in texts)
        # A text that is what the others begin with, and texts that share less than a page.
        for group in ([first, *texts[:3]], [text[20:] for text in texts[:3]]):
            assert llm.embed(group) == [llm.embed(text) for text in group]
    assert together == alone


def test_a_mean_needs_all_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    first = [1, *rng.integers(3, 260, 71).tolist()]
    texts = [first + rng.integers(3, 260, n).tolist() for n in (3, 9, 20)]
    with Llama(str(tiny.make(tmp_path)), embedding=True, n_ctx=128, verbose=False) as llm:
        assert llm.embed(texts) == [llm.embed(text) for text in texts]
