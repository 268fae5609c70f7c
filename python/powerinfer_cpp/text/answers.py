"""Types of the dicts that completions, chats and embeddings return, as in llama-cpp-python.

Only for type checkers; at run time all of them are plain dicts.
"""

from typing import TYPE_CHECKING, Literal, TypedDict

from ..core.logits import AnyStoppingCriteria, LogitsProcessors
from .grammar import LlamaGrammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Reason = Literal["stop", "length"]
ChatReason = Literal["stop", "length", "tool_calls"]
# A vector per token, or with a pooling_type one vector.
Embedding = list[list[float]] | list[float]


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(TypedDict):
    """Lists with one entry per token."""

    text_offset: list[int]
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """A text, or in a stream a piece of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None


class CompletionChunk(TypedDict):
    """An item of create_completion with stream=True."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]


class Completion(CompletionChunk):
    """The result of create_completion."""

    usage: Usage


class TokenLogprob(TypedDict):
    """A token with its log-probability."""

    token: str
    bytes: list[int]
    logprob: float


class ChosenLogprob(TokenLogprob):
    """A token of an answer, and the most likely tokens at its position."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of the tokens of an answer."""

    content: list[ChosenLogprob]
    refusal: None


class CalledFunction(TypedDict):
    """arguments: the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class _Message(TypedDict):
    role: Literal["assistant"]
    content: str | None


class ChatMessage(_Message, total=False):
    """content: None if there are only calls. reasoning_content: thoughts before the answer."""

    reasoning_content: str
    tool_calls: list[ToolCall]


class ChatChoice(TypedDict):
    """An answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason


class ChatCompletion(TypedDict):
    """The result of create_chat_completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(TypedDict, total=False):
    """name: in the first delta of a call. arguments: their next piece."""

    name: str
    arguments: str


class _ToolCallDelta(TypedDict):
    index: int
    function: FunctionDelta


class ToolCallDelta(_ToolCallDelta, total=False):
    """id and type are in the first delta of a call."""

    id: str
    type: Literal["function"]


class ChatDelta(TypedDict, total=False):
    """What a chunk adds to an answer."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]


class ChatChunkChoice(TypedDict):
    """A piece of an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason | None


class ChatChunk(TypedDict):
    """An item of create_chat_completion with stream=True."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]


class EmbeddingData(TypedDict):
    """An embedding: one vector per token, or a single vector with a pooling_type."""

    object: Literal["embedding"]
    embedding: Embedding
    index: int


class EmbeddingUsage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The result of create_embedding."""

    object: Literal["list"]
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage


class Plan(TypedDict):
    """What `Llama.plan` returns: bytes by part, in all, and how many of RAM and of a device's
    memory may be used. storage: what only the disk has, which `total` leaves out. read_seconds:
    what reading it is expected to take for a generated token. Of experts on the disk, else 0: hits,
    the share of those chosen that memory is expected to have; token_seconds, what a generated token
    takes with its reads; twice, the bytes of RAM with which it takes half of that, 0: none do. Of
    mixtures, else 0: experts, of all layers, and device_experts, how many a device has room for.
    layers of the model, of which a device has the last device_layers, and the head if device_head.
    why_layer and why_head say why the layer before these, or the head, is not there; "": it is, or
    no device was asked for."""

    ram: dict[str, int]
    gpu: dict[str, int]
    storage: dict[str, int]
    total: int
    budget: int
    vram_budget: int
    read_seconds: float
    hits: float
    token_seconds: float
    twice: int
    experts: int
    device_experts: int
    layers: int
    device_layers: int
    device_head: bool
    why_layer: str
    why_head: str


class Percentiles(TypedDict):
    """Half, 95% and 99% of the values are not above these."""

    p50: float
    p95: float
    p99: float


class Audit(TypedDict):
    """Neurons that fired in audited segments, and those that predictors found."""

    fired: int
    found: int


class Tier(TypedDict):
    """A place of neurons: how many it has, their bytes, how often tokens needed them there; for
    storage the reads, and the seconds in which a pass waited for them. experts: of mixtures, those
    whose neurons these are."""

    neurons: int
    experts: int
    bytes: int
    hits: int
    reads: int
    stall_s: float
    layer_neurons: list[int]
    layer_hits: list[float]


class Parts(TypedDict):
    """Slots in memory for parts of neurons, or experts, that are read from storage, and how often
    those were needed and missed."""

    slots: int
    used: int
    needed: int
    missed: int


class Storage(TypedDict):
    """How a model runs from storage. unit: what is read, "parts of neurons", "experts" or
    "blocks". Lists have a value for each layer."""

    io: str
    direct: bool
    unit: str
    arena_bytes: int
    first: Parts
    rest: Parts
    reads: int
    guessed: int
    guessed_right: int
    layer_needed: list[int]
    layer_missed: list[int]
    layer_bytes: list[int]
    layer_stall_s: list[float]


class Experts(TypedDict):
    """Experts of a mixture: of all layers; how many a GPU has room for, and has now. chosen: pairs
    of a row and an expert that it chose, by where they were computed ("gpu", "ram") or had to be
    read from ("storage"). copies and copied_bytes: to the GPU since the model was opened."""

    experts: int
    gpu_room: int
    gpu_has: int
    chosen: dict[str, int]
    copies: int
    copied_bytes: int


class Stats(TypedDict):
    """What `Llama.stats` returns, which says what they are."""

    n_prompt: int
    n_gen: int
    prompt_s: float
    gen_s: float
    gen_ts: float
    ttft_s: float
    token_ms: Percentiles
    share_predicted: list[float]
    share_computed: list[float]
    share_fired: list[float]
    audit: Audit
    bytes_per_token: dict[str, int]
    tiers: dict[str, Tier]
    storage: Storage | None
    experts: Experts | None
    pcie_bytes: int
    rss_peak: int
    vram_peak: int


class Samplers(TypedDict, total=False):
    """Further fields of Sampling, which every method that chooses tokens takes."""

    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: "Sequence[str]"
    samplers: "Sequence[str] | None"


class _Options(Samplers, total=False):
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
    logits_processor: LogitsProcessors
    grammar: LlamaGrammar | None
    logit_bias: "Mapping[int | str, float] | None"


class CompletionOptions(_Options, total=False):
    """Keyword arguments of create_completion."""

    top_k: int
    logprobs: int | None
    echo: bool
    stopping_criteria: AnyStoppingCriteria


class ChatOptions(_Options, total=False):
    """Keyword arguments of create_chat_completion."""

    functions: object
    function_call: object
    tools: "Sequence[Mapping[str, object]] | None"
    tool_choice: "str | Mapping[str, object] | None"
    top_k: int
    max_tokens: int | None
    response_format: "Mapping[str, object] | None"
    logprobs: bool | None
    top_logprobs: int | None
    temperature: float
    top_p: float
    chat_template_kwargs: "Mapping[str, object] | None"
    reasoning_effort: str | None
    reasoning_budget: int | None
    reasoning_format: str | None
    continue_final_message: bool | None
