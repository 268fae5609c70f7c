"""The dicts that completions, chats and embeddings return: OpenAI's, as llama-cpp-python has them.

For type checkers; at run time all of them are plain dicts.
"""

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .grammar import LlamaGrammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Reason = Literal["stop", "length"]


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(TypedDict):
    """Lists with an entry per token."""

    text_offset: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """A text; in a stream, a piece of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None


class CompletionChunk(TypedDict):
    """What a stream of create_completion brings."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]


class Completion(CompletionChunk):
    """What create_completion returns."""

    usage: Usage


class TokenLogprob(TypedDict):
    """A token that was, or might have been, chosen."""

    token: str
    bytes: list[int]
    logprob: float


class ChosenLogprob(TokenLogprob):
    """A token of an answer, and the likely ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChosenLogprob]
    refusal: None


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class ChatCompletion(TypedDict):
    """What create_chat_completion returns."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatChunk(TypedDict):
    """What a stream of create_chat_completion brings."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]


class EmbeddingData(TypedDict):
    """An embedding: a vector per token, or with a pooling_type one vector."""

    object: Literal["embedding"]
    embedding: list[list[float]] | list[float]
    index: int


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """What create_embedding returns."""

    object: Literal["list"]
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage


class _Options(TypedDict, total=False):
    min_p: float
    typical_p: float
    stop: "str | Sequence[str] | None"
    seed: int | None
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    logits_processor: Any
    grammar: LlamaGrammar | None
    logit_bias: "Mapping[int | str, float] | None"


class CompletionOptions(_Options, total=False):
    """Keyword arguments of create_completion."""

    top_k: int
    logprobs: int | None
    echo: bool
    stopping_criteria: Any


class ChatOptions(_Options, total=False):
    """Keyword arguments of create_chat_completion."""

    functions: Any
    function_call: Any
    tools: Any
    tool_choice: Any
    top_k: int
    max_tokens: int | None
    response_format: dict[str, Any] | None
    logprobs: bool | None
    top_logprobs: int | None
    temperature: float
    top_p: float
