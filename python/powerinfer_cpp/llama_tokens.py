"""`LlamaTokens`: a model token by token, with llama-cpp-python's interface."""

import functools
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ._native import lib
from .core import options
from .core.checks import whole_or_none
from .core.logits import (
    AnyStoppingCriteria,
    Ids,
    LogitsProcessors,
    Scores,
    StoppingCriteriaList,
    combined,
    processed,
)
from .core.model import SPARSE_MODES
from .core.sampler import Sampler
from .core.sampling import Sampling, further
from .core.sequences.adapters import LoraAdapter
from .core.session import as_tokens
from .core.state import LlamaState, common_prefix
from .core.stats import report
from .run.drafts import LlamaDraftModel
from .run.loop import Loop
from .run.options import Options
from .run.runtime import Runtime, new_random
from .run.vectors import TextVectors
from .text.answers import Plan, Stats
from .text.completion import Piece
from .text.grammar import LlamaGrammar

_OTHER_NAMES = {"temperature": "temp"}  # of methods that choose single tokens
SCORES = 64  # rows of `scores` that a model run from storage leaves room for, without logits_all
Parameters = ParamSpec("Parameters")
Self = TypeVar("Self", bound="LlamaTokens")


def _takes(
    of: Callable[Parameters, Options],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Parameters], None]]:
    """Gives a constructor the parameters of another one, and its docstring."""
    return functools.wraps(of.__init__)  # type: ignore[misc,return-value]


