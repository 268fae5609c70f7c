"""Bundled files: written from a model, found again and checked."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ._native import ffi, lib
from .core.errors import check, encoded
from .core.params import Callbacks
from .core.progress import Progress

ALIGNS = (512, 1024, 2048, 4096)


def bundle(
    model: str | Path,
    target: str | Path | None = None,
    *,
    align: int = 512,
    verbose: bool = True,
) -> Path:
    """Writes a model's bundled file, from which single neurons can be read, and returns its path.

    target: default `bundle_target`. align: of a neuron's two ranges, one of ALIGNS. verbose: print
    the size before writing.

    Raises OSError, ModelFormatError, UnsupportedModelError (no neuron rows), ValueError; an error
    leaves no partial file.
    """
    path = bundle_target(model) if target is None else Path(target)
    with _params("writing", verbose) as (params, callbacks):
        params.align = align
        status = lib.pi_bundle_file(encoded(str(model)), encoded(str(path)), params)
        callbacks.check(status, None if Path(model).is_file() else str(model))
    return path


def check_bundle(path: str | Path) -> None:
    """Compares the checksums of a bundled file. Raises ModelFormatError naming a damaged neuron."""
    with _params("checking", False) as (params, callbacks):
        callbacks.check(lib.pi_bundle_check(encoded(str(path)), params), str(path))


def find_bundle(model: str | Path) -> Path | None:
    """The bundled file that was written from this model: beside it, or in the user's cache."""
    found = _path(lib.pi_find_bundle, model)
    return Path(found) if found else None


def bundle_target(model: str | Path) -> Path:
    """Where a new one belongs: beside the model, or in the user's cache."""
    return Path(_path(lib.pi_bundle_target, model))


@contextlib.contextmanager
def _params(what: str, verbose: bool) -> Iterator[tuple[Any, Callbacks]]:
    """pi_bundle_params that show progress, and their callbacks."""
    params = ffi.new("pi_bundle_params *", lib.pi_bundle_default_params())
    with Progress(what, 100, "%") as shown:
        done = 0

        def progress(fraction: float) -> None:
            nonlocal done
            step = int(100 * fraction) - done
            done += step
            shown.update(step)

        callbacks = Callbacks(progress, verbose)
        params.progress, params.progress_data = lib.pi_call_progress, callbacks.handle
        params.log, params.log_data = lib.pi_call_log, callbacks.handle
        yield params, callbacks


def _path(find: Callable[..., int], model: str | Path) -> str:
    length, size = ffi.new("size_t *"), 4096
    while True:
        room = ffi.new("char[]", size)
        length[0] = 0
        status = find(encoded(str(model)), room, size, length)
        if status != lib.PI_OK and length[0] >= size:
            size = length[0] + 1
            continue
        check(status, str(model))
        return os.fsdecode(ffi.buffer(room, length[0])[:])
