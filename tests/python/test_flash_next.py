"""Qwen3.8 Flash Next: its table of n-grams on the disk, contexts that its indexer sees whole, other
layouts of checkpoints, and what is refused.

test_golden.py compares short texts with transformers, test_states.py cuts and saves sequences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import golden, logits, quiet
from gguf_files import changed, raw, values
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.quantize import quantize
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

NAME, ARCH, SEEN = "qwen4-exp", "qwen4exp", 259  # positions: 256 in blocks of 4, and 3 behind them


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(golden(NAME, tmp_path_factory.mktemp("flash") / "model"))


def converted(folder: Path, notes: list[str] | None = None) -> Path:
    log = quiet if notes is None else notes.append
    return convert(folder, outtype="f32", outfile=folder.parent / "out.gguf", log=log)


def with_weights(folder: Path, change: Any) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file(change(dict(weights)), folder / "model.safetensors")
    return folder


def test_keys(path: Path) -> None:
    with Gguf(path) as file:
        found = {key.removeprefix(f"{ARCH}."): value for key, value in file.metadata.items()}
    want = {
        "hyper_connection.count": 3,
        "hyper_connection.low_rank": 6,
        "attention.indexer.head_count": 2,
        "attention.indexer.key_length": 8,
        "attention.indexer.top_k": 256,
        "attention.compress_ratios": [0, 4],
        "attention.recurrent_layers": [True, False],
        "embedding_length_per_layer_input": 6,
        "ple.layers": [0],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": 3,
        "ple.eos_token_id": 3,
        "ple.head_offsets": [0, 41, 84, 131],
        "ple.head_vocab_sizes": [41, 43, 47, 53],
    }
    assert {key: found.get(key) for key in want} == want
    assert len(found["ple.layer_multipliers"]) == 3
    assert "powerinfer.delta_net.gate" not in found


# ---- The table ----


@pytest.mark.parametrize("io", ["threads", "uring"])
def test_readers(path: Path, io: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have the same bits however they are read."""
    want = logits(path)
    monkeypatch.setenv("POWERINFER_IO", io)
    try:
        found = logits(path)
    except OSError as error:
        pytest.skip(f"{error}")  # systems may refuse io_uring
    assert np.array_equal(found, want)


def test_the_table_stays_on_the_disk(path: Path, tmp_path: Path) -> None:
    """Memory does not grow with it, and rows that no hash reaches change nothing."""
    longer = np.concatenate([values(path)["per_layer_token_embd.weight"], np.ones((50000, 6))])
    other = changed(
        path,
        tmp_path / "longer.gguf",
        tensors=lambda name, data: (
            longer.astype(np.float32) if name == "per_layer_token_embd.weight" else data
        ),
    )
    with (
        Llama(path, n_ctx=64, verbose=False) as small,
        Llama(other, n_ctx=64, verbose=False) as large,
    ):
        assert small.plan()["ram"] == large.plan()["ram"]
    assert np.array_equal(logits(path), logits(other))