class LlamaTokens:
    """Runs a GGUF model: text to tokens, tokens to logits, logits to tokens."""

    @_takes(Options)
    def __init__(self, *paths: str | Path, **named: Any):
        if len(paths) != ("model_path" not in named):
            raise TypeError("Llama() takes the path of one model, and all else by name")
        model_path = paths[0] if paths else named.pop("model_path")
        self._arguments = {"model_path": model_path, **named}
        self._arguments.pop("progress_callback", None)
        given = Options(model_path, **named)
        self.model_path, self.verbose = given.model_path, given.verbose
        self.last_n_tokens_size, self.kv_overrides = given.last_n, given.kv_overrides
        self.chat_handler = given.chat_handler
        # `scores`: all rows, or those of some calls.
        n_ctx = given.session["n_ctx"]
        n_rows = n_ctx if given.logits_all else min(n_ctx, SCORES)
        self._runtime = Runtime(given, given.session, n_rows)
        self._model, self._prompts = self._runtime.model, self._runtime.prompts
        self._loop = Loop(self._runtime)
        self._vectors: TextVectors | None = None
        if not given.vocab_only and (given.embedding or self._runtime.gives_no_text):
            self._vectors = self._runtime.open_vectors()
        elif not given.vocab_only:
            self._loop.opened = self._runtime.open_context()
        self._sampler: tuple[Sampling, Sampler] | None = None  # used by sample()

    def __repr__(self) -> str:
        head, runtime = f"<{type(self).__name__} {self.model_path!r}", self._runtime
        with runtime.lock:
            if runtime.in_use.over:
                return f"{head}, closed>"
            what = options.description(self._model)
            if runtime.options.vocab_only:
                return f"{head}: {what}, the vocabulary only>"
            use = "embeddings, " if self._vectors else ""
            mode = SPARSE_MODES[runtime.options.session["sparse"]]
            return f"{head}: {what}, {use}{self.n_ctx()} positions, sparse={mode!r}>"

    # ---- Properties of the model ---------------------------------------------------------

    def n_ctx(self) -> int:
        """Positions of the context."""
        computing = self._loop.opened or (self._vectors and self._vectors.embedder)
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

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as strings, without arrays."""
        return self._runtime.metadata

    @property
    def model(self) -> object:
        """The C API's handle of the model."""
        return self._model.handle

    @property
    def ctx(self) -> object:
        """The C API's handle of the session."""
        with self._loop.held() as context:
            return context.handle

    @property
    def model_params(self) -> SimpleNamespace:
        """The model's parameters: use_mmap, use_mlock, vocab_only, ..."""
        return SimpleNamespace(**self._model.fields)

    @property
    def context_params(self) -> SimpleNamespace:
        """The session's parameters: n_ctx, n_batch, n_threads, ..."""
        used = {
            "n_ctx": self.n_ctx(),
            "n_threads": self.n_threads,
            "n_threads_batch": self.n_threads_batch,
        }
        return SimpleNamespace(**{**self._runtime.options.session, **used})

    @property
    def n_batch(self) -> int:
        """Most tokens of a call of the engine."""
        return min(self._runtime.options.session["n_batch"], self.n_ctx())

    @property
    def n_threads(self) -> int:
        """Threads that compute one token."""
        return int(lib.pi_threads_used(self._runtime.options.session["n_threads"]))

    @property
    def n_threads_batch(self) -> int:
        """Threads that compute several tokens at once."""
        batch = self._runtime.options.session["n_threads_batch"]
        return int(lib.pi_threads_used(batch)) if batch else self.n_threads

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
        return self._runtime.draft

    def plan(self) -> Plan:
        """Memory plan: {tier: {part: bytes}, "total": bytes, "budget": bytes of RAM,
        "vram_budget": bytes, "read_seconds": seconds, ...}. Tiers are "ram", "gpu", which is empty
        without a device, and "storage": what only the disk has, which the total leaves out.
        answers.Plan says what is expected of reading it."""
        return self._runtime.plan()

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
        experts: None, or where those of a mixture are, and who computed the chosen ones.
        """
        with self._runtime.held():
            return report(self._model, self.plan(), self._loop.meter)

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

    # ---- LoRA adapters -------------------------------------------------------------------

    def open_adapter(self, path: str | Path) -> LoraAdapter:
        """Reads a LoRA adapter (GGUF) of this model, for `set_adapters`.

        Raises OSError, ModelFormatError, UnsupportedModelError, OutOfMemoryError.
        """
        with self._runtime.held():
            return LoraAdapter(self._model, path)

    def adapters(self) -> list[tuple[str, float]]:
        """The paths of the adapters that are used, and their scales."""
        with self._runtime.lock:
            return self._runtime.adapters.listed()

    def set_adapters(self, adapters: Mapping[Any, float]) -> None:
        """Computes with these LoRA adapters from now on: {path or LoraAdapter: scale}; {}: none.

        A path is read again unless it is in use. Computed tokens are dropped if anything changes; a
        stream that goes on computes its text again, with the new ones. Raises what open_adapter
        raises, ValueError for other models' adapters, bad scales, or with sparse="predictor";
        UnsupportedModelError with a device or a model that runs from storage. After an error
        nothing has changed.
        """
        self._runtime.set_adapters(adapters)

    # ---- Computing -----------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Positions computed since reset()."""
        return self._loop.opened.n_tokens if self._loop.opened else 0

    @property
    def input_ids(self) -> Ids:
        """intc [n_ctx]: ids of the positions; the first n_tokens are valid."""
        with self._loop.held() as context:
            return context.input_ids

    @property
    def eval_tokens(self) -> deque[int]:
        """Ids of the computed positions."""
        with self._loop.held() as context:
            return deque(context.tokens(), maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of `scores` of the computed positions; without logits_all only the last one."""
        with self._loop.held() as context:
            most = self.n_ctx() if self._runtime.options.logits_all else 1
            rows = context.need_scores()[max(0, self.n_tokens - most) : self.n_tokens]
            return deque(rows.tolist(), maxlen=most)

    @property
    def _input_ids(self) -> Ids:
        """intc [n_tokens], for code that knows llama-cpp-python's inside."""
        return self.input_ids[: self.n_tokens]

    @property
    def _scores(self) -> Scores:
        """float32 [n_tokens, n_vocab], likewise."""
        return self.scores[: self.n_tokens]

    def reset(self) -> None:
        """Drops all tokens."""
        with self._loop.held() as context:
            context.truncate(0)

    def eval(self, tokens: Sequence[int], generated: bool = False) -> None:
        """Appends tokens and computes them.

        generated: the tokens were generated, so with sparse="auto" predictors mask them; otherwise
        they are a prompt, even if passed one by one. Raises ContextOverflowError if they do not
        fit; then none is computed.
        """
        with self._loop.held() as context:
            context.need_scores()
            ids = as_tokens(tokens)
            context.eval(ids, np.full(len(ids), generated))

    def activations(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which neurons fired (have a contribution other than zero) at the last eval's tokens.

        bool [n_layer, n_tokens, n_ff]; with experts [n_layer, n_tokens, n_expert, n_ff], False for
        experts that a token did not choose. Raises ValueError unless opened with `record`.
        """
        with self._loop.held() as context:
            return context.activations()

    def ffn_inputs(self) -> Scores:
        """float32 [n_layer, n_tokens, n_embd]: inputs of predictors at the last eval's tokens.

        The residual stream or its norm, depending on the file. Raises ValueError unless opened with
        record="fired+input".
        """
        with self._loop.held() as context:
            return context.ffn_inputs()

    @property
    def scores(self) -> Scores:
        """float32 [n_ctx, n_vocab]: row i holds the logits after the i-th token since reset().

        Without logits_all, only the last token of each `eval` has its row; `generate` and
        completions fill rows after `scores` was read or `eval` called.
        """
        with self._loop.held() as context:
            return context.need_scores()

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
        grammar: LlamaGrammar | None = None,
        **sampling: Any,
    ) -> int:
        """Chooses a token from the logits after the last token, or after token `idx`.

        grammar: the token begins its text. sampling: further fields of Sampling: top_n_sigma,
        xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent, mirostat_mode,
        mirostat_tau, mirostat_eta, dry_multiplier and dry's others, samplers (names in order).
        Mirostat learns over a text, so here it begins anew with each token.
        Raises ValueError if nothing has been computed, or if the logits of `idx` were not kept.
        """
        params = Sampling(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            **further("sample", sampling, _OTHER_NAMES),
        )
        idx = whole_or_none("idx", idx)
        processors = self._prompts.processors(logits_processor, None, grammar)
        with self._loop.held() as context:
            if self._sampler is None or self._sampler[0] != params:
                self._sampler = params, self._runtime.samplers.make(params, 0)
            sampler = self._sampler[1]
            ids = context.input_ids[: context.n_tokens if idx is None else idx + 1]
            logits = context.last_logits() if idx is None else context.score(idx)
            sampler.reset()
            # A new seed for each token: so save_state only has to save `random`.
            sampler.seed(self._runtime.random.getrandbits(64))
            sampler.accept(self._runtime.samplers.recent(ids, params).tolist())
            return sampler.sample(processed(processors, ids, logits), self.n_vocab())

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
        grammar: LlamaGrammar | None = None,
        **sampling: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Generates ids after `tokens`, one by one and without end; the caller stops, e.g. at EOS.

        grammar: constrains the text. sampling: as for `sample`.
        reset: start a new sequence, reusing the longest prefix that is already computed as a
        prompt; otherwise continue after the existing tokens. Ids sent into the generator are
        appended as a prompt.
        Raises ValueError for no tokens, ContextOverflowError when the context is full.
        """
        params = Sampling(
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            **further("generate", sampling, _OTHER_NAMES),
        )
        processors = self._prompts.processors(logits_processor, None, grammar)
        ids = as_tokens(tokens)
        if not len(ids):
            raise ValueError("generate needs at least one token")
        request = self._runtime.request(
            tokens,
            ids,
            1,
            params=params,
            processors=lambda: processors,
            criteria=combined("stopping_criteria", stopping_criteria, StoppingCriteriaList),
            endless=True,
        )
        return _ids(self._loop.run(request, reset))

    def set_seed(self, seed: int) -> None:
        """Seed of the random numbers of the following calls."""
        with self._runtime.lock:
            self._runtime.random = new_random(seed)

    @staticmethod
    def logits_to_logprobs(logits: npt.ArrayLike, axis: int = -1) -> Scores:
        """Log-probabilities of logits, float32 of their shape; they sum to 1 along the axis."""
        values = np.asarray(logits, dtype=np.float32)
        most = values.max(axis=axis, keepdims=True)
        shifted = values - np.where(np.isfinite(most), most, np.float32(0))
        with np.errstate(divide="ignore"):  # all of them may be -inf
            total = np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return shifted - total

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Number of ids with which both begin."""
        return common_prefix(np.asarray(a), np.asarray(b))

    # ---- Saving --------------------------------------------------------------------------

    def save_state(self) -> LlamaState:
        """The sequence with its keys, values and last logits, and the random numbers' state."""
        with self._loop.held() as context:
            state = context.save()
            state.random = self._runtime.random.getstate()
            return state

    def load_state(self, state: LlamaState) -> None:
        """Restores a state from `save_state`, of this or another Llama of the same file.

        Raises ModelFormatError for a state of another model, mode or threshold,
        ContextOverflowError if it is longer than the context, ValueError if it contradicts itself
        or was saved by another version of the library.
        """
        with self._loop.held() as context:
            context.load(state)
            if state.random is not None:
                self._runtime.random.setstate(state.random)

    # ---- Lifetime ------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the model and its memory; every later call except close() raises ValueError."""
        self._runtime.close()

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments; unpickling opens the file again, with nothing computed."""
        return self._arguments

    def __setstate__(self, arguments: dict[str, Any]) -> None:
        self.__init__(**arguments)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ids(
    steps: Generator[tuple[int, Piece | None], Sequence[int] | None, None],
) -> Generator[int, Sequence[int] | None, None]:
    """The tokens of a loop's steps."""
    sent = None
    with suppress(StopIteration):
        while True:
            token, _ = steps.send(sent)
            sent = yield token
