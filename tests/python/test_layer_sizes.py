"""Models whose layers have different numbers of heads, key heads and neurons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from powerinfer_cpp._native import lib
from powerinfer_cpp.core import stats
from powerinfer_cpp.core.errors import OutOfMemoryError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.measure import trace
from powerinfer_cpp.placement import simulate
from reference import logits, relative_error
from test_bench import run_main

from powerinfer_cpp import Llama

N_EMBD, HEAD_DIM, N_VOCAB = 64, 16, 259
EXACT = {"sparse": lib.PI_SPARSE_EXACT}
HEADS, KV_HEADS, NEURONS = [4, 2, 8, 4], [4, 1, 2, 2], [96, 40, 200, 96]
TOKENS = [1, 70, 102, 35, 240, 17, 99, 3, 128, 77, 64, 80]
CONFIG = {
    "num_attention_heads": HEADS[0],
    "num_hidden_layers": len(HEADS),
    "hidden_size": N_EMBD,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def made(seed: int = 0, times: int = 1) -> dict[str, np.ndarray]:
    """Random weights by the names of a checkpoint. times: as many neurons."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, cols: int) -> np.ndarray:
        return (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(N_EMBD)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(N_VOCAB, N_EMBD),
        "lm_head.weight": matrix(N_VOCAB, N_EMBD),
        "model.norm.weight": norm(),
    }
    for i, (n_head, n_kv, n_ff) in enumerate(zip(HEADS, KV_HEADS, NEURONS, strict=True)):
        n_ff *= times
        of_layer = {
            "input_layernorm": norm(),
            "post_attention_layernorm": norm(),
            "self_attn.q_proj": matrix(n_head * HEAD_DIM, N_EMBD),
            "self_attn.k_proj": matrix(n_kv * HEAD_DIM, N_EMBD),
            "self_attn.v_proj": matrix(n_kv * HEAD_DIM, N_EMBD),
            "self_attn.o_proj": matrix(N_EMBD, n_head * HEAD_DIM),
            "mlp.gate_proj": matrix(n_ff, N_EMBD),
            "mlp.up_proj": matrix(n_ff, N_EMBD),
            "mlp.down_proj": matrix(N_EMBD, n_ff),
        }
        weights |= {f"model.layers.{i}.{name}.weight": w for name, w in of_layer.items()}
    return weights


def write(
    path: Path, weights: dict[str, np.ndarray], rows: bool, n_expert: int = 0, **changes: Any
) -> Path:
    """The weights as a file of qwen2, which rotates halves as the reference does. rows: neuron rows
    with ReLU. n_expert: layers after the first have so many experts, all with the same weights."""
    writer = gguf.GGUFWriter(path, "qwen2")
    for key, value in {
        "context_length": 128,
        "embedding_length": N_EMBD,
        "block_count": len(HEADS),
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
    }.items():
        writer.add_uint32(f"qwen2.{key}", value)
    arrays = {
        "feed_forward_length": NEURONS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "expert_count": [0] + [n_expert] * (len(HEADS) - 1),
        "expert_used_count": [0] + [n_expert and 2] * (len(HEADS) - 1),
    } | changes
    for key, values in arrays.items():
        writer.add_array(f"qwen2.{key}", values)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("powerinfer.version", 1)
    writer.add_string("powerinfer.ffn.activation", "relu" if rows else "silu")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [6] * 256)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for i in range(len(HEADS)):
        for theirs, ours in NAMES.items():
            value = weights[f"model.layers.{i}.{theirs}.weight"]
            if rows and ours == "ffn_down":
                ours, value = "ffn_down_t", np.ascontiguousarray(value.T)
            if n_expert and i > 0 and theirs.startswith("mlp."):
                ours, value = f"{ours}_exps", np.stack([value] * n_expert)
            writer.add_tensor(f"blk.{i}.{ours}.weight", value)
        if n_expert and i > 0:
            router = np.random.default_rng(i).standard_normal((n_expert, N_EMBD))
            writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return made()


