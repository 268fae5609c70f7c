"""Encoders' checkpoints: what is refused, by the name of what is to blame, and the GGUF's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import quiet, tensors_of
from gguf_files import raw
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from small_encoders import ALL, SCORE, linear, make, random_weights, write_json

from powerinfer_cpp import ModelFormatError, UnsupportedModelError

DENSE = "torch.nn.modules"
# Family, what its config.json says otherwise, and what the error names.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("bert", {"hidden_act": "quick_gelu"}, "quick_gelu"),
    ("roberta", {"pad_token_id": 0}, "pad_token_id"),
    ("nomic", {"prenorm": True}, "prenorm"),
    ("nomic", {"causal": True}, "causal"),
    ("nomic", {"use_rms_norm": True}, "use_rms_norm"),
    ("nomic", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
    ("nomic", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
    ("nomic", {"activation_function": "gelu"}, "activation_function"),
    ("nomic", {"num_experts": 4}, "experts"),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale"),
    ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type"),
    ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type"),
    ("modernbert", {"hidden_activation": "relu"}, "hidden_activation"),
    ("modernbert", {"attention_bias": True}, "attention_bias"),
    ("modernbert", {"mlp_bias": True}, "mlp_bias"),
    ("modernbert-rank", {"classifier_pooling": "max"}, "classifier_pooling"),
    ("modernbert-rank", {"classifier_activation": "relu"}, "classifier_activation"),
    # Rankers have one label; a list that is missing stands for two.
    ("bert-rank", {"id2label": {"0": "no", "1": "yes"}}, "2 labels"),
    ("roberta-rank", {"id2label": None}, "2 labels"),
    ("modernbert-rank", {"id2label": {str(i): str(i) for i in range(3)}}, "3 labels"),
    ("bert-rank", {"sentence_transformers": {"activation_fn": "x.Tanh"}}, "activation x.Tanh"),
    ("distilbert", {"architectures": ["DistilBertForSequenceClassification"], **SCORE}, "ranks"),
    ("mpnet", {"architectures": ["MPNetForSequenceClassification"], **SCORE}, "ranks"),
    ("eurobert", {"architectures": ["EuroBertForSequenceClassification"], **SCORE}, "ranks"),
]


def converted(folder: Path, **options: Any) -> Path:
    out = folder.with_suffix(".gguf")
    return convert(folder, outtype="f32", outfile=out, **{"log": quiet, **options})


def metadata(path: Path) -> dict[str, Any]:
    with Gguf(path) as file:
        return dict(file.metadata)


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED, ids=str)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "m", name).folder
    cfg = json.loads((folder / "config.json").read_text())
    given = {k: v for k, v in {**cfg, **changes}.items() if v is not None}
    write_json(folder / "config.json", given)
    with pytest.raises((UnsupportedModelError, ModelFormatError), match=words) as caught:
        converted(folder)
    assert "config.json" in str(caught.value)
    assert not (tmp_path / "m.gguf").exists()


def test_sizes_are_checked(tmp_path: Path) -> None:
    """A tensor of another shape than config.json says, or none."""
    for name, key in (("bert", "intermediate_size"), ("modernbert", "intermediate_size")):
        folder = make(tmp_path / name, name).folder
        cfg = json.loads((folder / "config.json").read_text())
        write_json(folder / "config.json", {**cfg, key: 28})
        with pytest.raises(ModelFormatError, match="shape|rows|lacks|\\[28"):
            converted(folder)
    made = make(tmp_path / "r", "bert-rank")
    stored = {f"bert.{k}": v for k, v in made.weights.items() if not k.startswith(("bert.", "cl"))}
    stored |= {k: v for k, v in made.weights.items() if k.startswith("classifier")}
    checkpoints.save_safetensors(made.folder / "model.safetensors", stored, "F32")
    with pytest.raises(ModelFormatError, match=r"lacks tensor (bert\.)?pooler\.dense\.weight"):
        converted(made.folder)


def test_tensors_that_nobody_knows(tmp_path: Path) -> None:
    made = make(tmp_path / "m", "bert")
    more = {"encoder.layer.0.attention.self.distance_embedding.weight": np.ones((9, 8), np.float32)}
    stored = {**made.weights, **more}
    checkpoints.save_safetensors(made.folder / "model.safetensors", stored, "F32")
    with pytest.raises(ModelFormatError, match="distance_embedding"):
        converted(made.folder)


# ---- Keys and types ------------------------------------------------------------------------------

KEYS: dict[str, dict[str, Any]] = {
    "bert": {
        "general.architecture": "bert",
        "bert.attention.causal": False,
        "bert.attention.layer_norm_epsilon": np.float32(1e-12),
        "bert.context_length": 320,
        "bert.pooling_type": 1,
        "powerinfer.embedding.normalize": True,
        "powerinfer.embedding.prompt_names": ["query", "document"],
        "powerinfer.embedding.prompts": ["the river ", "frog: "],
        "powerinfer.embedding.default_prompt": None,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    },
    "roberta": {
        "general.architecture": "bert",
        "bert.context_length": 320,  # of 322 rows
        "tokenizer.ggml.add_sep_token": True,
        "tokenizer.ggml.pre": "gpt-2",
    },
    "mpnet": {"general.architecture": "mpnet", "mpnet.context_length": 320},
    "nomic": {
        "general.architecture": "nomic-bert",
        "nomic-bert.rope.freq_base": 1000.0,
        "nomic-bert.context_length": 320,  # and not n_positions
    },
    "gte": {"general.architecture": "gte", "gte.rope.freq_base": 20000.0, "gte.pooling_type": 2},
    "modernbert": {
        "general.architecture": "modern-bert",
        "modern-bert.attention.sliding_window": 10,
        "modern-bert.attention.sliding_window_pattern": 3,
        "modern-bert.rope.freq_base": 160000.0,
        "modern-bert.rope.freq_base_swa": 10000.0,
        "modern-bert.hidden_activation": "gelu",
        "powerinfer.tokenizer.normalizer": "nfc",
    },
    "modernbert-silu": {
        "modern-bert.attention.sliding_window_pattern": [True, False, False, True],
        "modern-bert.hidden_activation": "silu",
    },
    "eurobert": {"eurobert.attention.causal": False, "eurobert.attention.head_count_kv": 2},
    "llama-embed": {
        "general.architecture": "llama-embed",
        "llama-embed.attention.causal": False,
        "tokenizer.ggml.add_eos_token": False,
    },
    "embeddinggemma": {
        "general.architecture": "gemma-embedding",
        "gemma-embedding.attention.sliding_window": 12,
        "gemma-embedding.rope.freq_base_swa": 10000.0,
        "gemma-embedding.attention.scale": np.float32(9**-0.5),
        "powerinfer.dense.activations": ["tanh", "identity"],
        "gemma-embedding.dense_2_feat_in": 24,
        "gemma-embedding.dense_3_feat_out": 10,
    },
    "qwen3": {"qwen3.pooling_type": 3, "powerinfer.rank.activation": None},
    "bert-rank": {
        "bert.pooling_type": 4,
        "bert.classifier.output_labels": ["LABEL_0"],
        "powerinfer.rank.activation": "identity",
        "powerinfer.embedding.normalize": None,
    },
    "roberta-rank": {"powerinfer.rank.activation": "sigmoid"},
    "modernbert-rank": {"modern-bert.classifier.pooling_type": 2},
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, tmp_path: Path) -> None:
    found = metadata(converted(make(tmp_path / "m", name).folder))
    assert {key: found.get(key) for key in KEYS[name]} == KEYS[name]


def test_the_older_name_of_an_activation(tmp_path: Path) -> None:
    change = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    made = make(tmp_path / "m", "roberta-rank", change)
    assert metadata(converted(made.folder))["powerinfer.rank.activation"] == "identity"


def test_what_stays_f32(tmp_path: Path) -> None:
    """Norms, tables, Dense and heads, in every format."""
    for name in ("bert-rank", "embeddinggemma", "mpnet"):
        folder = make(tmp_path / name, name).folder
        whole = tensors_of(converted(folder))
        out = convert(folder, outtype="f16", outfile=tmp_path / "half.gguf", log=quiet)
        kinds = {tensor: kind for tensor, (kind, *_rest) in raw(out).items()}
        assert kinds.keys() == whole.keys()
        exact = ("cls", "dense_", "token_types", "position_embd", "attn_rel_b")
        assert {kind for n, kind in kinds.items() if n.startswith(exact)} == {"F32"}
        assert {kind for n, kind in kinds.items() if "norm" in n} == {"F32"}
        assert kinds["blk.0.ffn_down.weight"] == kinds["token_embd.weight"] == "F16"


# ---- sentence-transformers -----------------------------------------------------------------------


def modules_of(folder: Path, *more: str) -> None:
    """modules.json with further modules behind the pooling."""
    kinds = ["Transformer", "Pooling", *more]
    write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": f"{i}_{k}" if i else "", "type": f"st.models.{k}"}
            for i, k in enumerate(kinds)
        ],
    )


def dense(folder: Path, number: int, rows: int, cols: int, act: str | None = None) -> None:
    path = folder / f"{number}_Dense"
    given = {"in_features": cols, "out_features": rows, "bias": True}
    write_json(path / "config.json", given | ({"activation_function": act} if act else {}))
    weights = random_weights(linear("linear", rows, cols), True, number)
    checkpoints.save_safetensors(path / "model.safetensors", weights, "F32")


def test_modules(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert").folder
    dense(folder, 2, 6, 24, f"{DENSE}.activation.ReLU")
    modules_of(folder, "Dense")
    with pytest.raises(UnsupportedModelError, match=r"2_Dense.*activation .*ReLU"):
        converted(folder)
    dense(folder, 2, 6, 24)  # sentence-transformers' default
    found = metadata(converted(folder))
    assert found["powerinfer.dense.activations"] == ["tanh"]
    assert found["powerinfer.embedding.normalize"] is False
    for module in ("LayerNorm", "CNN", "WeightedLayerPooling"):
        modules_of(folder, module)
        with pytest.raises(UnsupportedModelError, match=f"module {module} changes embeddings"):
            converted(folder)
        notes: list[str] = []
        converted(folder, allow_unknown=True, log=notes.append)
        assert any(f"module {module}" in note and "left out" in note for note in notes)
    for number, shape in ((3, (7, 6)), (4, (8, 7))):
        dense(folder, number, *shape)
    modules_of(folder, "Dense", "Dense", "Dense")
    with pytest.raises(UnsupportedModelError, match="module Dense changes embeddings"):
        converted(folder)
    modules_of(folder, "Dense", "Dense")
    assert metadata(converted(folder))["powerinfer.dense.activations"] == ["tanh", "tanh"]
    dense(folder, 3, 7, 5)
    with pytest.raises(ModelFormatError, match=r"linear\.weight"):
        converted(folder)


def test_paths_of_modules(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert").folder
    for path in ("../other", "/etc", "a/b"):
        write_json(folder / "modules.json", [{"type": "st.Pooling", "path": path}])
        with pytest.raises(ModelFormatError, match="Pooling is outside the folder"):
            converted(folder)
    for value in ({}, [1], [{"type": 3, "path": ""}], [{"type": "x"}]):
        write_json(folder / "modules.json", value)
        with pytest.raises(ModelFormatError, match="not a list of modules"):
            converted(folder)


def test_pooling(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert").folder
    path = folder / "1_Pooling" / "config.json"
    for settings, kind in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode": "lasttoken", "include_prompt": True}, 3),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
    ):
        write_json(path, settings)
        if kind is None:
            with pytest.raises(
                UnsupportedModelError, match=r"pooling by \w+.* makes other vectors"
            ):
                converted(folder)
        notes: list[str] = []
        found = metadata(converted(folder, log=notes.append, allow_unknown=kind is None))
        assert found.get("bert.pooling_type") == kind
        assert any("pooling by" in note for note in notes) == (kind is None)
    write_json(path, {"pooling_mode_mean_tokens": True, "include_prompt": False})
    with pytest.raises(UnsupportedModelError, match="include_prompt false"):
        converted(folder)


def test_prompts(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "bert").folder
    path = folder / "config_sentence_transformers.json"
    write_json(path, {"prompts": {"a": "x: "}, "default_prompt_name": "a"})
    assert metadata(converted(folder))["powerinfer.embedding.default_prompt"] == "a"
    for value, words in (
        ({"prompts": {"a": "x: "}, "default_prompt_name": "b"}, "default_prompt_name 'b' is none"),
        ({"prompts": ["x: "]}, "prompts are not texts by name"),
        ({"prompts": {"a": 3}}, "prompts are not texts by name"),
    ):
        write_json(path, value)
        with pytest.raises(ModelFormatError, match=words):
            converted(folder)


def test_the_longest_text(tmp_path: Path) -> None:
    """sentence-transformers' limit, else the tokenizer's; tokenizer.json has those of training."""
    folder = make(tmp_path / "m", "bert").folder

    def limit() -> Any:
        return metadata(converted(folder)).get("powerinfer.embedding.max_tokens")

    assert limit() is None
    write_json(folder / "tokenizer_config.json", {"model_max_length": 128})
    assert limit() == 128
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64})
    assert limit() == 64
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512})  # 320 positions
    assert limit() is None
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": None})
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1e30})
    assert limit() is None


@pytest.mark.parametrize("name", ["bert", "nomic", "modernbert", "mpnet"])
def test_neuron_rows(name: str, tmp_path: Path) -> None:
    """Nobody computes them in encoders."""
    folder = make(tmp_path / "m", name).folder
    with pytest.raises((UnsupportedModelError, ValueError), match="neuron"):
        converted(folder, activation="relu", bundle=True)
    assert not (tmp_path / "m.gguf").exists()


def test_every_family_is_tried() -> None:
    """KEYS has each architecture."""
    kinds = {small.config["model_type"] for small in ALL.values()}
    named = {ALL[name].config["model_type"] for name in KEYS}
    assert kinds - named == {"distilbert"}  # BERT's keys
