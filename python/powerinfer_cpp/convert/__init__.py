"""Converts a Hugging Face folder or another GGUF to a GGUF: `convert(model, predictors)`."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ..core.errors import ModelFormatError
from ..core.log import tell
from ..core.printable import printable
from . import bundles, lora, mlx, packed
from .activations import NAMES as ACTIVATIONS
from .activations import PLAIN_ONLY, SMOOTH, default_activation, dense_note
from .checkpoint import metadata_format, open_checkpoint
from .config import Config
from .families import read_family
from .families.family import Family, all_outputs, embeds_predictors
from .formats import Format, format_by_name
from .from_gguf import convert_gguf
from .predictor import predictors, sparse_threshold
from .rankers import make_ranker
from .sentence import read_sentence
from .statistics import activation_files
from .stored import Fitting, encoded
from .tensors import Output
from .unread import judge_keys
from .vocab import PRE_NAMES, Vocab, read_vocab
from .weight import Weight
from .writer import FILE_TYPES, Entry, float32, refuse_inputs, string, uint32, write_gguf

OUTPUT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

__all__ = ["ACTIVATIONS", "OUTPUT_TYPES", "PRE_NAMES", "convert", "to_stderr"]


def to_stderr(line: str) -> None:
    """The default for `log`: prints a line to stderr."""
    tell(printable(line))


def convert(
    model: str | Path,
    predictor: str | Path | None = None,
    *,
    outfile: str | Path | None = None,
    outtype: str | None = None,
    activation: str | None = None,
    dense: bool = False,
    vocab_only: bool = False,
    bundle: bool = False,
    profile: str | Path | None = None,
    pre: str | None = None,
    base: str | Path | None = None,
    rank: bool = False,
    allow_unknown: bool = False,
    log: Callable[[str], None] = to_stderr,
) -> Path:
    """Writes a GGUF from a model folder or another GGUF, and returns its path.

    A neuron-aware file has ffn_down transposed, so that a neuron is a row of each matrix. A GGUF or
    PWRI file always becomes neuron-aware. A folder becomes neuron-aware if it needs to: with
    predictors, in the checkpoint or in `predictor` (PowerInfer's folder of model_N.pt), with a
    FATReLU threshold, with statistics in `profile` (PowerInfer's folder of activation_N.pt), or
    with `bundle`, which stores the rows of each neuron together. dense: write plain matrices
    instead, for other engines; `log` gets a note if these would use another activation.
    outtype: format of the matrices; vectors are F32, predictors F16, or F32 with f32. Default: f16
    for a folder, unchanged for a GGUF; then a quantised ffn_down that must be transposed becomes
    Q8_0, and `log` gets the error.
    activation: overrides the model's. vocab_only: tokenizer and sizes, no tensors. pre: name of the
    pre-tokeniser of a byte-level vocabulary, overrides the one that its files describe.
    A folder of the package peft (adapter_config.json) becomes an adapter of the model `base`: its
    GGUF, or a folder with its config.json; only outfile and outtype (default: f32) apply to it.
    Of a checkpoint that holds adapters for tasks (Jina's embeddings 3) each becomes a file
    lora-TASK-NAME beside the model's, in F32.
    allow_unknown: convert a folder without the keys of its config.json and the tensors that change
    results and are not known here, with a note, instead of raising UnsupportedModelError or
    ModelFormatError.
    rank: a folder of Qwen3 is that of a model that ranks, which its name or card usually says.
    outfile: default NAME-TYPE.gguf beside the model. log: called with notes, one line each.

    Raises OSError, ModelFormatError, UnsupportedModelError, ValueError; an error leaves no partial
    file.
    """
    if outtype not in (None, *OUTPUT_TYPES):
        raise ValueError(f"outtype must be one of {', '.join(OUTPUT_TYPES)}, not {outtype!r}")
    if activation not in (None, *ACTIVATIONS):
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    if predictor is not None and (dense or vocab_only):
        raise ValueError("a dense or vocabulary-only file has no place for predictors")
    if bundle and (dense or vocab_only):
        raise ValueError("a dense or vocabulary-only file has no bundles")
    if profile is not None and (dense or vocab_only):
        raise ValueError("a dense or vocabulary-only file has no place for statistics")
    statistics = None if profile is None else Path(profile)
    model = Path(model)
    inputs = [path for path in (model, predictor, profile, base) if path is not None]
    for given in inputs:
        if Path(given).is_dir():
            _refuse_devices(Path(given))
    if (model / lora.CONFIG).is_file():
        if predictor or activation or dense or vocab_only or bundle or profile or pre:
            raise ValueError(f"{model}: only base, outfile and outtype apply to an adapter")
        known, target = base and Path(base), outfile and Path(outfile)
        return lora.convert_adapter(model.resolve(), known or None, target or None, outtype, log)
    if base is not None:
        raise ValueError(f"{model}: base is for adapters, and this is none ({lora.CONFIG})")
    if _is_gguf(model):
        kind = "vocab" if vocab_only else "dense" if dense else "neurons"
        target = Path(outfile) if outfile else model.with_name(f"{model.stem}-{kind}.gguf")
        refuse_inputs(target, inputs)
        options = {"outtype": outtype, "activation": activation, "dense": dense, "pre": pre}
        folder = None if predictor is None else Path(predictor)
        convert_gguf(
            model,
            folder,
            target=target,
            vocab_only=vocab_only,
            bundle=bundle,
            statistics=statistics,
            log=log,
            **options,
        )
        return target
    outtype = outtype or "f16"
    folder = _model_folder(model)
    config = Config(folder)
    family = read_family(config, activation)
    scheme = packed.read_scheme(config, allow_unknown)
    vocab = read_vocab(folder, config, family.n_vocab, pre)
    make_ranker(folder, family, vocab, rank)
    sentence = read_sentence(folder, allow_unknown)
    sentence.prompts = family.prompts | sentence.prompts
    unread = judge_keys(config, allow_unknown)
    for note in [*family.notes, *vocab.notes, *sentence.notes, *unread]:
        log(f"note: {note}")
    family.notes.clear()
    kind = "vocab" if vocab_only else outtype
    target = Path(outfile) if outfile else folder.parent / f"{folder.name}-{kind}.gguf"
    refuse_inputs(target, inputs)
    if dense and family.threshold:
        raise family.refuse("a FATReLU threshold in a dense GGUF")
    neuron_aware = any(given is not None for given in (predictor, profile)) or bundle
    neuron_aware = neuron_aware or bool(family.threshold and not vocab_only)
    found: list[Output] = []
    if not vocab_only:
        checkpoint = _weights(folder, family, scheme)
        if not dense and predictor is None and embeds_predictors(family, checkpoint):
            neuron_aware = family.keep_predictors = True
        found = list(_outputs(folder, checkpoint, predictor, family, neuron_aware, allow_unknown))
        found += sentence.outputs(family.vector_widths)
        for note in family.notes:
            log(f"note: {note}")
    # Only after the embedding has confirmed the number of tokens in config.json.
    vocab.pad_to(family.n_vocab, config.path)
    with_predictors = predictor is not None or family.keep_predictors
    missing = _layers_without_predictor(found, family.n_layer) if with_predictors else []
    if missing:
        log(f"note: no predictor for layers {', '.join(map(str, missing))}")
    fitting = Fitting()
    stored = [encoded(output, _format(output, outtype, fitting)) for output in found]
    fitting.report(log)
    threshold = None if predictor is None else sparse_threshold(Path(predictor))
    kept = next((output.own_format for output in found if output.own_format), outtype)
    entries = list(_entries(folder.name, family, vocab, kept, neuron_aware, threshold))
    widths = family.vector_widths
    entries += sentence.entries(family.architecture, family.n_ctx, widths, family.ranks)
    if statistics is not None:
        tensors, keys = activation_files.as_gguf(statistics, stored, family.n_layer)
        stored, entries = stored + tensors, entries + keys
    if not (neuron_aware or vocab_only):
        note = dense_note(family.architecture, family.activation)
        skips = family.activation in SMOOTH and family.activation not in PLAIN_ONLY
        if skips and not (dense or family.both_sides):
            note = (
                f"{family.activation} is never exactly zero, so this is a dense file, of which no "
                "neuron is skipped (--profile and --bundle write neuron-aware ones)"
            )
        if note:
            log(f"note: {note}")
    if bundle:
        stored, keys = bundles.bundled(stored, family.n_layer)
        entries += keys
    adapters = lora.task_adapters(folder, family, target)
    write_gguf(target, family.architecture, entries, stored, inputs)
    for path, keys, tensors in adapters:
        write_gguf(path, family.architecture, keys, tensors, inputs)
        log(f"note: the adapter of a task that the checkpoint holds is {path.name}")
    return target


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) in (b"GGUF", b"PWRI")


def _model_folder(path: Path) -> Path:
    if path.is_file():
        raise ModelFormatError(f"{path}: neither a model folder nor a GGUF")
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such file or folder")
    return path.resolve()


def _refuse_devices(folder: Path) -> None:
    """Raises ModelFormatError for a pipe or a device, whose data might never end."""
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelFormatError(f"{path}: is not a regular file")


def _weights(folder: Path, family: Family, scheme: packed.Scheme) -> dict[str, Weight]:
    """The checkpoint as the family knows it, whatever program wrote it."""
    checkpoint = open_checkpoint(folder)
    try:
        if scheme.mlx:
            checkpoint = mlx.unpacked(checkpoint, scheme.mlx)
        else:
            checkpoint = packed.unpacked(checkpoint, scheme)
        family.of_mlx = bool(scheme.mlx) or metadata_format(folder) == "mlx"
        return family.take_adapters(mlx.restored(checkpoint, family))
    except ModelFormatError as error:
        raise type(error)(f"{folder}: {error}") from None


def _outputs(
    folder: Path,
    checkpoint: dict[str, Weight],
    predictor: str | Path | None,
    family: Family,
    neuron_aware: bool,
    allow_unknown: bool,
) -> Iterator[Output]:
    """Every tensor; predictors of a folder come last, as in PowerInfer's files."""
    try:
        yield from all_outputs(family, checkpoint, neuron_aware, allow_unknown)
    except ModelFormatError as error:
        if str(folder) in str(error):
            raise
        way = ""
        if family.of_mlx:
            way = " (MLX wrote it, which changes tensors: convert the original one)"
        elif scheme := packed.told_by_names(checkpoint):
            way = f" (its weights are packed by {scheme}, which is not read)"
        raise type(error)(f"{folder}: {error}{way}") from None
    if predictor is not None:
        path = Path(predictor)
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such folder")
        yield from predictors(path, family.n_layer, family.n_embd, family.n_ff, family.n_expert)


def _layers_without_predictor(outputs: list[Output], n_layer: int) -> list[int]:
    have = {int(o.name.split(".")[1]) for o in outputs if o.predictor}
    return [layer for layer in range(n_layer) if layer not in have]


def _format(output: Output, outtype: str, fitting: Fitting) -> Format:
    if output.own_format:
        return format_by_name(output.own_format)
    if len(output.shape) == 1 or output.exact or outtype == "f32":
        return format_by_name("F32")
    wanted = format_by_name("F16" if output.predictor else outtype)
    return fitting(wanted, output.row, output.name)


def _entries(
    name: str,
    family: Family,
    vocab: Vocab,
    file_type: str,
    neuron_aware: bool,
    threshold: float | None,
) -> Iterator[Entry]:
    """The header's keys, in PowerInfer's order. file_type: the format that names the file's."""
    yield string("general.name", name)
    yield from family.entries()
    yield uint32("general.file_type", FILE_TYPES[file_type.upper()])
    if format_by_name(file_type).quantised:
        yield uint32("general.quantization_version", 2)
    if neuron_aware:
        yield uint32("powerinfer.version", 1)
    if neuron_aware or family.activation != default_activation(family.architecture):
        yield string("powerinfer.ffn.activation", family.activation)
    if family.threshold:
        yield float32("powerinfer.ffn.threshold", family.threshold)
    if family.keep_predictors:
        yield string("powerinfer.predictor.input", "normed")
    if threshold is not None:
        yield float32("powerinfer.sparse_threshold", threshold)
    yield from vocab.entries()