@pytest.fixture(scope="module", params=[False, True], ids=["matrices", "rows"])
def path(
    request: pytest.FixtureRequest,
    weights: dict[str, np.ndarray],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    return write(folder / "layers.gguf", weights, request.param)


def computed(path: Path, **options: Any) -> np.ndarray:
    """Logits of all tokens."""
    with Llama(str(path), n_ctx=32, logits_all=True, verbose=False, **options) as llm:
        llm.eval(TOKENS)
        return np.array(llm.scores[: len(TOKENS)])


def test_logits_are_those_of_the_reference(path: Path, weights: dict[str, np.ndarray]) -> None:
    expected = logits(CONFIG, weights, TOKENS, "relu" if is_rows(path) else "silu")
    for options in ({}, {"n_batch": 1}, {"n_ubatch": 5}, {"n_threads": 1}):
        assert relative_error(computed(path, **options), expected) < 2e-3, options  # keys in F16
        exact = computed(path, type_k=0, type_v=0, **options)
        assert relative_error(exact, expected) < 1e-5, options


def is_rows(path: Path) -> bool:
    return any("ffn_down_t" in t.name for t in gguf.GGUFReader(path).tensors)


def stored_as_in_ram(path: Path) -> bool:
    """Runs the file from storage with falling budgets. Are the bits always those of memory?"""
    whole = computed(path, n_batch=12, sparse="exact")
    total = sum(memory_plan(str(path), {}, {"n_ctx": 32, "n_batch": 12})["ram"].values())
    options = {"n_ctx": 32, "n_batch": 1, "sparse": "exact", "logits_all": True, "verbose": False}
    tried = 0
    for share in np.arange(0.98, 0.3, -0.12):
        try:
            with Llama(str(path), ram_budget=total * share / (1 << 30), **options) as llm:
                llm.eval(TOKENS)
                tried += sum(llm.plan()["storage"].values()) > 0
                if not np.array_equal(llm.scores[: len(TOKENS)], whole):
                    return False
        except OutOfMemoryError:
            break
    return tried > 0


@pytest.mark.parametrize("n_expert", [0, 4])
def test_from_storage_the_bits_are_the_same(n_expert: int, tmp_path: Path) -> None:
    wider = {"feed_forward_length": [16 * n for n in NEURONS]}
    path = write(tmp_path / "rows.gguf", made(times=16), True, n_expert, **wider)
    assert stored_as_in_ram(path)


def test_a_dense_layer_before_experts(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    """The first layer has one block, the others four experts. These are alike, so that whatever the
    router chooses, the logits are those of one block."""
    path = write(tmp_path / "dense_first.gguf", weights, True, n_expert=4)
    expected = logits(CONFIG, weights, TOKENS, "relu")
    for options in ({}, {"n_batch": 1}, {"n_threads": 1}):
        exact = computed(path, type_k=0, type_v=0, **options)
        assert relative_error(exact, expected) < 1e-5, options
    model = Model(str(path))
    assert model.has_experts and [size.n_expert for size in model.sizes] == [0, 4, 4, 4]
    assert [model.tiers(i).shape for i in range(4)] == [
        (1, NEURONS[0]),
        *((4, n) for n in NEURONS[1:]),
    ]
    session = Session(model, n_ctx=32, n_batch=16, record=lib.PI_RECORD_FIRED, **EXACT)
    session.eval(np.array(TOKENS, np.int32))
    for i, size in enumerate(model.sizes):
        fired = session.layer_activations(i)
        assert fired.shape == (len(TOKENS), *size.shape)
        # Each row computes its block, or two of the experts.
        assert (fired.any(-1).sum(-1) == (2 if i else 1)).all()
    session.close()
    model.close()


def test_figures_of_main(weights: dict[str, np.ndarray], main_path: Path, tmp_path: Path) -> None:
    path, out = write(tmp_path / "mixture.gguf", weights, False, n_expert=3), tmp_path / "s.json"
    done = run_main(main_path, "-m", path, "-p", "abc", "-n", 4, "--json-stats", out)
    assert done.returncode == 0 and "neurons computed =     100.00 %" in done.stderr, done.stderr
    assert "tiers = gpu 0.00 %, ram 100.00 %, storage 0.00 %" in done.stderr
    stats = json.loads(out.read_text())
    ram = stats["tiers"]["ram"]
    assert ram["layer_neurons"] == [NEURONS[0], *(3 * n for n in NEURONS[1:])]
    assert ram["layer_hits"] == [NEURONS[0], *(2 * n for n in NEURONS[1:])]
    assert stats["share_computed"] == [1] * len(NEURONS)


@pytest.mark.parametrize("n_expert", [0, 3])
def test_traces(n_expert: int, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    """What fires is what is recorded of each layer; and the trace can be simulated."""
    path = write(tmp_path / "rows.gguf", weights, True, n_expert)
    model, file = Model(str(path)), tmp_path / "out.npz"
    tokens = np.array(TOKENS, np.int32)
    total, proposed, computed = trace.record(model, file, [tokens], **EXACT)
    found = trace.load(file)
    n = [max(1, n_expert) if i else 1 for i in range(len(NEURONS))]
    assert found.sizes is not None and found.sizes.tolist() == np.repeat(NEURONS, n).tolist()
    assert total == len(TOKENS) and found.parts == sum(np.multiply(NEURONS, n))
    assert found.per_token() == pytest.approx((proposed, computed))
    fired = np.unpackbits(found.computed, axis=-1, bitorder="little", count=max(NEURONS))
    session = Session(model, n_ctx=32, n_batch=16, record=lib.PI_RECORD_FIRED, **EXACT)
    session.eval(tokens)
    first = 0
    for i, n_ff in enumerate(NEURONS):
        own = fired[:, first : first + n[i]]
        first += n[i]
        assert not own[..., n_ff:].any()
        # Gates that fire, of which a few have a product of 0 with up.
        assert np.array_equal(own[..., :n_ff].astype(bool), session.layer_activations(i))
    session.close()
    model.close()
    counts = simulate.compare(found, simulate.shared(found, 0.5))
    assert all(0 < c.rest_missed < c.rest_needed for c in counts.values())
    half = found.parts * (found.first_bytes + found.rest_bytes) // 2
    slots = simulate.split(found, half, simulate.Disk())
    assert 0 < slots.first + slots.rest <= 2 * found.parts


def test_sizes_are_told_by_layer(path: Path) -> None:
    model = Model(str(path))
    assert [size.n_ff for size in model.sizes] == NEURONS == model.layer_n_ff.tolist()
    assert not model.has_experts and lib.pi_model_n_ff(model.handle) == -1
    with pytest.raises(ValueError, match=r"`Model.sizes`"):
        _ = model.n_ff
    # Keys and values in F16.
    plan = model.plan(n_ctx=64, n_batch=8)
    assert 4 * sum(KV_HEADS) * HEAD_DIM * 64 <= plan["ram"]["kv"]
    assert plan["ram"]["kv"] < 4 * sum(KV_HEADS) * HEAD_DIM * 64 * 1.1
    model.close()


def test_recordings_are_by_layer(path: Path, weights: dict[str, np.ndarray]) -> None:
    model = Model(str(path))
    session = Session(model, n_ctx=32, n_batch=16, record=lib.PI_RECORD_FIRED, **EXACT)
    session.eval(np.array(TOKENS, np.int32))
    fired = [session.layer_activations(i)[:, 0] for i in range(len(NEURONS))]
    blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    logits(CONFIG, weights, TOKENS, "relu" if is_rows(path) else "silu", blocks)
    for i, (x, (_, _, h)) in enumerate(zip(fired, blocks, strict=True)):
        assert x.shape == (len(TOKENS), NEURONS[i])
        sure = np.abs(h) > 1e-4
        assert np.array_equal(x[sure], (h != 0)[sure]) and x.mean() == pytest.approx(
            (h != 0).mean(), abs=0.02
        )
        assert np.array_equal(session.layer_firing_counts(i)[0], x.sum(0))
    for get in (session.activations, session.firing_counts):
        with pytest.raises(ValueError, match="use `Session.layer_"):
            get()
    work = session.work()
    rows = dict(zip(range(4), work.neurons[:, 0], strict=True))
    assert set(rows.values()) == {len(TOKENS)}
    assert work.computed_of_all()[1] == len(TOKENS) * sum(NEURONS)
    session.close()

    bits = Session(model, n_ctx=32, n_batch=16, record=lib.PI_RECORD_BITS)
    bits.eval(np.array(TOKENS, np.int32))
    for row in range(len(TOKENS)):
        found = bits.fired_bytes(row)
        for i, n_ff in enumerate(NEURONS):
            of_layer = bits.layer_fired_bits(i, found)[0]
            flags = np.unpackbits(of_layer, count=n_ff, bitorder="little")
            assert np.array_equal(flags.astype(bool), fired[i][row])
    figures = stats.neuron_figures(model, model.plan(n_ctx=32), bits.work())
    assert figures["tiers"]["ram"]["layer_neurons"] == NEURONS
    bits.close()
    model.close()


def test_states_and_copies_take_all_heads(path: Path) -> None:
    with Llama(str(path), n_ctx=96, logits_all=True, verbose=False) as llm:
        text = (TOKENS * 7)[:80]  # more than a page
        llm.eval(text)
        whole = np.array(llm.scores[79])
        llm.reset()
        llm.eval(text[:70])
        state = llm.save_state()
        llm.reset()
        llm.load_state(state)
        llm.eval(text[70:])
        assert np.array_equal(llm.scores[79], whole)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"feed_forward_length": [96, 40, 200]}, "not of one integer for each of the 4 layers"),
        ({"feed_forward_length": [96, 40, 201, 96]}, "blk.2.ffn_gate.weight"),
        ({"attention.head_count": [4, 2, 0, 4]}, "is 0 in layer 2, outside 1"),
        ({"attention.head_count_kv": [4, 1, 3, 2]}, "cannot share 3 key heads"),
        ({"attention.head_count_kv": [4, 2, 2, 2]}, "blk.1.attn_k.weight"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    changes: dict[str, Any], why: str, weights: dict[str, np.ndarray], tmp_path: Path
) -> None:
    path = write(tmp_path / "wrong.gguf", weights, False, **changes)
    with pytest.raises(Exception, match=why):
        Model(str(path))
