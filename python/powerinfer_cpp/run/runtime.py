"""An open model, and what everything that computes with it shares."""

import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from ..core import options
from ..core.checks import whole_or_none
from ..core.log import logger
from ..core.model import Model
from ..core.plan import memory_plan
from ..core.sampler import Samplers
from ..core.sequences.adapters import Adapters
from ..core.sequences.context import Context
from ..core.sequences.embedding import (
    MEAN,
    NONE,
    Embedder,
    embedding_fields,
    no_texts,
    pooling_of,
    require_pooling,
    require_texts,
)
from ..core.state import REPLAYED
from ..text.answers import Plan
from ..text.completion import stop_bytes
from ..text.prompts import Prompts, Text
from .drafts import Drafts, LlamaDraftModel, LlamaDraftMtp, draft_model
from .in_use import InUse
from .options import Options
from .requests import Request
from .vectors import TextVectors

CLOSED = "this Llama is closed"
RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)  # values that mean "a different seed each time"
Computes = TypeVar("Computes", Context, Embedder)


class Runtime:
    """Opens the model of options, and contexts from it.

    session: fields of the pi_session_params that it has room for; with options.embedding, beside a
    session of those. n_rows: rows of logits for which there is room, too. n_texts: texts that are
    written at the same time. Raises what `Llama` raises.

    lock: held while a context is used or something here changes. in_use: keeps the model open for
    who needs no lock. random: where seeds come from. pooling: of embeddings.
    """

    def __init__(self, given: Options, session: dict[str, Any], n_rows: int, n_texts: int = 1):
        self.options, self.lock, self.in_use = given, threading.RLock(), InUse(CLOSED)
        self.random = new_random(given.seed)
        self._planned, fields = session, given.model
        if not given.vocab_only:  # what of the model fits a device, or RAM, depends on the session
            fields = {**fields, "n_rows_kept": n_rows}
            if given.embedding:
                planned = embedding_fields(session, NONE if given.pooling_type == NONE else MEAN)
                fields["beside"], self._planned = session, planned
        room = None if given.vocab_only else self._planned
        self.model = Model(given.model_path, given.progress, given.verbose, room, **fields)
        self.prompts = Prompts(
            self.model,
            self.in_use,
            given.named_format,
            given.chat_format,
            given.spm_infill,
            given.verbose,
        )
        self.pooling = pooling_of(self.model, given.pooling_type)
        if self.gives_no_text:  # and has no session beside the one for them
            self._planned = embedding_fields(given.session, self.pooling)
        self.adapters = Adapters(self.model)
        self.adapters.use(given.adapters)
        self.samplers = Samplers(self.model, given.last_n)
        self._computing: list[Context | Embedder] = []
        self.draft: LlamaDraftModel | None = None
        if not given.vocab_only:
            self.draft = draft_model(
                given.draft_model,
                self.model,
                session["n_ctx"] or self.model.n_ctx_train,
                given.session["n_threads"],
                n_texts,
                allow_unknown=given.model["allow_unknown"],
            )
        if given.verbose or logger.isEnabledFor(logging.INFO):
            options.report(self.model, self.plan(), given.verbose)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock. Raises ValueError if the model is closed."""
        with self.lock:
            self.in_use.check()
            yield

    def plan(self) -> Plan:
        """`Llama.plan`."""
        with self.held():
            if self.options.vocab_only:  # has no weights to plan with
                return memory_plan(self.model.path, self.model.fields, self._planned)
            return self.model.plan(**self._planned)

    @cached_property
    def metadata(self) -> dict[str, str]:
        """`Llama.metadata`."""
        with self.in_use():
            values = self.model.gguf.metadata
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
            if not isinstance(value, list)
        }

    def seed(self, given: int | None) -> int:
        """The given seed, or one of its own for RANDOM_SEEDS."""
        if (seed := whole_or_none("seed", given)) not in RANDOM_SEEDS:
            return seed
        with self.lock:
            return self.random.getrandbits(32)

    def request(
        self,
        prompt: Text,
        ids: Sequence[int],
        limit: int,
        *,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stops: Sequence[str] = (),
        shown: Mapping[str, int] | None = None,
        shared: Sequence[int] = (),
        **fields: Any,
    ) -> Request:
        """The request for a prompt whose ids are these, with what all texts of this model get.

        limit: tokens of each text. stop, stops: the caller's and those of the chat's format.
        shown: control tokens that are part of the text. shared: characters of the prompt that
        others begin with. fields: others of `Request`. Raises ValueError for what is no text.
        """
        return Request(
            ids=ids,
            limit=limit,
            seed=self.seed(seed),
            stops=stop_bytes(stop) + stop_bytes(stops),
            shown={token: text.encode("utf-8") for text, token in (shown or {}).items()},
            drafts=self.new_drafts,
            shared=self.prompts.positions(self.prompts.text(prompt), ids, shared) if shared else (),
            **fields,
        )

    def new_drafts(self) -> Drafts | None:
        """What guesses tokens of a text; None: nothing does."""
        if self.draft is None or self.options.session["record"]:
            return None
        if isinstance(self.draft, LlamaDraftMtp) and not self.model.guesses:
            return None  # it would save nothing, as a message has said
        most = self.options.session["n_batch"]
        if self.model.has_states:  # what is guessed wrongly is cut off
            most = min(most, REPLAYED)
        return Drafts(self.draft, most, self.model.n_vocab)

    # ---- What computes -------------------------------------------------------------------

    @property
    def gives_no_text(self) -> bool:
        """Does the model give vectors or scores, and no tokens?"""
        return no_texts(self.model) is not None

    def open_context(self) -> Context:
        """A context for one text at a time. Raises ValueError for a model without weights,
        UnsupportedModelError for one that gives no tokens."""
        with self.held():
            if self.options.vocab_only:
                raise ValueError("this Llama was opened with vocab_only=True: it cannot compute")
            require_texts(self.model)
            given = self.options
            context = Context(self.model, given.logits_all, verbose=given.verbose, **given.session)
            return self._with_adapters(context)

    def open_vectors(self) -> TextVectors:
        """What computes vectors and scores of texts. Raises UnsupportedModelError for a model that
        has none."""
        with self.held():
            require_pooling(self.model, self.pooling)
            fields = {"verbose": self.options.verbose, **self.options.session}
            embedder = self._with_adapters(Embedder(self.model, self.pooling, **fields))
            return TextVectors(self.model, self.prompts, embedder)

    def _with_adapters(self, new: Computes) -> Computes:
        new.set_adapters(self.adapters)
        self._computing.append(new)
        return new

    def set_adapters(self, adapters: Mapping[Any, float]) -> None:
        """`Llama.set_adapters`."""
        with self.held():
            self.adapters.use(adapters, self._computing)

    def close(self) -> None:
        """Frees the model, and what was opened from it."""
        with self.lock:
            if self.in_use.over:
                return
            self.in_use.end()
            for part in self._computing:
                part.close()
            if self.draft is not None and self.draft is not self.options.draft_model:
                self.draft.close()
            self.model.close()


def new_random(seed: int | None) -> random.Random:
    """Random numbers from a seed; RANDOM_SEEDS: others each time."""
    seed = whole_or_none("seed", seed)
    return random.Random(None if seed in RANDOM_SEEDS else seed)
