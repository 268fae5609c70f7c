"""Firing rates of neurons in a GGUF file: blk.N.ffn_rate, for experts ffn_rate_exps."""

import re

import numpy as np

from ...core.errors import ModelFormatError
from ...core.gguf import Gguf

RATES = re.compile(r"blk\.(\d+)\.ffn_rate(_exps)?")


def read_rates(gguf: Gguf, required: bool = True) -> dict[int, np.ndarray]:
    """Per layer float32 [n_ff] or, for experts, [n_expert, n_ff]: share of the profiled tokens on
    which the neuron fired.

    Raises ModelFormatError, naming file and tensor, for values outside of 0 to 1, and with
    `required` for a file without rates.
    """
    found = {}
    for tensor in gguf.tensors:
        match = RATES.fullmatch(tensor.name)
        if not match:
            continue
        where = f"{gguf.files[tensor.file]}: tensor {tensor.name}"
        if tensor.type_name != "F32":
            raise ModelFormatError(f"{where} is {tensor.type_name}, not F32")
        rates = np.array(gguf.data(tensor)).view("<f4").reshape(tensor.shape)
        # NaN fails both comparisons.
        if not (np.all(rates >= 0) and np.all(rates <= 1)):
            raise ModelFormatError(f"{where} holds rates outside of 0 to 1")
        found[int(match[1])] = rates
    if required and not found:
        raise ModelFormatError(
            f"{gguf.files[0]}: holds no statistics (blk.N.ffn_rate); `powerinfer profile` adds them"
        )
    return found
