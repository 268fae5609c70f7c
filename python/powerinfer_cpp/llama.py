"""`Llama`: completions, chats and embeddings of one model, with llama-cpp-python's interface."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from . import hub
from .core import checks, options
from .core.logits import (
    AnyStoppingCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    LogitsProcessors,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    combined,
)
from .core.sampling import Sampling, further
from .core.state import BaseLlamaCache, LlamaCache, LlamaRAMCache, LlamaState
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from .llama_vectors import LlamaVectors
from .run.disk_cache import LlamaDiskCache
from .run.drafts import LlamaDraftModel
from .run.requests import Request, n_following
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
from .text.completion import ChatDicts, CompletionDicts
from .text.grammar import LlamaGrammar, response_grammar
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


class Llama(LlamaVectors):
    """Runs a GGUF model: text to tokens, tokens to logits, logits to tokens.

    Several threads may use one instance: calls wait for each other. A stream or a `generate` locks
    the instance only while it computes a token; after another call in between, it computes its own
    tokens again and continues with the same result.

    Opening raises OSError, ModelFormatError, UnsupportedModelError, OutOfMemoryError, DeviceError,
    and ValueError naming the option. Unknown keyword arguments are ignored with a warning.
    """

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
            **further("create_completion", sampling),
        )
        text = self._prompts.text(prompt)
        n_top = None if logprobs is None else _count("logprobs", logprobs)
        if suffix and echo and n_top is not None:
            raise ValueError("a suffix with echo has no logprobs of the prompt")
        limit = n_following(len(ids), self.n_ctx(), max_tokens)
        processors = self._prompts.processors(logits_processor, logit_bias, grammar)
        request = self._runtime.request(
            prompt,
            ids,
            limit,
            seed=seed,
            stop=stop,
            params=params,
            processors=lambda: processors,
            n_top=n_top,
            offset=len(text),
            with_end=echo,
            criteria=combined("stopping_criteria", stopping_criteria, StoppingCriteriaList),
        )
        read = []
        if echo and n_top is not None:
            read = self._prompts.placed(ids, text, self._loop.choices(ids, n_top))
        named = None if n_top is None else self._prompts.name_bytes
        dicts = CompletionDicts(model or self.model_path, named, (text if echo else "", read))
        return self._written(request, dicts, stream)

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
        self._loop.cache = cache

    @property
    def cache(self) -> BaseLlamaCache | None:
        """What `set_cache` has set."""
        return self._loop.cache

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
            **{name: given[name] for name in _CHOOSING},
            **further("create_chat_completion", given["sampling"]),
        )
        limit = n_following(len(ids), self.n_ctx(), given["max_tokens"])
        processors = self._prompts.processors(
            given["logits_processor"], given["logit_bias"], turn.grammar, turn.limit
        )
        n_top = _count("top_logprobs", given["top_logprobs"] or 0) if given["logprobs"] else None
        request = self._runtime.request(
            turn.text,
            ids,
            limit,
            seed=given["seed"],
            stop=given["stop"],
            stops=turn.stop,
            params=params,
            processors=lambda: processors,
            n_top=n_top,
            shown=turn.shown,
            criteria=turn.criteria,
            shared=turn.shared,
        )
        named = None if n_top is None else self._prompts.name_bytes
        dicts = ChatDicts(given["model"] or self.model_path, named, turn.parser)
        return self._written(request, dicts, given["stream"])

    def _written(self, request: Request, dicts: completion.Dicts, stream: bool) -> Any:
        """The dicts of a request's text, or with stream an iterator of them."""
        parts = self._loop.pieces(request)
        if stream:
            return completion.stream(dicts, parts)
        with self._runtime.lock:
            return completion.whole(dicts, parts, len(request.ids))


def _count(name: str, n: int) -> int:
    """n as a count. Raises ValueError for negative numbers and other types."""
    n = checks.whole(name, n)
    if n < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return n
