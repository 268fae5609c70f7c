"""Ordinary files of mixtures that run from storage: what is wrong with a file, a budget, a list of
what was kept, or an option."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from circles import pick
from lora_files import written
from powerinfer_cpp.cli import main
from small_mixtures import Mixture
from test_bundle_files import read_only  # noqa: F401 (a fixture)
from test_experts import FIELDS, OPTIONS, PROMPT, budget, least, opened, resident_of

from powerinfer_cpp import (
    DeviceError,
    Llama,
    ModelFormatError,
    OutOfMemoryError,
    StorageError,
    UnsupportedModelError,
)

SMALL = Mixture(n_layer=2, n_expert=24)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SMALL.write(tmp_path_factory.mktemp("made") / "model.gguf")


@pytest.fixture(scope="module")
def want(made: Path) -> tuple[str, np.ndarray]:
    with opened(made, logits_all=True) as llm:
        return answer(llm)


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "model.gguf"))


def answer(llm: Llama) -> tuple[str, np.ndarray]:
    """With the prompt more than 64 tokens: enough for a list of what was kept."""
    text = llm(PROMPT, max_tokens=50, temperature=1, seed=1)["choices"][0]["text"]
    return text, llm.scores[: llm.n_tokens].copy()


def same(found: tuple[str, np.ndarray], want: tuple[str, np.ndarray]) -> bool:
    return found[0] == want[0] and np.array_equal(found[1], want[1])


# ---- Budgets ------------------------------------------------------------------------------------


def test_the_least_budget(model: Path, want: Any, main_path: Path) -> None:
    """It is what the error says, for Python and ./main, and not a byte less."""
    fields = {"verbose": False, "logits_all": True, **FIELDS}
    low = least(model, **fields)
    with Llama(model, ram_budget=low / (1 << 30), **fields) as llm:
        assert same(answer(llm), want)
    with pytest.raises(OutOfMemoryError, match=f"needs at least {low} bytes"):
        Llama(model, ram_budget=(low - 1) / (1 << 30), **fields)
    line = [main_path, "-m", model, *OPTIONS, "-n", 1, "--ram-budget", 0.001]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and str(model) in done.stderr
    assert "with the experts on the disk it needs at least " in done.stderr


# ---- Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", pick(["cut", "written"], ["cut", "longer", "written"]))
def test_a_file_that_changes(model: Path, change: str) -> None:
    with opened(model, 0.2) as llm:
        answer(llm)
        if change == "cut":
            os.truncate(model, model.stat().st_size // 2)
        elif change == "longer":
            model.write_bytes(model.read_bytes() + b"more")
        else:
            with model.open("r+b") as file:
                file.seek(-1000, os.SEEK_END)
                file.write(b"others")
            os.utime(model, (1, 1))
        for _ in range(2):
            with pytest.raises((StorageError, ModelFormatError)) as error:
                answer(llm)
            assert str(error.value).startswith(f"{model}: "), error.value


@pytest.mark.parametrize("gone", [False, True])
def test_parts(tmp_path: Path, gone: bool) -> None:
    """A part that is cut, or missing, is named."""
    mixture = Mixture(n_layer=2, parts=3)
    path = mixture.write(tmp_path / "model.gguf")
    gib, last = budget(path), mixture.part(tmp_path / "model.gguf", 2)
    if gone:
        last.unlink()
    else:
        os.truncate(last, last.stat().st_size - 1000)
    with pytest.raises((StorageError, ModelFormatError)) as error:
        Llama(path, verbose=False, ram_budget=gib, **FIELDS)
    assert str(last) in str(error.value)


def test_a_part_that_changes(tmp_path: Path) -> None:
    mixture = Mixture(n_layer=2, parts=3)
    path = mixture.write(tmp_path / "model.gguf")
    last = mixture.part(tmp_path / "model.gguf", 2)
    with opened(path, 0.2) as llm:
        answer(llm)
        os.truncate(last, last.stat().st_size // 2)
        with pytest.raises(ModelFormatError) as error:
            answer(llm)
        assert str(error.value).startswith(f"{last}: was changed while it was open")


def test_a_truncated_file(model: Path) -> None:
    gib = budget(model)
    os.truncate(model, model.stat().st_size - 1000)
    with pytest.raises(ModelFormatError, match="model.gguf: "):
        Llama(model, verbose=False, ram_budget=gib, **FIELDS)


def test_a_folder_that_cannot_be_written(read_only: Path) -> None:  # noqa: F811
    texts = []
    for share in (None, 0.3, 0.3):
        with opened(read_only, share, logits_all=True) as llm:
            texts.append(answer(llm))
    assert same(texts[0], texts[1]) and same(texts[0], texts[2])
    assert not resident_of(read_only).exists()


# ---- What was kept ------------------------------------------------------------------------------


def kept(path: Path, gib: float) -> bytes:
    with Llama(path, verbose=False, ram_budget=gib, **FIELDS) as llm:
        answer(llm)
    return resident_of(path).read_bytes()


def test_a_list_of_another_file(model: Path, want: Any, tmp_path: Path) -> None:
    other = Mixture(n_layer=2, seed=2).write(tmp_path / "other.gguf")
    gib = budget(model)
    resident_of(model).write_bytes(kept(other, gib))
    with Llama(model, verbose=False, ram_budget=gib, logits_all=True, **FIELDS) as llm:
        assert llm.stats()["storage"]["first"]["used"] == 0
        assert same(answer(llm), want)
    with Llama(model, verbose=False, ram_budget=gib, **FIELDS) as llm:
        assert llm.stats()["storage"]["first"]["used"] > 0


def damages(good: bytes) -> list[bytes]:
    """Lists that are no lists, or say what cannot be."""
    rng = np.random.default_rng(5)
    found = [b"", b"PIRS", good[:31], good[:-1], good + b"x", bytes(len(good)), good * 2]
    for count in (0, 1, 2**31, 2**61, 2**64 - 1):  # with and without a matching checksum
        data = bytearray(good)
        struct.pack_into("<Q", data, 24, count)
        found.append(bytes(data))
        found.append(sealed(data))
    for at in (32, len(good) - 12):  # no such part; worth that is no number
        for value in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"):
            for place in (at, at + 4):
                data = bytearray(good)
                data[place : place + 4] = value
                found.append(sealed(data))
    for _ in range(pick(4, 100)):
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        found += [bytes(data), sealed(data)]
    # The same part many times.
    found.append(sealed(bytearray(good[:32] + good[32:40] * ((len(good) - 36) // 8) + good[-4:])))
    return found


def sealed(data: bytearray) -> bytes:
    """With the right checksum: CRC-32C of all before it."""
    crc = 0xFFFFFFFF
    for byte in data[:-4]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return bytes(data[:-4]) + struct.pack("<I", crc ^ 0xFFFFFFFF)


def test_damaged_lists(model: Path) -> None:
    gib = budget(model)
    good = kept(model, gib)
    assert sealed(bytearray(good)) == good

    def scores(ram_budget: float | None = gib) -> np.ndarray:
        with Llama(model, verbose=False, ram_budget=ram_budget, **FIELDS) as llm:
            llm.eval([40, 50, 60])
            return llm.scores[2].copy()

    want = scores(None)
    for bad in damages(good):
        resident_of(model).write_bytes(bad)
        assert np.array_equal(scores(), want)
    # As long as it says, and too long to be read.
    count = 1 << 36
    resident_of(model).write_bytes(good[:24] + struct.pack("<Q", count))
    os.truncate(resident_of(model), 36 + 8 * count)
    assert np.array_equal(scores(), want)


def test_a_list_that_is_a_folder(model: Path, want: Any) -> None:
    gib = budget(model)
    resident_of(model).mkdir()
    with Llama(model, verbose=False, ram_budget=gib, logits_all=True, **FIELDS) as llm:
        assert same(answer(llm), want)
    assert resident_of(model).is_dir()


def test_without_a_list(model: Path, want: Any) -> None:
    """bundle=False writes no file beside the model."""
    with opened(model, 0.3, bundle=False, logits_all=True) as llm:
        assert same(answer(llm), want)
    assert [p.name for p in model.parent.iterdir()] == ["model.gguf"]


# ---- Options ------------------------------------------------------------------------------------


def test_adapters(model: Path, tmp_path: Path) -> None:
    """Those of any weight need all in RAM; those of experts are refused there, too."""
    rng = np.random.default_rng(0)

    def said(name: str, share: float | None, *lead: int) -> str:
        shapes = {"lora_a": (*lead, 4, 256), "lora_b": (*lead, 256, 4)}
        tensors = {f"{name}.weight.{part}": rng.standard_normal(s) for part, s in shapes.items()}
        path = written(tmp_path / f"{name}.gguf", tensors, architecture="qwen3moe")
        with pytest.raises(UnsupportedModelError) as error:
            opened(model, share, lora_path=str(path))
        return str(error.value)

    assert "this one runs from storage" in said("blk.0.attn_q", 0.3)
    assert "ffn_up_exps" in said("blk.0.ffn_up_exps", None, SMALL.n_expert)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sparse": "predictor"}, "the file has no predictors"),
        ({"record": "fired", "sparse": "auto"}, "record needs sparse off or exact"),
        ({"device": "cuda0"}, 'there is no device "cuda0"'),
    ],
)
def test_what_is_refused(model: Path, options: dict[str, Any], words: str) -> None:
    gib = budget(model)
    with pytest.raises((ValueError, DeviceError), match=words):
        Llama(model, verbose=False, ram_budget=gib, **FIELDS, **options).create_completion("w1")


@pytest.mark.parametrize(
    "options", pick([{"type_k": 8}], [{"sparse": "off"}, {"sparse": "exact"}, {"type_k": 8}])
)
def test_what_changes_nothing(model: Path, options: dict[str, Any]) -> None:
    more = {"type_v": 8} if "type_k" in options else {}
    found = []
    for share in (None, 0.3):
        with opened(model, share, logits_all=True, **options, **more) as llm:
            found.append(answer(llm))
    assert same(found[0], found[1])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("profile {model} --text {text} --tokens 8 --trace t.npz", "neuron rows"),
        ("profile {model} --text {text} --tokens 8 --cats 50% --out o.npz", "ffn_down_t"),
        ("bundle {model}", "neuron-aware"),
    ],
)
def test_commands_that_need_neuron_rows(
    model: Path, line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "text").write_text("w1 w2 " * 50)
    gib = [] if line.startswith("bundle") else ["--ram-budget", str(budget(model))]
    assert main([*line.format(model=model, text=tmp_path / "text").split(), *gib]) == 1
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
