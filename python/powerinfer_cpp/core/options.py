"""Checks of options that commands and `Llama` share."""

import math
from collections.abc import Mapping
from typing import Any

from .._native import ffi, lib
from .checks import number, whole
from .errors import DeviceError
from .log import say, warn
from .model import SPARSE_MODES, Model

# llama-cpp-python's other keywords, some only passed on by LangChain, with the values that ask for
# nothing that is not done anyway.
_LEGACY: dict[str, tuple[Any, ...]] = {
    "split_mode": (1,),
    "main_gpu": (0,),
    "tensor_split": (None,),
    "numa": (False, 0),
    "offload_kqv": (True,),
    "no_perf": (False,),
}
# Options that are accepted and ignored, because no value of them changes a result here.
_LEGACY_ANY = {"n_parts", "f16_kv", "flash_attn", "lora_base"}
# Those that would change a model's results, with the values that do not ask for that.
_OVERRIDES: dict[str, tuple[Any, ...]] = {
    "tokenizer": (None,),
}
# What decides instead, where that is not the file alone.
_INSTEAD = {
    "tokenizer": "the file's own is used",
}
MOST_GIB = 1 << 33  # of a budget: its bytes are counted in 63 bits
FIRST_GPU = "cuda0"
WHAT_FITS = -1  # n_gpu_layers
ALL_OLD = 2**63 - 1  # n_kv_old
ALL_LAYERS = 2**31 - 1  # n_cpu_moe


def check_unknown(keywords: dict[str, object]) -> None:
    """Warns by name of keyword arguments without effect, except LangChain's old ones.

    Raises ValueError for those that ask for other results than the file's own.
    """
    for name, value in keywords.items():
        if name in _OVERRIDES:
            if value not in _OVERRIDES[name]:
                instead = _INSTEAD.get(name, "the file decides")
                raise ValueError(f"{name} is not supported by this version: {instead}")
        elif name not in _LEGACY_ANY and value not in _LEGACY.get(name, ()):
            warn(f"Llama: keyword argument {name!r} has no effect", stacklevel=4)


def refuse(**asked: Any) -> None:
    """Raises ValueError for the first option that is set to something true."""
    for name, value in asked.items():
        if value:
            raise ValueError(f"{name} is not supported by this version")


def sparse_fields(mode: str, threshold: float | None) -> dict[str, Any]:
    """pi_session_params of a mode of sparsity and a predictor threshold (None: the file's).

    Raises ValueError for what is neither.
    """
    if mode not in SPARSE_MODES:
        raise ValueError(f"sparse must be one of {', '.join(SPARSE_MODES)}, not {mode!r}")
    if threshold is not None:
        number("sparse_threshold", threshold)
        if not math.isfinite(threshold):
            raise ValueError("sparse_threshold must be a finite number")
    return {
        "sparse": SPARSE_MODES.index(mode),
        "sparse_threshold": math.nan if threshold is None else threshold,
    }


# LangChain passes these with every model, even where they are wrong for it.
_LANGCHAINS = {"rope_freq_base": 10000.0, "rope_freq_scale": 1.0}


def rope_fields(**given: float | None) -> dict[str, float]:
    """pi_session_params from llama-cpp-python's keywords, of which None is what the file says.

    Raises ValueError for what is no number; the engine, for those out of range.
    """
    fields = {
        "rope_scaling" if name == "rope_scaling_type" else name: value
        for name, value in given.items()
        if value is not None and value != _LANGCHAINS.get(name)
    }
    for name in ("rope_scaling", "yarn_orig_ctx"):
        if name in fields:
            fields[name] = whole(name, fields[name])
    return fields


def override_field(values: Mapping[str, bool | int | float | str] | None) -> dict[str, Any]:
    """pi_model_params of values in place of a file's. Raises ValueError for what is no mapping."""
    if values is not None and not isinstance(values, Mapping):
        raise ValueError(f"kv_overrides must map keys to values, not be {values!r}")
    return {"overrides": dict(values)} if values else {}


RECORDINGS = {  # Llama's names, pi_record
    "off": lib.PI_RECORD_OFF,
    "fired": lib.PI_RECORD_FIRED,
    "fired+input": lib.PI_RECORD_INPUTS,
}


