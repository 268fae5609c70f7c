"""Families that are sparse by nature: SparseLM, AFM (arcee), Minitron (nemotron), Jais 2, nanochat
and BitNet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import reference
from families import TOKENS, golden, logits, quiet, tensors_of, with_null
from gguf_files import changed, raw, values
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.families import FAMILIES as ALL
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.predictor import train_predictors
from powerinfer_cpp.quantize import quantize
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, OutOfMemoryError, UnsupportedModelError

FAMILIES = ("sparselm", "arcee", "jais2", "nanochat", "nemotron", "bitnet")
FIELDS = {"n_ctx": 64, "verbose": False, "type_k": 0, "type_v": 0}


def checkpoint(name: str, folder: Path) -> Path:
    if name != "sparselm":
        return golden(name, folder)
    # As published: the configuration says silu, the code that it names computes ReLU.
    auto = {"AutoModelForCausalLM": "modeling_llama_sparse_relu.LlamaSparseReluForCausalLM"}
    return golden(
        "llama-relu-gqa",
        folder,
        model_type="llama_sparse_relu",
        hidden_act="silu",
        auto_map=auto,
    )


def scores(path: Path, at_once: int = 64, **options: Any) -> np.ndarray:
    """Logits of every token, float64, of `at_once` tokens per call."""
    with Llama(path, logits_all=True, **FIELDS, **options) as llm:
        for i in range(0, len(TOKENS), at_once):
            llm.eval(TOKENS[i : i + at_once])
        return llm.scores[: len(TOKENS)].astype(np.float64)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Of each family: dense, neuron rows from that file, and bundles from the checkpoint."""
    found = {}
    for name in FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        model = checkpoint(name, folder / "model")
        dense = convert(model, outtype="f32", outfile=folder / "dense.gguf", log=quiet)
        found[name] = {
            "dense": dense,
            "rows": convert(dense, outfile=folder / "rows.gguf", log=quiet),
            "bundles": convert(
                model, bundle=True, outtype="f32", outfile=folder / "bundles.gguf", log=quiet
            ),
        }
    return found


KEYS: dict[str, dict[str, Any]] = {
    "jais2": {
        "attention.head_count_kv": 1,
        "attention.layer_norm_epsilon": np.float32(1e-5),
        "rope.freq_base": 500000.0,
    },
    "nanochat": {
        "attention.layer_norm_rms_epsilon": np.float32(1e-6),
        "final_logit_softcapping": 3.0,
    },
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, files: dict[str, dict[str, Path]]) -> None:
    with Gguf(files[name]["dense"]) as file:
        found = file.metadata
    assert {key: found.get(f"{name}.{key}") for key in KEYS[name]} == KEYS[name]
    assert "powerinfer.ffn.activation" not in found


def test_nanochat_without_a_cap(files: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    """null is none, a missing key 15."""
    dense, key = files["nanochat"]["dense"], "nanochat.final_logit_softcapping"
    folder = with_null(golden("nanochat", tmp_path / "a"), "final_logit_softcapping")
    plain = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    assert Gguf(plain).value(key) == 0
    capped, free = logits(dense), logits(plain)
    assert np.abs(capped).max() < 3 < np.abs(free).max()
    assert reference.relative_error(3 * np.tanh(free / 3), capped) < 2e-6
    folder = golden("nanochat", tmp_path / "b", final_logit_softcapping=None)
    usual = convert(folder, outtype="f32", outfile=tmp_path / "b.gguf", log=quiet)
    assert Gguf(usual).value(key) == 15
    missing = changed(usual, tmp_path / "c.gguf", keys={key: None})
    assert np.array_equal(logits(missing), logits(usual))


# ---- Neuron rows ----


@pytest.mark.parametrize("kind", ["rows", "bundles"])
@pytest.mark.parametrize("name", FAMILIES)
def test_exact_mode_is_the_model(
    name: str, kind: str, files: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    path, want = files[name][kind], scores(files[name]["dense"])
    names = set(tensors_of(path)) if kind == "rows" else set(raw(path))
    assert not any("sub_norm" in n and "ffn" in n for n in names)
    for sparse in ("off", "exact"):
        found = scores(path, sparse=sparse)
        # The same products in another order.
        assert reference.relative_error(found, want) < 2e-5
        for options in ({"at_once": 1}, {"at_once": 5}, {"n_threads": 2}):
            assert np.array_equal(found, scores(path, sparse=sparse, **options))
    back = convert(path, dense=True, outfile=tmp_path / "back.gguf", log=quiet)
    assert reference.relative_error(scores(back), want) < 2e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_most_neurons_are_zero(name: str, files: dict[str, dict[str, Path]]) -> None:
    with Llama(files[name]["rows"], sparse="exact", record="fired", **FIELDS) as llm:
        llm.eval(TOKENS)
        share = llm.activations().mean()
    assert 0.2 < share < 0.8  # of random weights: half


@pytest.mark.parametrize("name", FAMILIES)
def test_profile_and_sketches(
    name: str, files: dict[str, dict[str, Path]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source, text = files[name]["rows"], tmp_path / "t.txt"
    text.write_text(checkpoints.TEXT * 40)
    command = ["profile", str(source), "--text", str(text), "-c", "32", "--tokens", "200"]
    assert main([*command, "--out", str(tmp_path / "p.gguf")]) == 0
    rate = values(tmp_path / "p.gguf")["blk.1.ffn_rate"]
    assert 0.2 < rate.mean() < 0.8
    options = {"kind": "sketch", "n_ctx": 32, "target": 0.5, "type_k": 0, "type_v": 0}
    out = tmp_path / "s.gguf"
    report = train_predictors(tmp_path / "p.gguf", out, text, **options)
    assert report.kind == "sketch"
    want = scores(files[name]["dense"])
    # With all neurons proposed it is the model, also where a norm needs the values of all.
    assert reference.relative_error(scores(out, sparse="exact"), want) < 2e-5
    if any(layer.rank for layer in report.layers):
        whole = scores(out, at_once=1, sparse="predictor", sparse_threshold=-1e30)
        assert reference.relative_error(whole, want) < 2e-5
        for at_once in (1, 3, 64):
            masked = scores(out, at_once, sparse="predictor")
            assert np.array_equal(masked, scores(out, at_once, sparse="predictor", n_threads=2))
    capsys.readouterr()


@pytest.mark.parametrize("at_once", [1, 2, 64])
@pytest.mark.parametrize("name", FAMILIES)
def test_neurons_on_the_disk(
    name: str, at_once: int, files: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    """The same bits with the least memory."""
    path = files[name]["bundles"]
    with pytest.raises(OutOfMemoryError) as caught:
        Llama(path, ram_budget=1e-3, **FIELDS)
    least = re.search(r"at least (\d+) bytes", str(caught.value))
    assert least
    want = scores(path, sparse="exact")[-1]
    calls = -(-len(TOKENS) // at_once)
    budget = (int(least[1]) + 4096 + 1500 * calls) / (1 << 30)  # the scores of each
    with Llama(path, ram_budget=budget, sparse="exact", **FIELDS) as llm:
        assert sum(llm.plan()["storage"].values()) > 0
        for i in range(0, len(TOKENS), at_once):
            llm.eval(TOKENS[i : i + at_once])
        assert np.array_equal(llm.scores[len(TOKENS) - 1].astype(np.float64), want)


# ---- SparseLM ----


def test_sparselm_is_decided_by_its_type(tmp_path: Path) -> None:
    notes: list[str] = []
    folder = checkpoint("sparselm", tmp_path / "a")
    ours = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=notes.append)
    assert any("compute relu" in note and "silu" in note for note in notes)
    plain = golden("llama-relu-gqa", tmp_path / "b")
    theirs = convert(plain, outtype="f32", outfile=tmp_path / "b.gguf", log=quiet)
    assert raw(ours) == raw(theirs)
    assert Gguf(ours).value("general.architecture") == "llama"
    assert Gguf(ours).value("powerinfer.ffn.activation") == "relu"


# ---- BitNet ----


def ternary(folder: Path, packed: str = "") -> Path:
    """BitNet's golden checkpoint with weights of -s, 0 and s, plain or packed; packed: the
    linear_class that says what the stored factor does."""
    golden("bitnet", folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, value in list(weights.items()):
        if "_proj" not in name:
            continue
        value = value.astype(np.float32)
        factor = np.float32(2.0 ** np.round(np.log2(np.abs(value).mean())))
        codes = np.clip(np.rint(value / factor), -1, 1).astype(np.int8)
        if not packed:
            weights[name] = codes * factor
            continue
        quarter = len(codes) // 4
        parts = [(codes[i * quarter : (i + 1) * quarter] + 1) << 2 * i for i in range(4)]
        weights[name] = np.bitwise_or.reduce(np.array(parts).astype(np.uint8))
        stored = 1 / factor if packed == "bitlinear" else factor
        weights[name + "_scale"] = np.array([stored], np.float32)
    save_file(weights, path)
    if packed:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {
            "quant_method": "bitnet",
            "quantization_mode": "offline",
            "linear_class": packed,
        }
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("bundle", [False, True])
@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_weights(linear_class: str, bundle: bool, tmp_path: Path) -> None:
    paths = [
        convert(
            ternary(tmp_path / kind, kind.removeprefix("plain")),
            outtype="f32",
            bundle=bundle,
            outfile=tmp_path / f"{kind}.gguf",
            log=quiet,
        )
        for kind in ("plain", linear_class)
    ]
    assert raw(paths[0]) == raw(paths[1])
    assert Gguf(paths[0]).value("bitnet.hidden_activation") == "relu2"


def test_weights_that_each_use_rounds(tmp_path: Path) -> None:
    """Online: what is stored becomes multiples -1, 0 and 1 of its mean magnitude."""
    online = {"quant_method": "bitnet", "quantization_mode": "online"}
    folder = golden("bitnet", tmp_path / "a", quantization_config=online)
    path = convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)
    for ours, theirs in (("attn_k", "self_attn.k_proj"), ("ffn_down", "mlp.down_proj")):
        found = values(path)[f"blk.1.{ours}.weight"]
        stored = load_file(folder / "model.safetensors")[f"model.layers.1.{theirs}.weight"]
        mean = np.abs(stored.astype(np.float64)).mean()
        want = np.clip(np.rint(stored / mean), -1, 1) * mean
        assert np.allclose(found, want, rtol=1e-6, atol=0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gptq"}, "quantization_config of 'gptq'"),
    ({"quant_method": "bitnet", "use_rms_norm": True}, "use_rms_norm"),
    ({"quant_method": "bitnet", "modules_to_not_convert": ["q_proj"]}, "modules_to_not_convert"),
    ({"quant_method": "bitnet", "quantization_mode": "later"}, "'later'"),
]


@pytest.mark.parametrize(("packing", "words"), BAD)
def test_packings_that_are_refused(packing: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = golden("bitnet", tmp_path / "a", quantization_config=packing)
    with pytest.raises(UnsupportedModelError, match=words):
        convert(folder, outfile=tmp_path / "a.gguf", log=quiet)


def test_damaged_packed_weights(tmp_path: Path) -> None:
    folder = ternary(tmp_path / "a", "autobitlinear")
    path = folder / "model.safetensors"
    good = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    for change, words in (
        ({name: good[name] | np.uint8(3)}, f"{name} has codes beyond"),
        ({name: good[name][:-1]}, f"{name} has .*U8"),
        ({name: good[name].astype(np.float32)}, f"{name} does not hold bytes"),
        ({f"{name}_scale": np.array([np.nan], np.float32)}, "weight_scale of nan"),
    ):
        save_file({**good, **change}, path)
        with pytest.raises((ModelFormatError, UnsupportedModelError), match=words):
            convert(folder, outfile=tmp_path / "a.gguf", log=quiet)


def test_activation_of_bitnet_files(
    files: dict[str, dict[str, Path]], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """Our key, then that of newer files; without either the vocabulary, which is said."""
    dense = files["bitnet"]["dense"]
    relu2 = logits(dense)
    ours, theirs = "powerinfer.ffn.activation", "bitnet.hidden_activation"

    def of(name: str, **keys: Any) -> Path:
        return changed(dense, tmp_path / name, keys={ours: None, theirs: None, **keys})

    silu = logits(of("silu.gguf", **{theirs: "silu"}))
    assert reference.relative_error(silu, relu2) > 0.05
    assert np.array_equal(logits(of("a.gguf", **{theirs: "relu2"})), relu2)
    assert np.array_equal(logits(of("b.gguf", **{theirs: "silu", ours: "relu2"})), relu2)
    capfd.readouterr()
    plain = of("plain.gguf")
    with Llama(plain, **{**FIELDS, "verbose": True}):
        said = capfd.readouterr().err
    assert "does not name its activation: with 300 tokens it is taken to be relu2" in said
    assert np.array_equal(logits(plain), relu2)
    found = scores(plain, kv_overrides={ours: "silu"})
    assert np.array_equal(found, silu)
    with pytest.raises(UnsupportedModelError, match="neither relu2 nor silu"):
        logits(of("gelu.gguf", **{theirs: "gelu"}))
    # The converter takes the same.
    assert Gguf(convert(plain, outfile=tmp_path / "c.gguf", log=quiet)).value(ours) == "relu2"
    again = convert(of("d.gguf", **{theirs: "silu"}), outfile=tmp_path / "e.gguf", log=quiet)
    assert Gguf(again).value(ours) == "silu"


def test_scales_of_products(files: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    """A number beside a matrix multiplies the product; neuron rows have it as a factor."""
    dense = files["bitnet"]["dense"]
    rng, scales = np.random.default_rng(0), {}
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for layer in range(2):
        for part in parts:
            scales[f"blk.{layer}.{part}"] = np.float32(2.0 ** rng.integers(-2, 3))

    def divided(name: str, data: np.ndarray) -> np.ndarray:
        return data / scales.get(name.removesuffix(".weight"), np.float32(1))

    more = {f"{name}.scale": np.array([value]) for name, value in scales.items()}
    halves = changed(dense, tmp_path / "halves.gguf", tensors=divided)
    path = changed(halves, tmp_path / "scaled.gguf", added=more)
    assert reference.relative_error(logits(halves), logits(dense)) > 0.1
    assert np.array_equal(logits(path), logits(dense))  # powers of two
    rows = convert(path, outfile=tmp_path / "rows.gguf", log=quiet)
    assert not any("ffn" in n and n.endswith(".scale") for n in raw(rows))
    assert reference.relative_error(logits(rows), logits(dense)) < 2e-5


# ---- Ternary formats ----


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BitNet file with rows of 256 and ternary weights, in F32."""
    folder = tmp_path_factory.mktemp("wide")
    golden("bitnet", folder / "m", hidden_size=256, intermediate_size=512)
    rng, shapes = np.random.default_rng(0), {"model.embed_tokens.weight": (300, 256)}
    vectors = {"model.norm.weight": 256}
    for i in range(2):
        layer = f"model.layers.{i}"
        for part, rows in (("q", 256), ("k", 128), ("v", 128), ("o", 256)):
            shapes[f"{layer}.self_attn.{part}_proj.weight"] = (rows, 256)
        for part in ("gate", "up"):
            shapes[f"{layer}.mlp.{part}_proj.weight"] = (512, 256)
        shapes[f"{layer}.mlp.down_proj.weight"] = (256, 512)
        for part in ("input_layernorm", "post_attention_layernorm", "self_attn.attn_sub_norm"):
            vectors[f"{layer}.{part}.weight"] = 256
        vectors[f"{layer}.mlp.ffn_sub_norm.weight"] = 512
    weights = {name: (1 + rng.standard_normal(n) / 5) for name, n in vectors.items()}
    for name, shape in shapes.items():
        weights[name] = rng.standard_normal(shape) / 2
        if "_proj" in name:
            weights[name] = rng.integers(-1, 2, shape) * 2.0**-4
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    save_file(weights, folder / "m" / "model.safetensors")
    return convert(folder / "m", outtype="f32", outfile=folder / "m.gguf", log=quiet)


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0"])
def test_ternary_formats(kind: str, aware: bool, wide: Path, tmp_path: Path) -> None:
    source = convert(wide, outfile=tmp_path / "rows.gguf", log=quiet) if aware else wide
    path = tmp_path / "q.gguf"
    quantize(source, path, kind, log=quiet)
    found, held = raw(path), values(path)
    down = "ffn_down_t" if aware else "ffn_down"
    for part in ("attn_q", "attn_output", "ffn_up", down):
        assert found[f"blk.0.{part}.weight"][0] == kind
    assert found["token_embd.weight"][0] == "Q6_K"  # the head, which is tied
    assert Gguf(path).value("general.file_type") == {"TQ1_0": 36, "TQ2_0": 37}[kind]
    original = values(source)
    assert np.array_equal(held["blk.1.ffn_gate.weight"], original["blk.1.ffn_gate.weight"])
    decoded = changed(path, tmp_path / "f.gguf", tensors=lambda n, _d: held[n].astype(np.float32))
    want = scores(decoded, sparse="exact")
    # Inputs are rounded to 8 bits.
    ours = scores(path, sparse="exact")
    assert reference.relative_error(ours, want) < 3e-2
    for options in ({"at_once": 1}, {"at_once": 4}, {"n_threads": 2}):
        assert np.array_equal(ours, scores(path, sparse="exact", **options))


def test_ternary_matrices_are_turned_without_loss(wide: Path, tmp_path: Path) -> None:
    quantize(wide, tmp_path / "q.gguf", "TQ2_0", log=quiet)
    lines: list[str] = []
    path = convert(tmp_path / "q.gguf", outfile=tmp_path / "rows.gguf", log=lines.append)
    assert raw(path)["blk.1.ffn_down_t.weight"][0] == "TQ2_0"
    norm, turned = values(tmp_path / "q.gguf"), values(path)["blk.1.ffn_down_t.weight"]
    want = norm["blk.1.ffn_down.weight"].T * norm["blk.1.ffn_sub_norm.weight"][:, None]
    assert np.allclose(turned, want, rtol=2**-10, atol=0)  # a row's scale is a half
    assert reference.relative_error(scores(path), scores(tmp_path / "q.gguf")) < 3e-2


def test_i2_s_is_refused_by_a_sentence(files: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    data = bytearray(files["bitnet"]["dense"].read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    assert data[at : at + 4] == b"\0\0\0\0"
    data[at] = 36
    path = tmp_path / "i2s.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match=r"I2_S \(36\) is not supported: .*TQ2_0"):
        logits(path)


def test_all_of_them_are_families() -> None:
    assert {"llama_sparse_relu", *FAMILIES[1:]} <= set(ALL)
