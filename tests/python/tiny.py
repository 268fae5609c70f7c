"""A tiny random model for the tests of `Llama`, and a way to make it write a given text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
from families import quiet
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model

from powerinfer_cpp import Llama

CONFIG = checkpoints.config(num_key_value_heads=2)
PROMPT = "the quick brown fox"
BYTE = 4  # token of byte 0, behind <unk>, <s>, </s> and <name>


def make(folder: Path, template: str | None = None) -> Path:
    """A GGUF of random F32 weights, with a chat template if there is one."""
    checkpoints.save(folder, CONFIG, checkpoints.weights(CONFIG))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return convert(folder, outfile=folder / "tiny.gguf", outtype="f32", log=quiet)


def noisy(folder: Path, template: str | None = None, **changes: Any) -> Path:
    """A GGUF of a ReLU model whose predictors know nothing: a row that they mask, or do not, shows
    in every logit after it. changes: of config.json."""
    cfg = checkpoints.config(hidden_act="relu", **changes)
    checkpoints.save(folder / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(folder / "predictor", cfg)
    if template is not None:
        (folder / "model" / "chat_template.jinja").write_text(template)
    out = folder / "noisy.gguf"
    return convert(folder / "model", folder / "predictor", outfile=out, outtype="f32", log=quiet)


class Say:
    """A logits processor that makes a model write a text, one byte per token, and then end."""

    def __init__(self, model: Model, said: str, repeat: bool = False):
        zero = next(token for token in range(16) if model.text(token) == b"\0")
        self._ids = [zero + byte for byte in said.encode()] + [model.eos]
        assert b"".join(map(model.text, self._ids)) == said.encode()
        self._repeat, self._n = repeat, 0

    def __call__(self, _ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        out = np.full_like(scores, -np.inf)
        out[self._ids[min(self._n, len(self._ids) - 1)]] = 0
        self._n += 1
        if self._repeat and self._n == len(self._ids):
            self._n = 0
        return out


def greedy(llm: Llama, prompt: list[int], n: int) -> list[int]:
    """What eval and argmax give, without generate."""
    llm.reset()
    ids, pending = [], prompt
    for _ in range(n):
        llm.eval(pending)
        pending = [int(np.argmax(llm.scores[llm.n_tokens - 1]))]
        ids += pending
    return ids


def take(steps: Iterator[int], n: int) -> list[int]:
    return [next(steps) for _ in range(n)]


def text(completion: dict) -> str:
    return completion["choices"][0]["text"]
