"""PowerInfer's placements, MODEL.generated.gpuidx: checked, reported, and without effect."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from families import quiet
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama, ModelFormatError

N_LAYER, N_FF = 3, 96
MARKED = [[], [0, 1, 5, 95], list(range(N_FF))]  # none, some, all


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def placement(
    path: Path,
    marked: list[list[int]] = MARKED,
    n_ff: int = N_FF,
    magic: bytes = b"PWRI",
    architecture: str = "generic.gpu_index",
    edit: Callable[[str, np.ndarray], np.ndarray] = lambda _name, data: data,
) -> Path:
    """A file in the layout of PowerInfer's exporter, written without this package."""
    tensors = []
    for layer, ids in enumerate(marked):
        index = np.zeros(n_ff, np.int32)
        index[ids] = 1
        tensors.append((f"blk.{layer}.gpu_idx", index))
        tensors.append((f"blk.{layer}.gpu_bucket", np.array(ids, np.int32)))
    tensors = [(name, edit(name, data)) for name, data in tensors]
    out = magic + struct.pack("<IQQ", 3, len(tensors), 3)
    out += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    out += text("generic.gpu_index.block_count") + struct.pack("<II", 4, len(marked))
    out += text("split.vram_capacity") + struct.pack("<IQ", 10, 3 << 30)
    kind, at, data = 18 if magic == b"PWRI" else 26, 0, b""
    for name, values in tensors:
        out += text(name) + struct.pack("<IQIQ", 1, len(values), kind, at)
        data += values.astype("<i4").tobytes()
        data += bytes(-len(data) % 32)
        at = len(data)
    out += bytes(-len(out) % 32)
    path.write_bytes(out + data)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    source = checkpoints.model(folder / "model", hidden_act="relu", num_hidden_layers=N_LAYER)
    return convert(source, outfile=folder / "m.gguf", bundle=True, log=quiet)


@pytest.fixture
def beside(model: Path, tmp_path: Path) -> Path:
    """The model in a separate folder, for a placement beside it."""
    (tmp_path / "m.gguf").symlink_to(model)
    return tmp_path / "m.gguf"


def generate(main_path: Path, model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [main_path, "-m", model, "-p", "the quick", "-n", "4", "--temp", "0", *options]
    # A random model writes bytes that are not UTF-8.
    return subprocess.run(command, capture_output=True, text=True, errors="backslashreplace")


def test_a_placement_is_reported_and_changes_nothing(main_path: Path, beside: Path) -> None:
    plain = generate(main_path, beside)
    index = placement(beside.with_name("m.gguf.generated.gpuidx"))
    placed = generate(main_path, beside, "-lv", "3")
    assert plain.returncode == placed.returncode == 0 and plain.stdout == placed.stdout
    assert f"{index} marks 35% of the neurons for a GPU" in placed.stderr
    shares = [0.0, 4 / N_FF, 1.0]
    for path in (beside, index):
        command = [sys.executable, "-m", "powerinfer_cpp.cli", "inspect", path]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "for the GPU   0: 0%, 1: 4%, 2: 100% (generated.gpuidx)\n" in shown
        found = subprocess.run([*command, "--json"], check=True, capture_output=True).stdout
        assert json.loads(found)["gpu_index"] == pytest.approx(shares)


def swapped(name: str, data: np.ndarray) -> np.ndarray:
    return data[::-1] if name == "blk.1.gpu_bucket" else data


def doubled(name: str, data: np.ndarray) -> np.ndarray:
    return data * 2 if name == "blk.2.gpu_idx" else data


def beyond(name: str, data: np.ndarray) -> np.ndarray:
    return np.array([0, 1, 5, 96]) if name == "blk.1.gpu_bucket" else data


def unmarked(name: str, data: np.ndarray) -> np.ndarray:
    return np.array([0, 1, 5, 94]) if name == "blk.1.gpu_bucket" else data


def fewer(name: str, data: np.ndarray) -> np.ndarray:
    return data[:-1] if name == "blk.1.gpu_bucket" else data


def renamed(path: Path) -> None:
    placement(path)
    path.write_bytes(path.read_bytes().replace(b"blk.1.gpu_idx", b"blk.7.gpu_idx"))


REFUSED = {
    "layers": (lambda p: placement(p, MARKED[:2]), "4 tensors, and a model of 3 layers has 6"),
    "width": (lambda p: placement(p, n_ff=128), '"blk.0.gpu_idx" is for 128 neurons'),
    "order": (lambda p: placement(p, edit=swapped), '"blk.1.gpu_bucket" does not list'),
    "values": (lambda p: placement(p, edit=doubled), '"blk.2.gpu_idx" holds 2, not 0 or 1'),
    "range": (lambda p: placement(p, edit=beyond), "96 follows 5"),
    "other": (lambda p: placement(p, edit=unmarked), "lists neuron 94, which gpu_idx does not"),
    "count": (lambda p: placement(p, edit=fewer), "lists 3 neurons, but gpu_idx marks 4"),
    "name": (renamed, '"blk.1.gpu_idx" is missing'),
    "kind": (lambda p: placement(p, [[1], [2], [3]], architecture="llama"), "is not a placement"),
    "garbage": (lambda p: p.write_bytes(b"x" * 100), "is not a GGUF file"),
    "empty": (lambda p: p.write_bytes(b""), "is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_placement_of_another_model(name: str, main_path: Path, beside: Path) -> None:
    write, message = REFUSED[name]
    index = beside.with_name("m.gguf.generated.gpuidx")
    write(index)
    refused = generate(main_path, beside)
    assert refused.returncode == 1 and refused.stdout == ""
    assert str(index) in refused.stderr and message in refused.stderr
    with pytest.raises((ModelFormatError, OSError), match="generated.gpuidx") as caught:
        Llama(beside, verbose=False)
    assert "\n" not in str(caught.value)
    command = [sys.executable, "-m", "powerinfer_cpp.cli", "inspect", beside]
    inspected = subprocess.run(command, capture_output=True, text=True)
    assert inspected.returncode == 1 and message in inspected.stderr
    assert inspected.stderr.count("\n") == 1
    for option in ("--reset-gpu-index", "--disable-gpu-index"):
        assert generate(main_path, beside, option).returncode == 0
        Llama(beside, verbose=False, **{option[2:].replace("-", "_"): True}).close()


def test_gguf_magic_is_a_placement_too(main_path: Path, beside: Path) -> None:
    placement(beside.with_name("m.gguf.generated.gpuidx"), magic=b"GGUF")
    assert generate(main_path, beside).returncode == 0


def test_sizes_of_zero_elsewhere_are_refused(tmp_path: Path) -> None:
    path = placement(tmp_path / "m.gguf", architecture="llama")
    with pytest.raises(ModelFormatError, match="size 0 of dimension 0 is out of range"):
        Llama(path, verbose=False)
