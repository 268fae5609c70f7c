"""Converts a GGUF (dense or neuron-aware) or PowerInfer's PWRI file to our GGUF."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from ..core.gguf import Gguf
from . import bundles, folding, fused, source
from .activations import PLAIN_ONLY, RELUS, SMOOTH, dense_note
from .formats import Format, decode, format_by_name
from .predictor import predictors, sparse_threshold
from .statistics import activation_files
from .stored import Fitting, Stored, decoded, encoded, turned
from .tensors import Output
from .writer import FILE_TYPES, Entry, float32, string, uint32, write_gguf

_DOWN = re.compile(r"(blk\.(\d+)\.ffn_down)(_t)?(_exps|_shexp)?\.(weight|bias)")
# Only valid in a neuron-aware file: predictors, their keys and statistics of neurons.
_OF_PREDICTORS = ("powerinfer.sparse_threshold", "powerinfer.predictor.")
_OF_NEURONS = (
    *_OF_PREDICTORS,
    "powerinfer.version",
    "powerinfer.ffn.",
    "powerinfer.profile.",
    "powerinfer.placement.",
)
_NEURON_TENSOR = re.compile(
    r"blk\.\d+\.((fc[12]|sketch)(_exps)?\.(weight|bias)|ffn_(rate|tier)(_exps)?)"
)

# Ids that are in any vocabulary; the logits of the two files are compared on them.
PROMPT = b"Once upon a time there was a small model that told a short story to a child."


@dataclass
class Loss:
    """Sums of squares of the encoding error of matrices, and of their values."""

    error: float = 0.0
    values: float = 0.0

    def watch(self, output: Output, fmt: Format) -> Stored:
        """The output in this format; its rows are compared when they are written."""
        written = encoded(output, fmt)

        def rows(a: int, b: int) -> np.ndarray:
            values, data = output.rows(a, b), written.rows(a, b)
            back = decode(fmt.type, data, values.size).reshape(values.shape)
            self.error += float(np.square(back - values, dtype=np.float64).sum())
            self.values += float(np.square(values, dtype=np.float64).sum())
            return data

        return replace(written, rows=rows)

    @property
    def relative(self) -> float:
        """RMS of the error divided by the RMS of the values."""
        return (self.error / self.values) ** 0.5 if self.values else 0.0


# Of rows against plain matrices with nothing skipped: docs/sparsity.md.
SMOOTH_COST = (
    "note: this activation is never zero, so without a threshold (powerinfer profile --cats) no "
    "neuron is skipped: models run at 0.5 to 0.85 of a plain file's speed"
)


def convert_gguf(
    path: Path,
    predictor: Path | None,
    *,
    target: Path,
    outtype: str | None,
    activation: str | None,
    dense: bool,
    vocab_only: bool,
    bundle: bool,
    statistics: Path | None,
    pre: str | None,
    log: Callable[[str], None],
) -> None:
    """Writes a neuron-aware GGUF (dense: one with ffn_down) from another GGUF.

    outtype: format of the matrices, None: as stored. The blocks of a quantised down projection run
    across neurons, so the transpose is quantised again: to Q8_0, or F16 if that does not fit,
    unless outtype names a format. `log` gets the errors of the weights and of the logits.

    Raises OSError, ModelFormatError, UnsupportedModelError, ValueError.
    """
    with Gguf(path) as gguf:
        source.refuse_same_file(gguf, target)
        meant = source.activation(gguf)
        if dense and _cuts(gguf, activation or meant):
            raise UnsupportedModelError(
                f"{path}: powerinfer.ffn.threshold is part of the activation, and a dense GGUF has "
                "no place for it"
            )
        if (activation or meant) in PLAIN_ONLY and not (dense or vocab_only):
            raise UnsupportedModelError(
                f"{path}: neuron rows with {activation or meant} are not supported"
            )
        computes_all = (activation or meant) in SMOOTH and (
            gguf.value("powerinfer.ffn.threshold") is None
        )
        architecture = str(gguf.value("general.architecture"))
        note = dense_note(architecture, activation or meant)
        if note and dense:
            log(f"note: {note}")
        loss = Loss()
        stored: list[Stored] = []
        if not vocab_only:
            options = (predictor, dense, outtype, activation or meant)
            stored = list(_tensors(gguf, *options, loss, log))
            if dense and architecture == "bitnet":
                stored = list(folding.neutral_norms(stored))
            if dense and architecture in fused.ARCHITECTURES:
                stored = list(fused.fused(stored))
        entries = list(_entries(gguf, dense or vocab_only, predictor, activation or meant, pre))
        if outtype is None:
            kept = gguf.value("general.file_type")
            if isinstance(kept, int) and not isinstance(kept, bool):
                if not 0 <= kept < 1 << 32:
                    raise ModelFormatError(
                        f"{path}: key general.file_type is {kept}, which is not a format"
                    )
                entries.append(uint32("general.file_type", kept))
        else:
            entries.append(uint32("general.file_type", FILE_TYPES[outtype.upper()]))
        if any(t.format.quantised for t in stored):
            entries.append(uint32("general.quantization_version", 2))
        if statistics is not None:
            stored, entries = _with_statistics(gguf, statistics, stored, entries)
        if bundle:
            stored, keys = bundles.bundled(stored, source.n_layer(gguf))
            entries += keys
        write_gguf(target, architecture, entries, stored, gguf.files)
    if loss.error:
        log(f"turning ffn_down: RMS error {loss.relative:.2%} of the weights' own RMS")
        if activation not in (None, meant):
            log(f"note: logits not compared, because {path} has the activation {meant}")
        else:
            log(_logits_text(path, target))
    if computes_all and not dense and not vocab_only:
        log(SMOOTH_COST)


def _with_statistics(
    gguf: Gguf, folder: Path, stored: list[Stored], entries: list[Entry]
) -> tuple[list[Stored], list[Entry]]:
    """Tensors and keys, with statistics replaced by a folder's."""
    n_layer = source.n_layer(gguf)
    tensors, keys = activation_files.as_gguf(folder, stored, n_layer)
    new = {t.name for t in tensors} | {key.key for key in keys}
    old = [t for t in stored if t.name not in new], [e for e in entries if e.key not in new]
    return old[0] + tensors, old[1] + keys


