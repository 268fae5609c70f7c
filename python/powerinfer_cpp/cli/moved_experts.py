"""Options that leave experts to the CPU: -ncmoe, -cmoe, and -ot as far as it asks for that."""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from ..core import options
from ..core.gguf import Gguf
from ..core.log import say
from .common import device_options, whole

_EXPERTS = re.compile(r"blk\.(\d{1,6})\.ffn_(?:gate|up|down|gate_up)_(?:ch)?exps\.(.*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    parser.add_argument(
        "-ncmoe",
        "--n-cpu-moe",
        type=whole(0),
        default=0,
        metavar="N",
        help="the experts of the first N layers stay with the CPU, as in llama.cpp (default: 0; "
        "which experts are on the GPU follows the text)",
    )
    parser.add_argument(
        "-cmoe", "--cpu-moe", action="store_true", help="the experts of all layers stay there"
    )
    parser.add_argument(
        "-ot",
        "--override-tensor",
        action="append",
        default=[],
        metavar="PATTERN=CPU",
        help="the same by names of tensors, where these are the experts of the first layers",
    )


def keywords(args: argparse.Namespace, paths: Iterable[str | Path]) -> dict[str, Any]:
    """Keyword arguments of Llama for these models; says what was made of -ot. Raises ValueError for
    an -ot that asks for anything else, or for something else of each model."""
    n = options.ALL_LAYERS if args.cpu_moe else args.n_cpu_moe
    if not args.override_tensor:
        return {"n_cpu_moe": n}
    moved = ",".join(args.override_tensor)
    if not options.device_fields(**device_options(args)):
        say(f"-ot {moved}: without effect here: the CPU computes everything", True)
        return {"n_cpu_moe": n}
    found = {_layers(moved, path) for path in paths} - {0}
    if len(found) > 1:
        raise ValueError(f"-ot {moved}: names other layers of each model: use -ncmoe N")
    for layers in found:
        of = f"all layers: as -cmoe, {_STAY}"
        if layers != options.ALL_LAYERS:
            of = f"the first {layers} layers: as -ncmoe {layers}, {_STAY}"
        say(f"-ot {moved}: the experts of {of}", True)
    if not found:
        say(f"-ot {moved}: no experts have such a name, so it changes nothing", True)
    return {"n_cpu_moe": max(n, *found, 0)}


_STAY = "they stay with the CPU"


def _layers(moved: str, path: str | Path) -> int:
    """The first so many layers of a model are those whose experts -ot moves; 0: no experts."""
    patterns = [_pattern(each) for each in moved.split(",")]
    with Gguf(path) as gguf:
        names = [tensor.name for tensor in gguf.tensors]
    moves, stays = set(), set()  # layers of which a matrix is moved, or not
    for name in names:
        here = any(pattern.search(name) for pattern in patterns)
        parts = _EXPERTS.fullmatch(name)
        if parts and here:
            moves.add(int(parts[1]))
        elif parts and parts[2] == "weight":  # a bias goes with its matrix
            stays.add(int(parts[1]))
        elif here:
            _refuse(moved, f"moves {name}, which is no expert")
    if not moves:
        return 0
    if both := moves & stays:
        _refuse(moved, f"moves only some matrices of the experts of layer {min(both)}")
    if stays and min(stays) < max(moves):
        _refuse(moved, f"moves the experts of layer {max(moves)}, but not of layer {min(stays)}")
    return max(moves) + 1 if stays else options.ALL_LAYERS


def _pattern(each: str) -> re.Pattern[str]:
    text, equals, where = each.partition("=")
    if not text or not equals:
        raise ValueError(f"-ot {each}: a pattern and what it is for are needed, such as exps=CPU")
    if where != "CPU":
        raise ValueError(
            f"-ot {each}: what is on the GPU follows from -ngl and --vram-budget; only experts can "
            "be left to the CPU (=CPU)"
        )
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"-ot {each}: not a regular expression: {error}") from None


def _refuse(moved: str, why: str) -> NoReturn:
    raise ValueError(
        f"-ot {moved}: {why}; here all experts of the first N layers can be left to the CPU "
        "(-ncmoe N), and without that they follow the text within --vram-budget"
    )
