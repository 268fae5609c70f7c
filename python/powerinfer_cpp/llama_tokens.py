"""What `Llama` does with tokens: computes, samples, generates, and saves what it has computed."""

import contextlib
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .core.logits import (
    AnyStoppingCriteria,
    Ids,
    LogitBias,
    LogitsProcessorList,
    LogitsProcessors,
    Scores,
    StoppingCriteria,
    StoppingCriteriaList,
    processed,
)
from .core.sampling import Sampling, without_forgotten
from .core.session import as_tokens
from .core.state import LlamaState, common_prefix
from .core.stats import Meter
from .llama_core import LlamaCore, combined, new_random
from .run.drafts import Drafts
from .run.loop import Loop
from .run.requests import Request
from .text.completion import Piece
from .text.grammar import GrammarProcessor, LlamaGrammar
from .text.masks import Vocabulary
from .text.thought_limit import ThoughtLimit, ThoughtProcessor


class LlamaTokens(LlamaCore):
    """A `Llama` token by token."""

    @property
    def n_tokens(self) -> int:
        """Positions computed since reset()."""
        return self._context.n_tokens if self._context else 0

    @property
    def input_ids(self) -> Ids:
        """intc [n_ctx]: ids of the positions; the first n_tokens are valid."""
        return self._computing.input_ids

    @property
    def eval_tokens(self) -> deque[int]:
        """Ids of the computed positions."""
        with self._lock:
            return deque(self._computing.tokens(), maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The rows of `scores` of the computed positions; without logits_all only the last one."""
        with self._lock:
            most = self.n_ctx() if self._logits_all else 1
            rows = self._computing.need_scores()[max(0, self.n_tokens - most) : self.n_tokens]
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
            **without_forgotten(sampling),
        )
        processors = self._processors(logits_processor, None, grammar)
        with self._lock:
            context = self._computing
            if self._sampler is None or self._sampler[0] != params:
                self._sampler = params, self._samplers.make(params, 0)
            sampler = self._sampler[1]
            ids = context.input_ids[: context.n_tokens if idx is None else idx + 1]
            logits = context.last_logits() if idx is None else context.score(idx)
            sampler.reset()
            # A new seed for each token: so save_state only has to save _rng.
            sampler.seed(self._rng.getrandbits(64))
            sampler.accept(self._samplers.recent(ids, params).tolist())
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
            **without_forgotten(sampling),
        )
        with self._lock:
            seed = self._rng.getrandbits(32)
        processors = self._processors(logits_processor, None, grammar)
        criteria = combined(stopping_criteria, StoppingCriteriaList)
        ids = as_tokens(tokens)
        if not len(ids):
            raise ValueError("generate needs at least one token")
        return self._generated(ids, params, seed, reset, processors, criteria)

    def _processors(
        self,
        given: Any,
        bias: Mapping[int | str, float] | None,
        grammar: LlamaGrammar | None,
        limit: ThoughtLimit | None = None,
    ) -> LogitsProcessorList | None:
        """The function that changes logits: the caller's functions, then biases, then grammar,
        which waits for the end of thoughts that have a limit."""
        found = LogitsProcessorList()
        if (given := combined(given, LogitsProcessorList)) is not None:
            found.append(given)
        if bias:
            found.append(LogitBias(bias, self.n_vocab()))
        held = None if grammar is None else self._grammar_processor(grammar)
        if limit is not None:
            held = ThoughtProcessor(limit, held, self._prompts.any_bytes, self._special_behind)
        if held is not None:
            found.append(held)
        return found or None

    def _special_behind(self, text: str) -> list[int]:
        return self._prompts.behind(text, special=True)

    def _grammar_processor(self, grammar: LlamaGrammar) -> GrammarProcessor:
        if not isinstance(grammar, LlamaGrammar):
            raise ValueError("grammar must be a LlamaGrammar, LlamaGrammar.from_string for example")
        return grammar.processor(self._grammar_vocabulary())

    def _grammar_vocabulary(self) -> Vocabulary:
        """Made once. Then nobody waits for it: the engine's thread asks for it, too."""
        found = self._vocabulary
        if found is None:
            with self._lock:
                self._require_open()
                if self._vocabulary is None:
                    self._vocabulary = Vocabulary(self._model)
                found = self._vocabulary
        return found

    def _generated(
        self,
        ids: np.ndarray,
        params: Sampling,
        seed: int,
        reset: bool,
        processors: LogitsProcessorList | None,
        criteria: StoppingCriteria | None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """The ids after ids, and after what is computed unless reset."""
        with self._lock:
            context = self._computing
            before = context.n_tokens if not reset else 0
            flags = np.concatenate([context.generated()[:before], np.zeros(len(ids), bool)])
            ids = np.concatenate([context.input_ids[:before], ids])
        request = Request(
            ids,
            1,
            params,
            seed,
            processors=lambda: processors,
            criteria=criteria,
            drafts=self._new_drafts,
            generated=flags,
            endless=True,
        )
        steps, sent = self._write(request, reset), None
        with contextlib.suppress(StopIteration):
            while True:
                token, _ = steps.send(sent)
                sent = yield token

    def _write(
        self, request: Request, reset: bool = True
    ) -> Generator[tuple[int, Piece | None], Sequence[int] | None, None]:
        """The tokens and pieces of a request (loop.py)."""

        def measured(meter: Meter) -> None:
            self._meter = meter

        # A loop for each text: kept here, it would hold this instance in a circle.
        loop = Loop(
            self._lock,
            lambda: self._computing,
            lambda seed, of: self._samplers.make(of.params, seed, of.ids),
            self._prompts.token_bytes,
            measured,
        )
        return loop.run(request, reset)

    def set_seed(self, seed: int) -> None:
        """Seed of the random numbers of the following calls."""
        with self._lock:
            self._rng = new_random(seed)

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

    # ---- Internal; callers hold the lock ---------------------------------------------------

    def _new_drafts(self) -> Drafts | None:
        if self._draft is None or self._session_fields["record"]:
            return None
        return Drafts(self._draft, self._session_fields["n_batch"], self._model.n_vocab)
