"""The base class of `Llama`: a model, one sequence of tokens, and their locking."""

import logging
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from . import options
from .answers import Plan, Stats
from .chat import named_format
from .context import ROWS_KEPT, Context
from .embedding import Embedder, check_pooling
from .gguf import Gguf
from .log import logger
from .logits import (
    AnyStoppingCriteria,
    Ids,
    LogitsProcessorList,
    LogitsProcessors,
    Scores,
    StoppingCriteriaList,
)
from .model import SPARSE_MODES, Model, Sampler, as_tokens, memory_plan
from .sampling import Sampling
from .speculative import Drafts, LlamaDraftModel, eval_with_draft
from .speculative import draft_model as draft_model_of
from .state import LlamaState
from .stats import Meter, report

DEFAULT_POSITIONS = 512  # llama-cpp-python's
SCORES = 64  # rows of `scores` that a model run from storage leaves room for, without logits_all
Self = TypeVar("Self", bound="LlamaCore")
RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)  # values that mean "a different seed each time"


class LlamaCore:
    """Runs a GGUF model: text to tokens, tokens to logits, logits to tokens.

    Several threads may use one instance: calls wait for each other. A stream or a `generate` locks
    the instance only while it computes a token; after another call in between, it computes its own
    tokens again and continues with the same result.

    n_ctx: positions (0: the model's; None: 512, or the model's if that is less). n_batch, n_ubatch:
    tokens per call of the engine, and tokens computed at once. n_threads, n_threads_batch: None:
    the CPUs that this process may use. logits_all: keep the logits of every token in `scores`.
    last_n_tokens_size: number of last tokens that get penalties. type_k, type_v: GGUF type ids of
    the KV cache, F16 (1), Q8_0 (8) or F32 (0).
    embedding: allow embeddings (pooling_type: -1 or 0 none, 1 mean, 2 first, 3 last); the first
    completion then opens a second session. chat_format: one of chat.FORMATS; default: the file's
    own template.
    device: "cuda0" or "cpu". n_gpu_layers: at most this many of the last layers on the device, -1:
    what fits. vram_budget: limit in GiB of what the device may take, 0: no device. A device or a
    vram_budget alone means what fits; without these three options only the CPU computes.
    reset_gpu_index: the device gets the neurons that fire most often, whatever a placement in or
    beside the file says. disable_gpu_index: it gets none. Both: no placement is read.
    op_offload: the device computes all neurons of prompts, those in RAM as well.
    ram_budget: limit in GiB; a model that does not fit it, or what is free, runs from storage, if
    its file has neuron rows. bundle: write the bundled file for that, if there is none yet.
    vocab_only: tokenizer and metadata, no weights.
    progress_callback: called with 0..1 while loading; returning False cancels (Cancelled).
    record: "fired" or "fired+input", with sparse "off" or "exact" and without a device, for
    `activations` and `ffn_inputs`.
    draft_model: guesses the next tokens, which are then checked together: the same text, sooner
    where it repeats itself. LlamaPromptLookupDecoding(), or the path of a smaller model with the
    same vocabulary (speculative.py). Recording does without.
    verbose: print a few lines to stderr; they also go to the logger "powerinfer_cpp", whatever
    verbose is. seed: seed of the random numbers of all calls; default: different each time.

    Raises OSError, ModelFormatError, UnsupportedModelError, OutOfMemoryError, DeviceError, and
    ValueError naming the option, also for options of llama-cpp-python that would change the file's
    results (lora_path, rope_freq_base ...). Unknown keyword arguments are ignored with a warning.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int = 0,
        seed: int | None = None,
        vocab_only: bool = False,
        logits_all: bool = False,
        embedding: bool = False,
        chat_format: str | None = None,
        pooling_type: int = -1,
        last_n_tokens_size: int = 64,
        use_mmap: bool = True,
        use_mlock: bool = False,
        type_k: int | None = None,
        type_v: int | None = None,
        verbose: bool = True,
        vram_budget: float | None = None,
        ram_budget: float | None = None,
        device: str | None = None,
        reset_gpu_index: bool = False,
        disable_gpu_index: bool = False,
        op_offload: bool | None = None,
        bundle: bool = True,
        sparse: str = "auto",
        sparse_threshold: float | None = None,
        record: str = "off",
        draft_model: LlamaDraftModel | str | Path | None = None,
        progress_callback: Callable[[float], object] | None = None,
        **unknown: object,
    ):
        given = locals()
        self._arguments = {
            name: value
            for name, value in given.items()
            if name not in ("self", "unknown", "progress_callback")
        }
        options.check_unknown(unknown)
        n_ctx, n_threads, n_threads_batch, n_gpu_layers, type_k, type_v = (
            options.whole_or_none(name, given[name])
            for name in [
                "n_ctx",
                "n_threads",
                "n_threads_batch",
                "n_gpu_layers",
                "type_k",
                "type_v",
            ]
        )
        n_batch, n_ubatch, pooling_type, last_n_tokens_size = (
            options.whole(name, given[name])
            for name in ["n_batch", "n_ubatch", "pooling_type", "last_n_tokens_size"]
        )
        sparse_fields = options.sparse_fields(sparse, sparse_threshold)
        record_field = options.record_field(record)
        device_fields = options.device_fields(device, n_gpu_layers, vram_budget)
        placement_field = options.placement_field(reset_gpu_index, disable_gpu_index)
        if device_fields and record_field["record"]:
            raise ValueError('record needs device="cpu": a device does not record')
        self._pooling = check_pooling(pooling_type)
        self._named_format = named_format(chat_format) if chat_format else None
        self._tool_format = None
        self.chat_format = chat_format
        if not device_fields:
            asked = {"n_gpu_layers": n_gpu_layers, "vram_budget": vram_budget}
            options.note_without_gpu(asked, verbose)
        self.model_path = str(model_path)
        self.verbose = verbose
        self.last_n_tokens_size = last_n_tokens_size
        self._lock = threading.RLock()
        self._closed = False
        self._rng = new_random(seed)
        self._model_fields = {
            "vocab_only": vocab_only,
            "use_mmap": use_mmap,
            "use_mlock": use_mlock,
            "n_threads": n_threads or 0,
            "ram_budget": options.budget_bytes("ram_budget", ram_budget),
            **placement_field,
            "op_offload": op_offload is None or bool(op_offload),
            "bundle": bool(bundle),
            **({} if vocab_only else device_fields),
        }
        self._session_fields = {
            "n_batch": n_batch,
            "n_ubatch": min(n_ubatch, n_batch),
            # Rows per call whose logits can be kept; 0: all.
            "n_logits": 0 if logits_all else min(ROWS_KEPT, n_batch),
            "n_threads": n_threads or 0,
            "n_threads_batch": n_threads_batch or n_threads or 0,
            "type_k": 1 if type_k is None else type_k,
            "type_v": 1 if type_v is None else type_v,
            **sparse_fields,
            **record_field,
        }
        room: dict[str, Any] | None = None
        self._shared: dict[str, Any] = {}
        if not vocab_only:  # what of the model fits a device, or RAM, depends on the session
            n_ctx = _positions_in(self.model_path) if n_ctx is None else n_ctx
            self._shared = self._shared_fields(n_ctx)
            room = {**self._session_fields, **self._shared, "n_ctx": n_ctx, "embedding": embedding}
            # `scores`: all rows, or those of some calls.
            self._model_fields["n_rows_kept"] = n_ctx if logits_all else min(n_ctx, SCORES)
            if embedding:  # and completions, in a session of their own
                self._model_fields["n_sessions"] = 2
        self._model = Model(self.model_path, progress_callback, verbose, room, **self._model_fields)
        if n_ctx is None:
            n_ctx = _default_positions(self._model.n_ctx_train)
        self._session_fields["n_ctx"] = n_ctx
        self._logits_all = logits_all
        self._context: Context | None = None
        self._embedder: Embedder | None = None
        self._meter, self._cache, self._vocabulary = Meter(), None, None
        if embedding and not vocab_only:
            self._embedder = Embedder(self._model, verbose=verbose, **self._session_fields)
        elif not vocab_only:
            self._open_context()
        self._draft = self._own_draft = None
        if not vocab_only:
            self._draft = draft_model_of(draft_model, self._model, n_ctx, n_threads=n_threads)
        if isinstance(draft_model, str | Path):
            self._own_draft = self._draft
        self._sampler: tuple[Sampling, Sampler] | None = None  # used by sample()
        if verbose or logger.isEnabledFor(logging.INFO):
            options.report(self._model, self.plan(), verbose)

    def __repr__(self) -> str:
        head = f"<{type(self).__name__} {self.model_path!r}"
        with self._lock:
            if self._closed:
                return f"{head}, closed>"
            what = options.description(self._model)
            if self._model_fields["vocab_only"]:
                return f"{head}: {what}, the vocabulary only>"
            use = "embeddings, " if self._embedder else ""
            mode = SPARSE_MODES[self._session_fields["sparse"]]
            return f"{head}: {what}, {use}{self.n_ctx()} positions, sparse={mode!r}>"

    # ---- Properties of the model ---------------------------------------------------------

    def n_ctx(self) -> int:
        """Positions of the context."""
        computing = self._context or self._embedder
        return computing.n_ctx if computing else self._model.n_ctx_train

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.n_vocab

    def n_embd(self) -> int:
        """Size of the residual stream."""
        return self._model.n_embd

    def token_bos(self) -> int:
        """Id of the BOS token, -1 if there is none."""
        return self._model.bos

    def token_eos(self) -> int:
        """Id of the EOS token, -1 if there is none."""
        return self._model.eos

    def token_nl(self) -> int:
        """Id of a newline, -1 if there is none."""
        return self._model.nl

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as strings, without arrays."""
        with self._lock:
            self._require_open()
            values = self._model.gguf.metadata
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
            if not isinstance(value, list)
        }

    @property
    def model(self) -> object:
        """The C API's handle of the model."""
        return self._model.handle

    @property
    def ctx(self) -> object:
        """The C API's handle of the session."""
        with self._lock:
            return self._computing.handle

    @property
    def context_params(self) -> SimpleNamespace:
        """The session's parameters: n_ctx, n_batch, n_threads, ..."""
        return SimpleNamespace(**{**self._session_fields, "n_ctx": self.n_ctx()})

    def plan(self) -> Plan:
        """Memory plan: {tier: {part: bytes}, "total": bytes, "budget": bytes of RAM,
        "vram_budget": bytes}. Tiers are "ram", "gpu", which is empty without a device, and
        "storage": neurons that only the disk has, which the total leaves out."""
        with self._lock:
            self._require_open()
            embedding = self._embedder is not None and not self._shared
            fields = {**self._session_fields, **self._shared, "embedding": embedding}
            if self._model_fields["vocab_only"]:  # has no weights to plan with
                return memory_plan(self.model_path, self._model_fields, fields)
            return self._model.plan(**fields)

    def stats(self) -> Stats:
        """Figures of the last generation, with the keys that `./main --json-stats` writes.

        n_prompt and prompt_s: computed prompt tokens, without reused ones. n_gen, gen_s, gen_ts,
        token_ms: computed generated tokens (the last one is never computed). ttft_s: time from the
        call to the first token. The others are means over the generated tokens or, if there are
        none, over the prompt. bytes_per_token: weights and cache read, by part. Per layer, as
        shares of n_ff, share_predicted: neurons that a predictor proposed (without one all);
        share_computed: neurons whose up and down rows were computed; share_fired: neurons with a
        contribution other than zero. audit: neurons that fired in audited segments, and how many of
        them the predictors found. tiers: where neurons are now, and where those were that tokens
        needed. storage: None, or how the model runs from storage.
        """
        with self._lock:
            self._require_open()
            return report(self._model, self.plan(), self._meter)

    # ---- Text and tokens -----------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Ids of a text of any bytes.

        add_bos: add BOS and EOS if the file asks for them. special: texts of control tokens become
        those tokens. Raises TypeError if text is not bytes.
        """
        if not isinstance(text, bytes | bytearray | memoryview):
            raise TypeError(f"tokenize takes bytes, not {type(text).__name__}")
        with self._lock:
            self._require_open()
            ids = self._model.tokenize(bytes(text), special)
        before = [self._model.bos] if add_bos and self._model.add_bos else []
        after = [self._model.eos] if add_bos and self._model.add_eos else []
        return before + ids + after

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens. After a leading BOS, the space that `tokenize` adds is dropped.

        Raises ValueError for ids outside the vocabulary.
        """
        with self._lock:
            self._require_open()
            ids = [options.whole("a token id", token) for token in tokens]
            text = b"".join(self._model.text(token, special) for token in ids)
        begins = not prev_tokens and len(tokens) > 0 and tokens[0] == self._model.bos
        return text[1:] if begins and text.startswith(b" ") else text

    # ---- Computing -----------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Positions computed since reset()."""
        return self._context.n_tokens if self._context else 0

    @property
    def input_ids(self) -> Ids:
        """intc [n_ctx]: ids of the positions; the first n_tokens are valid."""
        return self._computing.input_ids

    def reset(self) -> None:
        """Drops all tokens."""
        with self._lock:
            self._computing.truncate(0)

    def eval(self, tokens: Sequence[int], generated: bool = False) -> None:
        """Appends tokens and computes them.

        generated: the tokens were generated, so with sparse="auto" predictors mask them; otherwise
        they are a prompt, even if passed one by one. Raises ContextOverflowError if they do not
        fit; then none is computed.
        """
        with self._lock:
            self._computing.need_scores()
            ids = as_tokens(tokens)
            self._computing.eval(ids, np.full(len(ids), generated))

    def activations(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which neurons fired (have a contribution other than zero) at the last eval's tokens.

        bool [n_layer, n_tokens, n_ff]; with experts [n_layer, n_tokens, n_expert, n_ff], False for
        experts that a token did not choose. Raises ValueError unless opened with `record`.
        """
        with self._lock:
            return self._computing.activations()

    def ffn_inputs(self) -> Scores:
        """float32 [n_layer, n_tokens, n_embd]: inputs of predictors at the last eval's tokens.

        The residual stream or its norm, depending on the file. Raises ValueError unless opened with
        record="fired+input".
        """
        with self._lock:
            return self._computing.ffn_inputs()

    @property
    def scores(self) -> Scores:
        """float32 [n_ctx, n_vocab]: row i holds the logits after the i-th token since reset().

        Without logits_all, only the last token of each `eval` has its row; `generate` and
        completions fill rows after `scores` was read or `eval` called.
        """
        with self._lock:
            return self._computing.need_scores()

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logits_processor: LogitsProcessors = None,
        idx: int | None = None,
        **samplers: float,
    ) -> int:
        """Chooses a token from the logits after the last token, or after token `idx`.

        samplers: further fields of Sampling: top_n_sigma, xtc_probability, xtc_threshold,
        dynatemp_range, dynatemp_exponent, mirostat_mode, mirostat_tau, mirostat_eta. Mirostat
        learns over a text, so here it begins anew with each token.
        Raises ValueError if nothing has been computed, or if the logits of `idx` were not kept.
        """
        params = Sampling.of(locals())
        with self._lock:
            context = self._computing
            if self._sampler is None or self._sampler[0] != params:
                self._sampler = params, self._new_sampler(params, 0)
            sampler = self._sampler[1]
            n = context.n_tokens if idx is None else idx + 1
            row = None if idx is None else context.score(idx)
            sampler.reset()
            # A new seed for each token: so save_state only has to save _rng.
            sampler.seed(self._rng.getrandbits(64))
            sampler.accept(self._recent(context.input_ids[:n].tolist()))
            return context.choose(sampler, combined(logits_processor, LogitsProcessorList), n, row)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        reset: bool = True,
        logits_processor: LogitsProcessors = None,
        stopping_criteria: AnyStoppingCriteria = None,
        **samplers: float,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Generates ids after `tokens`, one by one and without end; the caller stops, e.g. at EOS.

        samplers: as for `sample`.
        reset: start a new sequence, reusing the longest prefix that is already computed as a
        prompt; otherwise continue after the existing tokens. Ids sent into the generator are
        appended as a prompt.
        Raises ValueError for no tokens, ContextOverflowError when the context is full.
        """
        params = Sampling.of(locals())
        with self._lock:
            seed = self._rng.getrandbits(32)
        processors = combined(logits_processor, LogitsProcessorList)
        criteria = combined(stopping_criteria, StoppingCriteriaList)
        ids = as_tokens(tokens).tolist()
        return self._generate(ids, params, seed, reset, processors, criteria)

    def _generate(
        self,
        pending: list[int],
        params: Sampling,
        seed: int,
        reset: bool,
        processors: Any,
        criteria: Any,
        observe: Callable[[int, np.ndarray], None] | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """observe: called with each id and its logits, before the id is yielded."""
        if not pending:
            raise ValueError("generate needs at least one token")
        with self._lock:
            sampler, drafts = self._new_sampler(params, seed), self._new_drafts()
            history = [] if reset else self._computing.tokens()
            generated = [] if reset else self._computing.generated()
            version = None if reset else self._computing.version
        flags = [False] * len(pending)  # which of the pending ids were generated
        meter, prompt = Meter(), True
        sampler.accept(self._recent(history))
        while True:
            with self._lock:
                context = self._computing
                before, work, start = context.n_computed, context.work(), time.perf_counter()
                if version == context.version and flags == [True] and drafts:
                    if context.advance(pending[0]):
                        drafts.advanced()
                    else:
                        eval_with_draft(context, drafts, history, pending[0])
                elif version == context.version:
                    context.eval(as_tokens(pending), np.array(flags))
                else:  # at the beginning, or after another call has used the instance
                    context.become(as_tokens(history + pending), np.array(generated + flags))
                version = context.version
                seconds, n = time.perf_counter() - start, context.n_computed - before
                meter.add(n, seconds, prompt, context.work() - work)
                self._meter, prompt = meter, False
                history, generated = history + pending, generated + flags
                sampler.accept(self._recent(pending))
                token = context.choose(sampler, processors, context.n_tokens)
                ids = context.input_ids[: context.n_tokens]
                meter.chosen()
                if criteria and criteria(ids, context.logits()):
                    return
                if observe:
                    observe(token, context.logits())
            sent = yield token
            pending = [token, *(sent or ())]
            flags = [True] + [False] * (len(pending) - 1)

    def set_seed(self, seed: int) -> None:
        """Seed of the random numbers of the following calls."""
        with self._lock:
            self._rng = new_random(seed)

    # ---- Saving --------------------------------------------------------------------------

    def save_state(self) -> LlamaState:
        """The sequence with its keys, values and last logits, and the random numbers' state."""
        with self._lock:
            state = self._computing.save()
            state.random = self._rng.getstate()
            return state

    def load_state(self, state: LlamaState) -> None:
        """Restores a state from `save_state`, of this or another Llama of the same file.

        Raises ModelFormatError for a state of another model, mode or threshold,
        ContextOverflowError if it is longer than the context, ValueError if it contradicts itself
        or was saved by another version of the library.
        """
        with self._lock:
            self._computing.load(state)
            if state.random is not None:
                self._rng.setstate(state.random)

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments; unpickling opens the file again, with nothing computed."""
        return self._arguments

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self.__init__(**arguments)

    # ---- Internal; callers hold the lock ---------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("this Llama is closed")

    @property
    def _computing(self) -> Context:
        self._require_open()
        if self._context is None:
            if self._model_fields["vocab_only"]:
                raise ValueError("this Llama was opened with vocab_only=True: it cannot compute")
            self._context = self._new_context()
        return self._context

    def _shared_fields(self, n_ctx: int) -> dict[str, Any]:
        """Fields of the session that depend on how many texts share it; here one."""
        return {}

    def _open_context(self) -> None:
        """Opens what computes texts."""
        self._context = self._new_context()

    def _new_context(self) -> Context:
        return Context(self._model, self._logits_all, verbose=self.verbose, **self._session_fields)

    def _new_sampler(self, params: Sampling, seed: int) -> Sampler:
        fields = {"seed": seed & (1 << 64) - 1, "repeat_last_n": self.last_n_tokens_size}
        return Sampler(**fields, **params.keywords())

    def _new_drafts(self) -> Drafts | None:
        if self._draft is None or self._session_fields["record"]:
            return None
        return Drafts(self._draft, self._session_fields["n_batch"], self._model.n_vocab)

    def _recent(self, ids: list[int]) -> list[int]:
        """The last ids, which get penalties."""
        n = self.last_n_tokens_size
        return ids if n < 0 else ids[max(0, len(ids) - n) :]

    # ---- Lifetime ------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the model and its memory; every later call except close() raises ValueError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for part in (self._context, self._embedder, self._own_draft):
                    if part is not None:
                        part.close()
                self._model.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_sampler"):  # set last: the constructor has finished
            self.close()


def _default_positions(trained: int) -> int:
    """Positions of a context if the caller gives no n_ctx; trained: the model's, 0 if unknown."""
    return min(DEFAULT_POSITIONS, trained) if trained > 0 else DEFAULT_POSITIONS


def _positions_in(path: str) -> int:
    """The same for a file that is not open yet."""
    with Gguf(path) as gguf:
        return _default_positions(gguf.n_ctx_train)


def new_random(seed: int | None) -> random.Random:
    seed = options.whole_or_none("seed", seed)
    return random.Random(None if seed in RANDOM_SEEDS else seed)


def combined(value: Any, kind: type) -> Any:
    """One function from a function or a list of functions; None if there are none."""
    if value is None or callable(value):
        return value
    return kind(value) if value else None
