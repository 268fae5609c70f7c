"""Samplers: what chooses tokens from logits, and how `Llama` makes them."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .._native import ffi, lib
from .errors import check
from .model import Model
from .sampling import Sampling
from .structs import filled

Recent = TypeVar("Recent", Sequence[int], np.ndarray)


class Breakers:
    """Texts at which the repetitions end that DRY looks for, as tokens of a model.

    Raises ValueError for an empty text, or too many.
    """

    def __init__(self, model: Model, texts: Sequence[str]):
        data = [
            ffi.from_buffer("char[]", text.encode("utf-8", "surrogateescape")) for text in texts
        ]
        out = ffi.new("pi_breakers **")
        lengths = [len(text) for text in data]
        check(lib.pi_breakers_new(model.handle, data, lengths, len(data), out))
        self.handle = ffi.gc(out[0], lib.pi_breakers_free)


class Sampler:
    """Chooses tokens; keyword arguments are the fields of pi_sampler_params, of which samplers is
    a sequence of names."""

    def __init__(
        self,
        breakers: Breakers | None = None,
        samplers: Sequence[str] | None = None,
        **fields: Any,
    ):
        params = filled(ffi.new("pi_sampler_params *", lib.pi_sampler_default_params()), fields)
        if breakers is not None:
            params.dry_sequence_breakers = breakers.handle
        if samplers is not None:
            names = ffi.new("char[]", ";".join(samplers).encode("utf-8", "replace"))
            params.samplers = names
        out = ffi.new("pi_sampler **")
        check(lib.pi_sampler_new(params, out))
        self.handle = ffi.gc(out[0], lib.pi_sampler_free)
        self._token = ffi.new("int32_t *")

    def accept(self, tokens: Iterable[int]) -> None:
        """Adds tokens of the text so far, for the penalties."""
        ids = tokens if isinstance(tokens, tuple | list) else list(tokens)
        check(lib.pi_sampler_accept_all(self.handle, ids, len(ids)))

    def reset(self) -> None:
        """Drops accepted tokens; keeps the random state."""
        check(lib.pi_sampler_reset(self.handle))

    def seed(self, seed: int) -> None:
        """Restarts the random numbers from a seed; keeps accepted tokens."""
        check(lib.pi_sampler_seed(self.handle, seed))

    @property
    def seconds(self) -> float:
        """What `Session.sample_rows` has taken for it so far, of one thread."""
        return lib.pi_sampler_seconds(self.handle)

    def sample(self, logits: Any, n_vocab: int) -> int:
        """Chooses a token from logits: float const *, or a contiguous float32 array [n_vocab]."""
        if isinstance(logits, np.ndarray):
            logits = ffi.from_buffer("float[]", logits)
        check(lib.pi_sample(self.handle, logits, n_vocab, self._token))
        return self._token[0]


class Samplers:
    """Makes samplers for texts of a model. last_n: tokens that get penalties, -1: all."""

    def __init__(self, model: Model, last_n: int):
        self._model, self.last_n = model, last_n
        self._kept: tuple[Sequence[str], Breakers] | None = None

    def breakers(self, params: Sampling) -> Breakers | None:
        """What `make` needs for DRY; None: nothing. Many long ones take milliseconds: a server asks
        for them where it reads a request, and its engine has them. The last ones are kept."""
        if params.dry_multiplier <= 0:
            return None
        kept, texts = self._kept, params.dry_sequence_breakers
        if kept is None or kept[0] != texts:
            self._kept = kept = texts, Breakers(self._model, texts)
        return kept[1]

    def make(
        self,
        params: Sampling,
        seed: int,
        ids: Sequence[int] = (),
        last_n: int | None = None,
        breakers: Breakers | None = None,
    ) -> Sampler:
        """A sampler for what follows ids. last_n: instead of the usual one. breakers: those of
        params, if they are known. Raises ValueError for parameters out of range."""
        last_n = self.last_n if last_n is None else last_n
        fields: dict[str, Any] = params.keywords()
        del fields["dry_sequence_breakers"]
        breakers = breakers or self.breakers(params)
        seed &= (1 << 64) - 1
        sampler = Sampler(breakers, seed=seed, repeat_last_n=last_n, **fields)
        sampler.accept(self._recent(ids, params, last_n))
        return sampler

    def recent(self, ids: Recent, params: Sampling) -> Recent:
        """The last ids, which penalties look at."""
        return self._recent(ids, params, self.last_n)

    @staticmethod
    def _recent(ids: Recent, params: Sampling, n: int) -> Recent:
        others = params.looks_back
        return ids if n < 0 or others < 0 else ids[max(0, len(ids) - max(n, others)) :]
