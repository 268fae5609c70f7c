"""LlamaDiskCache: states in files, for later processes; damaged files do no harm."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from powerinfer_cpp.llama_cache import BaseLlamaCache, LlamaDiskCache
from powerinfer_cpp.run import disk_cache

from powerinfer_cpp import Llama

TEXT = "the quick brown fox and the lazy dog"
CALL: dict[str, Any] = {"max_tokens": 4, "seed": 1, "logprobs": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("disk"))


def opened(path: Path, folder: Path) -> Llama:
    llm = Llama(path, n_ctx=64, verbose=False)
    llm.set_cache(LlamaDiskCache(folder))
    return llm


@pytest.fixture
def kept(path: Path, tmp_path: Path) -> Path:
    """A folder with the state of a completion of TEXT."""
    with opened(path, tmp_path) as llm:
        llm(TEXT, **CALL)
    return tmp_path


def files(folder: Path) -> list[Path]:
    """Those of a cache in this folder, which has nothing else."""
    assert [path.name for path in folder.iterdir()] == ["powerinfer-states"]
    return sorted((folder / "powerinfer-states").iterdir())


def computed(path: Path, folder: Path) -> tuple[int, Any]:
    """Tokens of TEXT that a new process would compute, and what it writes."""
    with opened(path, folder) as llm:
        done = llm(TEXT, **CALL)
        return llm.stats()["n_prompt"], done["choices"]


def test_a_later_process_continues(path: Path, kept: Path) -> None:
    with Llama(path, n_ctx=64, verbose=False) as llm:
        want, n = llm(TEXT, **CALL), len(llm.tokenize(TEXT.encode()))
    assert want["choices"] == computed(path, kept)[1] and computed(path, kept)[0] == 1
    code = "import sys; from powerinfer_cpp import *; llm = Llama(sys.argv[1], n_ctx=64, "
    code += "verbose=False); llm.set_cache(LlamaDiskCache(sys.argv[2])); "
    code += "print(llm(sys.argv[3], max_tokens=1)['usage']['prompt_tokens'], "
    code += "llm.stats()['n_prompt'])"
    line = [sys.executable, "-c", code, str(path), str(kept), f"{TEXT} and"]
    done = subprocess.run(line, capture_output=True, errors="replace", check=True)
    total, fresh = map(int, done.stdout.split())
    assert total > n and fresh <= total - n + 1


def test_the_state_is_that_of_memory(path: Path, tmp_path: Path) -> None:
    cache = LlamaDiskCache(tmp_path / "new" / "folder")
    assert isinstance(cache, BaseLlamaCache) and cache.cache_size == 0
    with Llama(path, n_ctx=64, logits_all=True, verbose=False) as llm:
        llm.eval([1, 5, 6, 7])
        llm.eval([8], generated=True)
        state = llm.save_state()
        cache[[1, 5, 6, 7, 8]] = state
        (file,) = files(tmp_path / "new" / "folder")
        assert cache.cache_size == file.stat().st_size
        assert [1, 5, 6, 9] in cache and [2] not in cache and [] not in cache
        found = LlamaDiskCache(tmp_path / "new" / "folder")[[1, 5, 3]]
        for name in ("input_ids", "scores", "generated"):
            a, b = getattr(found, name), getattr(state, name)
            assert a.dtype == b.dtype and np.array_equal(a, b), name
        for name in (
            "n_tokens",
            "llama_state",
            "llama_state_size",
            "n_prompt",
            "version",
            "numerics",
        ):
            assert getattr(found, name) == getattr(state, name), name
        llm.reset()
        llm.load_state(found)
        assert llm.n_tokens == 5
        with pytest.raises(KeyError):
            cache[[2]]


def test_the_oldest_are_removed(path: Path, tmp_path: Path) -> None:
    with Llama(path, n_ctx=64, verbose=False) as llm:
        states = []
        for first in (3, 4, 5):
            llm.reset()
            llm.eval([first, 6, 7])
            states.append(llm.save_state())
    cache = LlamaDiskCache(tmp_path, capacity_bytes=1 << 30)
    for i, state in enumerate(states[:2]):
        cache[state.input_ids] = state
        os.utime(max(files(tmp_path), key=os.path.getctime), (i, i))
    size = cache.cache_size // 2
    assert cache[[3, 6]].n_tokens == 3  # used last
    cache.capacity_bytes = 2 * size
    cache[states[2].input_ids] = states[2]
    assert [3] in cache and [5] in cache and [4] not in cache
    cache.capacity_bytes = 1
    cache[states[0].input_ids] = states[0]
    assert files(tmp_path) == [] and [3] not in cache


@pytest.mark.parametrize(
    "damage",
    ["empty", "short", "long", "magic", "version", "numerics", "sizes", "inside", "ids", "sum"],
)
def test_damaged_files(
    damage: str, path: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not used, with a warning; files of another version without."""
    (file,) = files(kept)
    data = bytearray(file.read_bytes())
    if damage == "empty":
        data = bytearray()
    elif damage == "short":
        data = data[:-1]
    elif damage == "long":
        data += b"\0"
    elif damage == "magic":
        data[0] ^= 1
    elif damage == "version":
        data[8] += 1
    elif damage == "numerics":
        data[56] += 1
    elif damage == "sizes":  # that fit the file, but not each other
        data[16:24] = (int.from_bytes(data[16:24], "little") + 4).to_bytes(8, "little")
        data[48:56] = (int.from_bytes(data[48:56], "little") - 20).to_bytes(8, "little")
    elif damage == "ids":  # of the last token, which is no part of the question
        data[72 + 4 * int.from_bytes(data[16:24], "little") - 4] ^= 1
    elif damage == "sum":
        data[-1] ^= 1
    else:  # one bit of the keys and values
        data[-int.from_bytes(data[48:56], "little") // 2] ^= 1
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        fresh, text = computed(path, kept)
    other_version = damage in ("magic", "version", "numerics")
    assert [line.count(f"{file}: the state is damaged") for line in caplog.messages] == (
        [] if other_version else [1]
    )
    with Llama(path, n_ctx=64, verbose=False) as llm:
        assert text == llm(TEXT, **CALL)["choices"]
        assert fresh == len(llm.tokenize(TEXT.encode()))


def test_files_of_others_stay(path: Path, tmp_path: Path) -> None:
    """In a folder that a user has for other things, too; states of versions that kept theirs in
    the folder itself are moved to the cache's own."""
    with opened(path, tmp_path / "made") as llm:
        llm(TEXT, **CALL)
    (own,) = files(tmp_path / "made")
    folder = tmp_path / "shared"
    folder.mkdir()
    foreign = {
        "film.partial": b"half",
        "game.state": b"PISTATE\1 by name only",
        f"{'0' * 64}.state": b"no magic",
        f"{'1' * 64}.txt": own.read_bytes(),
    }
    for name, data in foreign.items():
        (folder / name).write_bytes(data)
    shutil.copy(own, folder / own.name)
    (folder / f"{'2' * 64}.state").write_bytes(b"PISTATE\0" + bytes(64))
    cache = LlamaDiskCache(folder)
    states = {own.name, f"{'2' * 64}.state"}
    assert {path.name for path in (folder / "powerinfer-states").iterdir()} == states
    state = cache[list(disk_cache._read_known(own).ids)]
    cache.capacity_bytes = 1
    cache[[1]] = state  # too much: all of its own go
    assert list((folder / "powerinfer-states").iterdir()) == []
    (folder / "powerinfer-states").rmdir()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == foreign


def test_a_file_is_stored_before_it_has_its_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)

        def noted(*args: Any, name: str = name, call: Any = call) -> Any:
            done.append(name)
            return call(*args)

        monkeypatch.setattr(disk_cache.os, name, noted)
    with opened(path, tmp_path) as llm:
        llm(TEXT, **CALL)
    assert done == ["fsync", "replace"]


