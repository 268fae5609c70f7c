"""A model that many requests share: a scheduler writes their texts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import RequestError, UnsupportedModelError, about_request
from ..core.logits import LogitsProcessor, StoppingCriteria
from ..core.model import release
from ..core.sampling import Sampling
from ..core.sequences.embedding import no_texts
from ..core.session import Session
from ..run.engine import Engine
from ..run.options import Options
from ..run.prefix_files import PrefixFiles
from ..run.requests import Request, Ticket, Update, n_following
from ..run.runtime import Runtime
from ..run.scheduler import Scheduler
from ..run.shared_session import (
    gives_no_text,
    naming_fewer_texts,
    open_prefixes,
    rows_for_prefixes,
    session_fields,
    vector_fields,
)
from ..text.chat import Message
from ..text.grammar import LlamaGrammar
from ..text.prompts import Text
from ..text.thinking import Thinking
from ..text.thought_limit import ThoughtLimit
from ..text.tool_chat import Turn
from .background import EMBEDDING
from .units import Units
from .vectors import Vectors


class ServedModel:
    """Runs requests of many clients.

    n_parallel: texts that are written at the same time. n_kv: positions of all of them together and
    of prefixes that are kept; None: n_parallel * n_ctx. n_queue: texts that may wait. deliver: see
    `Engine`. prefix_files: keep prefixes beyond the life of this object; owner_key: what an owner's
    are named by, the same in later lives. thinking: what requests begin with that do not say more
    of thoughts. chat_template: a Jinja template in place of the file's. omit_media: images and the
    like that a user asks about are only named in the prompt, not refused. n_ctx_vectors: tokens of
    a text of a model that gives no text; None: as many as its authors take. options: those of
    `Llama`, which says what it raises; n_ctx is the context of each text of other models.

    A model that gives vectors or scores, and no text, has one session, for these: its scheduler
    never gets a request.

    units: what the view shows of it. vectors: of texts, and scores. writes: does it give text?
    engine: what runs the requests. scheduler: the engine's, for its counts; only the engine's
    thread may change it. prefixes: what keeps them on disk; None: nothing does.
    """

    def __init__(
        self,
        model_path: str | Path,
        deliver: Callable[[Sequence[Update]], None],
        *,
        n_parallel: int = 4,
        n_kv: int | None = None,
        n_queue: int = 256,
        prefix_files: PrefixFiles | None = None,
        owner_key: Callable[[str], bytes] = str.encode,
        thinking: Thinking | None = None,
        chat_template: str | None = None,
        omit_media: bool = False,
        n_ctx_vectors: int | None = None,
        **options: Any,
    ):
        self.thinking, self.n_parallel = thinking or Thinking(), n_parallel
        self.omit_media = omit_media
        given = Options(model_path, **options)
        if given.chat_handler is not None and given.named_format is None:
            raise ValueError("chat_handler: a server takes one that a formatter makes, no other")
        no_text = gives_no_text(given.model_path)
        keeps, n_rows = prefix_files is not None and not no_text, 0
        if no_text:
            fields, n_pins = vector_fields(given, n_ctx_vectors), 0
        else:
            fields, n_pins = session_fields(given, n_parallel, n_kv, keeps)
        if keeps:
            n_rows = min(fields["n_ctx"], rows_for_prefixes(given, fields))
        with naming_fewer_texts(given, n_parallel, n_kv, keeps):
            self.runtime = Runtime(given, fields, n_rows, n_parallel)
            self.writes = not self.runtime.gives_no_text
            if not self.writes:
                fields, n_pins = vector_fields(given, n_ctx_vectors), 0
            self.vectors = Vectors(self.runtime, fields["n_ctx"])
            if self.vectors.ranks:
                self._check_ranks()
            self._session = self._opened(fields)
        self.model, self.prompts = self.runtime.model, self.runtime.prompts
        if chat_template is not None:
            self.prompts.use_template(chat_template)
        self.records = self.writes and "device" not in given.model
        if self.records:
            self._session.record(False)
        self.units = Units(self.model, self._session)
        self.prefixes = None
        if prefix_files is not None and self.writes:
            pins = range(fields["n_seq"] - n_pins, fields["n_seq"])
            self.prefixes = open_prefixes(
                prefix_files, owner_key, self.runtime, self._session, fields, pins
            )
        self.scheduler = Scheduler(
            self._session,
            fields["n_seq"] - n_pins,
            fields["n_logits"],
            n_parallel,
            n_queue,
            self.runtime.samplers,
            self.prompts.token_bytes,
        )
        self.engine = Engine(self.scheduler, deliver)
        if self.prefixes is not None:
            self.prefixes.start(self.engine, self.scheduler.keep_with(self.prefixes))

    def _check_ranks(self) -> None:
        """Raises UnsupportedModelError for a model without scores, or without a template of pairs
        that it needs."""
        model = self.runtime.model
        if not model.ranks:
            raise UnsupportedModelError(f"{model.path}: the model does not rank texts (cls.output)")
        self.vectors.inputs.pairs("", [])

    def _opened(self, fields: Mapping[str, Any]) -> Session:
        """The session of the scheduler, with the model's adapters."""
        if not self.writes:
            # In a thread whose priority its threads get: others may write texts.
            return EMBEDDING.call(self.vectors.open).embedder.session
        # Ctrl-C is the server's: the engine's thread is not the one that gets it.
        session = Session(self.runtime.model, interruptible=False, **fields)
        self.runtime.adapters.apply(session)
        return session

    @property
    def n_ctx(self) -> int:
        """Positions of each text's context."""
        return self._session.n_ctx

    def request(
        self,
        prompt: Text,
        *,
        max_tokens: int | None = None,
        params: Sampling | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        n: int = 1,
        logprobs: int | None = None,
        echo: bool = False,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int | str, float] | None = None,
        shown: Mapping[str, int] | None = None,
        suffix: Text | None = None,
        files: Sequence[tuple[str, str]] = (),
        criteria: StoppingCriteria | None = None,
        limit: ThoughtLimit | None = None,
        owner: str = "",
        last_n: int | None = None,
        shared: Sequence[int] = (),
    ) -> Request:
        """A request for the engine; arguments as for `create_completion`, but max_tokens=0 asks
        for the prompt alone, and a suffix may be empty. shown: control tokens that are part of the
        text. files: names and texts that stand before a prompt with a suffix. criteria: ends the
        text where it says so. last_n: tokens that get penalties. limit: of thoughts. shared: how
        many characters of the prompt others begin with. Raises RequestError for what cannot be
        used."""

        def processors() -> LogitsProcessor | None:
            found = self.prompts.processors(None, logit_bias, grammar, limit)
            return None if found is None else _Asked(found)

        self.check_writes()
        with about_request():
            if suffix is None:
                ids = self._checked_ids(prompt)
            else:
                room = self.n_ctx - max(1, max_tokens or self.n_ctx // 4)
                ids = self.prompts.infill_ids(prompt, suffix, files, room)
            most = 0 if max_tokens == 0 else n_following(len(ids), self.n_ctx, max_tokens)
            # Now these refuse what they cannot use.
            params = params or Sampling()
            breakers = self.runtime.samplers.breakers(params)
            self.runtime.samplers.make(params, 0, (), last_n, breakers)
            processors()
            if grammar is not None:
                grammar.check(self.prompts.vocabulary)
            return self.runtime.request(
                prompt,
                ids,
                most,
                seed=None if seed is not None and seed < 0 else seed,
                stop=stop,
                shown=shown,
                shared=shared,
                params=params,
                n=n,
                processors=processors,
                n_top=logprobs,
                echo=echo and logprobs is not None,
                offset=len(self.prompts.text(prompt)) if logprobs is not None else 0,
                with_end=echo,
                criteria=criteria,
                owner=owner,
                last_n=last_n,
                breakers=breakers,
            )

    def turn(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        tool_choice: Any = None,
        grammar: LlamaGrammar | None = None,
        parallel_tool_calls: bool | None = None,
        thinking: Thinking | None = None,
    ) -> Turn:
        """The prompt of a chat, and how its answer is constrained and read; arguments as for
        `create_chat_completion`. Raises RequestError for what cannot be used."""
        self.check_writes()
        with about_request():
            return self.prompts.turn(
                messages, tools, tool_choice, grammar, parallel_tool_calls, thinking=thinking
            )

    @functools.cached_property
    def thinks(self) -> bool | None:
        """Does a chat think whose request does not say so? None: a request cannot choose, as
        prompts with and without thoughts are the same."""
        asked = [{"role": "user", "content": "Hi"}]

        def prompt(on: bool | None) -> str:
            return self.turn(asked, thinking=self.thinking.asked(enable_thinking=on)).text

        try:
            without = prompt(False)
            if prompt(True) == without:
                return None
            return self.thinking.budget != 0 and prompt(None) != without
        except RequestError:  # a template that refuses this chat
            return None

    def reserve(self, what: str, n_bytes: int) -> Callable[[], None]:
        """Reserves bytes of the model's budget; what it gives releases them. Raises
        OutOfMemoryError."""
        return functools.partial(release, self.model.reserve(what, n_bytes))

    def facts(self) -> dict[str, int]:
        """Sizes of the model, with llama.cpp's names."""
        of = self.model
        return {
            "n_ctx": self.n_ctx,
            "n_ctx_train": of.n_ctx_train,
            "n_vocab": of.n_vocab,
            "n_embd": of.n_embd,
            "n_params": of.n_params,
            "size": of.n_bytes,
        }

    def watch(
        self,
        see: Callable[[Ticket, int, np.ndarray], None] | None,
        wants: Callable[[Ticket], bool] = lambda ticket: True,
    ) -> None:
        """Calls see(ticket, number of a token, neurons that ran for it) in the engine's thread, for
        the first text of each request that it wants; None: no more. Neurons: bits as
        `Session.fired_bytes`."""
        if not self.records:
            return

        def seen(ticket: Ticket, token: int, row: int) -> None:
            assert see is not None
            if wants(ticket):
                see(ticket, token, self._session.fired_bytes(row))

        def change() -> None:
            self._session.record(see is not None)
            self.scheduler.watch = seen if see is not None else None

        self.engine.call(change)

    @functools.cached_property
    def reads_experts(self) -> bool:
        """Does the model run from storage by whole experts?"""
        found = self.model.storage()
        return found is not None and found.unit == "experts"

    def check_writes(self) -> None:
        """Raises RequestError for a model that gives no text."""
        if words := no_texts(self.model):
            raise RequestError(words)

    def _checked_ids(self, prompt: Text) -> list[int]:
        """The ids of a prompt. Raises ValueError for ids that the model does not have: the engine
        would refuse all that it computes with them."""
        ids = self.prompts.ids(prompt)
        if not isinstance(prompt, str | bytes) and ids and max(ids) >= self.model.n_vocab:
            raise ValueError(f"token ids must be below {self.model.n_vocab}")
        return ids

    def close(self) -> None:
        """Ends the engine, and frees the model and its memory."""
        if self.prefixes is not None:
            self.prefixes.close()
        self.engine.close()
        if self.writes:  # else the runtime closes it, when no call uses it any more
            self._session.close()
        self.runtime.close()

    def __enter__(self) -> "ServedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Asked:
    """A processor that a request asked for: a grammar that cannot go on is the request's fault.
    What else the processor has is reached through this."""

    def __init__(self, processor: LogitsProcessor):
        self._processor = processor

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        with about_request():
            return self._processor(ids, logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)
