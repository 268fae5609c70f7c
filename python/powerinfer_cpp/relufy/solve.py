"""`relufy`: from a checkpoint and a text to a sparse checkpoint."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.progress import Progress
from ..profile.text import read
from . import curve
from .curve import Row
from .data import read_tokens
from .recipe import RECIPES
from .work import State, identity_of, work_folder

_ROWS = 40  # of the curve
_THRESHOLDS = (0.005, 0.01, 0.02, 0.03)  # that ProSparse compares


def relufy(
    checkpoint: str | Path,
    out: str | Path,
    text: str | Path,
    *,
    recipe: str = "prosparse",
    held_out: str | Path | None = None,
    separator: bytes | None = None,
    n_steps: int | None = None,
    n_tokens: int | None = None,
    n_batch: int = 16,
    n_ctx: int = 512,
    parts: int = 1,
    lr: float = 5e-5,
    l1: float | None = None,
    threshold: float | None = None,
    every: int | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Sequence[Row]:
    """Trains a checkpoint on so that most of its neurons become zero, writes it, and returns the
    curve of the training.

    checkpoint: a Hugging Face folder with gated feed-forward blocks. out: the folder to write; it
    must not exist. recipe: a name in RECIPES; "control" changes nothing and only trains on, for
    comparison. text: to learn from; held_out: to measure on (default: the end of `text`), both cut
    at `separator`. n_steps, or n_tokens, of which each step takes n_batch windows of n_ctx. parts:
    compute a batch in so many pieces, which needs less memory. lr: the highest learning rate. l1:
    last factor of the penalty, threshold: FATReLU's, for prosparse (defaults: the recipe's).
    every: steps between two measurements. device: torch's name; default a GPU where it sees one.

    The result has the files of the checkpoint, config.json with another hidden_act, curve.csv and,
    with matplotlib, curve.png. Work that was killed is kept in OUT.relufy and continues there, on
    the same machine with the same result. Raises OSError, ValueError (no torch or transformers, a
    short text, unfinished work with other options), UnsupportedModelError (other families),
    ModelFormatError (a damaged checkpoint); an error leaves no part of `out`.
    """
    source, target, chosen = Path(checkpoint), Path(out), RECIPES[recipe]
    if threshold is not None and chosen.threshold is None:
        raise ValueError(f"--threshold: the recipe {recipe} has no threshold")
    l1 = chosen.l1 if l1 is None else l1
    threshold = (chosen.threshold if threshold is None else threshold) or 0.0
    if (n_steps is None) == (n_tokens is None):
        raise ValueError("give the length of the training as --steps or as --tokens")
    n_steps = n_steps or -(-(n_tokens or 0) // (n_batch * n_ctx))
    if parts > n_batch:
        raise ValueError(f"--parts {parts}: a batch has only {n_batch} windows")
    if target.exists():
        raise ValueError(f"{target}: exists")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: the folder {target.parent} does not exist")
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: no such folder")
    device = _device(device)
    from . import network
    from .train import Training, has_fast_bf16

    config, activation = network.read_config(source)
    longest = config.integer("max_position_embeddings", default=n_ctx)
    if n_ctx > longest:
        raise ValueError(f"--ctx-size {n_ctx}: the model has only {longest} positions")
    becomes, bf16 = chosen.activation or activation, has_fast_bf16(device)
    data = (Path(text), read(text))
    others = None if held_out is None else (Path(held_out), read(held_out))
    every = every or max(1, n_steps // _ROWS)
    identity = {
        "checkpoint": identity_of(source),
        "text": hashlib.sha256(data[1]).hexdigest(),
        "--held-out": others and hashlib.sha256(others[1]).hexdigest(),
        "--separator": str(separator),
        **{"--recipe": recipe, "--steps": n_steps, "--batch": n_batch, "--ctx-size": n_ctx},
        **{"--parts": parts, "--lr": lr, "--l1": l1, "--curve": every, "--seed": seed},
        **{"--device": device, "kind of arithmetic": "BF16" if bf16 else "F32"},
    }
    with work_folder(target, identity) as folder:
        arguments = (data, others, separator, n_ctx)
        tokens = read_tokens(source, folder / "vocabulary.gguf", *arguments)
        model, blocks, dtype = network.load(source, activation, device)
        training = Training(
            model,
            blocks,
            tokens,
            n_steps=n_steps,
            n_batch=n_batch,
            parts=parts,
            lr=lr,
            l1=l1,
            seed=seed,
            device=device,
            bf16=bf16,
        )
        state = State(folder, training.state_bytes())
        _train(training, state, folder / "curve.csv", activation, becomes, every, device)
        if chosen.threshold is not None:
            for value in sorted({*_THRESHOLDS, threshold} - {0.0}):
                training.measure(becomes, value)
        result = folder / "result"
        if result.exists():
            shutil.rmtree(result)
        result.mkdir()
        network.save(model, source, result, dtype, _changes(chosen.activation, threshold))
        curve.write(result / "curve.csv", training.rows)
        curve.draw(training.rows, result / "curve.png")
        os.rename(result, target)
    return training.rows


def _train(
    training: Any,
    state: State,
    table: Path,
    activation: str,
    becomes: str,
    every: int,
    device: str,
) -> None:
    """All steps that are left, with a row of the curve now and then."""
    found = state.load(device)
    if found is not None:
        training.restore(found)
    else:
        training.measure(activation)
    for block in training.blocks:
        block.activation = becomes
    with Progress("training", training.n_steps, "steps") as progress:
        progress.update(training.step)
        while True:
            due = training.step % every == 0 or training.step == training.n_steps
            last = training.rows[-1]
            if due and (training.step, becomes) != (last.step, last.activation):
                training.measure(becomes)
                curve.write(table, training.rows)
            if training.step == training.n_steps:
                return
            training.advance()
            state.save(training.state())
            row = training.rows[-1]
            progress.update(1, f"perplexity {row.perplexity:.3f}, {row.sparsity:.1%} zero")


def _device(name: str | None) -> str:
    """A device of torch. Raises ValueError without torch or transformers, or for another name."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"relufy needs {error.name}: pip install 'powerinfer_cpp[train]'"
        ) from None
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ValueError(f"--device {name}: {reason}") from None
    return name


def _changes(activation: str | None, threshold: float) -> dict[str, Any]:
    """What changes in config.json."""
    if threshold:
        return {"hidden_act": "fatrelu", "hidden_act_param": threshold}  # as ProSparse's own
    return {} if activation is None else {"hidden_act": activation}
