"""Adapter files for tests, written by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def written(
    path: Path,
    tensors: dict[str, np.ndarray],
    alpha: float | None = 4.0,
    architecture: str = "llama",
    **keys: str,
) -> Path:
    """An adapter GGUF, by the gguf package. keys: with __ for dots."""
    writer = gguf.GGUFWriter(path, architecture)
    kind = {"general__type": "adapter", "adapter__type": "lora"}
    for key, value in {**kind, **keys}.items():
        writer.add_string(key.replace("__", "."), value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
