"""Bundled files that the engine writes: found again, checked, and never half-written."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import profiled
import pytest
from families import quiet
from gguf_files import changed, raw
from powerinfer_cpp.bundle import bundle, check_bundle, find_bundle
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import Cancelled
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.placement import place, read_placement, sidecar_path, write_sidecar
from powerinfer_cpp.placement.statistics import model_hash
from test_bundles import answers, wide_model
from test_full_disk import _may_mount
from test_place import FAST, model_of, opened, said_of

from powerinfer_cpp import ModelFormatError, UnsupportedModelError
from powerinfer_cpp import bundle as bundles

# Kills itself at a step of the progress.
KILLED = """
import os, signal, sys
from powerinfer_cpp.core import progress
from powerinfer_cpp import bundle

class Deadly(progress.Progress):
    steps = 0
    def update(self, n, note=""):
        if Deadly.steps == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        Deadly.steps += 1

bundle.Progress = Deadly
bundle.bundle(sys.argv[1], sys.argv[2], verbose=False)
print(Deadly.steps)
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide_model(tmp_path_factory.mktemp("wide"))


@pytest.fixture
def model(wide: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(wide, tmp_path / "model.gguf"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerinfer_cpp"


def command(*line: object) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "powerinfer_cpp.cli", "bundle", *map(str, line)]
    return subprocess.run(whole, capture_output=True, errors="replace")


def test_command(model: Path) -> None:
    target = Path(f"{model}.bundle.gguf")
    done = command(model)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr
    assert f"{target}: writing 0.0" in done.stderr and "GiB free)" in done.stderr
    first = target.stat()
    done = command(model)  # there is one already
    assert done.stdout == f"{target}\n" and target.stat().st_ino == first.st_ino
    done = command(model, "--force")
    assert done.stdout == f"{target}\n" and target.stat().st_ino != first.st_ino
    for path in (model, target):
        assert command(path, "--check").stdout == f"{target}: every checksum is right\n"
    assert sorted(p.name for p in model.parent.iterdir()) == ["model.gguf", target.name]


def test_damage_is_found(model: Path, tmp_path: Path) -> None:
    good = bundle(model, tmp_path / "good.gguf", verbose=False)
    tensor = next(t for t in Gguf(good).tensors if t.name == "blk.1.ffn_bundle")
    stride = tensor.shape[1]
    for at, what in ((5, "gate row"), (1024 + 5, "other rows"), (stride - 1, "other rows")):
        bad = Path(shutil.copy(good, tmp_path / "bad.gguf"))
        with bad.open("r+b") as file:
            file.seek(tensor.offset + 9 * stride + at)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 16]))
        done = command(bad, "--check")
        assert done.returncode == 1
        want = f'{bad}: tensor "blk.1.ffn_bundle": neuron 9 is damaged: the checksum of its {what}'
        assert want in done.stderr

    # One bit of the table itself.
    def flipped(name: str, data: np.ndarray) -> np.ndarray:
        return data ^ 1 if name == "blk.0.ffn_bundle_crc" else data

    changed(good, bad, tensors=flipped)
    with pytest.raises(ModelFormatError, match='blk.0.ffn_bundle": neuron 0 is damaged'):
        check_bundle(bad)


def test_found_again_only_for_the_same_model(model: Path, tmp_path: Path) -> None:
    assert find_bundle(model) is None
    target = bundle(model, verbose=False)
    copy = Path(shutil.copy(model, tmp_path / "copy.gguf"))
    assert find_bundle(model) == target and find_bundle(copy) is None
    shutil.copy(target, f"{copy}.bundle.gguf")
    assert find_bundle(copy) == Path(f"{copy}.bundle.gguf")
    # Other weights in a file of the same size and header; other keys.
    last = max(Gguf(model).tensors, key=lambda t: t.offset)
    with model.open("r+b") as file:
        file.seek(last.offset + last.n_bytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    assert find_bundle(model) is None
    changed(copy, model, {"general.name": "another"})
    assert find_bundle(model) is None
    Path(f"{copy}.bundle.gguf").write_bytes(target.read_bytes()[:5000])
    assert find_bundle(copy) is None


@pytest.fixture
def read_only(model: Path, tmp_path: Path) -> Iterator[Path]:
    """The model in a folder that nobody may write to."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() == 0 and not _may_mount():
        pytest.skip("no right to mount a disk that is read-only")
    mounted = os.geteuid() == 0
    if mounted:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=True)
    shutil.copy(model, folder / "model.gguf")
    if mounted:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    else:
        folder.chmod(0o555)
    yield folder / "model.gguf"
    if mounted:
        subprocess.run(["umount", folder], check=True)
    else:
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_written(read_only: Path, model: Path, cache: Path) -> None:
    assert find_bundle(read_only) is None and not cache.exists()
    target = bundle(read_only, verbose=False)
    assert target.parent == cache and find_bundle(read_only) == target
    # The same model elsewhere finds it, too, unless it has one of its own.
    assert find_bundle(model) == target
    beside = bundle(model, verbose=False)
    assert beside.parent == model.parent and find_bundle(model) == beside
    assert beside.read_bytes() == target.read_bytes()


def test_killed_at_every_step(model: Path, tmp_path: Path) -> None:
    want, target = tmp_path / "want.gguf", tmp_path / "out.gguf"

    def run(step: int) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", KILLED, str(model), str(target), str(step)]
        return subprocess.run(line, capture_output=True, errors="replace")

    bundle(model, want, verbose=False)
    n = int(run(-1).stdout)
    assert n > 20
    target.write_bytes(b"what was there before")
    for step in (0, 1, n // 2, n - 1):
        assert run(step).returncode == -signal.SIGKILL
        assert target.read_bytes() == b"what was there before"
        assert {p.name for p in tmp_path.glob("out*")} == {"out.gguf", "out.gguf.part"}
    done = run(-1)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == want.read_bytes()
    assert [p.name for p in tmp_path.glob("out*")] == ["out.gguf"]


def _limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_file_that_cannot_grow(model: Path) -> None:
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "bundle", str(model)]
    done = subprocess.run(line, capture_output=True, errors="replace", preexec_fn=_limited)
    assert done.returncode == 1
    want = f"powerinfer: error: {model}.bundle.gguf: no space left to write it"
    assert done.stderr.splitlines()[-1] == want
    assert [p.name for p in model.parent.iterdir()] == ["model.gguf"]


def test_waits_for_another(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes the same file; whoever does not want to wait may go."""
    target, part = tmp_path / "out.gguf", tmp_path / "out.gguf.part"
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "bundle", str(model), "--out", str(target)]
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with subprocess.Popen(line, stderr=subprocess.PIPE, errors="replace") as process:
            said = iter(process.stderr.readline, "")
            assert any(f"{target}: another process is writing it; waiting" in text for text in said)
            with monkeypatch.context() as stopping, pytest.raises((KeyboardInterrupt, Cancelled)):
                stopping.setattr(bundles, "Progress", Stopped)
                bundle(model, target, verbose=False)
            assert part.exists() and not target.exists() and process.poll() is None
            other.close()  # it died
            assert process.wait(60) == 0
    assert not part.exists()
    check_bundle(target)


class Stopped(bundles.Progress):
    def update(self, n: int, note: str = "") -> None:
        raise KeyboardInterrupt


def test_cancelled(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "Progress", Stopped)
    with pytest.raises((KeyboardInterrupt, Cancelled)):
        bundle(model, verbose=False)
    assert [p.name for p in model.parent.iterdir()] == ["model.gguf"]


def test_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="input and output are the same file"):
        bundle(model, model, verbose=False)
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    with pytest.raises(ValueError, match="input and output are the same file"):
        bundle(model, link, verbose=False)
    with pytest.raises(ValueError, match="align must be 512"):
        bundle(model, tmp_path / "out.gguf", align=513, verbose=False)
    with pytest.raises(OSError, match="is not a regular file"):
        bundle(model, "/dev/null", verbose=False)
    with pytest.raises(OSError, match=r"no/out.gguf"):
        bundle(model, tmp_path / "no" / "out.gguf", verbose=False)
    with pytest.raises(FileNotFoundError):
        bundle(tmp_path / "none.gguf", tmp_path / "out.gguf", verbose=False)
    dense = convert(model, dense=True, outfile=tmp_path / "dense.gguf", log=quiet)
    with pytest.raises(UnsupportedModelError, match="layer 0 has none: the file is not neuron"):
        bundle(dense, tmp_path / "out.gguf", verbose=False)
    assert not list(tmp_path.glob("out*"))


def test_a_rewritten_one_is_a_model_of_its_own(model: Path, tmp_path: Path) -> None:
    """Profiles, predictors and placements are embedded in a bundled file as in any other."""
    from powerinfer_cpp.convert.embed import embed, from_array

    target = bundle(model, verbose=False)
    with Gguf(model) as one, Gguf(target) as other:
        assert model_hash(one) == model_hash(other)
    out = tmp_path / "rated.gguf"
    rates = [from_array(f"blk.{i}.ffn_rate", np.full(160, 0.25, np.float32)) for i in range(2)]
    with Gguf(target) as gguf:
        embed(gguf, out, [], rates)
    with Gguf(out) as gguf, Gguf(target) as other:
        assert not any("_hash" in key for key in gguf.metadata)
        assert all(t.offset % 4096 == 0 for t in gguf.tensors)
        assert model_hash(gguf) != model_hash(other)
    check_bundle(out)
    held, before = raw(out), raw(target)
    assert {name: held[name] for name in before} == before
    assert np.array_equal(answers(out, "exact"), answers(model, "exact"))


def test_a_placement_of_the_model_applies(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = profiled.write(tmp_path / "model.gguf", profiled.uneven(12, 1000), rank=16)
    found = place(model_of(path), FAST, 2 << 20, 2 << 20, device="cuda0")
    write_sidecar(sidecar_path(path), found)
    target = bundle(path, verbose=False)
    assert opened(target, capfd) == said_of(sidecar_path(path), found.tiers())
    # It is that of the model, and a placement for the bundled file is one for the model.
    with Gguf(path) as model:
        assert read_placement(model, sidecar_path(path))
    again = place(model_of(target), FAST, 2 << 20, 2 << 20, device="cuda0")
    assert again.model.model_hash == found.model.model_hash
    for one, other in zip(again.tiers(), found.tiers(), strict=True):
        assert np.array_equal(one, other)
    write_sidecar(sidecar_path(target), again)
    assert opened(target, capfd) == said_of(sidecar_path(target), found.tiers())
