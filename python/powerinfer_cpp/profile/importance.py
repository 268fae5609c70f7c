"""Importance matrices, measured with the engine on a text."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from .._native import lib
from ..convert import source
from ..core.model import Model
from ..core.progress import Progress
from ..quantize.imatrix import Imatrix, Inputs
from .counters import recording

# Which input a tensor multiplies. Neuron rows (ffn_down_t) are not listed: a row has the weights of
# one input, so their importance says nothing about how to write it.
_KINDS = {
    "attn_q": lib.PI_INPUT_ATTENTION,
    "attn_k": lib.PI_INPUT_ATTENTION,
    "attn_v": lib.PI_INPUT_ATTENTION,
    "attn_qkv": lib.PI_INPUT_ATTENTION,
    "attn_output": lib.PI_INPUT_ATTENTION_OUTPUT,
    # Of layers with a state, where they have no attention beside it.
    **dict.fromkeys(
        ("attn_gate", "ssm_in", "ssm_ba", "ssm_alpha", "ssm_beta", "ssm_f_a", "ssm_g_a"),
        lib.PI_INPUT_ATTENTION,
    ),
    "shortconv.in_proj": lib.PI_INPUT_ATTENTION,
    **dict.fromkeys(("ssm_out", "shortconv.out_proj"), lib.PI_INPUT_ATTENTION_OUTPUT),
    "ffn_gate": lib.PI_INPUT_FFN,
    "ffn_up": lib.PI_INPUT_FFN,
    "ffn_down": lib.PI_INPUT_FFN_DOWN,
}
_NAME = re.compile(r"blk\.(\d+)\.([a-z_.]+?)(?:_exps)?\.weight")
_STATE = re.compile(r"(ssm|shortconv)[._].+")


def measure(model: Model, pieces: Sequence[np.ndarray], corpus: str, **fields: Any) -> Imatrix:
    """The squared inputs of a model's matrices on windows of tokens, each from an empty context.

    corpus: the text's name. fields: those of pi_session_params.
    """
    size = max(map(len, pieces))
    session = recording(model, size, "off", lib.PI_RECORD_SQUARES, fields)
    with Progress("measuring", sum(map(len, pieces)), "tokens") as progress:
        for piece in pieces:
            session.truncate(0)
            session.eval(piece)
            progress.update(len(piece))
    tensors = {tensor.name: tensor for tensor in source.tensors(model.gguf)}
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    inputs = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if name == head:
            layer, kind = 0, lib.PI_INPUT_HEAD
        elif match and _STATE.fullmatch(match[2]) and _beside_attention(match[1], tensors):
            continue
        elif match and match[2] in _KINDS:
            layer, kind = int(match[1]), _KINDS[match[2]]
        else:
            continue
        n_mat = tensor.shape[0] if len(tensor.shape) > 2 else 1
        inputs[name] = Inputs(*session.input_squares(layer, kind, n_mat, tensor.row))
    session.close()
    return Imatrix([corpus], len(pieces), size, inputs)


def _beside_attention(layer: str, tensors: Collection[str]) -> bool:
    """Does a layer have attention? Queries of Kimi's delta attention have the same name."""
    queries, convolved = (f"blk.{layer}.{name}.weight" for name in ("attn_q", "ssm_conv1d_q"))
    return queries in tensors and convolved not in tensors