def test_a_state_of_another_model(path: Path, kept: Path, model_path: Path) -> None:
    """With another vocabulary; it begins with the same token."""
    with Llama(model_path, n_ctx=64, verbose=False) as llm:
        want = llm(TEXT, **CALL)["choices"]
        llm.reset()
        llm.set_cache(LlamaDiskCache(kept))
        assert llm(TEXT, **CALL)["choices"] == want


def test_a_full_disk(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk_cache.os, "replace", full)
    with caplog.at_level(logging.WARNING), opened(path, tmp_path) as llm:
        assert llm(TEXT, **CALL)["choices"][0]["finish_reason"] == "length"
    assert files(tmp_path) == []
    assert "a state was not kept: No space left" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        LlamaDiskCache(tmp_path / "file")


# ---- Several processes --------------------------------------------------------------------------


def test_another_process_removes_what_was_found(path: Path, kept: Path) -> None:
    """Between finding a state and reading it, after it was listed, and with all of the folder."""
    with Llama(path, n_ctx=64, verbose=False) as llm:
        want = llm(TEXT, **CALL)["choices"]

    class Vanishing(LlamaDiskCache):
        def __contains__(self, key: Any) -> bool:
            return self._gone(super().__contains__(key))

        def _longest(self, key: Any) -> Any:
            return self._gone(super()._longest(key))

        def _gone(self, found: Any) -> Any:
            for file in files(kept):
                file.unlink()
            return found

    class Homeless(LlamaDiskCache):
        def _longest(self, key: Any) -> Any:
            found = super()._longest(key)
            shutil.rmtree(kept, ignore_errors=True)
            return found

    for kind in (Vanishing, Homeless):
        with Llama(path, n_ctx=64, verbose=False) as llm:
            llm.set_cache(kind(kept))
            assert llm(TEXT, **CALL)["choices"] == want
        assert len(files(kept)) == 1


