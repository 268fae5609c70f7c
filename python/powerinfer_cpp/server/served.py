"""A model that many requests share: a `Llama` whose texts a scheduler writes."""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._native import lib
from ..convert.activations import SMOOTH
from ..core.embedding import MEAN, POOLINGS
from ..core.errors import OutOfMemoryError, RequestError, about_request
from ..core.gguf import Gguf
from ..core.logits import LogitsProcessor, StoppingCriteria
from ..core.model import SPARSE_MODES, release
from ..core.plan import memory_plan
from ..core.sampling import Sampling
from ..core.session import Session
from ..core.work import Work
from ..llama import Llama
from ..run import sequences
from ..run.engine import Engine
from ..run.prefix_files import PrefixFiles
from ..run.prefixes import N_PINS, Prefixes, room_for
from ..run.requests import Request, Ticket, Update
from ..run.scheduler import Scheduler
from ..text.chat import Message
from ..text.completion import stop_bytes
from ..text.grammar import LlamaGrammar
from ..text.logprobs import Placed
from ..text.prompts import Text
from ..text.thinking import Thinking
from ..text.thought_limit import ThoughtLimit
from ..text.tool_chat import Turn


class ServedModel(Llama):
    """Runs requests of many clients.

    n_parallel: texts that are written at the same time. n_kv: positions of all of them together and
    of prefixes that are kept; None: n_parallel * n_ctx. n_queue: texts that may wait. deliver: see
    `Engine`. prefix_files: keep prefixes beyond the life of this object; owner_key: what an owner's
    are named by, the same in later lives. thinking: what requests begin with that do not say more
    of thoughts. options: those of `Llama`, which says what it raises; n_ctx is the context of each
    text. The methods of `Llama` that compute work too, in a context of their own that the first
    call opens.
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
        **options: Any,
    ):
        self.thinking = thinking or Thinking()
        self.n_parallel, self._n_kv, self._n_queue = n_parallel, n_kv, n_queue
        self._n_texts = n_parallel
        self._engine: Engine | None = None
        self._prefix_files, self._owner_key = prefix_files, owner_key
        self._prefixes: Prefixes | None = None
        self._deliver = deliver
        self._embedding = threading.Lock()  # not the model's: the engine needs that for each token
        super().__init__(model_path, **options)
        if self.chat_handler is not None and not self._prompts.has_format:
            self.close()
            raise ValueError("chat_handler: a server takes one that a formatter makes, no other")
        if self._engine is None:  # with embeddings, nothing else was opened
            self._open_context()

    def n_ctx(self) -> int:
        """Positions of each text's context."""
        return self._session.n_ctx

    @property
    def engine(self) -> Engine:
        """What runs the requests."""
        self._require_open()
        assert self._engine is not None
        return self._engine

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler, for its counts; only the engine's thread may change it."""
        return self._scheduler

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
        begin: str = "",
        criteria: StoppingCriteria | None = None,
        limit: ThoughtLimit | None = None,
        owner: str = "",
        last_n: int | None = None,
    ) -> Request:
        """A request for the engine; arguments as for `create_completion`, but max_tokens=0 asks
        for the prompt alone, and a suffix may be empty. shown: control tokens that are part of the
        text. begin: how the text before the suffix begins. criteria: ends the text where it says
        so. last_n: tokens that get penalties. limit: of thoughts. Raises RequestError for what
        cannot be used."""
        with about_request():
            if suffix is None:
                ids = self._checked_ids(prompt)
            else:
                ids = self._prompts.infill_ids(prompt, suffix) + self._prompts.behind(begin)
            most = 0 if max_tokens == 0 else self._limit(ids, max_tokens)
            # Now it refuses what it cannot use.
            self._samplers.make(params or Sampling(), 0, (), last_n)
            stops = stop_bytes(stop)
            makes = None
            if grammar is not None or logit_bias or limit is not None:
                self._processors(None, logit_bias, grammar)  # refuses what it cannot use, now
                if grammar is not None:
                    grammar.check(self._grammar_vocabulary())
                makes = self._makes(logit_bias, grammar, limit)
        return Request(
            ids=ids,
            limit=most,
            params=params or Sampling(),
            seed=self._rng.getrandbits(32) if seed is None or seed < 0 else seed,
            stops=stops,
            n=n,
            processors=makes,
            n_top=logprobs,
            echo=echo and logprobs is not None,
            offset=len(self._prompts.text(prompt)) if logprobs is not None else 0,
            with_end=echo,
            shown={token: text.encode("utf-8") for text, token in (shown or {}).items()},
            criteria=criteria,
            drafts=self._new_drafts if self._draft is not None else None,
            owner=owner,
            last_n=last_n,
        )

    @property
    def prefixes(self) -> Prefixes | None:
        """What keeps prefixes on disk; None: nothing does."""
        return self._prefixes

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
        with about_request():
            return self._prompts.turn(
                messages, tools, tool_choice, grammar, parallel_tool_calls, thinking=thinking
            )

    def prompt_text(self, prompt: Text) -> str:
        """The text of a prompt, which may be ids."""
        return self._prompts.text(prompt)

    @property
    def fills(self) -> bool:
        """Can it write between a prompt and a suffix?"""
        return self._prompts.fim_tokens is not None

    def count(self, prompt: Text) -> int:
        """Tokens of a prompt. Raises RequestError for what is none."""
        with about_request():
            return len(self._checked_ids(prompt))

    @property
    def last_n(self) -> int:
        """Tokens that get penalties, unless a request says otherwise; -1: all."""
        return self._samplers.last_n

    @property
    def adds_bos(self) -> bool:
        """Do its prompts begin with BOS?"""
        return bool(self._model.add_bos)

    @functools.cached_property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        with self._lock:
            self._require_open()
            return [i for i in range(self._model.n_vocab) if self._model.ends(i)]

    def n_tokens_of(self, text: str) -> int:
        """Tokens of a text that follows another."""
        return len(self._model.tokenize_behind(text.encode("utf-8")))

    def placed(self, ticket: Ticket, text: str) -> list[Placed]:
        """The recorded choices of a prompt's tokens; text: the prompt."""
        return self._placed(list(ticket.request.ids), text, ticket.echoed)

    def name_bytes(self, token: int, first: bool) -> bytes:
        """Bytes of a token for logprobs; first: without the added space before a text."""
        return self._prompts.name_bytes(token, first)

    def embedding(self, prompt: Text) -> tuple[np.ndarray, int]:
        """A text's vector, scaled to length 1: float32 [n_embd]; and its number of tokens.

        It is pooled as `pooling_type` or the file says, else it is the mean of the hidden states.
        The first call opens a session for this. Raises RequestError for a text without tokens and
        for a model that ranks texts, ContextOverflowError for a text that is too long, and
        OutOfMemoryError.
        """
        if self._pooling not in POOLINGS:
            raise RequestError("this model ranks texts, and gives no embeddings")
        with about_request():
            ids = self._checked_ids(prompt)
            if not ids:
                raise RequestError("a text without tokens has no embedding")
        if isinstance(prompt, str | bytes) and self._model.add_eos:
            ids = [*ids, self._model.eos]
        with self._embedding:
            self._require_open()
            if self._embedder is None:
                self._embedder = self._new_embedder()
            vector = self._embedder.embed(
                ids, self._pooling or MEAN, normalize=True, truncate=False
            )
        return np.array(vector, dtype=np.float32), len(ids)

    def run_long(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Uses run for the work on long texts that can be done outside of Python."""
        self._model.run_long = run

    def reserve(self, what: str, n_bytes: int) -> Callable[[], None]:
        """Reserves bytes of the model's budget; what it gives releases them. Raises
        OutOfMemoryError."""
        return functools.partial(release, self._model.reserve(what, n_bytes))

    def facts(self) -> dict[str, int]:
        """Sizes of the model, with llama.cpp's names."""
        of = self._model
        return {
            "n_ctx": self.n_ctx(),
            "n_ctx_train": of.n_ctx_train,
            "n_vocab": of.n_vocab,
            "n_embd": of.n_embd,
            "n_params": of.n_params,
            "size": of.n_bytes,
        }

    def work(self) -> Work:
        """The work of all requests so far, as of the last step."""
        return self.engine.snapshot.work

    def layer_n_ff(self) -> np.ndarray:
        """Neurons of each layer, or of one of its experts: int64 [n_layer]."""
        return self._model.layer_n_ff

    _scores_kept = 0  # nobody reads scores

    @property
    def records(self) -> bool:
        """Can `watch` see which neurons run? A device does not tell."""
        return "device" not in self._model_fields

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
            self._scheduler.watch = seen if see is not None else None

        self.engine.call(change)

    @functools.cached_property
    def reads_experts(self) -> bool:
        """Does the model run from storage by whole experts?"""
        found = self._model.storage()
        return found is not None and found.unit == "experts"

    @property
    def unit(self) -> str:
        """What is computed or not, and has a tier: "experts" where a row computes all of an
        expert, else "neurons". A layer without experts counts as one expert."""
        return "experts" if self._whole_experts else "neurons"

    @functools.cached_property
    def sparse(self) -> bool:
        """Can a token leave units out? Of a dense model with a smooth activation
        every neuron contributes to every token."""
        of = self._model
        if of.has_experts or of.has_predictors or of.activation not in SMOOTH:
            return True
        return bool(np.any(np.asarray(of.gguf.value("powerinfer.ffn.threshold", 0.0)) != 0))

    def fired(self, bits: np.ndarray) -> np.ndarray:
        """Bits that `watch` gave as flags: bool [units of the model], as in `tiers`."""
        flags = []
        for i, size in enumerate(self._model.sizes):
            of_layer = self._session.layer_fired_bits(i, bits)
            if self._whole_experts:
                flags.append(of_layer.any(axis=-1))
                continue
            unpacked = np.unpackbits(of_layer, axis=-1, count=size.n_ff, bitorder="little")
            flags.append(unpacked.reshape(-1))
        return np.concatenate(flags).astype(bool)

    def layer_units(self) -> list[int]:
        """Experts of each layer, or neurons of all of its experts."""
        return [
            size.shape[0] if self._whole_experts else math.prod(size.shape)
            for size in self._model.sizes
        ]

    def tiers(self) -> np.ndarray:
        """Where each unit is now, by the numbers of tiers: uint8 [units of the model], layer after
        layer, [experts] or [experts, n_ff] each."""
        found = [self._model.tiers(i) for i in range(self._model.n_layer)]
        if self._whole_experts:
            found = [tiers.min(axis=1) for tiers in found]
        return np.concatenate([tiers.reshape(-1) for tiers in found])

    def bytes_per_unit(self) -> float:
        """Bytes of a neuron's rows, or of an expert, on average."""
        of = self._model
        ffn = [t.n_bytes for t in of.gguf.tensors if ".ffn_" in t.name and "norm" not in t.name]
        return sum(ffn) / sum(self.layer_units())

    @functools.cached_property
    def _whole_experts(self) -> bool:
        rows = (".ffn_down_t", ".ffn_bundle", ".ffn_up_down_rows")  # a neuron can be left out
        names = [tensor.name for tensor in self._model.gguf.tensors]
        return self._model.has_experts and not any(part in name for part in rows for name in names)

    def _checked_ids(self, prompt: Text) -> list[int]:
        """The ids of a prompt. Raises ValueError for ids that the model does not have: the engine
        would refuse all that it computes with them."""
        ids = self._prompts.ids(prompt)
        if not isinstance(prompt, str | bytes) and ids and max(ids) >= self.n_vocab():
            raise ValueError(f"token ids must be below {self.n_vocab()}")
        return ids

    def _makes(
        self,
        bias: Mapping[int | str, float] | None,
        grammar: LlamaGrammar | None,
        limit: ThoughtLimit | None,
    ) -> Callable[[], LogitsProcessor]:
        """What makes the processor of a text."""

        def make() -> LogitsProcessor:
            processor = self._processors(None, bias, grammar, limit)
            assert processor is not None
            return _Asked(processor)

        return make

    def _use_adapters(self) -> None:
        raise ValueError("a served model keeps the adapters with which it was opened (lora_path)")

    def close(self) -> None:
        """Ends the engine, and frees the model and its memory."""
        engine, self._engine = self._engine, None
        if engine is not None:
            if self._prefixes is not None:
                self._prefixes.close()
            engine.close()
            self._session.close()
        super().close()

    def _shared_fields(self, n_ctx: int) -> dict[str, Any]:
        if n_ctx == 0:
            with Gguf(self.model_path) as gguf:
                n_ctx = gguf.n_ctx_train
        n_batch = self._session_fields["n_batch"]
        n_pins = N_PINS if self._prefix_files is not None else 0
        shared = sequences.fields(self.n_parallel, n_ctx, self._n_kv, n_batch, n_pins)
        # What `watch` sees takes memory from the beginning.
        shared |= {"record": lib.PI_RECORD_BITS} if self.records else {}
        if self._prefix_files is not None:
            self._scores_kept = self._rows_for_prefixes({**shared, "n_ctx": n_ctx})
        return shared

    def _rows_for_prefixes(self, shared: Mapping[str, Any]) -> int:
        """The room for prefixes on their way, in rows of logits: so much a model that runs from
        storage leaves free."""
        session = {**self._session_fields, **shared}
        plan = memory_plan(self.model_path, self._model_fields, session)
        with Gguf(self.model_path) as gguf:
            tokens = gguf.value("tokenizer.ggml.tokens")
        row = 4 * max(1, len(tokens) if isinstance(tokens, list) else 1)
        return -(-room_for(_position_bytes(plan, shared["n_kv"])) // row)

    def _open_context(self) -> None:
        fields = {**self._session_fields, **self._shared}
        # Ctrl-C is the server's: the engine's thread is not the one that gets it.
        self._session = Session(self._model, interruptible=False, **fields)
        self._adapters.apply(self._session)
        if self.records:
            self._session.record(False)
        keeper = self._new_prefixes(fields) if self._prefix_files is not None else None
        self._scheduler = Scheduler(
            self._session,
            fields["n_seq"] - (N_PINS if self._prefix_files is not None else 0),
            fields["n_logits"],
            self.n_parallel,
            self._n_queue,
            lambda seed, of: self._samplers.make(of.params, seed, of.ids, of.last_n),
            self._prompts.token_bytes,
        )
        kept = self._scheduler.keep_with(keeper) if keeper is not None else None
        self._engine = Engine(self._scheduler, self._deliver)
        if keeper is not None and kept is not None:
            keeper.start(self._engine, kept)
            self._prefixes = keeper

    def _new_prefixes(self, fields: Mapping[str, Any]) -> Prefixes | None:
        """What keeps prefixes on disk. None, with a warning, where there is no memory for it."""
        model, session = self._model, self._session
        # A state names model, numerics and types by its header; what else changes results is here.
        options = {
            name: self._session_fields[name] for name in self._session_fields.keys() - _SPEED
        }
        placed = ("device", "n_gpu_layers", "vram_budget", "overrides")
        options |= {name: self._model_fields.get(name) for name in placed}
        adapters = [(Path(path).name, scale) for path, scale in self.adapters()]
        about = repr((sorted(options.items()), adapters)).encode("utf-8", "surrogateescape")
        assert self._prefix_files is not None
        try:
            return Prefixes(
                self._prefix_files,
                model,
                session,
                session.save() + about,
                self._owner_key,
                masked=model.has_predictors and SPARSE_MODES[fields["sparse"]] == "auto",
                pins=range(fields["n_seq"] - N_PINS, fields["n_seq"]),
                n_kv=fields["n_kv"],
                position_bytes=_position_bytes(model.plan(**fields), fields["n_kv"]),
            )
        except OutOfMemoryError as error:
            self._prefix_files.warn(f"prompts are not kept on disk: {error}")
            return None


def _position_bytes(plan: Mapping[str, Any], n_kv: int) -> int:
    """Bytes of a position in the cache."""
    return sum(plan[tier].get("kv", 0) for tier in ("ram", "gpu")) // n_kv


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


# Fields of a session that change no result.
_SPEED = {"n_ctx", "n_batch", "n_ubatch", "n_logits", "n_threads", "n_threads_batch"}
