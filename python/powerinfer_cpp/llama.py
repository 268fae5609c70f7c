"""`Llama`: completions, chats and embeddings of one model, with llama-cpp-python's interface."""

import codecs
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from . import hub
from .core import checks, options
from .core.errors import ContextOverflowError, OutOfMemoryError
from .core.logits import (
    AnyStoppingCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    LogitsProcessors,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from .core.sampling import Sampling, without_forgotten
from .core.session import as_tokens
from .core.state import BaseLlamaCache, LlamaCache, LlamaRAMCache, LlamaState, common_prefix
from .llama_core import RANDOM_SEEDS, LlamaCore, combined
from .llama_embeddings import LlamaEmbeddings
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from .run.disk_cache import LlamaDiskCache
from .run.drafts import LlamaDraftModel
from .run.requests import Request
from .text import chat, completion
from .text.answers import (
    ChatChunk,
    ChatCompletion,
    ChatOptions,
    Completion,
    CompletionChunk,
    CompletionOptions,
    Samplers,
)
from .text.completion import ChatDicts, CompletionDicts, Piece, stop_bytes
from .text.grammar import LlamaGrammar, response_grammar
from .text.logprobs import Choice, Placed, choice
from .text.prompts import Text
from .text.thinking import THINKING, Thinking

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Also what code imports from llama-cpp-python's module of this name.
__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]

# Arguments of create_chat_completion that are fields of Sampling, beside those of `sampling`.
_CHOOSING = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty"),
    *("frequency_penalty", "presence_penalty", "mirostat_mode", "mirostat_tau", "mirostat_eta"),
)


