"""Errors are one sentence: no traceback, no hang, no silently wrong result, and no control
characters from files."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
from circles import FULL
from families import quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan

from powerinfer_cpp import Llama, ModelFormatError

CONFIG = checkpoints.config()
ESCAPE = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    checkpoints.save(folder / "model", CONFIG, checkpoints.weights(CONFIG))
    return convert(folder / "model", outtype="f32", log=quiet)


def replaced(path: Path, target: Path, what: bytes, new: bytes) -> Path:
    """A copy with the first match of a regular expression replaced."""
    data, n = re.subn(what, lambda _m: new, path.read_bytes(), count=1, flags=re.DOTALL)
    assert n == 1
    target.write_bytes(data)
    return target


Refused = Callable[..., str]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture) -> Refused:
    """refused(*arguments, alone=True) is the single error line of a command; alone: in a process of
    its own, as always in the wider circles."""

    def run(*arguments: object, alone: bool = False) -> str:
        line = list(map(str, arguments))
        if alone or FULL:
            command = [sys.executable, "-m", "powerinfer_cpp.cli", *line]
            done = subprocess.run(command, capture_output=True, errors="replace", timeout=60)
            status, said = done.returncode, done.stderr
        else:
            capfd.readouterr()
            try:
                status = main(line)
            except SystemExit as end:
                status = end.code
            said = capfd.readouterr().err
        assert status in (1, 2), (status, said)
        assert said.count("\n") == 1 and said.startswith("powerinfer: error: "), said
        return said

    return run


def test_an_impossible_file_type(refused: Refused, path: Path, tmp_path: Path) -> None:
    for value in (-1, -(1 << 31)):
        stored = b"general.file_type" + struct.pack("<Ii", 5, value)
        file = replaced(path, tmp_path / "a.gguf", rb"general\.file_type.{8}", stored)
        line = refused("convert", file, "--outfile", tmp_path / "out.gguf")
        assert f"{file}: key general.file_type is {value}" in line
        convert(file, outfile=tmp_path / "out.gguf", outtype="f16", log=quiet)  # it has its own


@pytest.mark.parametrize("option", ["--vram-budget", "--ram-budget"])
@pytest.mark.parametrize("size", ["1e300", "1e10", "nan", "inf"])
def test_budgets_beyond_counting(refused: Refused, option: str, size: str, path: Path) -> None:
    alone = (option, size) == ("--ram-budget", "1e300")
    assert option in refused("place", path, option, size, alone=alone)
    assert option in refused("perplexity", path, "--text", path, option, size, alone=alone)


def test_budgets_of_llama(path: Path) -> None:
    for size in (1e300, 1e10, float("inf")):
        with pytest.raises(ValueError, match="ram_budget"):
            Llama(path, ram_budget=size, verbose=False)


def test_escape_sequences(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    file = replaced(path, tmp_path / "a.gguf", rb"(?<=architecture.{12})llama", b"\x1b[31m")
    named = path.rename(tmp_path / f"{ESCAPE}.gguf")
    try:
        for line in (["inspect", file], ["bench", file], ["inspect", f"{named}.missing"]):
            main(list(map(str, line)))
        main(["quantize", str(named), str(tmp_path / f"out{ESCAPE}" / "out.gguf"), "Q8_0"])
        main([ESCAPE])
        with Llama(str(named), n_ctx=32, verbose=True) as llm:
            assert llm.n_ctx() == 32
    finally:
        named.rename(path)
    seen = capfd.readouterr()
    assert "\\x1b" in seen.err and seen.out
    assert not [c for c in seen.out + seen.err if not (c.isprintable() or c == "\n")]


def test_paths_with_a_nul(path: Path) -> None:
    for call in (Llama, Gguf, lambda p: Model(p), lambda p: memory_plan(p, {}, {})):
        with pytest.raises(ValueError, match="a path cannot hold a NUL"):
            call(f"{path}\0y")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.model"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_folders_with_pipes_and_devices(
    refused: Refused, name: str, kind: str, path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(path.parent / "model", folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if kind == "a pipe" else (folder / name).symlink_to("/dev/zero")
    assert f"{folder / name}: is not a regular file" in refused(
        "convert", folder, alone=(name, kind) == ("config.json", "a pipe")
    )
    predictors = tmp_path / "predictors"
    predictors.mkdir()
    os.mkfifo(predictors / "model_0.pt")
    line = refused("convert", path.parent / "model", predictors, "--outfile", tmp_path / "o.gguf")
    assert f"{predictors / 'model_0.pt'}: is not a regular file" in line
    with pytest.raises(ModelFormatError, match="not a regular file"):
        convert(path, predictors, outfile=tmp_path / "o.gguf", log=quiet)


def test_sampling_rows_that_were_not_kept(path: Path) -> None:
    """Rows that were not kept are refused, not sampled as zeros."""
    ids = [5, 9, 30, 7]
    with Llama(path, n_ctx=32, logits_all=True, verbose=False) as llm:
        llm.eval(ids)
        want = [llm.sample(temp=0, idx=i) for i in range(len(ids))]
        assert want == [int(llm.scores[i].argmax()) for i in range(len(ids))]
        for i in (4, 31, 32, -1):
            with pytest.raises(ValueError, match=f"there is no token {i}: 4 are computed"):
                llm.sample(idx=i)
    with Llama(path, n_ctx=32, verbose=False) as llm:
        llm.eval(ids)
        assert llm.sample(temp=0, idx=3) == llm.sample(temp=0) == want[3]
        for i in range(3):
            with pytest.raises(ValueError, match=f"logits after token {i} were not kept"):
                llm.sample(idx=i)
        llm.eval([11])  # the rows of two calls now
        assert llm.sample(temp=0, idx=3) == want[3]
        llm.reset()
        llm.eval([5, 9, 30, 8, 1])  # other tokens where rows had been kept
        with pytest.raises(ValueError, match="logits after token 3 were not kept"):
            llm.sample(idx=3)
