"""Bundled files: the same results, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from families import golden, quiet
from gguf_files import changed, raw
from powerinfer_cpp._native import ffi, lib
from powerinfer_cpp.bundle import bundle, check_bundle, find_bundle
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.bundles import OF_SOURCE
from powerinfer_cpp.convert.formats import format_by_name
from powerinfer_cpp.core.errors import check
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.quantize import quantize

from powerinfer_cpp import Llama, ModelFormatError, UnsupportedModelError

TOKENS = [1, 5, 77, 290, 4, 5, 5, 261, 299]


def answers(path: Path, sparse: str, **options: Any) -> np.ndarray:
    """Logits of a prompt, and of two tokens after it, each computed alone."""
    with Llama(path, n_ctx=64, logits_all=True, verbose=False, sparse=sparse, **options) as llm:
        for tokens in (TOKENS, [7], [8]):
            llm.eval(tokens)
        return llm.scores[: len(TOKENS) + 2].copy()


def with_predictors(folder: Path, model: Path, n_ff: int, lead: tuple[int, ...] = ()) -> Path:
    rng = np.random.default_rng(0)
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    (folder / "p").mkdir()
    for layer in range(2):
        part = {
            "fc1.weight": rng.standard_normal((*lead, 8, width)).astype(np.float16),
            "fc2.weight": rng.standard_normal((*lead, n_ff, 8)).astype(np.float16),
        }
        checkpoints.save_torch(folder / "p" / f"model_{layer}.pt", part)
    return convert(model, folder / "p", outtype="f32", outfile=folder / "f32.gguf", log=quiet)


def wide_model(folder: Path) -> Path:
    """A neuron-aware file whose rows are multiples of 256, so that blocks of 32 fold."""
    cfg = checkpoints.config(
        hidden_size=256, intermediate_size=160, head_dim=64, hidden_act="relu", mlp_bias=True
    )
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    return with_predictors(folder, folder / "model", 160)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_model(tmp_path_factory.mktemp("wide"))


def same_answers(one: Path, other: Path) -> None:
    for sparse in ("off", "exact", "predictor", "auto"):
        want = answers(one, sparse)
        assert np.isfinite(want).all()
        assert np.array_equal(answers(other, sparse), want), sparse
    assert np.array_equal(answers(other, "exact", use_mmap=False), answers(one, "exact"))


def keys_of(path: Path) -> dict[str, Any]:
    """Its keys, without those that name the source."""
    return {key: value for key, value in Gguf(path).metadata.items() if key not in OF_SOURCE}


def up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q5_1", "Q4_K"])
def test_formats(name: str, wide: Path, tmp_path: Path) -> None:
    plain, bundled, back = (tmp_path / f"{n}.gguf" for n in ("plain", "bundled", "back"))
    quantize(wide, plain, name, log=quiet)
    quantize(wide, bundled, name, bundle=True, log=quiet)
    held = {t.name: t for t in Gguf(bundled).tensors}
    row = format_by_name(name).n_bytes(256)
    stride = up(up(row, 512) + up(row, 64) + row, 512)
    found = held["blk.1.ffn_bundle"]
    assert found.type_name == "I8" and found.shape == (160, stride)
    assert held["blk.1.ffn_bundle_crc"].shape == (160, 2)
    assert all(t.offset % 4096 == 0 for t in held.values())
    assert not any("ffn_up.weight" in n or "ffn_down_t.w" in n for n in held)
    keys = Gguf(bundled).metadata
    assert keys["powerinfer.bundle.version"] == 2
    assert keys["powerinfer.bundle.down_type"] == [name, name]
    same_answers(plain, bundled)
    quantize(bundled, back, name, log=quiet)
    assert raw(back) == raw(plain) and Gguf(back).metadata == Gguf(plain).metadata
    # The engine writes the same.
    again = bundle(plain, verbose=False)
    assert again == find_bundle(plain) == tmp_path / "plain.gguf.bundle.gguf"
    assert raw(again) == raw(bundled) and keys_of(again) == keys_of(bundled)
    check_bundle(again)
    check_bundle(bundled)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("mixtral", "intermediate_size"),
        ("falcon-7b", "ffn_hidden_size"),
        ("opt", "ffn_dim"),
        ("qwen3-moe", "moe_intermediate_size"),
    ],
)
def test_families(name: str, width: str, tmp_path: Path) -> None:
    folder = golden(name, tmp_path / "model")
    n_ff = json.loads((folder / "config.json").read_text())[width]
    experts = name in ("mixtral", "qwen3-moe")
    plain = with_predictors(tmp_path, folder, n_ff, (4,) if experts else ())
    bundled = convert(
        folder,
        tmp_path / "p",
        outtype="f32",
        bundle=True,
        outfile=tmp_path / "bundled.gguf",
        log=quiet,
    )
    same_answers(plain, bundled)
    again, wide = tmp_path / "again.gguf", tmp_path / "wide.gguf"
    convert(plain, bundle=True, outfile=again, log=quiet)
    assert raw(again) == raw(bundled)
    bundle(plain, again, verbose=False)
    assert raw(again) == raw(bundled) and keys_of(again) == keys_of(bundled)
    end = "_exps" if experts else ""
    bundles = [t.name for t in Gguf(bundled).tensors if "ffn_bundle" in t.name]
    assert bundles == [f"blk.{i}.ffn_bundle{crc}{end}" for i in range(2) for crc in ("", "_crc")]
    assert ("powerinfer.bundle.gate_type" in keys_of(bundled)) == experts
    # Neurons for disks with blocks of 4,096 bytes, from one that is bundled already.
    bundle(bundled, wide, align=4096, verbose=False)
    shapes = {t.name: t.shape for t in Gguf(wide).tensors}
    assert shapes[f"blk.0.ffn_bundle{end}"][-1] % 4096 == 0
    same_answers(plain, wide)
    check_bundle(wide)
    bundle(wide, again, verbose=False)
    assert raw(again) == raw(bundled)
    back = convert(wide, outfile=tmp_path / "back.gguf", log=quiet)
    assert raw(back) == raw(plain)


def crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def folded(data: np.ndarray) -> np.ndarray:
    """Rows of Q8_0, as they are computed with: scales of the eight blocks, then four weights of
    each in turn."""
    blocks = data.reshape(160, 8, 34)
    scales, weights = blocks[:, :, :2], blocks[:, :, 2:].reshape(160, 8, 8, 4)
    scales, weights = scales.reshape(160, -1), weights.swapaxes(1, 2).reshape(160, -1)
    return np.concatenate([scales, weights], 1)


def test_where_the_bytes_lie(wide: Path, tmp_path: Path) -> None:
    """The layout in docs/formats.md, implemented again."""
    plain, bundled = tmp_path / "plain.gguf", tmp_path / "bundled.gguf"
    for name, row in (("F16", 512), ("Q8_0", 272)):
        quantize(wide, plain, name, log=quiet)
        quantize(wide, bundled, name, bundle=True, log=quiet)
        stored, packed = raw(plain), raw(bundled)
        want = np.zeros((160, up(up(row, 512) + up(row, 64) + row, 512)), np.uint8)
        for part, at in (("gate", 0), ("up", 512), ("down_t", 512 + up(row, 64))):
            data = np.frombuffer(stored[f"blk.0.ffn_{part}.weight"][2], np.uint8).reshape(160, row)
            want[:, at : at + row] = folded(data) if name == "Q8_0" else data
        assert packed["blk.0.ffn_bundle"][2] == want.tobytes()
        sums = np.frombuffer(packed["blk.0.ffn_bundle_crc"][2], "<u4").reshape(160, 2)
        for i in (0, 7, 159):
            assert crc32c(want[i, :512].tobytes()) == sums[i, 0]
            assert crc32c(want[i, 512:].tobytes()) == sums[i, 1]


def version_1(plain: Path, path: Path) -> Path:
    """A bundled file of version 1, which nothing writes any more, from one whose matrices are
    Q8_0."""
    tensors = raw(plain)
    types = ffi.new("uint32_t[]", [8, 8])
    dropped = {}

    def rows(n_parts: int, *names: str) -> np.ndarray:
        out = np.empty((160, n_parts * 272), np.int8)
        for i, name in enumerate(names):
            data = tensors[name][2]
            dropped[name] = None
            into = ffi.from_buffer(out, require_writable=True), out.nbytes
            check(lib.pi_bundle_put(types, n_parts, 256, 160, i, data, len(data), *into))
        return out

    added = {}
    for i in range(2):
        block = f"blk.{i}.ffn_"
        added[f"{block}gate_rows"] = rows(1, f"{block}gate.weight")
        added[f"{block}up_down_rows"] = rows(2, f"{block}up.weight", f"{block}down_t.weight")
    keys = {f"powerinfer.bundle.{part}_type": "Q8_0" for part in ("gate", "up", "down")}
    return changed(
        plain,
        path,
        {**keys, "powerinfer.bundle.version": 1},
        lambda name, data: dropped.get(name, data) if name in dropped else data,
        added,
    )


def test_version_1(wide: Path, tmp_path: Path) -> None:
    plain, old, back = tmp_path / "plain.gguf", tmp_path / "old.gguf", tmp_path / "back.gguf"
    quantize(wide, plain, "Q8_0", log=quiet)
    version_1(plain, old)
    same_answers(plain, old)
    quantize(old, back, "Q8_0", log=quiet)
    assert raw(back) == raw(plain)
    new = [raw(bundle(path, back, verbose=False)) for path in (plain, old)]
    assert new[0] == new[1]
    with pytest.raises(UnsupportedModelError, match="has no checksums"):
        check_bundle(old)
    bad = changed(old, tmp_path / "bad.gguf", {"powerinfer.bundle.version": 2})
    with pytest.raises(ModelFormatError, match="bundle.version. is 2"):
        Llama(bad, verbose=False)


def test_inspect(wide: Path, tmp_path: Path) -> None:
    plain, bundled = tmp_path / "plain.gguf", tmp_path / "bundled.gguf"
    quantize(wide, plain, "Q4_0", log=quiet)
    quantize(wide, bundled, "Q4_0", bundle=True, log=quiet)
    seen = []
    for path in (plain, bundled):
        command = [sys.executable, "-m", "powerinfer_cpp.cli", "inspect", "--json", str(path)]
        seen.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    assert [found["bundled"] for found in seen] == [False, True]
    for key in ("formats", "n_params", "predictor_ranks"):
        assert seen[0][key] == seen[1][key], key
    with Llama(plain, verbose=False) as a, Llama(bundled, verbose=False) as b:
        assert a.plan()["ram"] == b.plan()["ram"]
        n_params = [lib.pi_model_n_params(llm._model.handle) for llm in (a, b)]
        assert n_params[0] == n_params[1]


def test_check_tensors_looks_into_bundles(wide: Path, tmp_path: Path, main_path: Path) -> None:
    bundled = tmp_path / "bundled.gguf"
    quantize(wide, bundled, "F16", bundle=True, log=quiet)

    def infinite(name: str, data: np.ndarray) -> np.ndarray:
        if name != "blk.1.ffn_bundle":
            return data
        data = data.copy()
        data[7, 1024 + 12 : 1024 + 14] = np.frombuffer(np.float16(np.inf).tobytes(), np.int8)
        return data

    bad = changed(bundled, tmp_path / "bad.gguf", tensors=infinite)
    for path, status in ((bundled, 0), (bad, 1)):
        command = [main_path, "-m", path, "--check-tensors", "-n", "1", "-p", "the"]
        done = subprocess.run(command, capture_output=True, errors="replace")
        assert done.returncode == status, done.stderr
    assert '"blk.1.ffn_bundle" holds a value that is not finite in row 7' in done.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"powerinfer.bundle.version": 3}, "bundles of version 3 are not supported"),
    "other version": ({"powerinfer.bundle.version": 1}, "powerinfer.bundle.version. is 1"),
    "no align": ({"powerinfer.bundle.align": None}, "powerinfer.bundle.align. is missing"),
    "align": ({"powerinfer.bundle.align": 1000}, "powerinfer.bundle.align. is 1000, and not 512"),
    "other align": ({"powerinfer.bundle.align": 4096}, "blk.0.ffn_bundle"),
    "no version": ({"powerinfer.bundle.version": None}, "powerinfer.bundle.version. is missing"),
    "no format": ({"powerinfer.bundle.up_type": None}, "powerinfer.bundle.up_type"),
    "unknown": ({"powerinfer.bundle.up_type": "Q99"}, "powerinfer.bundle.up_type"),
    "integers": ({"powerinfer.bundle.up_type": 8}, "powerinfer.bundle.up_type"),
    "too few": ({"powerinfer.bundle.gate_type": ["Q8_0"]}, "powerinfer.bundle.gate_type"),
    "other": ({"powerinfer.bundle.down_type": "F32"}, "blk.0.ffn_bundle"),
    "blocks": ({"powerinfer.bundle.gate_type": "I8"}, "powerinfer.bundle.gate_type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str, wide: Path, tmp_path: Path) -> None:
    keys, message = REFUSED[name]
    quantize(wide, tmp_path / "good.gguf", "Q8_0", bundle=True, log=quiet)
    bad = changed(tmp_path / "good.gguf", tmp_path / "bad.gguf", keys)
    with pytest.raises(ModelFormatError, match=message) as caught:
        Llama(bad, verbose=False)
    assert "bad.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_misplaced_rows(wide: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    quantize(wide, good, "Q8_0", bundle=True, log=quiet)

    def without(name: str, data: np.ndarray) -> np.ndarray | None:
        return None if name == "blk.1.ffn_bundle_crc" else data

    changed(good, bad, tensors=without)
    with pytest.raises(ModelFormatError, match=r'"blk.1.ffn_bundle_crc" is missing'):
        Llama(bad, verbose=False)

    def short(what: str) -> Any:
        return lambda name, data: data[:-1] if name == what else data

    changed(good, bad, tensors=short("blk.1.ffn_bundle"))
    with pytest.raises(ModelFormatError, match=r"has shape \[1536, 159\], expected \[1536, 160\]"):
        Llama(bad, verbose=False)
    changed(good, bad, tensors=short("blk.1.ffn_bundle_crc"))
    with pytest.raises(ModelFormatError, match=r"has shape \[2, 159\], expected \[2, 160\]"):
        Llama(bad, verbose=False)
    changed(good, bad, {"powerinfer.bundle.version": 7})
    with pytest.raises(ModelFormatError, match=r"bad.gguf: bundles of version 7"):
        quantize(bad, tmp_path / "out.gguf", "Q8_0", log=quiet)
    dense = convert(wide, dense=True, outfile=tmp_path / "dense.gguf", log=quiet)
    with pytest.raises(ValueError, match="layer 0 has none"):
        quantize(dense, tmp_path / "out.gguf", "Q8_0", bundle=True, log=quiet)
    with pytest.raises(ValueError, match="has no bundles"):
        convert(wide, dense=True, bundle=True, log=quiet)
    with pytest.raises(UnsupportedModelError, match="already Q8_0"):
        quantize(good, tmp_path / "out.gguf", "Q4_0", log=quiet)
    assert not (tmp_path / "out.gguf").exists()