def test_a_file_that_gets_readable_again(path: Path, kept: Path) -> None:
    """Another process replaces a damaged one."""
    (file,) = files(kept)
    good, cache = file.read_bytes(), LlamaDiskCache(kept)
    ids = [1, *cache[list(disk_cache._read_known(file).ids)].input_ids[1:]]
    file.write_bytes(good[:-1])
    assert ids not in cache
    file.write_bytes(good)
    assert ids in cache
    file.unlink()
    assert ids not in cache and cache._ids == {}


WRITER = """
import os, sys, time
import numpy as np
from powerinfer_cpp import LlamaDiskCache, LlamaState
from powerinfer_cpp.run import disk_cache
empty = np.empty((0, 5), np.float32)
ids = np.array([1, 2], np.intc)
state = LlamaState(ids, empty, 2, bytes(1 << 20), 1 << 20, ids > 0, 2, version=2, numerics=1)
cache = LlamaDiskCache(sys.argv[1])
def wait(*_):
    print("written", flush=True)
    time.sleep(600)
disk_cache.os.replace = wait
cache[[1, 2]] = state
"""


def test_what_a_killed_writer_leaves(path: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, errors="replace") as writer:
        try:
            assert writer.stdout.readline() == "written\n"
            cache = LlamaDiskCache(tmp_path)  # while it lives, its file stays, and counts
            with Llama(path, n_ctx=64, verbose=False) as llm:
                llm.set_cache(cache)
                llm(TEXT, max_tokens=1)
            (partial,) = tmp_path.glob("*/*.partial")
            assert cache.cache_size > partial.stat().st_size > 1 << 20
        finally:
            writer.kill()
        writer.wait()
    cache[[5]] = cache[[1]]
    assert not partial.exists() and len(files(tmp_path)) == 2
    partial.touch()
    LlamaDiskCache(tmp_path)
    assert not partial.exists()


def test_processes_that_share_a_folder(path: Path, tmp_path: Path) -> None:
    """Each removes what the others have just written."""
    code = "import sys; from powerinfer_cpp import *\n"
    code += "llm = Llama(sys.argv[1], n_ctx=64, verbose=False)\n"
    code += "llm.set_cache(LlamaDiskCache(sys.argv[2], capacity_bytes=40000))\n"
    code += "for i in range(40): llm(f'the quick {i} {sys.argv[3]}', max_tokens=1)"
    run = [[sys.executable, "-c", code, str(path), str(tmp_path), str(i)] for i in range(3)]
    started = [subprocess.Popen(line, stderr=subprocess.PIPE, errors="replace") for line in run]
    for process in started:
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    assert LlamaDiskCache(tmp_path).cache_size <= 40000
