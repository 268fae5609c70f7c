"""Converts a LoRA adapter of the package peft to a GGUF in llama.cpp's format."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ModelFormatError, UnsupportedModelError
from ...core.gguf import Gguf
from ..config import Config
from ..families import read_family
from ..families.family import Family
from ..formats import format_by_name
from ..stored import Stored, encoded
from ..tensors import Output
from ..unread import first_names
from ..writer import FILE_TYPES, float32, string, uint32, write_gguf
from .gguf_family import family_of_gguf
from .low_rank import NotLinear
from .weights import AdapterWeights, Unchanged, read_changes

CONFIG = "adapter_config.json"
# Keys that ask for more than low-rank terms, and what for.
_REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "biases of low-rank terms",
    "modules_to_save": "modules that were trained as a whole",
    "trainable_token_indices": "trained rows of the embedding",
    "target_parameters": "low-rank terms of single parameters",
    "alora_invocation_tokens": "adapters that begin at certain tokens (aLoRA)",
    "layer_replication": "repeated layers",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
_EXPERT = re.compile(r"\.experts\.\d+\.")
_EMBEDDING = "token_embd.weight"
_TABLES = {_EMBEDDING, "position_embd.weight", "per_layer_token_embd.weight"}
# Initialisations that also change the weights of the base model.
_CHANGES_BASE = re.compile(r"pissa.*|olora|corda|loftq|lora_ga", re.IGNORECASE)


def convert_adapter(
    folder: Path,
    base: Path | None,
    outfile: Path | None,
    outtype: str | None,
    log: Callable[[str], None],
) -> Path:
    """Writes the GGUF of a PEFT folder, and returns its path.

    base: folder with the base model's config.json, or its GGUF; None: the one that the adapter
    names, if it is here. Default outtype: f32. Raises what `convert` raises.
    """
    config = Config(folder, CONFIG)
    _refuse_features(config)
    base = base or _named_base(config)
    family, shapes = _read_base(base)
    outtype = outtype or "f32"
    target = outfile or folder.parent / f"{folder.name}-{outtype}.gguf"
    alpha = config.number("lora_alpha")
    changes, left_out = read_changes(folder, family)
    if left_out:
        names = first_names(left_out)
        log(f"note: the file has no place for what the adapter changes beside the text: {names}")
    weights = AdapterWeights(
        folder, family, changes, lambda c: _alpha_of(config, c.module, alpha, c.rank) / alpha
    )
    tensors: list[Stored] = []
    for output in changed_outputs(folder, family, weights, shapes):
        fmt = format_by_name(outtype)
        tensors.append(encoded(output, fmt if fmt.fits(output.row) else format_by_name("F16")))
    if not tensors:
        raise ModelFormatError(f"{folder}: the adapter changes no weight")
    entries = [
        string("general.type", "adapter"),
        string("adapter.type", "lora"),
        string("general.name", folder.name),
        uint32("general.file_type", FILE_TYPES[outtype.upper()]),
        float32("adapter.lora.alpha", alpha),
    ]
    if format_by_name(outtype).quantised:
        entries.append(uint32("general.quantization_version", 2))
        narrow = [t.name for t in tensors if t.format.name != outtype.upper()]
        if narrow:
            log(f"note: {len(narrow)} matrices whose rows do not fit {outtype} are f16")
    write_gguf(target, family.architecture, entries, tensors, [folder, base])
    return target


def _refuse_features(config: Config) -> None:
    """Raises UnsupportedModelError for adapters that are more than low-rank terms."""

    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{config.path}: {what} cannot be converted")

    values = config.values
    if str(values.get("peft_type", "LORA")).upper() != "LORA":
        raise refuse(f"peft_type {values['peft_type']!r}")
    for key, what in _REFUSED.items():
        if values.get(key):
            raise refuse(f"{key}: {what}")
    if values.get("bias", "none") not in ("none", None):
        raise refuse(f"bias {values['bias']!r}: an adapter with biases")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and _CHANGES_BASE.fullmatch(start):
        raise refuse(
            f"init_lora_weights {start!r}: an adapter of a changed base model (peft turns it into "
            "one of the original: save_pretrained, path_initial_model_for_weight_conversion)"
        )


def _named_base(config: Config) -> Path:
    name = config.values.get("base_model_name_or_path")
    if isinstance(name, str) and ((Path(name) / "config.json").is_file() or Path(name).is_file()):
        return Path(name)
    raise ValueError(
        f"{config.path}: the base model {name!r} is not here: give its GGUF, or a folder with its "
        "config.json (--base)"
    )


def _read_base(base: Path) -> tuple[Family, dict[str, tuple[int, ...]]]:
    """The base model's family, and the shapes of its GGUF's tensors; none of a folder."""
    if not base.is_file():
        return read_family(Config(base)), {}
    with Gguf(base) as gguf:
        family = family_of_gguf(gguf)
        return family, {tensor.name: tensor.shape for tensor in gguf.tensors}


def changed_outputs(
    folder: Path,
    family: Family,
    weights: AdapterWeights,
    shapes: dict[str, tuple[int, ...]],
    tables: bool = False,
) -> Iterator[Output]:
    """Both factors of every change, as the family orders and scales the weight that is changed.

    shapes: of the base model's tensors, as far as they are known. tables: changes of tables are of
    use, too, as in encoders. Raises what convert_adapter raises.
    """

    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{folder}: the adapter changes {what}")

    if experts := sorted(filter(_EXPERT.search, weights.unused)):
        raise refuse(f"{experts[0]}, one of several experts, which adapters cannot change")
    if "lm_head.weight" in weights:
        family.tied = False  # the head's own change has nothing to do with the embedding
    for output in family.outputs(weights, transpose_down=False):
        try:
            first = output.rows(0, 1)
        except Unchanged:
            continue
        except NotLinear as error:
            first, why = None, f"which is no product of two matrices there ({error})"
        else:
            why = f"which is no matrix there but {list(output.shape)}"
        if isinstance(first, np.ndarray):  # values of the family's own
            continue
        if output.name in _TABLES and not tables:
            first, why = None, "whose rows are looked up, and which adapters cannot change"
        if first is None or len(output.shape) != 2:
            raise refuse(f"{weights.asked}: in a GGUF that is {output.name}, {why}")
        if shapes.get(output.name, output.shape) != output.shape:
            raise ModelFormatError(
                f"{folder}: the adapter changes {output.name} {list(output.shape)}, which the base "
                f"model has as {list(shapes[output.name])}"
            )
        yield from _factors(output)
    if weights.unused:
        raise refuse(
            f"{min(weights.unused)}, which is no matrix of a {family.architecture} model that "
            "adapters can change"
        )


def _factors(output: Output) -> Iterator[Output]:
    """The two matrices of a changed one, read on demand as its rows are."""
    product: Callable[[int, int], Any] = output.rows
    rank = len(product(0, 1).right)
    if output.name == _EMBEDDING:  # a file has the factors of its transpose
        yield Output(
            f"{output.name}.lora_a", (output.n_rows, rank), lambda a, b: product(a, b).left
        )
        shape = (output.row, rank)
        yield Output(f"{output.name}.lora_b", shape, lambda a, b: product(0, 1).right.T[a:b])
        return
    name, shape = f"{output.name}.lora_a", (rank, output.row)
    yield Output(name, shape, lambda a, b: product(0, 1).right[a:b])
    name, shape = f"{output.name}.lora_b", (output.n_rows, rank)
    yield Output(name, shape, lambda a, b: product(a, b).left)


def _alpha_of(config: Config, module: str, alpha: float, rank: int) -> float:
    """The alpha with which a module's term has the scale alpha / rank."""
    pattern = config.values.get("alpha_pattern") or {}
    if not isinstance(pattern, dict):
        raise ModelFormatError(f"{config.path}: alpha_pattern must be an object")
    for key, value in pattern.items():
        if not re.fullmatch(r"[\w.]+", key):
            raise UnsupportedModelError(
                f"{config.path}: alpha_pattern {key!r} is not a module's name, and regular "
                "expressions cannot be converted"
            )
        if f".{module}".endswith(f".{key}"):
            alpha = _number(config, f"alpha_pattern {key}", value)
            break
    return alpha * math.sqrt(rank) if config.flag("use_rslora") else alpha


def _number(config: Config, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelFormatError(f"{config.path}: {key} must be a number, not {value!r}")
    return float(value)