class Llama(LlamaEmbeddings):
    __doc__ = LlamaCore.__doc__

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | None = None,
        local_dir_use_symlinks: object = None,
        cache_dir: str | None = None,
        revision: str | None = None,
        token: str | None = None,
        **keywords: Any,
    ) -> "Llama":
        """Downloads a file from a Hugging Face repository and opens it. Without a network it opens
        what was downloaded before.

        filename, additional_files (the other parts of a split model): names or globs, each must
        match exactly one file. revision: a branch, tag or commit. token: default: HF_TOKEN, or the
        login. keywords: passed to the constructor. Raises ImportError without huggingface_hub,
        ValueError if a glob does not match exactly one file, OSError for a repository that cannot
        be read.
        """
        names = [filename, *(additional_files or ())]
        verbose = bool(keywords.get("verbose", True))
        path = hub.download(repo_id, names, local_dir, cache_dir, revision, token, verbose)
        return cls(path, **keywords)

    # ---- Completion ----------------------------------------------------------------------

    @overload
    def create_completion(
        self,
        prompt: Text,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        *,
        stream: Literal[False] = False,
        **keywords: "Unpack[CompletionOptions]",
    ) -> Completion: ...

    @overload
    def create_completion(
        self,
        prompt: Text,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        *,
        stream: Literal[True],
        **keywords: "Unpack[CompletionOptions]",
    ) -> Iterator[CompletionChunk]: ...

    @overload
    def create_completion(
        self,
        prompt: Text,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        *,
        stream: bool,
        **keywords: "Unpack[CompletionOptions]",
    ) -> Completion | Iterator[CompletionChunk]: ...

    def create_completion(
        self,
        prompt: Text,
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: AnyStoppingCriteria = None,
        logits_processor: LogitsProcessors = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int | str, float] | None = None,
        **sampling: "Unpack[Samplers]",
    ) -> Completion | Iterator[CompletionChunk]:
        """Continues a prompt. Returns a dict in OpenAI's shape or, with stream, an iterator of
        such dicts. `llm(prompt, ...)` is the same.

        prompt: text, in which texts of control tokens become those tokens, with BOS before it if
        the file asks for it; or ids, used unchanged. max_tokens: None or <= 0 means until the
        context is full. finish_reason is "stop" after a stop string or an end token, else "length".
        suffix: a text behind the completion, for models with FIM tokens; then texts of control
        tokens are text. "" counts as None.

        logprobs: number of most likely tokens to return for each position, with log-probabilities
        from the model's own logits. With echo, the prompt's tokens come first (the first one has
        None), and an end token has an entry. text_offset counts characters from the beginning of
        the prompt. grammar: constrains the text. sampling: top_n_sigma, xtc_probability,
        xtc_threshold, dynatemp_range, dynatemp_exponent, dry_multiplier and dry's others, samplers
        (names in order; sampling.py).

        Raises ContextOverflowError if the prompt leaves no room, ValueError for bad options.
        """
        options.refuse(tfs_z=tfs_z != 1.0)
        ids = self._prompts.infill_ids(prompt, suffix) if suffix else self._prompts.ids(prompt)
        params = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repeat_penalty=repeat_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            mirostat_mode=mirostat_mode,
            mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta,
            **without_forgotten(sampling),
        )
        limit = self._limit(ids, max_tokens)
        processors = self._processors(logits_processor, logit_bias, grammar)
        criteria = combined(stopping_criteria, StoppingCriteriaList)
        text = self._prompts.text(prompt)
        n_top = None if logprobs is None else _count("logprobs", logprobs)
        if suffix and echo and n_top is not None:
            raise ValueError("a suffix with echo has no logprobs of the prompt")
        read = self._read(ids, text, n_top) if echo and n_top is not None else []
        parts = self._pieces(
            ids, params, limit, stop_bytes(stop), seed, processors, criteria, n_top, len(text), echo
        )
        named = None if logprobs is None else self._prompts.name_bytes
        dicts = CompletionDicts(model or self.model_path, named, (text if echo else "", read))
        if stream:
            return completion.stream(dicts, parts)
        with self._lock:
            return completion.whole(dicts, parts, len(ids))

    if TYPE_CHECKING:
        __call__ = create_completion
    else:

        @functools.wraps(create_completion)
        def __call__(self, *args: Any, **keywords: Any) -> Any:
            return self.create_completion(*args, **keywords)  # which a subclass may override

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        stream: Literal[False] = False,
        **keywords: "Unpack[ChatOptions]",
    ) -> ChatCompletion: ...

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        stream: Literal[True],
        **keywords: "Unpack[ChatOptions]",
    ) -> Iterator[ChatChunk]: ...

    @overload
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        stream: bool,
        **keywords: "Unpack[ChatOptions]",
    ) -> ChatCompletion | Iterator[ChatChunk]: ...

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, object]],
        functions: object = None,
        function_call: object = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, object] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: LogitsProcessors = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[int | str, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        reasoning_effort: str | None = None,
        reasoning_budget: int | None = None,
        reasoning_format: str | None = None,
        continue_final_message: bool | None = None,
        **sampling: "Unpack[Samplers]",
    ) -> ChatCompletion | Iterator[ChatChunk]:
        """Answers messages, each {"role": "system"/"user"/"assistant"/"tool", "content": text}.
        Returns a dict in OpenAI's shape or, with stream, an iterator of chunks.

        A last message of the assistant's is the beginning of the answer, which is not repeated;
        continue_final_message: False: it is not. Thoughts of a model whose template knows them are
        the message's "reasoning_content", and are taken back from earlier messages under this key;
        reasoning_format "none" leaves them in the content. reasoning_effort: "none" (no thoughts)
        up to "max". reasoning_budget: tokens of thoughts at most, after which they are closed; 0:
        none, -1: any number. chat_template_kwargs: further names for the template, such as
        enable_thinking.

        chat_handler answers, if there is one. Else chat_format makes the prompt, or the file's own
        template (in jinja2's sandbox), or the format llama-2. response_format: {"type": "text"} or
        {"type": "json_object"}, optionally with a "schema". tools, tool_choice: as in OpenAI's
        interface; finish_reason is "tool_calls" if the answer calls one. "required" and a named
        function constrain the text; with "auto", what is no valid call is content. logprobs: return
        log-probabilities of the answer's tokens, and of top_logprobs most likely tokens at each
        position.

        Raises the errors of create_completion, and ValueError for unusable messages or templates.
        """
        given = dict(locals())
        del given["self"]
        if self.chat_handler is None:
            return self._answer(given)
        del given["sampling"]
        for name in THINKING:  # handlers of other programs do not know them
            if given[name] is None:
                del given[name]
        return self.chat_handler(llama=self, **given, **sampling)

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """create_chat_completion with the classes of the package openai.

        Raises ImportError if that is not installed.
        """
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError:
            raise ImportError("this needs the package openai: pip install openai") from None
        answer = self.create_chat_completion(*args, **kwargs)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**chunk) for chunk in answer)

    def set_chat_template(self, source: str) -> None:
        """Chats use this Jinja template instead of the file's, until this instance is closed; a
        pickle does not keep it. Raises ValueError for a bad template."""
        self.chat_handler = None
        self._prompts.use_template(source)

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Caches the states of completions, to reuse common beginnings of prompts; None: off."""
        with self._lock:
            self._cache = cache

    @property
    def cache(self) -> BaseLlamaCache | None:
        """What `set_cache` has set."""
        return self._cache

    @cache.setter
    def cache(self, cache: BaseLlamaCache | None) -> None:
        self.set_cache(cache)

    def tokenizer(self) -> LlamaTokenizer:
        """The tokenizer as a separate object."""
        return LlamaTokenizer(self)

    @property
    def tokenizer_(self) -> LlamaTokenizer:
        """The same, under the name of llama-cpp-python's attribute."""
        return self.tokenizer()

    # ---- Internal ------------------------------------------------------------------------

    def _answer(self, given: Mapping[str, Any], chat_format: chat.ChatFormat | None = None) -> Any:
        """What create_chat_completion gives for its arguments, with its own or another format."""
        options.refuse(
            functions=given["functions"],
            function_call=given["function_call"] and given["function_call"] != "none",
            tfs_z=given["tfs_z"] != 1.0,
        )
        grammar, tools = given["grammar"], (given["tools"], given["tool_choice"])
        if grammar is None:
            grammar = response_grammar(given["response_format"])
        thinking = Thinking().asked(**{name: given[name] for name in THINKING})
        turn = self._prompts.turn(
            given["messages"], *tools, grammar, chat_format=chat_format, thinking=thinking
        )
        ids = self._prompts.ids(turn.text)
        params = Sampling(
            **{name: given[name] for name in _CHOOSING}, **without_forgotten(given["sampling"])
        )
        limit = self._limit(ids, given["max_tokens"])
        processors = self._processors(
            given["logits_processor"], given["logit_bias"], turn.grammar, turn.limit
        )
        stops = stop_bytes(given["stop"]) + stop_bytes(turn.stop)
        n_top = _count("top_logprobs", given["top_logprobs"] or 0) if given["logprobs"] else None
        parts = self._pieces(
            ids,
            params,
            limit,
            stops,
            given["seed"],
            processors,
            turn.criteria,
            n_top,
            shown=turn.shown,
        )
        named = None if n_top is None else self._prompts.name_bytes
        dicts = ChatDicts(given["model"] or self.model_path, named, turn.parser)
        if given["stream"]:
            return completion.stream(dicts, parts)
        with self._lock:
            return completion.whole(dicts, parts, len(ids))

    def _pieces(
        self,
        ids: list[int],
        params: Sampling,
        limit: int,
        stops: list[bytes],
        seed: int | None,
        processors: LogitsProcessor | None,
        criteria: StoppingCriteria | None,
        n_top: int | None,
        offset: int = 0,
        with_end: bool = False,
        shown: Mapping[str, int] | None = None,
    ) -> Iterator[Piece]:
        """The text after ids. n_top: number of likely tokens to record, or None. shown: control
        tokens that are part of the text."""
        seed = checks.whole_or_none("seed", seed)
        if seed in RANDOM_SEEDS:
            with self._lock:
                seed = self._rng.getrandbits(32)
        request = Request(
            ids,
            limit,
            params,
            seed,
            stops,
            processors=lambda: processors,
            n_top=n_top,
            offset=offset,
            with_end=with_end,
            shown={token: text.encode("utf-8") for text, token in (shown or {}).items()},
            criteria=criteria,
            drafts=self._new_drafts,
        )
        parts = (piece for _, piece in self._write(request) if piece is not None)
        return parts if self._cache is None else self._cached(ids, parts)

    def _cached(self, ids: list[int], parts: Iterator[Piece]) -> Iterator[Piece]:
        """The parts; starts from the cached state with the longest common prefix, and caches."""
        with self._lock:
            cache, context, wanted = self._cache, self._computing, as_tokens(ids)
            state = None
            with suppress(KeyError):  # there is none, or another process has removed it
                state = cache[tuple(ids)]
            if state is not None:
                usable = common_prefix(state.input_ids[: state.n_prompt], wanted)
                if state.n_tokens <= context.n_ctx and usable > context.reusable(wanted):
                    with suppress(ValueError):  # of another model or mode, or damaged
                        context.load(state)
            del state  # otherwise its bytes could not be freed to make room
        yield from parts
        with self._lock:
            if self._computing.n_tokens:
                with suppress(OutOfMemoryError):  # it does not fit, so it is not kept
                    self._keep(cache)

    def _keep(self, cache: Any) -> None:
        """Puts the state of the sequence into a cache. Removes older states if the budget requires
        it. Raises OutOfMemoryError, with nothing copied, if the state does not fit."""
        model, ours = self._model, isinstance(cache, LlamaRAMCache)

        def reserve(n_bytes: int) -> Any:
            while True:
                try:
                    return model.reserve("a cached state", n_bytes)
                except OutOfMemoryError:
                    # Remove older states only if that frees enough.
                    if not ours or n_bytes > model.unreserved() + cache.reserved(model):
                        raise
                    cache.forget_oldest()

        state = self._computing.save(reserve)
        cache[tuple(state.input_ids.tolist())] = state

    def _limit(self, ids: list[int], max_tokens: int | None) -> int:
        """Number of tokens that can follow. Raises ContextOverflowError for 0."""
        max_tokens = checks.whole_or_none("max_tokens", max_tokens)
        room = self.n_ctx() - len(ids)
        if room <= 0:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens, which leaves no room in a context of "
                f"{self.n_ctx()}"
            )
        return min(max_tokens, room) if max_tokens and max_tokens > 0 else room

    def _read(self, ids: list[int], text: str, n_top: int) -> list[Placed]:
        """Choices of a prompt's tokens. text: the prompt, for their positions."""
        with self._lock:
            context, rows = self._computing, [choice(ids[0], None, n_top)]

            def visit(i: int, logits: np.ndarray) -> None:
                if i + 1 < len(ids):
                    rows.append(choice(ids[i + 1], logits, n_top))

            context.visit(as_tokens(ids), visit)
        return self._placed(ids, text, rows)

    def _placed(self, ids: list[int], text: str, rows: Sequence[Choice]) -> list[Placed]:
        """The choices of a prompt's tokens with their places in its text."""
        with self._in_use:
            shown = [self._model.text(token, True) for token in ids]
            begins = self._model.text(ids[0], True)
        if ids[0] == self._model.bos and not text.startswith(begins.decode("utf-8", "replace")):
            shown[0] = b""
        # Tokenizers may add a space before a text; it is not part of the text.
        visible = text.encode("utf-8", "surrogateescape").decode("utf-8", "ignore")
        spaced = b"".join(shown).decode("utf-8", "ignore") == f" {visible}"
        first = next((i for i, data in enumerate(shown) if data), None)
        found, n_chars, decoder = [], 0, codecs.getincrementaldecoder("utf-8")("ignore")
        for i, (row, data) in enumerate(zip(rows, shown, strict=True)):
            strip = spaced and i == first
            found.append(Placed(row, n_chars, strip))
            n_chars += len(decoder.decode(data[1:] if strip else data))
        return found


def _count(name: str, n: int) -> int:
    """n as a count. Raises ValueError for negative numbers and other types."""
    n = checks.whole(name, n)
    if n < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return n