def _tensors(
    gguf: Gguf,
    predictor: Path | None,
    dense: bool,
    outtype: str | None,
    activation: str,
    loss: Loss,
    log: Callable[[str], None],
) -> Iterator[Stored]:
    """Every tensor of the new file; predictors of a folder come last."""
    asked = None if outtype is None else format_by_name(outtype)
    again, fitting = 0, Fitting()
    tensors = source.tensors(gguf)

    def n_ff(layer: int) -> int:
        return _n_ff_dense(gguf, layer)

    apart = tensors if dense else fused.parted(tensors, n_ff, _experts_of_all(gguf))
    # Shared experts may stay matrices, and Gemma 4's scales belong to its router.
    kept = () if _has_shared_rows(gguf, activation) else ("_shexp.scale",)
    if gguf.value("general.architecture") == "gemma4":
        kept += ("_exps.scale",)
    factors = {} if dense else folding.factors(tensors, kept)
    for tensor in apart:
        if not dense and folding.becomes_factor(tensor, kept):
            continue
        factor = factors.get(tensor.name)
        if dense and _NEURON_TENSOR.fullmatch(tensor.name):
            continue
        if predictor and source.PREDICTOR.fullmatch(tensor.name):
            continue
        is_predictor = source.PREDICTOR.fullmatch(tensor.name)
        wanted = asked if source.is_matrix(tensor) and not is_predictor else None
        name, turn = _down_name(gguf, tensor, dense, activation)
        tensor = replace(tensor, name=name)
        if turn:
            output = turned(name, tensor)
            if factor is not None:
                output = folding.times(output, factor)
            if wanted is None and not folding.stays_ternary(gguf, tensor):
                wanted = format_by_name("Q8_0") if tensor.format.quantised else tensor.format
            wanted = wanted or tensor.format
            yield loss.watch(output, fitting(wanted, output.row, name))
            continue
        if factor is not None:
            output = folding.times(decoded(tensor), factor)
            tensor = folding.in_own_format(output, tensor.format)
        if wanted:
            wanted = fitting(wanted, tensor.row, name)
            again += tensor.format.quantised and wanted.quantised and wanted != tensor.format
        yield source.in_format(tensor, wanted) if wanted else tensor
    if again:
        log(f"note: {again} matrices were quantised already; quantising them again loses more")
    if predictor:
        sizes = (source.n_layer(gguf), source.size(gguf, "embedding_length"))
        for output in predictors(predictor, *sizes, _n_ff(gguf), _n_expert(gguf)):
            half = fitting(format_by_name("F16"), output.row, output.name)
            yield encoded(output, format_by_name("F32") if outtype == "f32" else half)
    fitting.report(log)


