"""Counts how often each neuron fires on a text: `profile(model, out, text)`."""

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..convert import source
from ..convert.statistics import Statistics, activation_files, embed_statistics, from_gguf, merged
from ..convert.writer import check_target
from ..core.errors import ModelFormatError
from ..core.gguf import Gguf
from ..core.model import Model
from ..core.progress import Progress
from .counters import Counter, EngineCounter, TransformersCounter, check_sparse
from .fingerprint import fingerprint
from .state import State, scratch
from .text import read, windows
from .thresholds import THRESHOLD, with_thresholds

__all__ = ["Statistics", "count", "from_gguf", "profile"]


def count(
    model: Model, counter: Counter, pieces: Sequence[np.ndarray], state: State | None, corpus: str
) -> Statistics:
    """Statistics of windows of tokens, continuing from a saved state. Ctrl-C saves the state."""
    done, before = 0, np.zeros(sum(math.prod(size.shape) for size in model.sizes), np.uint64)
    found = state.load() if state else None
    if found is not None:
        done, before = int(found["done"]), found["counts"]
    counts = before  # of all layers, one after the other
    tokens = sum(map(len, pieces))
    with Progress("profiling", tokens, "tokens") as progress:
        progress.update(sum(map(len, pieces[:done])))
        try:
            for piece in pieces[done:]:
                counter.add(piece)
                own = [of_layer.reshape(-1) for of_layer in counter.counts()]
                done, counts = done + 1, before + np.concatenate(own)
                if state:
                    state.save({"done": done, "counts": counts})
                progress.update(len(piece))
        except KeyboardInterrupt:
            if state:
                state.save({"done": done, "counts": counts}, at_once=True)
            raise
    layers, first = [], 0
    for size in model.sizes:
        n = math.prod(size.shape)
        layers.append(counts[first : first + n].reshape(size.shape))
        first += n
    return Statistics(layers, tokens, corpus)


def profile(
    model: Model,
    out: str | Path | None = None,
    text: str | Path | None = None,
    *,
    separator: bytes | None = None,
    n_tokens: int | None = None,
    n_ctx: int | None = None,
    merge: Sequence[str | Path] = (),
    imported: str | Path | None = None,
    imported_tokens: int | None = None,
    export: str | Path | None = None,
    checkpoint: str | Path | None = None,
    cats: float | None = None,
    data: bytes | None = None,
    log: Callable[[str], None] = lambda _line: None,
    **fields: Any,
) -> Statistics:
    """Profiles a model on a text, adds other statistics, writes them, and returns them.

    out: file to write, the model plus statistics. text: a file; its first n_tokens tokens (default:
    all) are computed in windows of n_ctx (default: 512, at most the training context). merge:
    profiled files of the same model whose statistics are added, weighted by their tokens. imported,
    export: folders of activation_N.pt to add (counted on imported_tokens tokens; default: the
    largest count) and to write. checkpoint: compute with transformers on this folder instead of
    the engine. cats: for SiLU and GELU, sets the file's thresholds (powerinfer.ffn.threshold) so
    that this share of each layer's activations counts as zero, and profiles the remaining ones;
    only with a text and `out`. data: the text's bytes, if already read. fields: those of
    pi_session_params.

    Work that was killed continues where it stopped (OUT.state), with the same result. Raises
    OSError (a full disk, no such file), ValueError (an empty text, statistics of another model, a
    model in which every neuron fires), ImportError (no transformers); an error leaves no partial
    file.
    """
    inputs = [*model.gguf.files, *merge, *(path for path in (text, imported) if path is not None)]
    if out is not None:
        check_target(Path(out), sum(t.n_bytes for t in model.gguf.tensors), inputs)
    if export and imported and Path(export).exists() and Path(export).samefile(imported):
        raise ValueError(f"{export}: input and output are the same folder")
    if cats is not None:
        if out is None or text is None or merge or imported or checkpoint:
            raise ValueError("--cats needs --text and --out, without other statistics or outputs")
        with scratch(Path(out)) as folder:
            path = folder / "thresholds.gguf"
            data = read(text)
            pieces = _pieces(model, text, data, separator, n_ctx, n_tokens)
            found = with_thresholds(model, path, pieces, cats, **fields)
            named = ", ".join(f"{t:.4f}" for t in found)
            log(f"below these values, by layer, {cats:.0%} count as zero: {named}")
            options = {"separator": separator, "n_tokens": n_tokens, "n_ctx": n_ctx, "data": data}
            dropping = Model(str(path), allow_unknown=True)  # as the model itself
            try:
                return profile(dropping, out, text, export=export, log=log, **options, **fields)
            finally:
                dropping.close()
    gguf = model.gguf
    given = None
    if imported:
        given = activation_files.read(Path(imported), model.sizes, imported_tokens)
    parts = [(str(imported), given)] if given else []
    parts += [(str(path), _others(model, path)) for path in merge]
    empty = Statistics([np.zeros(size.shape, np.uint64) for size in model.sizes], 0, "")
    merged([(model.path, empty), *parts])  # refused before hours of work
    state = None
    if text is not None:
        data = read(text) if data is None else data
        pieces = _pieces(model, text, data, separator, n_ctx, n_tokens)
        n_ctx = _window(model, n_ctx)
        check_sparse(model)
        if checkpoint is not None:
            counter: Counter = TransformersCounter(model, Path(checkpoint))
        else:
            counter = EngineCounter(model, n_ctx, **fields)
        identity = {
            "model": fingerprint(gguf),
            "zero": [model.activation, str(gguf.value(THRESHOLD))],
            "text": hashlib.sha256(data).hexdigest(),
            "cut": [str(separator), n_tokens, n_ctx],
            "checkpoint": str(checkpoint),
            "cache": [fields.get("type_k"), fields.get("type_v")],
        }
        if out is not None:
            state = State(Path(out), identity, log)
        own = count(model, counter, pieces, state, Path(text).name)
        parts.insert(0, (str(text), own))
    if not parts:
        raise ValueError("nothing to profile: give a text, or statistics to merge or import")
    total = merged(parts)
    if export is not None:
        activation_files.write(Path(export), total, inputs)
    if out is not None:
        embed_statistics(gguf, out, total, model.sizes)
    if state is not None:
        state.remove()
    return total


def _window(model: Model, n_ctx: int | None) -> int:
    return min(n_ctx or 512, model.n_ctx_train)


def _pieces(
    model: Model,
    text: str | Path,
    data: bytes,
    separator: bytes | None,
    n_ctx: int | None,
    n_tokens: int | None,
) -> list[np.ndarray]:
    try:
        size = _window(model, n_ctx)
        return windows(model, data, separator, size, n_tokens)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def _others(model: Model, path: str | Path) -> Statistics:
    """Statistics of another file of the same model, possibly in another format."""
    with Gguf(path) as gguf:
        kinds = [g.value("general.architecture") for g in (model.gguf, gguf)]
        sizes = [source.size(g, "embedding_length") for g in (model.gguf, gguf)]
        words = [g.length("tokenizer.ggml.tokens") for g in (model.gguf, gguf)]
        if kinds[0] != kinds[1] or sizes[0] != sizes[1] or words[0] != words[1]:
            raise ModelFormatError(f"{path}: statistics of another model than {model.path}")
        return from_gguf(gguf)
