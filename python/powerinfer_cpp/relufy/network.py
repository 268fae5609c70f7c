"""The model in torch: transformers' own, with feed-forward blocks that show their activations.

Imports torch and transformers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from ..convert.checkpoint import open_checkpoint
from ..convert.config import Config
from ..core.errors import ModelFormatError, UnsupportedModelError

# model_types of transformers whose blocks are down(act(gate(x)) * up(x))
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ACTIVATIONS = {"silu": nn.functional.silu, "relu": torch.relu}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class Mlp(nn.Module):
    """A feed-forward block with the weights of another, and an activation that can be changed.

    activation: silu, relu or drelu. threshold: gates up to it count as zero (FATReLU). inner: of
    the last call, the input [tokens, n_ff] of the down projection.
    """

    def __init__(self, block: Any, activation: str):
        super().__init__()
        self.gate_proj, self.up_proj = block.gate_proj, block.up_proj
        self.down_proj = block.down_proj
        self.activation, self.threshold = activation, 0.0
        self.inner: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.activation == "drelu":
            inner = torch.relu(gate) * torch.relu(up)
        elif self.threshold:
            inner = torch.where(gate > self.threshold, gate, 0.0) * up
        else:
            inner = _ACTIVATIONS[self.activation](gate) * up
        self.inner = inner.flatten(0, -2)
        return self.down_proj(inner)


def read_config(folder: Path) -> tuple[Config, str]:
    """config.json and the activation in it. Raises UnsupportedModelError for families and
    activations that cannot be trained here."""
    config = Config(folder)
    kind, activation = config.model_type(), config.activation("hidden_act", "silu")
    if kind not in FAMILIES:
        raise UnsupportedModelError(
            f"{config.path}: relufy trains gated feed-forward blocks of {', '.join(FAMILIES)}, "
            f"not model_type {kind!r}"
        )
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{config.path}: relufy starts from {' or '.join(_ACTIVATIONS)}, "
            f"not from hidden_act {activation!r}"
        )
    return config, activation


def load(folder: Path, activation: str, device: str) -> tuple[nn.Module, list[Mlp], torch.dtype]:
    """The model in F32, its feed-forward blocks, and the element type of the checkpoint.

    Raises ModelFormatError for a checkpoint whose tensors are damaged or do not fit config.json.
    """
    open_checkpoint(folder)  # whose errors have one line
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", local_files_only=True, output_loading_info=True
        )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{folder}: transformers cannot load it: {reason}") from None
    finally:
        logging.set_verbosity(verbosity)
    for what in ("missing_keys", "unexpected_keys"):
        if names := sorted(found[what]):
            raise ModelFormatError(f"{folder}: {what.replace('_keys', ' tensor')} {names[0]}")
    dtype = model.dtype
    model = model.float().to(device).eval()  # without dropout: steps can be repeated
    blocks = []
    for layer in model.model.layers:
        layer.mlp = Mlp(layer.mlp, activation)
        blocks.append(layer.mlp)
    return model, blocks, dtype


def save(
    model: Any, source: Path, folder: Path, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    """Writes a checkpoint: weights in this element type, config.json with these changes, and the
    other files of the source."""
    model.to(dtype).save_pretrained(folder)
    values = {**json.loads((source / "config.json").read_text(encoding="utf-8")), **changes}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    for path in source.iterdir():
        if path.is_file() and path.name != "config.json" and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)
