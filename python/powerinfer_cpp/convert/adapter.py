"""Converts a LoRA adapter of the package peft to a GGUF in llama.cpp's format."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelFormatError, UnsupportedModelError
from .checkpoint import open_adapter
from .config import Config
from .families import read_family
from .families.family import Family
from .formats import format_by_name
from .stored import Stored, encoded
from .tensors import Output, Weights, check_type, from_weight
from .weight import Weight, unread
from .writer import FILE_TYPES, float32, string, uint32, write_gguf

CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
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
# Initialisations that also change the weights of the base model.
_CHANGES_BASE = re.compile(r"pissa.*|olora|corda|loftq|lora_ga", re.IGNORECASE)


@dataclass
class _Factors:
    """The matrices of a module: a [rank, inputs], b [outputs, rank]."""

    a: Weight
    b: Weight


class _Base(Weights):
    """Stands for the base model's checkpoint. A family asks for every weight with its shape; of
    those that the adapter changes it gets B, whose rows it orders as it does the weight's rows."""

    def __init__(self, where: Path, factors: dict[str, _Factors]):
        super().__init__({})
        self._where, self._factors = where, factors
        self.taken: list[str] = []  # since it was last cleared

    def __contains__(self, name: str) -> bool:
        # The model that peft changed is transformers', whose names families try first; a head of
        # its own matters only if the adapter changes it.
        return name != "lm_head.weight" or name in self._factors

    def rows(self, name: str) -> int:
        return 0

    def take(self, name: str, *shape: int) -> Weight:
        self.taken.append(name)
        if name not in self._factors:
            return Weight(name, shape, False, unread)
        a, b = self._factors[name].a, self._factors[name].b
        rank = a.shape[0] if a.shape else 0
        for factor, expected in ((a, (rank, *shape[1:])), (b, (shape[0], rank))):
            if len(shape) != 2 or not rank or factor.shape != expected:
                raise ModelFormatError(
                    f"{self._where}: tensor {factor.name} has shape {list(factor.shape)}, which "
                    f"does not fit the base model's {name} {list(shape)}"
                )
        return b


def convert_adapter(
    folder: Path,
    base: Path | None,
    outfile: Path | None,
    outtype: str | None,
    log: Callable[[str], None],
) -> Path:
    """Writes the GGUF of a PEFT folder, and returns its path.

    base: folder with the base model's config.json; None: the one that the adapter names, if it is
    a folder here. Default outtype: f32. Raises what `convert` raises.
    """
    config = Config(folder, CONFIG)
    _refuse_features(config)
    base = base or _named_base(config)
    family = read_family(Config(base))
    outtype = outtype or "f32"
    target = outfile or folder.parent / f"{folder.name}-{outtype}.gguf"
    alpha = config.number("lora_alpha")
    tensors = list(_tensors(folder, config, family, alpha, outtype))
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
    if isinstance(name, str) and (Path(name) / "config.json").is_file():
        return Path(name)
    raise ValueError(
        f"{config.path}: the base model {name!r} is no folder here: give a folder with its "
        "config.json (--base)"
    )


def _tensors(
    folder: Path, config: Config, family: Family, alpha: float, outtype: str
) -> Iterator[Stored]:
    factors = _read_factors(folder)
    weights, left, name = _Base(folder, factors), set(factors), ""
    fmt = format_by_name(outtype)
    for output in family.outputs(weights, transpose_down=False):
        changed = [name for name in weights.taken if name in factors]
        if len(weights.taken) > 1 and changed:
            raise UnsupportedModelError(
                f"{folder}: {changed[0]} is one of several experts, which adapters cannot change"
            )
        if weights.taken:  # otherwise the family divides one weight into several
            name = weights.taken.pop()
            weights.taken.clear()
        if name not in factors:
            continue
        left.discard(name)
        scale = _alpha_of(config, name.removesuffix(".weight"), alpha, output.row) / alpha
        a = from_weight(f"{output.name}.lora_a", factors[name].a)
        for part in (a, _scaled(output, scale)):
            yield encoded(part, fmt if fmt.fits(part.row) else format_by_name("F16"))
    if left:
        raise UnsupportedModelError(
            f"{folder}: the adapter changes {min(left)}, which is no matrix of a "
            f"{family.architecture} model that adapters can change"
        )


def _read_factors(folder: Path) -> dict[str, _Factors]:
    """The matrices by the name of the base model's weight."""
    sides: dict[str, dict[str, Weight]] = {"A": {}, "B": {}}
    for name, weight in open_adapter(folder).items():
        if name.endswith(".base_layer.weight"):  # peft's copy of a weight of the base model
            continue
        match = _FACTOR.fullmatch(name)
        if match is None:
            raise UnsupportedModelError(
                f"{folder}: tensor {name} is no part of a low-rank term (lora_A or lora_B)"
            )
        base = f"{match['module'].removeprefix(_PREFIX)}.weight"
        sides[match["side"]][base] = check_type(weight)
    for side, other in (("A", "B"), ("B", "A")):
        if missing := sides[other].keys() - sides[side].keys():
            raise ModelFormatError(f"{folder}: lora_{side} of {min(missing)} is missing")
    return {name: _Factors(a, sides["B"][name]) for name, a in sides["A"].items()}


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


def _scaled(output: Output, scale: float) -> Output:
    def rows(a: int, b: int) -> np.ndarray:
        values = output.rows(a, b)
        return values if scale == 1 else (values * scale).astype(np.float32)

    return Output(f"{output.name}.lora_b", output.shape, rows)
