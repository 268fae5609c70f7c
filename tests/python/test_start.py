"""Loading a model: its progress, and a file that changes meanwhile."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from powerinfer_cpp import Llama


def test_progress_comes_in_the_callers_thread(model_path: Path) -> None:
    seen: list[float] = []
    threads: set[int] = set()

    def progress(fraction: float) -> bool:
        seen.append(fraction)
        threads.add(threading.get_ident())
        return True

    with Llama(model_path, n_ctx=64, verbose=False, progress_callback=progress):
        pass
    assert (seen[0], seen[-1]) == (0.0, 1.0) and seen == sorted(seen)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("use_mmap", [True, False])
def test_a_file_that_becomes_shorter_is_an_error(
    model_path: Path, tmp_path: Path, use_mmap: bool
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(model_path, path)

    def cut(fraction: float) -> bool:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        return True

    with pytest.raises(OSError, match="it was longer when it was opened"):
        Llama(path, n_ctx=64, verbose=False, use_mmap=use_mmap, progress_callback=cut)
