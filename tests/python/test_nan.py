"""Models that compute NaN: an error says so, and nothing is told as if all were well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import golden, logits, quiet
from gguf_files import changed
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama, LlamaGrammar


def spoilt(folder: Path, tensor: str) -> Path:
    """A mixture with one NaN in a tensor."""
    golden("mixtral", folder / "model")
    path = convert(folder / "model", outfile=folder / "good.gguf", outtype="f32", log=quiet)

    def spoil(name: str, data: np.ndarray) -> np.ndarray:
        if name == tensor:
            data = data.copy()
            data.reshape(-1)[0] = np.nan
        return data

    found = changed(path, folder / "bad.gguf", tensors=spoil)
    assert not np.isnan(logits(path)).any()
    return found


@pytest.mark.parametrize("tensor", ["output_norm.weight", "blk.0.ffn_gate_inp.weight"])
def test_a_model_that_computes_nan(tensor: str, tmp_path: Path) -> None:
    """A router that computes NaN chooses no experts; its tokens must not pass for computed."""
    path = spoilt(tmp_path, tensor)
    assert np.isnan(logits(path)).all()
    with Llama(path, n_ctx=64, verbose=False) as llm:
        for options in (
            {"temperature": 0},
            {"temperature": 1.0, "repeat_penalty": 1.1},
            {"logit_bias": {5: 3.0}},
            {"grammar": LlamaGrammar.from_string('root ::= "a"+')},
        ):
            with pytest.raises(ValueError, match="no token can be chosen: the logits are NaN"):
                llm("the quick brown fox", max_tokens=4, **options)
