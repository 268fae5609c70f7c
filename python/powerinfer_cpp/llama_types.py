"""Types of requests and answers under the names of llama-cpp-python's module.

Answers are those of answers.py. All of them are for type checkers: at run time they are dicts.
"""

from typing import Any, Literal, TypedDict

from .text.answers import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChosenLogprob,
    CompletionChunk,
    EmbeddingData,
    Embeddings,
    FunctionDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from .text.answers import ChatCompletion as ChatCompletion
from .text.answers import Completion as Completion
from .text.answers import CompletionChoice as CompletionChoice
from .text.answers import CompletionLogprobs as CompletionLogprobs
from .text.answers import EmbeddingUsage as EmbeddingUsage

JsonType = None | int | str | bool | list[Any] | dict[str, Any]

# ---- Answers -----------------------------------------------------------------------------

CompletionUsage = Usage
CreateCompletionResponse = Completion
CreateCompletionStreamResponse = CompletionChunk

Embedding = EmbeddingData
CreateEmbeddingResponse = Embeddings

ChatCompletionResponseFunctionCall = CalledFunction
ChatCompletionFunctionCall = CalledFunction
ChatCompletionMessageToolCallFunction = CalledFunction
ChatCompletionMessageToolCall = ToolCall
ChatCompletionMessageToolCalls = list[ToolCall]
ChatCompletionResponseMessage = ChatMessage
ChatCompletionMessage = ChatMessage
ChatCompletionResponseChoice = ChatChoice
ChatCompletionChoice = ChatChoice
ChatCompletionTopLogprobToken = TokenLogprob
ChatCompletionLogprobToken = ChosenLogprob
ChatCompletionLogprobs = ChatLogprobs
CreateChatCompletionResponse = ChatCompletion

ChatCompletionMessageToolCallChunkFunction = FunctionDelta
ChatCompletionMessageToolCallChunk = ToolCallDelta
ChatCompletionStreamResponseDelta = ChatDelta
ChatCompletionChunkDelta = ChatDelta
ChatCompletionStreamResponseChoice = ChatChunkChoice
ChatCompletionChunkChoice = ChatChunkChoice
CreateChatCompletionStreamResponse = ChatChunk
ChatCompletionStreamResponse = ChatChunk
ChatCompletionChunk = ChatChunk

# ---- Requests ----------------------------------------------------------------------------


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A part of a message; the only kind that is taken."""

    type: Literal["text"]
    text: str


ChatCompletionRequestMessageContentPart = ChatCompletionRequestMessageContentPartText


class ChatCompletionRequestSystemMessage(TypedDict):
    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class _AssistantMessage(TypedDict):
    role: Literal["assistant"]


class ChatCompletionRequestAssistantMessage(_AssistantMessage, total=False):
    content: str | None
    tool_calls: ChatCompletionMessageToolCalls


class ChatCompletionRequestToolMessage(TypedDict):
    """What a tool gave back."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


ChatCompletionRequestMessage = (
    ChatCompletionRequestSystemMessage
    | ChatCompletionRequestUserMessage
    | ChatCompletionRequestAssistantMessage
    | ChatCompletionRequestToolMessage
)


class _ResponseFormat(TypedDict):
    type: Literal["text", "json_object"]


class ChatCompletionRequestResponseFormat(_ResponseFormat, total=False):
    """schema: a JSON schema for json_object."""

    schema: JsonType


ChatCompletionFunctionParameters = dict[str, JsonType]


class _ToolFunction(TypedDict):
    name: str
    parameters: ChatCompletionFunctionParameters


class ChatCompletionToolFunction(_ToolFunction, total=False):
    """A tool. parameters: a JSON schema."""

    description: str


ChatCompletionFunction = ChatCompletionToolFunction
ChatCompletionResponseFunction = ChatCompletionToolFunction
ChatCompletionFunctions = ChatCompletionToolFunction


class ChatCompletionTool(TypedDict):
    type: Literal["function"]
    function: ChatCompletionToolFunction


class ChatCompletionNamedToolChoiceFunction(TypedDict):
    name: str


class ChatCompletionNamedToolChoice(TypedDict):
    """A tool that must be called."""

    type: Literal["function"]
    function: ChatCompletionNamedToolChoiceFunction


ChatCompletionToolChoiceOption = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoice
