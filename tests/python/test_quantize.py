"""Formats: the engine's codecs against the gguf package's, and `quantize`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.formats import decode, encode, format_by_name
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.quantize import FORMATS, Choice, quantize

from powerinfer_cpp import Llama, UnsupportedModelError

NAMES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "MXFP4"]


def samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(32 * 200).astype(np.float32)
    ties = np.tile(np.array([-2.0, -1.5, -0.5, 0.5, 1.5, 2.0, 127.0, -127.0], np.float32), 8)
    return {
        "normal": normal,
        "zeros": np.zeros(64, np.float32),
        "small": normal * np.float32(1e-6),
        "large": normal * np.float32(1e3),
        "one sided": np.abs(normal),
        "ties": ties,
        "signed zeros": np.tile(np.array([0.0, -0.0], np.float32), 32),
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", samples().values(), ids=samples())
def test_codecs_against_the_gguf_package(name: str, values: np.ndarray) -> None:
    fmt, kind = format_by_name(name), gguf.GGMLQuantizationType[name]
    assert (fmt.block, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[kind] and fmt.type == kind
    ours = encode(fmt, values)
    theirs = (
        np.ascontiguousarray(gguf.quants.quantize(values[None], kind)).view(np.uint8).reshape(-1)
    )
    assert np.array_equal(ours, theirs)
    back = decode(fmt.type, ours, values.size)
    assert np.array_equal(back, gguf.quants.dequantize(theirs.view(_raw(name))[None], kind)[0])


def _raw(name: str) -> type:
    return {"F32": np.float32, "F16": np.float16}.get(name, np.uint8)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("importance", (False, True), ids=("plain", "importance"))
def test_a_value_beyond_a_format_is_refused_or_kept(name: str, importance: bool) -> None:
    """The scale of a block is a half: a weight that it cannot reach must not become infinite, nor
    its block zero. One weight of growing size among small ones, at a place of its own each time."""
    fmt = format_by_name(name)
    refused = 0
    for exponent in range(2, 39):
        for value in (10.0**exponent, -(10.0**exponent)):
            values = np.linspace(-1, 1, 512, dtype=np.float32)
            at = (37 * exponent) % values.size
            values[at] = value
            try:
                data = encode(fmt, values, np.ones(512, np.float32) if importance else None)
            except ValueError as error:
                assert f"{value:g} is beyond the range of {name}" in str(error)
                refused += 1
                continue
            # MXFP4 has no value between 6 and 8 times a power of 2.
            most = 0.25 if name == "MXFP4" else 0.2
            assert abs(decode(fmt.type, data, values.size)[at] / value - 1) < most, value
    assert refused > 50 or name in ("BF16", "MXFP4")


@pytest.mark.parametrize("value", (np.inf, -np.inf, np.nan))
def test_blocks_hold_no_values_that_are_not_finite(value: float) -> None:
    values = np.ones(256, np.float32)
    values[100] = value
    for name in FORMATS:
        fmt = format_by_name(name)
        if fmt.quantised:
            with pytest.raises(ValueError, match="not finite"):
                encode(fmt, values)
        else:
            assert not np.isfinite(decode(fmt.type, encode(fmt, values), values.size)[100])


def test_refused_conversions_of_quantised_matrices_say_what_is_lost(
    files: dict[str, Path], tmp_path: Path
) -> None:
    quantize(files["dense"], tmp_path / "q8.gguf", "Q8_0", log=quiet)
    for name, why in (("Q4_0", "quantising it again loses more"), ("F16", "brings back nothing")):
        with pytest.raises(UnsupportedModelError, match=f"already Q8_0; .*{why}"):
            quantize(tmp_path / "q8.gguf", tmp_path / "out.gguf", name, log=quiet)


def test_codecs_check_sizes() -> None:
    q8 = format_by_name("q8_0")
    assert q8.name == "Q8_0" and not q8.fits(40) and q8.fits(64) and q8.n_bytes(64) == 68
    with pytest.raises(ValueError):
        encode(q8, np.zeros(33, np.float32))
    with pytest.raises(ValueError):
        decode(q8.type, np.zeros(30, np.uint8), 32)
    with pytest.raises(ValueError, match="unknown tensor format 'Q99'"):
        format_by_name("Q99")


# ---- quantize ----


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quantize")
    cfg = checkpoints.config(hidden_act="relu")
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(folder / "predictor", cfg, ranks=(32, 24))
    return {
        "dense": convert(folder / "model", outfile=folder / "dense.gguf", outtype="f32", log=quiet),
        "aware": convert(
            folder / "model",
            folder / "predictor",
            outfile=folder / "aware.gguf",
            outtype="f32",
            log=quiet,
        ),
    }


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_equals_converting_to_that_format(
    name: str, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    quantize(files["dense"], out, name.lower(), log=quiet)
    model = files["dense"].parent / "model"
    direct = convert(model, outfile=tmp_path / "direct.gguf", outtype=name.lower(), log=quiet)
    ours, theirs = Gguf(out), Gguf(direct)
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert (a.shape, a.type) == (b.shape, b.type)
        assert np.array_equal(ours.data(a), theirs.data(b)), a.name
    assert ours.metadata == theirs.metadata and ours.types == theirs.types


def test_slabs(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(files["dense"], tmp_path / "whole.gguf", "Q8_0", log=quiet)
    monkeypatch.setattr("powerinfer_cpp.convert.stored.SLAB", 64 * 5)
    quantize(files["dense"], tmp_path / "slabs.gguf", "Q8_0", log=quiet)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "slabs.gguf").read_bytes()


def test_predictors(files: dict[str, Path], tmp_path: Path) -> None:
    out, lines = tmp_path / "out.gguf", []
    quantize(files["aware"], out, "Q4_0", log=lines.append)
    types = {t.name: t.type_name for t in Gguf(out).tensors}
    assert (
        types["blk.0.fc1.weight"]
        == types["blk.0.fc2.weight"]
        == types["blk.1.fc1.weight"]
        == "Q8_0"
    )
    assert types["blk.1.fc2.weight"] == "F16" and any("blk.1.fc2.weight" in line for line in lines)
    assert types["blk.0.ffn_down_t.weight"] == "Q4_0" and types["blk.0.ffn_norm.weight"] == "F32"
    quantize(files["aware"], out, "Q4_0", predictor_type="F16", log=quiet)
    assert {t.type_name for t in Gguf(out).tensors if ".fc" in t.name} == {"F16"}
    assert Gguf(out).metadata["powerinfer.version"] == 1


def test_every_kind_of_value_is_read_and_copied(tmp_path: Path) -> None:
    kinds, source = gguf.GGUFValueType, tmp_path / os.fsdecode(b"caf\xe9.gguf")
    values = {
        "UINT8": 255,
        "INT8": -128,
        "UINT16": 65535,
        "INT16": -32768,
        "UINT32": 2**32 - 1,
        "INT32": -(2**31),
        "UINT64": 2**63 - 1,
        "INT64": -(2**63),
        "FLOAT32": 0.5,
        "FLOAT64": 0.1,
        "BOOL": True,
        "STRING": b"caf\xe9 \x00 \xe2\x82\xac",
    }
    file = gguf.GGUFWriter(source, "llama")
    for name, value in values.items():
        file.add_key_value(name, value, kinds[name])
        file.add_key_value(f"array.{name}", [value] * 70000, kinds.ARRAY, kinds[name])
    file.add_tensor("a.weight", np.ones((2, 32), np.float32))
    for step in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file):
        step()
    file.close()
    quantize(source, tmp_path / "out.gguf", "Q8_0", log=quiet)
    for path in (source, tmp_path / "out.gguf"):
        with Gguf(path) as found:
            for name, value in values.items():
                want = os.fsdecode(value) if name == "STRING" else value
                assert found.metadata[name] == want and type(found.metadata[name]) is type(want)
                assert found.metadata[f"array.{name}"] == [want] * 70000, name
                assert found.types[f"array.{name}"] == (kinds.ARRAY, kinds[name])


def test_requantising(files: dict[str, Path], tmp_path: Path) -> None:
    q8, out = tmp_path / "q8.gguf", tmp_path / "out.gguf"
    quantize(files["dense"], q8, "Q8_0", log=quiet)
    with pytest.raises(UnsupportedModelError, match="already Q8_0"):
        quantize(q8, out, "Q4_0", log=quiet)
    assert not out.exists()
    quantize(q8, out, "Q8_0", log=quiet)  # the same format: the bytes are kept
    assert out.read_bytes() == q8.read_bytes()
    quantize(q8, out, "Q4_0", allow_requantize=True, log=quiet)
    assert Gguf(out).metadata["general.file_type"] == 2


def test_refusals(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="type must be one of"):
        quantize(files["dense"], tmp_path / "out.gguf", "Q3_X", log=quiet)
    with pytest.raises(ValueError, match="same file"):
        quantize(files["dense"], files["dense"], "Q8_0", log=quiet)
    with pytest.raises(FileNotFoundError):
        quantize(tmp_path / "none", tmp_path / "out.gguf", "Q8_0", log=quiet)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.shared
@pytest.mark.parametrize(("name", "activation"), [("llama-relu", "relu"), ("bamboo", "drelu")])
def test_a_powerinfer_file_becomes_a_neuron_aware_gguf(
    name: str, activation: str, shared: Path, tmp_path: Path
) -> None:
    source, out = shared / "fixtures" / "pwri" / f"{name}.powerinfer.gguf", tmp_path / "out.gguf"
    quantize(source, out, "F16", predictor_type="F16", log=quiet)
    ours, theirs = Gguf(out), Gguf(source)
    assert not ours.is_pwri and ours.metadata["powerinfer.ffn.activation"] == activation
    assert ours.metadata["powerinfer.version"] == 1
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert np.array_equal(ours.data(a), theirs.data(b)), a.name
    logits = []
    for path in (source, out):
        with Llama(path, verbose=False) as llm:
            llm.eval([1, 20, 30, 40])
            logits.append(llm.scores[3].copy())
    assert np.array_equal(*logits)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_equals_llama_cpps_quantiser(name: str, shared: Path, tmp_path: Path) -> None:
    fixtures, out = shared / "fixtures" / "quants", tmp_path / "out.gguf"
    quantize(fixtures / "F32.gguf", out, name, log=quiet)
    ours, theirs = Gguf(out), Gguf(fixtures / f"{name}.gguf")
    have = {t.name: t for t in ours.tensors}
    for t in theirs.tensors:
        assert have[t.name].type == t.type and np.array_equal(
            ours.data(have[t.name]), theirs.data(t)
        ), t.name


# ---- Every type, and tensors of experts ----

FILE_TYPES = {f"Q{bits}_K": f"MOSTLY_Q{bits}_K_S" for bits in (3, 4, 5)}
FILE_TYPES["MXFP4"] = "MOSTLY_MXFP4_MOE"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose rows are multiples of 256."""
    folder = tmp_path_factory.mktemp("wide")
    cfg = checkpoints.config(
        hidden_size=256, intermediate_size=512, head_dim=64, num_hidden_layers=1
    )
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    return convert(folder / "model", outfile=folder / "wide.gguf", outtype="f32", log=quiet)


