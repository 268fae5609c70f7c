"""Attention over latents: any cut of a prompt, caches in 8 bits, saved states, neurons, and what
llama.cpp's keys and tensors say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import golden, logits, quiet, tensors_of
from gguf_files import Spliced, changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama, ModelFormatError

NAMES = ("deepseek-v2", "deepseek-v3", "mistral4")
# Over pages of 64 and a block of 256 positions.
LONG = [1] + [(37 * i * i + 11 * i) % 290 + 4 for i in range(270)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("latents")
    return {
        name: convert(
            golden(name, folder / name, max_position_embeddings=512),
            outtype="f32",
            outfile=folder / f"{name}.gguf",
            log=quiet,
        )
        for name in NAMES
    }


def last(path: Path, parts: list[list[int]], **options: Any) -> np.ndarray:
    with Llama(path, n_ctx=300, verbose=False, **options) as llm:
        for part in parts:
            llm.eval(part)
        return llm.scores[sum(map(len, parts)) - 1].copy()


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_gives_the_same_bits(files: dict[str, Path], name: str) -> None:
    whole = last(files[name], [LONG], n_threads=1)
    for cuts in ([1], [63], [64, 65], [256], [7, 130, 269], [270]):
        ends = [0, *cuts, len(LONG)]
        parts = [LONG[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        for threads in (1, 2):
            assert np.array_equal(last(files[name], parts, n_threads=threads), whole)
    assert np.array_equal(last(files[name], [LONG], n_ubatch=5), whole)


def test_a_saved_state_goes_on(files: dict[str, Path]) -> None:
    whole = last(files["deepseek-v3"], [LONG])
    with Llama(files["deepseek-v3"], n_ctx=300, verbose=False) as llm:
        llm.eval(LONG[:200])
        state = llm.save_state()
        llm.reset()
        llm.eval(LONG[5:60])
        llm.load_state(state)
        llm.eval(LONG[200:])
        assert np.array_equal(llm.scores[len(LONG) - 1], whole)


def test_the_cache_holds_a_latent_once(files: dict[str, Path]) -> None:
    taken = []
    for n_ctx in (64, 128):
        with Llama(files["deepseek-v3"], n_ctx=n_ctx, verbose=False) as llm:
            taken.append(llm.plan()["ram"]["kv"])
    page = 2 * 64 * 2 * (16 + 8)  # of two layers in F16: the latent, and what rotates
    assert page <= taken[1] - taken[0] < page + 64 * 8  # and tokens


def test_keys_and_tensors_are_llama_cpps(files: dict[str, Path]) -> None:
    with Gguf(files["deepseek-v3"]) as file:
        keys = {key.removeprefix("deepseek2."): file.value(key) for key in file.metadata}
    for key, value in {
        "general.architecture": "deepseek2",
        "attention.head_count": 3,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": 12,
        "attention.kv_lora_rank": 16,
        "attention.key_length": 24,
        "attention.value_length": 16,
        "attention.key_length_mla": 20,
        "attention.value_length_mla": 10,
        "rope.dimension_count": 8,
        "rope.scaling.yarn_log_multiplier": np.float32(0.08),
        "rope.scaling.yarn_attn_factor": None,
        "leading_dense_block_count": 1,
        "feed_forward_length": 20,
        "expert_feed_forward_length": 8,
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_group_count": 2,
        "expert_group_used_count": 1,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
    }.items():
        assert keys.get(key) == value, key
    shapes = {name: t.shape for name, t in tensors_of(files["deepseek-v3"]).items()}
    assert shapes["blk.0.attn_k_b.weight"] == (3, 16, 12)
    assert shapes["blk.0.attn_v_b.weight"] == (3, 10, 16)
    assert shapes["blk.1.exp_probs_b.bias"] == (6,)
    with Gguf(files["mistral4"]) as file:
        assert file.value("mistral4.attention.temperature_scale") == np.float32(0.4)
        assert file.value("mistral4.attention.temperature_length") == 8
        assert file.value("mistral4.rope.scaling.original_context_length") == 8


def test_a_router_that_names_no_kind(files: dict[str, Path], tmp_path: Path) -> None:
    """Early files of GLM-4.7-Flash: sigmoids, where there is a bias of the choice."""
    for name in ("deepseek-v2", "deepseek-v3"):
        file = Spliced(files[name])
        path = file.write(tmp_path / "m.gguf", {"deepseek2.expert_gating_func": None})
        assert np.array_equal(logits(path), logits(files[name]))


def older(file: Path, target: Path) -> Path:
    """The file as llama.cpp's converter wrote it before attn_k_b and attn_v_b."""
    tensors = tensors_of(file)
    both = {}
    for name, keys in tensors.items():
        if name.endswith("attn_k_b.weight"):
            values = tensors[name.replace("k_b", "v_b")]
            rows = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
            both[name.replace("k_b", "kv_b")] = np.ascontiguousarray(rows.reshape(-1, 16))
    key = "deepseek2.attention."
    keys = {f"{key}head_count_kv": 3, f"{key}key_length": 20, f"{key}value_length": 10}
    keys |= {f"{key}key_length_mla": None, f"{key}value_length_mla": None}
    parts = ("attn_k_b.weight", "attn_v_b.weight")
    return changed(
        file, target, keys, lambda name, data: None if name.endswith(parts) else data, both
    )


