"""What helps where a model and its sessions need more memory than may be used: the engine's list
(pi_way in powerinfer.h), as sentences."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TYPES = {8: "Q8_0", 14: "Q6_K", 13: "Q5_K", 12: "Q4_K", 11: "Q3_K", 10: "Q2_K"}
FLAGS = {"n_ubatch": "-ub", "n_batch": "-b", "n_ctx": "-c", "n_kv": "--kv-size"}


class Way(NamedTuple):
    """A parameter and its value, or something else to be done; and whether this suffices, with the
    bytes of RAM that are needed then."""

    what: str
    value: int
    n_bytes: int
    suffices: bool


def sentence(ways: Sequence[Way], path: str, flags: bool) -> str:
    """What a user can do, in one line. flags: with the options of commands, not with keywords."""
    told = [(said, way) for way in ways if (said := _told(way, path, flags))]
    if not told:
        return ""
    head = (
        "each of these suffices"
        if all(way.suffices for _, way in told)
        else "these help, but not alone"
    )
    return f"{head}: " + "; ".join(
        said if way.what == "ram_budget" else f"{said} ({way.n_bytes / (1 << 20):.1f} MiB)"
        for said, way in told
    )


def _told(way: Way, path: str, flags: bool) -> str | None:
    what, value = way.what, way.value
    if what in FLAGS:
        return f"{FLAGS[what]} {value}" if flags else f"{what}={value}"
    if what == "type_k":
        return "-ctk q8_0 -ctv q8_0" if flags else f"type_k={value}, type_v={value}"
    if what == "convert":
        words = ["convert", path, "--outfile", _beside(path, "neurons")]
        return f"{_command(words)}, then that file: its neurons stay on the disk"
    if what in ("quantize", "requantize"):
        kind = TYPES.get(value, "?")
        words = ["quantize", path, _beside(path, kind), kind]
        again = ["--allow-requantize"] if what == "requantize" else []
        return f"{_command(words + again)}, then that file"
    if what == "ram_budget":
        gib = math.ceil(value / (1 << 30) * 1000) / 1000
        return f"{'--ram-budget ' if flags else 'ram_budget='}{gib:.3f}: so much is free"
    return None


def _beside(path: str, kind: str) -> str:
    model = Path(path)
    return str(model.with_name(f"{model.stem}-{kind}.gguf"))


def _command(words: Sequence[str]) -> str:
    return shlex.join(["powerinfer", *words])
