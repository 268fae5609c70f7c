"""From a Hugging Face folder to a GGUF: `convert(folder, predictors)`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..activations import NAMES as ACTIVATIONS
from ..activations import default_activation
from ..errors import ModelFormatError, UnsupportedModelError
from ..formats import Format, format_by_name
from .checkpoint import open_checkpoint
from .config import Config
from .families import read_family
from .families.family import Family, all_outputs
from .predictor import predictors, sparse_threshold
from .tensors import Output
from .vocab import PRE_NAMES, Vocab, read_vocab
from .writer import FILE_TYPES, Entry, Stored, encoded, fitting, float32, string, uint32, write_gguf

OUTPUT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

__all__ = ["ACTIVATIONS", "OUTPUT_TYPES", "PRE_NAMES", "convert", "to_stderr"]


def to_stderr(line: str) -> None:
    """Where notes go by default."""
    print(line, file=sys.stderr, flush=True)


def convert(
    model: str | Path,
    predictor: str | Path | None = None,
    *,
    outfile: str | Path | None = None,
    outtype: str = "f16",
    activation: str | None = None,
    dense: bool = False,
    vocab_only: bool = False,
    pre: str | None = None,
    log: Callable[[str], None] = to_stderr,
) -> Path:
    """Writes a GGUF of a model folder and returns its path.

    predictor: PowerInfer's folder of model_N.pt; with it the file is neuron-aware: ffn_down
    transposed, predictors fc1 and fc2 per layer. dense: refuse that, for any GGUF engine.
    outtype: format of the matrices; vectors are F32, predictors F16, or F32 with f32.
    activation: instead of config.json's. vocab_only: tokenizer and sizes, no tensors. pre: name of
    the pre-tokeniser of a byte-level vocabulary, instead of the one its files describe.
    outfile: default beside the model, NAME-TYPE.gguf. log: gets lines about what is notable.

    Raises OSError, ModelFormatError, UnsupportedModelError, ValueError; nothing half-written
    remains.
    """
    folder = _model_folder(Path(model))
    if outtype not in OUTPUT_TYPES:
        raise ValueError(f"outtype must be one of {', '.join(OUTPUT_TYPES)}, not {outtype!r}")
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if predictor is not None and (dense or vocab_only):
        raise ValueError("a dense or vocabulary-only file has no place for predictors")
    config = Config(folder)
    family = read_family(config, activation)
    vocab = read_vocab(folder, config, family.n_vocab, pre)
    for note in family.notes + vocab.notes:
        log(f"note: {note}")
    kind = "vocab" if vocab_only else outtype
    target = Path(outfile) if outfile else folder.parent / f"{folder.name}-{kind}.gguf"
    stored: list[Stored] = []
    threshold = None
    if not vocab_only:
        found = list(_outputs(folder, predictor, family))
        missing = _layers_without_predictor(found, family.n_layer) if predictor is not None else []
        if missing:
            log(f"note: no predictor for layers {', '.join(map(str, missing))}")
        threshold = None if predictor is None else sparse_threshold(Path(predictor))
        stored = [encoded(output, _format(output, outtype, log)) for output in found]
    entries = _entries(folder.name, family, vocab, outtype, predictor is not None, threshold)
    write_gguf(target, family.architecture, entries, stored)
    return target


def _model_folder(path: Path) -> Path:
    if path.is_file():
        if path.open("rb").read(4) in (b"GGUF", b"PWRI"):
            raise UnsupportedModelError(f"{path}: converting from a GGUF is not supported yet")
        raise ModelFormatError(f"{path}: not a model folder")
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    return path.resolve()


def _outputs(folder: Path, predictor: str | Path | None, family: Family) -> Iterator[Output]:
    """Every tensor; predictors at the end, as PowerInfer has them."""
    neuron_aware = predictor is not None
    try:
        yield from all_outputs(family, open_checkpoint(folder), transpose_down=neuron_aware)
    except ModelFormatError as error:
        if str(folder) in str(error):
            raise
        raise type(error)(f"{folder}: {error}") from None
    if neuron_aware:
        path = Path(predictor)
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such folder")
        yield from predictors(path, family.n_layer, family.n_embd, family.n_ff, family.n_expert)


def _layers_without_predictor(outputs: list[Output], n_layer: int) -> list[int]:
    have = {int(o.name.split(".")[1]) for o in outputs if o.predictor}
    return [layer for layer in range(n_layer) if layer not in have]


def _format(output: Output, outtype: str, log: Callable[[str], None]) -> Format:
    if len(output.shape) == 1 or output.exact or outtype == "f32":
        return format_by_name("F32")
    wanted = format_by_name("F16" if output.predictor else outtype)
    return fitting(wanted, output.row, output.name, log)


def _entries(
    name: str,
    family: Family,
    vocab: Vocab,
    outtype: str,
    neuron_aware: bool,
    threshold: float | None,
) -> Iterator[Entry]:
    """The header's keys, in PowerInfer's order."""
    yield string("general.name", name)
    yield from family.entries()
    yield uint32("general.file_type", FILE_TYPES[outtype.upper()])
    if format_by_name(outtype).quantised:
        yield uint32("general.quantization_version", 2)
    if neuron_aware:
        yield uint32("powerinfer.version", 1)
    if neuron_aware or family.activation != default_activation(family.architecture):
        yield string("powerinfer.ffn.activation", family.activation)
    if threshold is not None:
        yield float32("powerinfer.sparse_threshold", threshold)
    yield from vocab.entries()