def test_older_files(files: dict[str, Path], tmp_path: Path) -> None:
    path = older(files["deepseek-v3"], tmp_path / "m.gguf")
    assert "blk.0.attn_k_b.weight" not in tensors_of(path)
    assert np.array_equal(logits(path), logits(files["deepseek-v3"]))
    with Llama(path, n_ctx=64, verbose=False, use_mmap=False) as llm:
        llm.eval(LONG[:40])
        assert np.array_equal(llm.scores[39], last(files["deepseek-v3"], [LONG[:40]]))


def test_pairs_of_halves(tmp_path: Path) -> None:
    """A checkpoint whose values rotate with those of the other half gives the same file."""
    from safetensors.numpy import load_file, save_file

    plain = golden("deepseek-v3", tmp_path / "plain")
    want = convert(plain, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    turned = golden("deepseek-v3", tmp_path / "turned", rope_interleave=False)
    weights = load_file(turned / "model.safetensors")
    halves = np.arange(8).reshape(4, 2).T.reshape(-1)
    for name, weight in weights.items():
        if name.endswith("q_b_proj.weight"):
            order = np.concatenate([h * 20 + np.r_[0:12, 12 + halves] for h in range(3)])
        elif name.endswith("kv_a_proj_with_mqa.weight"):
            order = np.r_[0:16, 16 + halves]
        else:
            continue
        weights[name] = np.ascontiguousarray(weight[order])
    save_file(weights, turned / "model.safetensors")
    found = convert(turned, outtype="f32", outfile=tmp_path / "b.gguf", log=quiet)
    ours, theirs = tensors_of(found), tensors_of(want)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert np.array_equal(tensor, theirs[name])


def test_layers_for_drafts_are_left_out(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = golden("deepseek-v3", tmp_path / "model", num_nextn_predict_layers=1)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.eh_proj.weight"] = np.ones((24, 48), np.float16)
    save_file(weights, folder / "model.safetensors")
    notes: list[str] = []
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=notes.append)
    assert not any(name.startswith("blk.2.") for name in tensors_of(path))


@pytest.mark.parametrize("name", NAMES)
def test_neuron_rows(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Layers of one block and of experts beside a shared one, in rows of neurons."""
    folder = golden(name, tmp_path / "model")
    path = convert(folder, outtype="f32", bundle=True, outfile=tmp_path / "a.gguf", log=quiet)
    assert reference.relative_error(logits(path), logits(files[name])) < 2e-5


REFUSED = [
    ("deepseek-v3", {"attention_bias": True}, "attention_bias"),
    ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek-v3", {"topk_method": "greedy"}, "topk_method"),
    ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("deepseek-v3", {"mlp_layer_types": ["dense", "other"]}, "mlp_layer_types"),
    ("deepseek-v3", {"rope_scaling": {"type": "linear", "factor": 2}}, "rope scaling"),
    ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob"),
    ("deepseek-v2", {"topk_method": "other"}, "topk_method"),
    ("mistral4", {"qk_nope_head_dim": 10}, "has shape"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model", **changes)
    with pytest.raises(ModelFormatError, match=words):
        convert(folder, outfile=tmp_path / "a.gguf", log=quiet)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"attention.kv_lora_rank": 12}, "are not those of a latent of 12"),
    ({"attention.kv_lora_rank": None}, "kv_lora_rank"),
    ({"attention.key_length": 20}, "are not those of a latent"),
    ({"attention.value_length": 20}, "are not those of a latent"),
    ({"attention.head_count_kv": 3}, "are not those of a latent"),
    ({"attention.key_length_mla": 8}, "key is not longer than rope.dimension_count"),
    ({"attention.key_length_mla": 21}, r"attn_q_b\.weight"),
    ({"attention.value_length_mla": 11}, r"attn_v_b\.weight"),
    ({"attention.q_lora_rank": 13}, r"attn_q_a\.weight"),
    ({"rope.dimension_count": 6}, "are not those of a latent"),
    ({"leading_dense_block_count": 0}, "is 0, but layer 0 has no experts"),
    ({"leading_dense_block_count": 2}, "is 2, but layer 1 has a router"),
    ({"expert_shared_count": 3}, "3 experts of 8 neurons are not 8 wide together"),
    ({"expert_shared_count": 0}, "0 experts of 8 neurons are not 8 wide together"),
    ({"expert_group_count": 4}, "in 1 of 4 groups"),
]


@pytest.mark.parametrize(("keys", "words"), BAD)
def test_sizes_that_contradict_each_other(
    files: dict[str, Path], keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = Spliced(files["deepseek-v3"])
    path = file.write(tmp_path / "m.gguf", {f"deepseek2.{key}": v for key, v in keys.items()})
    with pytest.raises(ModelFormatError, match=words) as caught:
        Llama(path, n_ctx=64, verbose=False)
    assert str(path) in str(caught.value)


def test_a_cache_in_8_bits_needs_whole_blocks(files: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="a Q8_0 KV cache needs heads of a multiple of 32"):
        Llama(files["deepseek-v3"], n_ctx=64, verbose=False, type_k=8, type_v=8)