def _down_name(gguf: Gguf, tensor: Stored, dense: bool, activation: str) -> tuple[str, bool]:
    """A tensor's name in the new file, and whether its matrices must be transposed."""
    match = _DOWN.fullmatch(tensor.name)
    if not match:
        return tensor.name, False
    layer, by_neuron, experts = int(match[2]), match[3] is not None, match[4] or ""
    if layer >= source.n_layer(gguf):  # that guesses tokens: no neuron of it is skipped
        return tensor.name, False
    if experts == "_shexp":
        n_ff = tensor.shape[-2 if by_neuron else -1]
        dense = dense or not (by_neuron or _has_shared_rows(gguf, activation))
    else:
        n_ff = _n_ff(gguf, layer) if experts else _n_ff_dense(gguf, layer)
    name = f"{match[1]}{'' if dense else '_t'}{experts}.{match[5]}"
    if match[5] == "bias":
        return name, False
    n_embd = source.width(gguf, experts)
    if experts and tensor.shape[-2:] == (n_ff, n_embd) != (n_embd, n_ff):
        by_neuron = True  # PowerInfer's SmallThinker files use the plain name for neuron rows
    expected = (n_ff, n_embd) if by_neuron else (n_embd, n_ff)
    if tensor.shape[-2:] != expected:
        raise ModelFormatError(
            f"{gguf.files[0]}: tensor {tensor.name} has shape {list(tensor.shape)}, "
            f"expected {list(expected)} at its end"
        )
    return name, by_neuron == dense


def _has_shared_rows(gguf: Gguf, activation: str) -> bool:
    """Do experts that every token computes get neuron rows: are some of their neurons zero? The
    engine knows no such rows with biases."""
    biases = any(tensor.name.endswith("_shexp.bias") for tensor in gguf.tensors)
    return activation in RELUS and not biases


def _cuts(gguf: Gguf, activation: str) -> bool:
    """Whether a threshold changes the model in every mode (FATReLU), not only in `exact`."""
    value = gguf.value("powerinfer.ffn.threshold", 0.0)
    return activation in RELUS and any(value if isinstance(value, list) else [value])


def _expert_count(gguf: Gguf) -> object:
    """As the file has it: none, a number, or one for each layer."""
    return gguf.value(f"{gguf.value('general.architecture')}.expert_count")


def _n_expert(gguf: Gguf) -> int:
    """Experts of a layer; 0: the model is no mixture. Raises ModelFormatError if layers differ."""
    return source.size(gguf, "expert_count") if _expert_count(gguf) else 0


def _experts_of_all(gguf: Gguf) -> int | None:
    """Experts of a layer; None: layers differ."""
    count = _expert_count(gguf)
    return None if isinstance(count, list) and len(set(count)) > 1 else _n_expert(gguf)


def _n_ff(gguf: Gguf, layer: int | None = None) -> int:
    """Neurons of a layer, or of one expert."""
    own = ("expert_feed_forward_length",) if _expert_count(gguf) else ()
    return source.size(gguf, *own, "feed_forward_length", layer=layer)


def _n_ff_dense(gguf: Gguf, layer: int) -> int:
    """Neurons of a layer without experts."""
    keys = ("feed_forward_length", "expert_feed_forward_length")
    return source.size(gguf, *keys, layer=layer)


def _entries(
    gguf: Gguf, dense: bool, predictor: Path | None, activation: str, pre: str | None
) -> Iterator[Entry]:
    dropped = _OF_NEURONS if dense else _OF_PREDICTORS if predictor else ()
    if pre is not None:
        dropped = (*dropped, "tokenizer.ggml.pre")
    mine = "powerinfer.ffn.activation"
    yield from source.entries(gguf, lambda key: key != mine and not key.startswith(dropped))
    if pre is not None:
        yield string("tokenizer.ggml.pre", pre)
    if not dense and "powerinfer.version" not in gguf.metadata:
        yield uint32("powerinfer.version", 1)
    yield string(mine, activation)
    threshold = None if predictor is None else sparse_threshold(predictor)
    if threshold is not None:
        yield float32("powerinfer.sparse_threshold", threshold)


def _logits_text(before: Path, after: Path) -> str:
    """A line with the relative error of the new file's logits."""
    try:
        old, new = _logits(before), _logits(after)
    except (OSError, ValueError, MemoryError) as error:
        return f"note: logits not compared: {error}"
    error = float(np.linalg.norm(new - old) / np.linalg.norm(old))
    return f"logits of {len(old)} tokens: relative error {error:.2%}"


def _logits(path: Path) -> np.ndarray:
    """Logits of PROMPT, float64 [n_tokens, n_vocab], with every neuron computed."""
    from ..llama import Llama

    with Llama(str(path), n_ctx=64, logits_all=True, sparse="off", verbose=False) as llm:
        tokens = llm.tokenize(PROMPT)[:48]
        llm.eval(tokens)
        return llm.scores[: len(tokens)].astype(np.float64)