@pytest.mark.parametrize("name", FORMATS)
def test_every_type_is_read_by_the_gguf_package(name: str, wide: Path, tmp_path: Path) -> None:
    out, lines = tmp_path / "out.gguf", []
    quantize(wide, out, name, choice=Choice(pure=True), log=lines.append)
    assert not lines
    reader, kind = gguf.GGUFReader(out), gguf.GGMLQuantizationType[name]
    wanted = gguf.LlamaFileType[FILE_TYPES.get(name, f"MOSTLY_{name}")]
    assert reader.fields["general.file_type"].contents() == wanted
    exact = {t.name: t.data for t in gguf.GGUFReader(wide).tensors}
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            continue
        assert tensor.tensor_type == kind, tensor.name
        back = gguf.quants.dequantize(tensor.data, kind)
        error = np.linalg.norm(back - exact[tensor.name]) / np.linalg.norm(exact[tensor.name])
        if name == "MXFP4":
            assert error < 0.15
            continue
        if name.startswith("TQ"):  # of weights that are not ternary little is left
            again = gguf.quants.quantize(exact[tensor.name], kind)
            assert np.array_equal(tensor.data, again) and error < 1
            continue
        bits = re.match(r"I?Q(\d)", name)
        assert error < 2.0 ** -(int(bits[1]) - 0.5) if bits else error < 4e-3
    tokens = [1, 20, 30, 40]
    with Llama(out, verbose=False) as llm:
        llm.eval(tokens)
        assert np.isfinite(llm.scores[3]).all()


