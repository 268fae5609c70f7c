"""What the GGUFs of encoders say beside their tensors, and what their config.json may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
from more_encoders import JINA, WIDTH, jina_shapes, written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.config import Config
from powerinfer_cpp.convert.families import read_family
from powerinfer_cpp.convert.unread import judge_keys

from powerinfer_cpp import UnsupportedModelError

GTE: dict[str, Any] = {
    "model_type": "new",
    "architectures": ["NewModel"],
    **{"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 96, "max_position_embeddings": 512, "type_vocab_size": 1},
    **{"rope_theta": 20000, "position_embedding_type": "rope", "pack_qkv": True},
}


def family(**changes: Any) -> Any:
    return read_family(Config.made(Path("config.json"), {**GTE, **changes}))


def test_the_rotation_of_gte_for_long_texts() -> None:
    """As its code has it: a larger base, and all frequencies divided."""
    rope = family(rope_scaling={"type": "ntk", "factor": 8.0}).rope
    assert rope.kind == "linear"
    i, d, s = np.arange(8), 16, 8.0
    wanted = 1 / (20000 * s) ** (2 * i / d) / s ** (2 / d)
    assert np.allclose(rope.theta ** (-2 * i / d) / rope.factor, wanted, rtol=1e-12)
    assert family(rope_scaling=None).rope.kind == "none"
    with pytest.raises(UnsupportedModelError, match="mixed_b"):
        family(rope_scaling={"type": "ntk", "factor": 8.0, "mixed_b": 0.625})
    with pytest.raises(UnsupportedModelError, match="rope scaling 'other'"):
        family(rope_scaling={"type": "other", "factor": 8.0})


def test_the_rotation_of_nomic_for_long_texts() -> None:
    """Its base grows with texts beyond those in training, and not before."""
    sizes = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 96, "vocab_size": 50}
    ends = {"max_trained_positions": 2048, "n_positions": 8192, "rotary_emb_base": 1000}
    for factor, kind in ((None, "none"), (2, "dynamic")):
        values = {"model_type": "nomic_bert", **sizes, **ends, "rotary_scaling_factor": factor}
        found = read_family(Config.made(Path("config.json"), values))
        assert (found.n_ctx, found.rope.theta, found.rope.kind) == (2048, 1000, kind)
        assert found.rope.factor == (factor or 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["NewForSequenceClassification"]}, "with 2 labels"),
        ({"logn_attention_scale": True}, "logn_attention_scale"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        (
            {"model_type": "eurobert", "architectures": ["EuroBertForSequenceClassification"]},
            "EuroBERT that ranks .*clf_pooling late",
        ),
        (
            {"model_type": "mpnet", "architectures": ["MPNetForSequenceClassification"]},
            "mpnet that ranks",
        ),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        family(**{"pad_token_id": 1, **values})


def test_keys_without_effect_are_known() -> None:
    more = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "unpad_inputs": False}
    settings = {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid", "version": "5.1"}}
    config = Config.made(Path("config.json"), {**GTE, **more, **settings})
    read_family(config)
    assert list(judge_keys(config, allow_unknown=False)) == []


def test_what_llama_cpp_wants_to_know(tmp_path: Path) -> None:
    """How many token types there are, and how wide dense layers are."""
    folder, _ = written(tmp_path / "jina", JINA, jina_shapes(False))
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Dense", "Dense")]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"name": n, "path": p, "type": f"sentence_transformers.models.{t}"}
                for n, p, t in [*modules, ("3", "3_Dense", "Dense")]
            ]
        )
    )
    for name, shape in (("2_Dense", (40, WIDTH)), ("3_Dense", (10, 40))):
        (folder / name).mkdir()
        matrix = {"linear.weight": np.ones(shape, np.float32)}
        checkpoints.save_safetensors(folder / name / "model.safetensors", matrix, "F32")
        says = {"activation_function": "torch.nn.modules.linear.Identity", "bias": False}
        (folder / name / "config.json").write_text(json.dumps(says))
    notes: list[str] = []
    path = convert(folder, outtype="f32", log=notes.append)
    fields = gguf.GGUFReader(path).fields
    found = {
        key: fields[f"jina-bert-v2.{key}"].contents()
        for key in ("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out")
    }
    assert list(found.values()) == [WIDTH, 40, 40, 10]
    assert fields["tokenizer.ggml.token_type_count"].contents() == 2
    assert notes == []
