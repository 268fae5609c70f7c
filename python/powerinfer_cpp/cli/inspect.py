"""powerinfer inspect: shows the contents of a GGUF."""

import argparse
import json
from collections import defaultdict
from typing import Any

from ..convert import bundles, source
from ..convert.activations import default_activation
from ..core.gguf import Gguf
from ..core.printable import printable
from ..placement import gpu_index
from .common import count_text, size_text

SHOWN = 8  # elements of an array that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="GGUF or PWRI file")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")


def summary(gguf: Gguf) -> dict[str, Any]:
    """The contents of the file, with long arrays of the header truncated."""
    formats: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "bytes": 0})
    ranks, sketches = {}, []
    held = source.tensors(gguf)
    for tensor in held:
        formats[tensor.format.name]["tensors"] += 1
        formats[tensor.format.name]["bytes"] += tensor.n_bytes
        if tensor.name.endswith((".fc1.weight", ".fc1_exps.weight")) and len(tensor.shape) > 1:
            ranks[tensor.name.split(".")[1]] = tensor.shape[-2]
        if tensor.name.endswith((".sketch.weight", ".sketch_exps.weight")):
            sketches.append(int(tensor.name.split(".")[1]))
    architecture = gguf.value("general.architecture")
    default = default_activation(str(architecture), gguf.is_pwri)
    return {
        "files": gguf.files,
        "magic": "PWRI" if gguf.is_pwri else "GGUF",
        "version": gguf.version,
        "architecture": architecture,
        "activation": gguf.value("powerinfer.ffn.activation", default),
        "neuron_aware": any(".ffn_down_t" in tensor.name for tensor in held),
        "bundled": bundles.VERSION in gguf.metadata,
        "predictor_ranks": ranks,
        "predictor_sketches": sketches,
        "gpu_index": _placement(gguf),
        "formats": dict(formats),
        "n_tensors": len(gguf.tensors),
        "n_params": sum(t.n_elements for t in held),
        "n_bytes": sum(t.n_bytes for t in gguf.tensors),
        "metadata": {key: _cut(value) for key, value in gguf.metadata.items()},
        "tensors": [
            {"name": t.name, "shape": t.shape, "type": t.type_name, "bytes": t.n_bytes}
            for t in gguf.tensors
        ],
    }


def _placement(gguf: Gguf) -> list[float] | None:
    """Share of each layer's neurons that PowerInfer's solver marked for the GPU."""
    if gguf.value("general.architecture") == gpu_index.ARCHITECTURE:
        return gpu_index.own_shares(gguf)
    return gpu_index.shares(gguf)


def _cut(value: Any) -> Any:
    if isinstance(value, list) and len(value) > SHOWN:
        return {"length": len(value), "first": value[:SHOWN]}
    return value


def _printable(text: str, width: int = 100) -> str:
    """A value on one line, without control characters."""
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 3]}..."


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return f"[{value['length']}] {', '.join(map(str, value['first']))}, ..."
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def run(args: argparse.Namespace) -> None:
    with Gguf(args.file) as gguf:
        found = summary(gguf)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    width = max(map(len, found["metadata"]), default=0)
    for key, value in found["metadata"].items():
        print(f"{_printable(key):{width}}  {_printable(_value_text(value))}")
    print()
    print(
        f"file          {found['magic']} version {found['version']}, {len(found['files'])} part(s)"
    )
    print(f"architecture  {_printable(str(found['architecture']))}")
    print(f"activation    {_printable(str(found['activation'] or 'not known'))}")
    bundled = ", in bundles" if found["bundled"] else ""
    print(f"neuron-aware  {'yes' if found['neuron_aware'] else 'no'}{bundled}")
    if found["predictor_ranks"]:
        ranks = found["predictor_ranks"]
        print(f"predictors    {', '.join(f'{layer}: {rank}' for layer, rank in ranks.items())}")
    if found["predictor_sketches"]:
        print(
            f"predictors    sketches of layers {', '.join(map(str, found['predictor_sketches']))}"
        )
    if found["gpu_index"]:
        layers = ", ".join(f"{i}: {share:.0%}" for i, share in enumerate(found["gpu_index"]))
        print(f"for the GPU   {layers} (generated.gpuidx)")
    for name, use in found["formats"].items():
        print(f"{name:13} {use['tensors']} tensors, {size_text(use['bytes'])}")
    print(
        f"total         {found['n_tensors']} tensors, {count_text(found['n_params'])} weights, "
        f"{size_text(found['n_bytes'])}"
    )