def test_a_file_that_changes(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    with Llama(copy, n_ctx=64, verbose=False) as llm:
        llm.eval([5, 6])
        with open(copy, "ab") as file:
            file.write(b"x")
        with pytest.raises(ModelFormatError, match=r"copy\.gguf"):
            llm.eval([7])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_quantised(kind: str, tmp_path: Path) -> None:
    """Rows of blocks, too. What is left beside the rounding of weights is that of inputs to 8
    bits."""
    folder = golden(NAME, tmp_path / "model", ple_embed_dim=128)
    rng = np.random.default_rng(1)

    def wide(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name, value in weights.items():
            if "ngram_embedding" in name:
                weights[name] = rng.standard_normal((len(value), 32), np.float32)
            if name.endswith(("ple.key_proj.weight", "ple.value_proj.weight")):
                weights[name] = rng.standard_normal((len(value), 128), np.float32) / 11
        return weights

    quantize(converted(with_weights(folder, wide)), tmp_path / "q.gguf", kind, log=quiet)
    kinds = {name: kind for name, (kind, *_) in raw(tmp_path / "q.gguf").items()}
    assert kinds["per_layer_token_embd.weight"] == kinds["blk.0.ple_key.weight"] == kind
    assert kinds["blk.0.ple_conv1d.weight"] == "F32"
    decoded = values(tmp_path / "q.gguf")
    plain = changed(
        tmp_path / "q.gguf",
        tmp_path / "plain.gguf",
        tensors=lambda name, _data: decoded[name].astype(np.float32),
    )
    found, want = logits(tmp_path / "q.gguf"), logits(plain)
    assert np.linalg.norm(found - want) < 0.08 * np.linalg.norm(want)


# ---- The indexer ----


def test_contexts_end_where_the_indexer_chooses(path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"n_ctx is {SEEN + 1}.* up to {SEEN} "
    ) as error:
        Llama(path, n_ctx=SEEN + 1, verbose=False)
    assert "\n" not in str(error.value) and "indexer" in str(error.value)
    for given in (SEEN, 64):
        with Llama(path, n_ctx=given, verbose=False) as llm:
            assert llm.n_ctx() == given


@pytest.mark.parametrize(("kept", "block", "seen"), [(16, 4, 19), (18, 4, 19), (7, 7, 13)])
def test_contexts_that_nobody_has_chosen(
    kept: int, block: int, seen: int, path: Path, tmp_path: Path
) -> None:
    """Are as long as rows see all."""
    keys = {
        f"{ARCH}.attention.indexer.top_k": kept,
        f"{ARCH}.attention.compress_ratios": [0, block],
    }
    other = changed(path, tmp_path / "other.gguf", keys)
    for given in (0, None):
        with Llama(other, n_ctx=given, verbose=False) as llm:
            assert llm.n_ctx() == seen
    with Gguf(other) as file:
        assert file.n_ctx_train == seen


def test_without_an_indexer(path: Path, tmp_path: Path) -> None:
    names = ("indexer.head_count", "indexer.key_length", "indexer.top_k", "compress_ratios")
    without = changed(
        path,
        tmp_path / "without.gguf",
        {f"{ARCH}.attention.{name}": None for name in names},
        tensors=lambda name, data: None if "indexer" in name else data,
    )
    assert np.array_equal(logits(without), logits(path))
    with Llama(without, n_ctx=1024, verbose=False) as llm:
        assert llm.n_ctx() == 1024
    tensors_alone = changed(
        path, tmp_path / "alone.gguf", {f"{ARCH}.attention.{name}": None for name in names}
    )
    with pytest.raises(UnsupportedModelError, match="indexer"):
        Llama(tensors_alone, n_ctx=64, verbose=False)


# ---- Files ----


WIDE = (1 << 63) - 1
HOSTILE: list[tuple[str, Any, str]] = [
    ("hyper_connection.count", 1, "hyper_connection.count"),
    ("hyper_connection.count", 4, "has shape"),
    ("hyper_connection.count", None, "hyper_connection.count"),
    ("hyper_connection.low_rank", 0, "hyper_connection.low_rank"),
    ("hyper_connection.low_rank", 7, "has shape"),
    ("attention.indexer.top_k", 3, "attention.indexer.top_k"),
    ("attention.indexer.top_k", None, "attention.indexer.top_k"),
    ("attention.compress_ratios", [0, -4], "are not sizes of blocks"),
    ("attention.compress_ratios", [0, 0], "or 0 in all layers"),
    ("attention.compress_ratios", [4], "one for each layer"),
    ("attention.compress_ratios", None, "or 0 in all layers"),
    ("embedding_length_per_layer_input", 7, "has shape"),
    ("embedding_length_per_layer_input", None, "embedding_length_per_layer_input"),
    ("ple.layers", [2], "there is no layer 2"),
    ("ple.layers", [-1], "there is no layer -1"),
    ("ple.layers", [1], "ple_key"),
    ("ple.ngram_size", 1, "ple.ngram_size"),
    ("ple.ngram_size", 4, "layer_multipliers is not an array of 4"),
    ("ple.heads_per_ngram", 0, "ple.heads_per_ngram"),
    ("ple.heads_per_ngram", 3, "head_offsets is not an array of 6"),
    ("ple.conv_kernel", 7, "ple.conv_kernel"),
    ("ple.conv_kernel", 4, "has shape"),
    ("ple.eos_token_id", 300, "ple.eos_token_id"),
    ("ple.eos_token_id", None, "ple.eos_token_id"),
    ("ple.layer_multipliers", [1, 2], "is not an array of 3 integers"),
    ("ple.layer_multipliers", None, "layer_multipliers is missing"),
    ("ple.head_offsets", [0, 41, 84, 140], "53 rows from 140 on are not in a table of 184"),
    ("ple.head_offsets", [0, 41, 84, WIDE], "are not in a table"),
    ("ple.head_vocab_sizes", [41, 43, 47, WIDE], "are not in a table"),
    ("ple.head_vocab_sizes", [41, 43, 47, 0], "holds 0"),
    ("ple.head_vocab_sizes", [41, 43, 47], "is not an array of 4 integers"),
]


@pytest.mark.parametrize(("key", "value", "words"), HOSTILE)
def test_keys_of_a_gguf(key: str, value: Any, words: str, path: Path, tmp_path: Path) -> None:
    other = changed(path, tmp_path / "other.gguf", {f"{ARCH}.{key}": value})
    with pytest.raises(ModelFormatError, match=words) as caught:
        Llama(other, n_ctx=16, verbose=False)
    assert "\n" not in str(caught.value) and "other.gguf" in str(caught.value)


def test_n_grams_in_several_layers(path: Path, tmp_path: Path) -> None:
    other = changed(path, tmp_path / "other.gguf", {f"{ARCH}.ple.layers": [0, 1]})
    with pytest.raises(UnsupportedModelError, match="n-grams in more than one layer"):
        Llama(other, n_ctx=16, verbose=False)


def test_a_missing_tensor_is_named(path: Path, tmp_path: Path) -> None:
    for name in (
        "per_layer_token_embd.weight",
        "blk.0.ple_conv1d.weight",
        "blk.1.hc_ffn_inject.weight",
        "output_hc_up.weight",
    ):
        broken = changed(
            path,
            tmp_path / "broken.gguf",
            tensors=lambda found, data, name=name: None if found == name else data,
        )
        with pytest.raises(ModelFormatError, match=name):
            Llama(broken, n_ctx=16, verbose=False)


def test_other_families_refuse_its_keys(tmp_path: Path) -> None:
    plain = converted(golden("qwen3-5-moe", tmp_path / "model"))
    for key, value in (("ple.ngram_size", 3), ("hyper_connection.low_rank", 8)):
        other = changed(plain, tmp_path / "other.gguf", {f"qwen35moe.{key}": value})
        with pytest.raises(UnsupportedModelError, match=key):
            Llama(other, n_ctx=16, verbose=False)


# ---- Checkpoints ----


def test_checkpoints_that_see_images(path: Path, tmp_path: Path) -> None:
    folder = golden(NAME, tmp_path / "images")
    text = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": "qwen4_exp",
        "text_config": text,
        "vision_config": {"depth": 1},
        "image_token_id": 286,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    (folder / "config.json").write_text(json.dumps(outer))

    def renamed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = {
            key.replace("model.", "model.language_model.", 1): value
            for key, value in weights.items()
        }
        found["model.visual.pos_embed.weight"] = np.ones((4, 4), np.float16)
        found["mtp.fc.weight"] = np.ones((4, 4), np.float16)
        return found

    notes: list[str] = []
    found = converted(with_weights(folder, renamed), notes)
    assert raw(found) == raw(path)
    assert any("mtp" in note for note in notes) and any("text part" in note for note in notes)
    assert not any("unknown" in note for note in notes)
    with Gguf(found) as file:
        assert file.value(f"{ARCH}.ple.image_token_id") == 286


def test_tables_in_one_part_and_in_unequal_ones(path: Path, tmp_path: Path) -> None:
    start = "model.layers.0.ple.ple_embedding.ngram_embedding"

    def table(weights: dict[str, np.ndarray]) -> np.ndarray:
        names = sorted(name for name in weights if name.startswith(start))
        return np.concatenate([weights.pop(name) for name in names])

    def whole(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        weights[f"{start}.weight"] = table(weights)
        return weights

    def unequal(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for i, rows in enumerate(np.split(table(weights), [1, 100])):
            weights[f"{start}.shard_{i}.weight"] = rows
        return weights

    for i, change in enumerate((whole, unequal)):
        folder = with_weights(golden(NAME, tmp_path / str(i) / "model"), change)
        assert raw(converted(folder)) == raw(path)


def test_gates_by_silu(path: Path, tmp_path: Path) -> None:
    """As transformers has it where config.json names no gate."""
    other = converted(golden(NAME, tmp_path / "model", output_gate_type=None))
    with Gguf(other) as file:
        assert file.value("powerinfer.delta_net.gate") == "silu"
    assert raw(other) == raw(path)
    assert np.abs(logits(other) - logits(path)).max() > 0.1
    strange = changed(other, tmp_path / "strange.gguf", {"powerinfer.delta_net.gate": "tanh"})
    with pytest.raises(UnsupportedModelError, match="neither sigmoid nor silu"):
        Llama(strange, n_ctx=16, verbose=False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"hc_count": 1}, "hc_count"),
    ({"hc_count": 4}, "has shape"),
    ({"output_gate_type": "tanh"}, "another output_gate_type"),
    ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
    ({"indexer_budget": None}, "indexer_budget"),
    ({"indexer_n_heads": 3}, "index_qk_proj.weight has shape"),
    ({"ple_layer_ids": [1, 2]}, "n-grams in more than one layer"),
    ({"ple_layer_ids": [3]}, "there is no layer 3"),
    ({"ple_layer_ids": [2]}, "lacks tensor model.layers.1.ple"),
    ({"ple_layer_ids": "1"}, "ple_layer_ids must be a list"),
    ({"ple_embed_dim": 26}, "ple_embed_dim 26 is not a multiple of 4"),
    ({"heads_per_ngram": 3}, "expected \\[6\\]"),
    ({"eos_token_id": None}, "n-grams need an eos_token_id"),
    ({"eos_token_id": [300]}, "n-grams need an eos_token_id"),
    ({"layer_types": ["linear_attention", "chunked"]}, "layers of kind 'chunked'"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(NAME, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words) as caught:
        converted(folder)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*.gguf*"))


def test_hashes_that_are_no_integers(tmp_path: Path) -> None:
    name = "model.layers.0.ple.ple_embedding.layer_multipliers"
    for value, words in (
        (np.ones(3, np.float32), "does not hold integers of 64 bits"),
        (np.ones(4, np.int64), r"has shape \[4\]"),
        (None, "lacks tensor"),
    ):
        folder = golden(NAME, tmp_path / words[:4] / "model")

        def change(weights: dict[str, np.ndarray], value: Any = value) -> dict[str, np.ndarray]:
            weights[name] = value
            return {key: found for key, found in weights.items() if found is not None}

        with pytest.raises(ModelFormatError, match=words):
            converted(with_weights(folder, change))
