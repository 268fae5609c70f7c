"""Checkpoints as families were first published, with other names of keys and tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from safetensors.numpy import load_file, save_file


def test_opt_before_transformers_4_20(tmp_path: Path) -> None:
    folder = golden("opt", tmp_path / "model")
    new = convert(folder, outfile=tmp_path / "new.gguf", log=quiet)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {n.removeprefix("model."): w for n, w in weights.items()}, folder / "model.safetensors"
    )
    old = convert(folder, outfile=tmp_path / "old.gguf", log=quiet)
    assert new.read_bytes() == old.read_bytes()


def test_falcon_before_transformers_knew_it(tmp_path: Path) -> None:
    names = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    for name, model_type, more in (
        (
            "falcon-40b",
            "RefinedWeb",
            {"n_head_kv": 2, "num_kv_heads": None, "new_decoder_architecture": None},
        ),
        ("falcon-7b", "RefinedWebModel", {}),
    ):
        folder = golden(name, tmp_path / name)
        new = convert(folder, outfile=tmp_path / "new.gguf", log=quiet)
        cfg = json.loads((folder / "config.json").read_text())
        cfg = {names.get(k, k): v for k, v in cfg.items()} | {"model_type": model_type} | more
        (folder / "config.json").write_text(json.dumps(cfg))
        old = convert(folder, outfile=tmp_path / "old.gguf", log=quiet)
        assert new.read_bytes() == old.read_bytes()


def test_a_head_beside_a_tied_embedding(tmp_path: Path) -> None:
    folder = golden("falcon-7b", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["transformer.word_embeddings.weight"][::-1].copy()
    save_file(weights, folder / "model.safetensors")
    path = convert(folder, outfile=tmp_path / "a.gguf", log=quiet)
    assert "output.weight" in {t.name for t in Gguf(path).tensors}
    golden("falcon-7b", tmp_path / "tied", tie_word_embeddings=True)
    save_file(weights, tmp_path / "tied" / "model.safetensors")
    path = convert(tmp_path / "tied", outfile=tmp_path / "a.gguf", log=quiet)
    assert "output.weight" not in {t.name for t in Gguf(path).tensors}


def test_gpt2_as_it_was_first_published(tmp_path: Path) -> None:
    """Names without a prefix, and the mask of causal attention as a tensor."""
    folder = golden("gpt2", tmp_path / "model")
    new = convert(folder, outfile=tmp_path / "new.gguf", log=quiet)
    weights = load_file(folder / "model.safetensors")
    weights = {n.removeprefix("transformer."): w for n, w in weights.items()}
    weights["h.0.attn.bias"] = np.tril(np.ones((1, 1, 128, 128), np.float32))
    save_file(weights, folder / "model.safetensors")
    old = convert(folder, outfile=tmp_path / "old.gguf", log=quiet)
    assert new.read_bytes() == old.read_bytes()


@pytest.mark.parametrize("prefix", ["language_model.model", "model.language_model"])
@pytest.mark.parametrize(
    ("name", "outer", "others"),
    [
        ("gemma4-mixture", "gemma4", ("vision_tower.a", "audio_tower.b", "embed_vision.c")),
        ("ministral3", "mistral3", ("vision_tower.a", "multi_modal_projector.b")),
    ],
)
def test_parts_for_text(
    name: str, outer: str, others: tuple[str, ...], prefix: str, tmp_path: Path
) -> None:
    """Models that see images: their text part is converted as it is alone."""
    folder = golden(name, tmp_path / "model")
    alone = convert(folder, outfile=tmp_path / "alone.gguf", log=quiet)
    text = json.loads((folder / "config.json").read_text())
    whole = {"model_type": outer, "text_config": text, "vision_config": {"hidden_size": 8}}
    ids = {key: value for key, value in text.items() if key.endswith("_token_id")}
    (folder / "config.json").write_text(json.dumps({**whole, **ids, "image_token_id": 9}))
    weights = load_file(folder / "model.safetensors")
    weights = {n.replace("model", prefix, 1): w for n, w in weights.items()}
    weights |= {f"{n}.weight": np.ones(3, np.float32) for n in others[:1]}
    weights |= {f"model.{n}.weight": np.ones(3, np.float32) for n in others[1:]}
    save_file(weights, folder / "model.safetensors")
    notes: list[str] = []
    found = convert(folder, outfile=tmp_path / "found.gguf", log=notes.append)
    assert found.read_bytes() == alone.read_bytes()
    assert any("only the text part is converted" in note for note in notes)


@pytest.mark.parametrize("prefix", ["language_model.model", "model.language_model"])
def test_gemma3_that_sees_images(prefix: str, tmp_path: Path) -> None:
    """Its text part, in a section of config.json, which leaves out what is as usual."""
    folder = golden("gemma3", tmp_path / "model")
    alone = convert(folder, outfile=tmp_path / "alone.gguf", log=quiet)
    text = json.loads((folder / "config.json").read_text())
    theta = {"rope_type": "linear", "factor": 8.0, "rope_theta": text.pop("rope_theta")}
    del text["rope_scaling"]
    del text["rope_local_base_freq"]
    text["rope_parameters"] = {
        "full_attention": theta,
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    text["layer_types"] = ["sliding_attention"] * 2 + ["full_attention"]
    del text["sliding_window_pattern"]
    whole = {"model_type": "gemma3", "text_config": text, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(whole))
    weights = load_file(folder / "model.safetensors")
    weights = {n.replace("model", prefix, 1): w for n, w in weights.items()}
    for name in ("vision_tower.a", "multi_modal_projector.b"):
        weights[name] = np.zeros(3, np.float32)
    save_file(weights, folder / "model.safetensors")
    lines: list[str] = []
    found = convert(folder, outfile=tmp_path / "part.gguf", log=lines.append)
    assert found.read_bytes() == alone.read_bytes()
    assert any("only the text part" in line for line in lines)


def test_the_first_configurations_of_gemma(tmp_path: Path) -> None:
    """Where they say gelu they mean its approximation."""
    for name in ("gelu", "gelu_pytorch_tanh"):
        folder = golden("gemma", tmp_path / name, hidden_act=name)
        path = convert(folder, outfile=tmp_path / "a.gguf", log=quiet)
        assert Gguf(path).value("powerinfer.ffn.activation") is None