def record_field(record: str) -> dict[str, int]:
    """pi_session_params of a kind of recording. Raises ValueError for what is none."""
    if record not in tuple(RECORDINGS):
        raise ValueError(f"record must be one of {', '.join(RECORDINGS)}, not {record!r}")
    return {"record": RECORDINGS[record]}


def device_note() -> str:
    """Why there is no device besides the CPU."""
    return ffi.string(lib.pi_device_note()).decode("utf-8", "replace")


def device_fields(
    device: str | None, n_gpu_layers: int | None, vram_budget: float | None
) -> dict[str, Any]:
    """pi_model_params of the device that computes beside the CPU; empty if there is none.

    n_gpu_layers: 0 or None: what fits, if a device or a vram_budget (GiB) is given, else no device.
    Without a name the device is the first GPU, if there is one. Raises ValueError for a bad budget.
    """
    if vram_budget is not None:
        number("vram_budget", vram_budget)
    if vram_budget is not None and not 0 <= vram_budget < MOST_GIB:
        raise ValueError(f"vram_budget must be a number of GiB from 0 to below {MOST_GIB}")
    if device is not None and not isinstance(device, str):
        raise DeviceError(f"a device is given by its name, not as {device!r}")
    if device == "cpu" or vram_budget == 0:
        return {}
    if device is None:
        if not (n_gpu_layers or vram_budget) or lib.pi_n_devices() == 0:
            return {}
        device = FIRST_GPU
    return {
        "device": device,
        "n_gpu_layers": n_gpu_layers or WHAT_FITS,
        "vram_budget": budget_bytes("vram_budget", vram_budget),
    }


def expert_field(n_cpu_moe: int) -> dict[str, int]:
    """pi_model_params of layers whose experts stay with the CPU. Raises ValueError for a negative
    number."""
    n = whole("n_cpu_moe", n_cpu_moe)
    if n < 0:
        raise ValueError(f"n_cpu_moe must be a number of layers, not {n}")
    return {"n_cpu_moe": min(n, ALL_LAYERS)}


def placement_field(reset_gpu_index: bool, disable_gpu_index: bool) -> dict[str, int]:
    """pi_model_params of how a device gets its neurons. Raises ValueError if both are given."""
    if reset_gpu_index and disable_gpu_index:
        raise ValueError("reset_gpu_index and disable_gpu_index exclude each other")
    if disable_gpu_index:
        return {"placement": lib.PI_PLACEMENT_NONE}
    return {"placement": lib.PI_PLACEMENT_RATES if reset_gpu_index else lib.PI_PLACEMENT_FILE}


def note_without_gpu(asked: dict[str, Any], verbose: bool) -> None:
    """Says which of the options (by name) ask in vain for a GPU, where there is none."""
    names = [name for name, value in asked.items() if value]
    if names and lib.pi_n_devices() == 0:
        say(f"{' and '.join(names)}: without effect here: {device_note()}", verbose)


def budget_bytes(name: str, gib: float | None) -> int:
    """Bytes of a budget in GiB; 0 (what is free) for None. Raises ValueError for bad numbers."""
    if gib is None:
        return 0
    number(name, gib)
    if not 0 < gib < MOST_GIB:
        raise ValueError(f"{name} must be a positive number of GiB, below {MOST_GIB}")
    return max(1, int(gib * (1 << 30)))


def description(model: Model) -> str:
    """What a model is, in a few words."""
    return (
        f"{model.architecture} with {model.activation}, {model.n_layer} layers, "
        f"{model.n_params / 1e6:.1f} million weights"
    )


def report(model: Model, plan: dict[str, Any], verbose: bool) -> None:
    """Says what was opened, and what it takes of each memory."""
    lines = [f"{model.path}: {description(model)}"]
    for title, tier, budget in (("RAM", "ram", "budget"), ("VRAM", "gpu", "vram_budget")):
        if plan[tier]:
            mib = ", ".join(f"{name} {size / (1 << 20):.1f}" for name, size in plan[tier].items())
            lines.append(f"{title}: {mib} MiB, of {plan[budget] / (1 << 20):.0f} that may be used")
    for line in lines:
        say(line, verbose)