def types_of(path: Path) -> dict[str, str]:
    return {t.name.removesuffix(".weight"): t.type_name for t in Gguf(path).tensors}


def test_a_mix_and_exceptions_to_it(wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"

    def made(name: str, **choice: Any) -> dict[str, str]:
        quantize(wide, out, name, choice=Choice(**choice), log=quiet)
        return types_of(out)

    mixed = made("q4_k_m")
    assert Gguf(out).metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_K_M
    assert mixed["output"] == mixed["blk.0.attn_v"] == "Q6_K"
    assert mixed["blk.0.ffn_down"] == "Q6_K" and mixed["blk.0.ffn_up"] == "Q4_K"
    tokens = [1, 20, 30, 40]
    with Llama(out, verbose=False) as llm:
        llm.eval(tokens)
        assert np.isfinite(llm.scores[3]).all()
    pure = made("Q4_K_M", pure=True)
    assert {k for n, k in pure.items() if "norm" not in n} == {"Q4_K"} and made("Q4_K") == pure
    assert made("Q4_K_M", output="Q8_0") == mixed | {"output": "Q8_0"}
    assert made("Q4_K_M", leave_output=True) == mixed | {"output": "F32"}
    assert made("Q4_K_M", token_embedding="q5_1") == mixed | {"token_embd": "Q5_1"}
    found = made("Q4_K_M", tensors=[(r"attn_[qk]\.", "Q8_0"), ("attn", "IQ4_NL")], output="F16")
    parts = {"attn_q": "Q8_0", "attn_k": "Q8_0", "attn_v": "IQ4_NL", "attn_output": "IQ4_NL"}
    assert found == mixed | {f"blk.0.{n}": kind for n, kind in parts.items()} | {"output": "F16"}


def test_tied_embeddings_are_an_output(tmp_path: Path) -> None:
    cfg = checkpoints.config(
        hidden_size=256, num_hidden_layers=1, head_dim=64, tie_word_embeddings=True
    )
    checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    source = convert(tmp_path / "model", outfile=tmp_path / "a.gguf", outtype="f32", log=quiet)
    out = tmp_path / "out.gguf"
    for choice, kind in (
        ({}, "Q6_K"),
        ({"output": "Q8_0"}, "Q8_0"),
        ({"output": "Q8_0", "token_embedding": "Q5_0"}, "Q5_0"),
    ):
        quantize(source, out, "IQ4_XS", choice=Choice(**choice), log=quiet)
        assert types_of(out)["token_embd"] == kind and "output" not in types_of(out)


def test_options_of_the_command(wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    options = ["--pure", "--output-tensor-type", "q8_0", "--token-embedding-type", "Q6_K"]
    options += ["--tensor-type", "ffn_(gate|up)=q5_k", "--tensor-type", "ffn=q8_0"]
    assert main(["quantize", str(wide), str(out), "IQ4_XS", *options]) == 0
    found = types_of(out)
    assert (found["output"], found["token_embd"], found["blk.0.attn_v"]) == (
        "Q8_0",
        "Q6_K",
        "IQ4_XS",
    )
    assert found["blk.0.ffn_up"] == "Q5_K" and found["blk.0.ffn_down"] == "Q8_0"
    assert main(["quantize", str(wide), str(out), "Q6_K", "--leave-output-tensor"]) == 0
    assert types_of(out)["output"] == "F32"
    for bad in ("ffn", "=Q8_0", "(=Q8_0", "ffn=Q4_K_M"):
        assert main(["quantize", str(wide), str(out), "Q6_K", "--tensor-type", bad]) == 2


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Q2_K", "Q4_0"),
        ("Q3_K", "Q4_0"),
        ("Q4_K", "Q5_0"),
        ("Q5_K", "Q5_1"),
        ("Q6_K", "Q8_0"),
        ("IQ4_XS", "IQ4_NL"),
    ],
)
def test_rows_that_blocks_of_256_do_not_divide(
    name: str, instead: str, files: dict[str, Path], tmp_path: Path
) -> None:
    lines: list[str] = []
    pure = Choice(pure=True)
    quantize(files["dense"], tmp_path / "out.gguf", name, choice=pure, log=lines.append)
    types = {t.name: t.type_name for t in Gguf(tmp_path / "out.gguf").tensors}
    assert {types["blk.0.attn_q.weight"], types["blk.1.ffn_down.weight"]} == {instead}
    fallbacks = [line for line in lines if f"so {instead} instead of {name}" in line]
    counts = [int(re.match(r"(\d+) tensors", line)[1]) for line in fallbacks]  # a line a reason
    assert sum(counts) == sum(t == instead for t in types.values()) > len(lines)
    # What is in that format already is left as it is.
    quantize(tmp_path / "out.gguf", tmp_path / "again.gguf", name, choice=pure, log=quiet)
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_experts(tmp_path: Path) -> None:
    folder = golden("mixtral", tmp_path / "model")
    source = convert(folder, outfile=tmp_path / "a.gguf", outtype="f32", log=quiet)
    lines: list[str] = []
    quantize(source, tmp_path / "q.gguf", "Q8_0", log=lines.append)
    before = {t.name: t for t in gguf.GGUFReader(source).tensors}
    after = {t.name: t for t in gguf.GGUFReader(tmp_path / "q.gguf").tensors}
    q8 = gguf.GGMLQuantizationType.Q8_0
    for part in ("gate", "up"):
        name = f"blk.1.ffn_{part}_exps.weight"
        assert after[name].tensor_type == q8 and after[name].shape.tolist() == [32, 24, 4]
        assert np.array_equal(after[name].data, gguf.quants.quantize(before[name].data, q8))
    down = "blk.1.ffn_down_exps.weight"  # rows of 24
    assert after[down].tensor_type == gguf.GGMLQuantizationType.F16
    assert any("ffn_down_exps" in line and "F16" in line for line in lines)
    router = "blk.1.ffn_gate_inp.weight"
    assert np.array_equal(after[router].data, before[router].data)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """MXFP4_MOE is llama.cpp's: experts in MXFP4, all else in Q8_0."""
    source = convert(
        golden("gpt-oss", tmp_path / "model"),
        outfile=tmp_path / "a.gguf",
        outtype="f32",
        log=quiet,
    )
    out = tmp_path / "q.gguf"
    quantize(source, out, "mxfp4_moe", log=quiet)
    assert Gguf(out).metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
    types = types_of(out)
    matrices = {n: t for n, t in types.items() if t != "F32"}
    assert {t for n, t in matrices.items() if "_exps" in n} == {"MXFP4"}
    rest = {n.split(".")[-1]: t for n, t in matrices.items() if "_exps" not in n}
    assert rest.pop("attn_output") == "F16"  # rows of 40
    assert set(rest.values()) == {"Q8_0"}
    assert types["blk.0.ffn_gate_inp"] == types["blk.1.attn_sinks"] == "F32"


@pytest.mark.shared
def test_files_of_llama_cpp(shared: Path) -> None:
    """Logits of files in every format, against those of their decoded weights."""
    files = sorted((shared / "fixtures" / "quants").glob("*.gguf"))
    assert len(files) > 10
    for path in files:
        stored = np.load(path.with_suffix(".npz"))
        tokens, want = stored["tokens"], stored["logits_exact"].astype(np.float64)
        with Llama(path, n_ctx=128, logits_all=True, verbose=False) as llm:
            llm.eval([int(t) for t in tokens])
            got = llm.scores[: len(tokens)]
        # llama.cpp's own distance from them, and half as much again: inputs in 8 bits there too.
        limit = max(1e-3, 1.5 * float(stored["peer_rel_error"]))
        assert np.linalg.norm(got - want) <= limit * np.linalg.norm(want), path.name
