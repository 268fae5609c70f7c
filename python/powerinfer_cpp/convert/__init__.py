"""From a Hugging Face folder to a GGUF: `convert(folder, predictors)`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ModelFormatError, UnsupportedModelError
from ..formats import Format, format_by_name
from . import llama
from .checkpoint import open_checkpoint
from .config import Config, Hyperparameters
from .predictor import predictors, sparse_threshold
from .tensors import Output
from .vocab import Vocab, read_vocab
from .writer import FILE_TYPES, Entry, Stored, encoded, fitting, float32, string, uint32, write_gguf

OUTPUT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
ACTIVATIONS = ("relu", "drelu", "relu2", "silu", "gelu")


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
    log: Callable[[str], None] = to_stderr,
) -> Path:
    """Writes a GGUF of a model folder and returns its path.

    predictor: PowerInfer's folder of model_N.pt; with it the file is neuron-aware: ffn_down
    transposed, predictors fc1 and fc2 per layer. dense: refuse that, for any GGUF engine.
    outtype: format of the matrices; vectors are F32, predictors F16, or F32 with f32.
    activation: instead of config.json's. vocab_only: tokenizer and sizes, no tensors.
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
    if config.model_type() not in llama.FAMILIES:
        raise UnsupportedModelError(
            f"{config.path}: model_type {config.model_type()!r} is not supported "
            f"(supported: {', '.join(llama.FAMILIES)})"
        )
    hp = llama.hyperparameters(config, activation)
    vocab = read_vocab(folder, config, hp.n_vocab)
    for note in vocab.notes:
        log(f"note: {note}")
    kind = "vocab" if vocab_only else outtype
    target = Path(outfile) if outfile else folder.parent / f"{folder.name}-{kind}.gguf"
    stored: list[Stored] = []
    threshold = None
    if not vocab_only:
        found = list(_outputs(folder, predictor, hp))
        missing = _layers_without_predictor(found, hp.n_layer) if predictor is not None else []
        if missing:
            log(f"note: no predictor for layers {', '.join(map(str, missing))}")
        threshold = None if predictor is None else sparse_threshold(Path(predictor))
        stored = [encoded(output, _format(output, outtype, log)) for output in found]
    entries = _entries(folder.name, hp, vocab, outtype, predictor is not None, threshold)
    write_gguf(target, hp.architecture, entries, stored)
    return target


def _model_folder(path: Path) -> Path:
    if path.is_file():
        if path.open("rb").read(4) in (b"GGUF", b"PWRI"):
            raise UnsupportedModelError(f"{path}: converting from a GGUF is not supported yet")
        raise ModelFormatError(f"{path}: not a model folder")
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    return path.resolve()


def _outputs(folder: Path, predictor: str | Path | None, hp: Hyperparameters) -> Iterator[Output]:
    """Every tensor; predictors at the end, as PowerInfer has them."""
    neuron_aware = predictor is not None
    try:
        yield from llama.outputs(open_checkpoint(folder), hp, transpose_down=neuron_aware)
    except ModelFormatError as error:
        if str(folder) in str(error):
            raise
        raise type(error)(f"{folder}: {error}") from None
    if neuron_aware:
        path = Path(predictor)
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such folder")
        yield from predictors(path, hp.n_layer, hp.n_embd, hp.n_ff)


def _layers_without_predictor(outputs: list[Output], n_layer: int) -> list[int]:
    have = {int(o.name.split(".")[1]) for o in outputs if o.predictor}
    return [layer for layer in range(n_layer) if layer not in have]


def _format(output: Output, outtype: str, log: Callable[[str], None]) -> Format:
    if len(output.shape) == 1 or outtype == "f32":
        return format_by_name("F32")
    wanted = format_by_name("F16" if output.predictor else outtype)
    return fitting(wanted, output.row, output.name, log)


def _entries(
    name: str,
    hp: Hyperparameters,
    vocab: Vocab,
    outtype: str,
    neuron_aware: bool,
    threshold: float | None,
) -> Iterator[Entry]:
    """The header's keys, in PowerInfer's order."""
    arch = hp.architecture
    yield string("general.name", name)
    yield uint32(f"{arch}.vocab_size", hp.n_vocab)
    yield uint32(f"{arch}.context_length", hp.n_ctx)
    yield uint32(f"{arch}.embedding_length", hp.n_embd)
    yield uint32(f"{arch}.block_count", hp.n_layer)
    yield uint32(f"{arch}.feed_forward_length", hp.n_ff)
    yield uint32(f"{arch}.rope.dimension_count", hp.head_dim)
    yield uint32(f"{arch}.attention.head_count", hp.n_head)
    yield uint32(f"{arch}.attention.head_count_kv", hp.n_head_kv)
    if hp.head_dim * hp.n_head != hp.n_embd:
        yield uint32(f"{arch}.attention.key_length", hp.head_dim)
        yield uint32(f"{arch}.attention.value_length", hp.head_dim)
    yield float32(f"{arch}.attention.layer_norm_rms_epsilon", hp.rms_eps)
    yield float32(f"{arch}.rope.freq_base", hp.rope_theta)
    yield uint32("general.file_type", FILE_TYPES[outtype.upper()])
    if format_by_name(outtype).quantised:
        yield uint32("general.quantization_version", 2)
    if neuron_aware:
        yield uint32("powerinfer.version", 1)
    if neuron_aware or hp.activation != hp.default_activation:
        yield string("powerinfer.ffn.activation", hp.activation)
    if threshold is not None:
        yield float32("powerinfer.sparse_threshold", threshold)
    yield from vocab.entries()
