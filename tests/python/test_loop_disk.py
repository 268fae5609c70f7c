"""A disk that loses its end while a model runs from it: a loop device whose file is cut short."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from powerinfer_cpp.bundle import bundle
from test_storage import answer, budget, opened

MIB = 1 << 20


def command(*line: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in line], capture_output=True, text=True)


@pytest.fixture
def image(model_path: Path, tmp_path: Path) -> Iterator[Path]:
    """The file of a disk that is mounted at tmp_path/disk and holds the model's bundled file."""
    if os.geteuid() or not all(map(shutil.which, ("losetup", "mkfs.ext4", "mount"))):
        pytest.skip("no right to mount a loop device")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    image.write_bytes(bytes(24 * MIB))
    made = command("losetup", "--show", "-f", image)
    if made.returncode:
        pytest.skip("no right to mount a loop device")
    device = made.stdout.strip()
    try:
        command("mkfs.ext4", "-q", device).check_returncode()
        if command("mount", device, disk).returncode:
            pytest.skip("no right to mount a loop device")
        try:
            bundle(model_path, disk / "model.gguf", verbose=False)
            command("mount", "-o", "remount,ro", disk).check_returncode()
            yield image
        finally:
            command("umount", disk).check_returncode()
    finally:
        command("losetup", "-d", device).check_returncode()


@pytest.mark.xdist_group("timed")
@pytest.mark.parametrize("io", ["threads", "uring"])
def test_a_disk_that_is_cut_short(
    image: Path, model_path: Path, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(model_path) as llm:
        want = answer(llm)
    model, whole = image.parent / "disk" / "model.gguf", image.read_bytes()
    monkeypatch.setenv("POWERINFER_IO", io)
    try:
        llm = opened(model, budget(model_path, 0.8), bundle=False)
    except OSError as error:
        assert "io_uring" in str(error)
        pytest.skip("no right to use io_uring")
    with llm:
        assert answer(llm)[0] == want[0]
        os.truncate(image, MIB)
        for _ in range(2):
            llm.reset()
            begin = time.monotonic()
            with pytest.raises(OSError, match=f"{model}: .*(Input/output error|answered)"):
                answer(llm)
            assert time.monotonic() - begin < 15
        # The bytes are there again.
        with image.open("r+b") as file:
            file.write(whole)
        llm.reset()
        text, logits = answer(llm)
        assert text == want[0] and np.array_equal(logits, want[1])
