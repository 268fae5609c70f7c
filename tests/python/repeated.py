"""Texts that are generated again: models in each mode, ids, and digests of their logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from families import quiet, turbo_mixtral
from powerinfer_cpp.convert import convert

from powerinfer_cpp import Llama

MODES = ("auto", "exact", "predictor", "off")
SAMPLINGS = {"greedy": {"temp": 0.0}, "drawn": {"temp": 0.9, "top_k": 0, "top_p": 0.95}}
# Keys and values lie in pages of 64 positions: a prompt that ends before such a border, an answer
# that goes over it.
N_PROMPT, N = 52, 18
TEXT = (
    b"One day a little fox saw a lazy dog. The quick dog had a red ball, and the fox jumps over it "
    b"to tell a story. They went to the park and the child was very happy. "
) * 2
OTHERS = (b"A small model tells a short story", b"One day a little fox ran", b"The")
MORE = b" The end. Then"

Step = tuple[int, str]  # an id, and a digest of the logits that it was drawn from


def digest(logits: np.ndarray) -> str:
    return hashlib.blake2b(logits.tobytes(), digest_size=8).hexdigest()


def stream(llm: Llama, ids: list[int], **options: Any) -> Iterator[Step]:
    """Generates after ids; the seed is drawn now."""
    seen: list[str] = []

    def look(_ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(digest(logits))
        return logits

    steps = llm.generate(ids, logits_processor=look, **options)
    return ((token, seen[-1]) for token in steps)


def take(steps: Iterator[Step], n: int) -> list[Step]:
    return [next(steps) for _ in range(n)]


def run(llm: Llama, ids: list[int], n: int = N, **options: Any) -> list[Step]:
    llm.set_seed(42)
    return take(stream(llm, ids, **options), n)


def tokens(steps: list[Step]) -> list[int]:
    return [token for token, _ in steps]


class Subject:
    """A model in a mode."""

    def __init__(self, path: Path, sparse: str, **options: Any):
        self._path, self._options = path, {"n_ctx": 160, "sparse": sparse, **options}
        self._fresh: dict[str, list[Step]] = {}
        with self.open() as llm:
            self.prompt = llm.tokenize(TEXT)[:N_PROMPT]
            self.others = [llm.tokenize(text) for text in OTHERS]
            self.others.append(self.prompt[:20] + self.others[0][1:])  # begins as the prompt does
            self.more = llm.tokenize(MORE, add_bos=False)
        assert len(self.prompt) == N_PROMPT and len(self.more) > 4

    def open(self, **options: Any) -> Llama:
        return Llama(self._path, verbose=False, **{**self._options, **options})

    def fresh(self, how: str) -> list[Step]:
        """The result of a new Llama for the prompt."""
        if how not in self._fresh:
            with self.open() as llm:
                self._fresh[how] = run(llm, self.prompt, **SAMPLINGS[how])
        return self._fresh[how]

    def turn(self, how: str) -> list[int]:
        """The prompt of a second turn: the first one's, its answer and a reply."""
        return self.prompt + tokens(self.fresh(how)) + self.more


WINDOW = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7}
MODELS: dict[str, Callable[[Path, Path], Path]] = {
    "default": lambda _folder, default: default,
    "noise": lambda folder, _: tiny.noisy(folder),
    "window": lambda folder, _: tiny.noisy(folder, **WINDOW),
    "mixture": lambda folder, _: convert(
        turbo_mixtral(folder / "m"), outtype="f32", outfile=folder / "m.gguf", log=quiet
    ),
    "Q8_0 cache": lambda folder, _: tiny.noisy(folder, head_dim=32, num_key_value_heads=2),
}
Q8_0 = {"type_k": 8, "type_v": 8}


def made(default: Path, factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that gives the file of one of MODELS; default: the default model."""
    found: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in found:
            found[name] = MODELS[name](factory.mktemp("repeat"), default)
        return found[name]

    return get
