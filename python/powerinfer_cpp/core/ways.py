"""What helps where a model and its sessions need more memory than may be used: the engine's list
(pi_way in powerinfer.h), as sentences."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TYPES = {8: "Q8_0", 14: "Q6_K", 13: "Q5_K", 12: "Q4_K", 11: "Q3_K", 10: "Q2_K"}
SLOW = "mmap_anyway"
PARALLEL = "n_parallel"  # of a server: no field of a session, but several come from it
FLAGS = {
    PARALLEL: "-np",
    "n_ubatch": "-ub",
    "n_batch": "-b",
    "n_ctx": "-c",
    "n_kv": "--kv-size",
    "n_checkpoints": "--ctx-checkpoints",
}


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
    # What suffices, but slowly, does not stand beside others that do not suffice.
    quick = [(said, way) for said, way in told if way.what != SLOW]
    slow = [(said, way) for said, way in told if way.what == SLOW]
    if not all(way.suffices for _, way in told) and all(way.suffices for _, way in slow):
        parts = [("these help, but not alone", quick), ("this suffices, but it is slow", slow)]
    else:
        suffice = all(way.suffices for _, way in told)
        parts = [("each of these suffices" if suffice else "these help, but not alone", told)]
    return ". ".join(
        f"{head}: {'; '.join(_needing(*way) for way in of)}" for head, of in parts if of
    )


def _needing(said: str, way: Way) -> str:
    mib = f"{way.n_bytes / (1 << 20):.1f} MiB"
    if way.what == "ram_budget":
        return said
    if way.what == SLOW:
        read = f"{way.value / (1 << 20):.1f} MiB"
        return f"{said} ({mib}, but each token reads {read} from the disk)"
    return f"{said} ({mib})"


def _told(way: Way, path: str, flags: bool) -> str | None:
    what, value = way.what, way.value
    if what in FLAGS:
        return f"{FLAGS[what]} {value}" if flags else f"{what}={value}"
    if what == "n_kv_old":
        return "no --swa-full" if flags else "swa_full=False"
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
    if what == SLOW:
        return "--mmap-anyway" if flags else "mmap_anyway=True"
    if what == "ram_budget":
        gib = math.ceil(value / (1 << 30) * 1000) / 1000
        return f"{'--ram-budget ' if flags else 'ram_budget='}{gib:.3f}: so much is free"
    return None


def _beside(path: str, kind: str) -> str:
    model = Path(path)
    return str(model.with_name(f"{model.stem}-{kind}.gguf"))


def _command(words: Sequence[str]) -> str:
    return shlex.join(["powerinfer", *words])
