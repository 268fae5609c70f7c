"""The base class of `Llama`: a model, its text and tokens, and the locking of all that uses it."""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from ._native import lib
from .core import checks, options
from .core.adapters import Adapters, UsesAdapters
from .core.context import ROWS_KEPT, Context
from .core.embedding import Embedder, check_pooling, embedding_fields, pooling_of, require_pooling
from .core.gguf import Gguf
from .core.log import logger
from .core.model import SPARSE_MODES, Model
from .core.plan import memory_plan
from .core.sampler import Sampler, Samplers
from .core.sampling import Sampling
from .core.stats import Meter, report
from .run.drafts import DraftFile, LlamaDraftModel
from .run.drafts import draft_model as draft_model_of
from .run.in_use import InUse
from .text import chat
from .text.answers import Plan, Stats
from .text.prompts import Prompts

CLOSED = "this Llama is closed"
DEFAULT_POSITIONS = 512  # llama-cpp-python's
SCORES = 64  # rows of `scores` that a model run from storage leaves room for, without logits_all
Self = TypeVar("Self", bound="LlamaCore")
RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)  # values that mean "a different seed each time"


class LlamaCore(UsesAdapters):
    """Runs a GGUF model: text to tokens, tokens to logits, logits to tokens.

    Several threads may use one instance: calls wait for each other. A stream or a `generate` locks
    the instance only while it computes a token; after another call in between, it computes its own
    tokens again and continues with the same result.

    Opening raises OSError, ModelFormatError, UnsupportedModelError, OutOfMemoryError, DeviceError,
    and ValueError naming the option. Unknown keyword arguments are ignored with a warning.

    **The context**

    - n_ctx: positions. None: 512, or the model's if that is less; 0: the model's.
    - n_batch, n_ubatch: 512 tokens per call of the engine, and computed at once.
    - logits_all: False. Keep the logits of every token in `scores`, not only the last ones.
    - last_n_tokens_size: 64 last tokens get penalties; -1: all.
    - type_k, type_v: GGUF type ids of the KV cache: F16 (1, the default), Q8_0 (8) or F32 (0).
    - rope_scaling_type (0 none, 1 linear, 2 yarn), rope_freq_base, rope_freq_scale (0.25 for four
      times the context), yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow,
      yarn_orig_ctx: instead of the file's. None, 0, negative numbers, and LangChain's
      rope_freq_base=10000 and rope_freq_scale=1 mean what the file says.
    - seed: of the random numbers of all calls. None: different each time.

    **Threads**

    - n_threads: that compute one token. None: the CPUs that this process may use.
    - n_threads_batch: that compute several tokens. None: n_threads.

    **The device** (without these options only the CPU computes)

    - device: "cuda0" or "cpu".
    - n_gpu_layers: at most this many of the last layers on the device; -1: what fits.
    - vram_budget: limit in GiB of what the device may take; 0: no device. A device or a vram_budget
      alone means what fits.
    - reset_gpu_index: False. The device gets the neurons that fire most often, whatever a placement
      in or beside the file says.
    - disable_gpu_index: False. No neurons on the device. Giving both is a ValueError.
    - op_offload: True. The device computes all neurons of prompts, those in RAM as well.

    **Memory**

    - ram_budget: limit in GiB. None: what is free. A model that does not fit runs from storage, if
      it is a mixture of experts or its file has neuron rows.
    - mmap_anyway: False. Other models that do not fit run as well, slowly: each token reads what is
      missing. Else they are refused (OutOfMemoryError).
    - bundle: True. Write the bundled file that neuron rows need for that, if there is none yet, and
      when the model is closed a list of what was in memory.
    - use_mmap, use_mlock: True, False. Map the file; keep its pages in RAM.

    **Neurons**

    - sparse: "auto" (prompts as "exact", generated tokens with a predictor if there is one), "off",
      "exact" or "predictor".
    - sparse_threshold: of predictors. None: the file's.

    **Adapters**

    - lora_path, lora_scale: a LoRA adapter (GGUF) and its scale 1.0, or a dict of several and their
      scales; see set_adapters.
    - lora_allow_predictor: False. Use predictors with adapters, for which they were not made; else
      sparse="auto" computes as "exact" while an adapter is used, and "predictor" refuses one.

    **Chats and infill**

    - chat_format: one of chat.FORMATS, or a registered one. None: the file's own template.
    - chat_handler: answers chats instead (llama_chat_format.py).
    - spm_infill: False. Completions with a suffix have the suffix before the prefix.

    **Drafts**

    - draft_model: guesses the next tokens, which are then checked together: the same text, sooner
      where it repeats itself. LlamaPromptLookupDecoding(), or the path of a smaller model with the
      same vocabulary (llama_speculative.py). Recording does without.

    **Embeddings**

    - embedding: False. Allow embeddings; the first completion then opens a second session.
    - pooling_type: 0 none, 1 mean, 2 first, 3 last; -1: as the file says, or mean.

    **Recording**

    - record: "off", "fired" or "fired+input", for `activations` and `ffn_inputs`; with sparse "off"
      or "exact", and without a device.

    **The file**

    - vocab_only: False. Tokenizer and metadata, no weights.
    - kv_overrides: values in place of those of the file's header, by key.
    - allow_unknown: False. Run a file without the keys and tensors that this engine does not know
      and that change results; else it is refused (UnsupportedModelError).
    - tokenizer: llama-cpp-python's is a ValueError: the file's own is used.
    - progress_callback: called with 0..1 while loading; returning False cancels (Cancelled).
    - verbose: True. Print a few lines to stderr; they also go to the logger "powerinfer_cpp",
      whatever verbose is.
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
        chat_handler: object = None,
        spm_infill: bool = False,
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
        mmap_anyway: bool = False,
        sparse: str = "auto",
        sparse_threshold: float | None = None,
        record: str = "off",
        draft_model: LlamaDraftModel | DraftFile | str | Path | None = None,
        lora_path: str | Path | dict[str | Path, float] | None = None,
        lora_scale: float = 1.0,
        lora_allow_predictor: bool = False,
        progress_callback: Callable[[float], object] | None = None,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        allow_unknown: bool = False,
        rope_scaling_type: int | None = None,
        rope_freq_base: float | None = None,
        rope_freq_scale: float | None = None,
        yarn_ext_factor: float | None = None,
        yarn_attn_factor: float | None = None,
        yarn_beta_fast: float | None = None,
        yarn_beta_slow: float | None = None,
        yarn_orig_ctx: int | None = None,
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
            checks.whole_or_none(name, given[name])
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
            checks.whole(name, given[name])
            for name in ["n_batch", "n_ubatch", "pooling_type", "last_n_tokens_size"]
        )
        sparse_fields = options.sparse_fields(sparse, sparse_threshold)
        record_field = options.record_field(record)
        rope_fields = options.rope_fields(
            **{name: given[name] for name in given if name.startswith(("rope_", "yarn_"))}
        )
        device_fields = options.device_fields(device, n_gpu_layers, vram_budget)
        placement_field = options.placement_field(reset_gpu_index, disable_gpu_index)
        if device_fields and record_field["record"]:
            raise ValueError('record needs device="cpu": a device does not record')
        check_pooling(pooling_type)
        self.chat_handler, named_format = chat.chosen(chat_format, chat_handler)
        if not device_fields:
            asked = {"n_gpu_layers": n_gpu_layers, "vram_budget": vram_budget}
            options.note_without_gpu(asked, verbose)
        self.model_path = str(model_path)
        self.verbose = verbose
        self.last_n_tokens_size = last_n_tokens_size
        self.kv_overrides = kv_overrides
        self._lock = threading.RLock()
        # The vocabulary and the file's header never change: a long text that becomes tokens in one
        # thread does not keep the others from theirs. Only `close` must wait.
        self._in_use = InUse(CLOSED)
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
            "mmap_anyway": bool(mmap_anyway),
            "allow_unknown": bool(allow_unknown),
            **options.override_field(kv_overrides),
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
            **rope_fields,
            "lora_allow_predictor": bool(lora_allow_predictor),
        }
        room: dict[str, Any] | None = None
        self._shared: dict[str, Any] = {}
        if not vocab_only:  # what of the model fits a device, or RAM, depends on the session
            n_ctx = _positions_in(self.model_path) if n_ctx is None else n_ctx
            self._shared = self._shared_fields(n_ctx)
            room = {**self._session_fields, **self._shared, "n_ctx": n_ctx}
            # `scores`: all rows, or those of some calls.
            self._model_fields["n_rows_kept"] = (
                n_ctx if logits_all else min(n_ctx, self._scores_kept)
            )
            if embedding:  # and completions, in a session of their own
                self._model_fields["beside"] = room
                room = embedding_fields(room)
        self._model = Model(self.model_path, progress_callback, verbose, room, **self._model_fields)
        self._prompts = Prompts(
            self._model, self._in_use, named_format, chat_format, spm_infill, verbose
        )
        self._pooling = pooling_of(self._model, pooling_type)
        if embedding and not vocab_only:
            require_pooling(self._model, self._pooling)
        self._adapters = Adapters(self._model)
        if lora_path and not vocab_only:
            given = lora_path if isinstance(lora_path, dict) else {lora_path: lora_scale}
            self._adapters.used = self._adapters.opened(given)
        if n_ctx is None:
            n_ctx = _default_positions(self._model.n_ctx_train)
        self._session_fields["n_ctx"] = n_ctx
        self._logits_all = logits_all
        self._context: Context | None = None
        self._embedder: Embedder | None = None
        self._meter, self._cache, self._vocabulary = Meter(), None, None
        if embedding and not vocab_only:
            self._embedder = self._new_embedder()
        elif not vocab_only:
            self._open_context()
        self._draft = self._own_draft = None
        if not vocab_only:
            self._draft = draft_model_of(
                draft_model,
                self._model,
                n_ctx or self._model.n_ctx_train,
                n_threads or 0,
                self._n_texts,
                allow_unknown=allow_unknown,
            )
        if isinstance(draft_model, DraftFile | str | Path):
            self._own_draft = self._draft
        self._samplers = Samplers(self._model, last_n_tokens_size)
        self._sampler: tuple[Sampling, Sampler] | None = None  # used by sample()
        if verbose or logger.isEnabledFor(logging.INFO):
            options.report(self._model, self.plan(), verbose)

    _scores_kept = SCORES
    _n_texts = 1  # that are written at the same time

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
        with self._in_use:
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
    def model_params(self) -> SimpleNamespace:
        """The model's parameters: use_mmap, use_mlock, vocab_only, ..."""
        return SimpleNamespace(**self._model_fields)

    @property
    def context_params(self) -> SimpleNamespace:
        """The session's parameters: n_ctx, n_batch, n_threads, ..."""
        return SimpleNamespace(**{**self._session_fields, "n_ctx": self.n_ctx()})

    @property
    def n_batch(self) -> int:
        """Most tokens of a call of the engine."""
        return min(self._session_fields["n_batch"], self.n_ctx())

    @property
    def n_threads(self) -> int:
        """Threads that compute one token."""
        return self._session_fields["n_threads"] or lib.pi_default_threads()

    @property
    def n_threads_batch(self) -> int:
        """Threads that compute several tokens at once."""
        return self._session_fields["n_threads_batch"] or self.n_threads

    @property
    def chat_format(self) -> str | None:
        """The name of the chats' format; None: the file's own template."""
        return self._prompts.name

    @property
    def spm_infill(self) -> bool:
        """Does the suffix come before the prefix?"""
        return self._prompts.spm_infill

    @property
    def chats_with(self) -> str | None:
        """What makes the prompts of chats: "template" (the file's own, or another that was set),
        "handler", or the name of a format. None: nothing does, and chats fall back to llama-2; such
        a model is usually one that continues texts."""
        if self.chat_handler is not None:
            return self.chat_format or "handler"
        return self._prompts.chats_with

    @property
    def draft_model(self) -> LlamaDraftModel | None:
        """What guesses the next tokens."""
        return self._draft

    def plan(self) -> Plan:
        """Memory plan: {tier: {part: bytes}, "total": bytes, "budget": bytes of RAM,
        "vram_budget": bytes, "read_seconds": seconds, ...}. Tiers are "ram", "gpu", which is empty
        without a device, and "storage": what only the disk has, which the total leaves out.
        answers.Plan says what is expected of reading it."""
        with self._lock:
            self._require_open()
            fields = {**self._session_fields, **self._shared}
            if self._embedder is not None and not self._shared:
                fields = embedding_fields(fields)
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
        needed. storage: None, or how the model runs from storage, by parts of neurons or experts.
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
        return self._prompts.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of tokens. After a leading BOS, the space that `tokenize` adds is dropped.

        Raises ValueError for ids outside the vocabulary.
        """
        return self._prompts.detokenize(tokens, prev_tokens, special)

    # ---- Internal; callers hold the lock ---------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(CLOSED)

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
        context = Context(
            self._model, self._logits_all, verbose=self.verbose, **self._session_fields
        )
        context.set_adapters(self._adapters)
        return context

    def _new_embedder(self) -> Embedder:
        embedder = Embedder(self._model, verbose=self.verbose, **self._session_fields)
        embedder.set_adapters(self._adapters)
        return embedder

    def _use_adapters(self) -> None:
        """Makes everything that computes use the chosen adapters."""
        for part in (self._context, self._embedder):
            if part is not None:
                part.set_adapters(self._adapters)

    # ---- Lifetime ------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the model and its memory; every later call except close() raises ValueError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for part in (self._context, self._embedder, self._own_draft):
                    if part is not None:
                        part.close()
                self._in_use.end()
                self._model.close()

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments; unpickling opens the file again, with nothing computed."""
        return self._arguments

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self.__init__(**arguments)

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
    seed = checks.whole_or_none("seed", seed)
    return random.Random(None if seed in RANDOM_SEEDS else seed)


def combined(value: Any, kind: type) -> Any:
    """One function from a function or a list of functions; None if there are none."""
    if value is None or callable(value):
        return value
    return kind(value) if value else None
