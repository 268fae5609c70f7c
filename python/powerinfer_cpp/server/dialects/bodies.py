"""The bodies of requests, checked; OpenAI's, and what others share with them.

Fields that ask for a constraint or a limit are obeyed or refused (foreign.py); others that nobody
here knows are ignored.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from ...core.sampling import Sampling, by_letters
from ...text.thinking import Thinking
from ..errors import Refusal
from ..settings import Settings
from . import foreign
from .whole import converted, decoded

# A template is a program: it comes with the model, and not from clients.
FORBIDDEN = ("chat_template",)

Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Mirostat = Annotated[int, msgspec.Meta(ge=0, le=2)]
UpTo1 = Annotated[float, msgspec.Meta(ge=0, le=1)]
UpTo2 = Annotated[float, msgspec.Meta(ge=0, le=2)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# Each is looked for in the whole vocabulary.
FewTexts = Annotated[list[str], msgspec.Meta(max_length=32)]
Letters = Annotated[str, msgspec.Meta(max_length=32)]
LastN = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
TokenName = Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]
Pairs = Annotated[list[Any], msgspec.Meta(min_length=2, max_length=2)]
Texts = str | list[str]
Inputs = str | list[str | int | list[int]]


class ScaledAdapter(msgspec.Struct, kw_only=True):
    """An entry of llama.cpp's `lora`: an adapter of GET /lora-adapters, and its scale."""

    id: Id
    scale: float


class _Wanted(msgspec.Struct, kw_only=True):
    """`thinking` of a type that thinks."""

    budget_tokens: Count | None = None


class _Off(msgspec.Struct):
    """`thinking` of the type that does not."""


class _Reasoning(msgspec.Struct, kw_only=True):
    """`reasoning`, as far as it decides something here."""

    enabled: bool | None = None
    effort: str | None = None
    max_tokens: Count | None = None


_THINKING: Mapping[str, Any] = {"enabled": _Wanted, "adaptive": _Wanted, "disabled": _Off}
# Names of a budget of thoughts, the first that is given counts: ours, and those of llama.cpp, of
# vLLM and of Qwen's service.
_BUDGETS = (
    "reasoning_budget",
    "thinking_budget_tokens",
    "reasoning_budget_tokens",
    "thinking_token_budget",
    "thinking_budget",
)


class Thinks(msgspec.Struct, kw_only=True):
    """What chats of all dialects say of thoughts, and of how an answer begins. None: the default.

    thinking_: Anthropic's and others' object, or true or false. reasoning: that of OpenAI's
    responses and OpenRouter.
    """

    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    reasoning_format: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    thinking_: dict[str, Any] | bool | None = msgspec.field(name="thinking", default=None)
    reasoning: dict[str, Any] | None = None

    def thinking(self, default: Thinking, effort: object = None) -> Thinking:
        """The setting. effort: what the dialect says in its own words. What objects say counts more
        than single fields. Raises Refusal."""
        budgets = (getattr(self, name) for name in _BUDGETS)
        given = {
            "chat_template_kwargs": self.chat_template_kwargs,
            "enable_thinking": self.enable_thinking,
            "reasoning_effort": self.reasoning_effort,
            "reasoning_budget": next((each for each in budgets if each is not None), None),
            "reasoning_format": self.reasoning_format,
            "continue_final_message": self.continue_final_message,
            "add_generation_prompt": self.add_generation_prompt,
        }
        said = {**self._of_thinking(), **self._of_reasoning()}
        said = {name: value for name, value in said.items() if value is not None}
        said |= {} if effort is None else {"reasoning_effort": effort}
        try:
            return default.asked(**{**given, **said})
        except ValueError as error:
            raise Refusal(400, str(error), str(error).split()[0].rstrip(":")) from None

    def _of_thinking(self) -> dict[str, Any]:
        if self.thinking_ is None or isinstance(self.thinking_, bool):
            return {"enable_thinking": self.thinking_}
        wanted = typed("thinking", self.thinking_, _THINKING)
        if not isinstance(wanted, _Wanted):
            return {"enable_thinking": False}
        check_count(wanted.budget_tokens, "thinking.budget_tokens")
        return {"enable_thinking": True, "reasoning_budget": wanted.budget_tokens}

    def _of_reasoning(self) -> dict[str, Any]:
        if self.reasoning is None:
            return {}
        try:
            wanted = converted(self.reasoning, _Reasoning)
        except msgspec.ValidationError as error:
            raise Refusal(400, f"reasoning: {error}", "reasoning") from None
        found: dict[str, Any] = {"reasoning_effort": wanted.effort}
        found["reasoning_budget"] = wanted.max_tokens
        return found if wanted.enabled is None else {**found, "enable_thinking": wanted.enabled}


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


class Sampled(Thinks, kw_only=True):
    """What all dialects have in common, beside their own names for it. None: the default.

    UNUSED: fields that a route does not take, though they are here. GRAMMARS: fields that ask for a
    grammar.
    """

    UNUSED: ClassVar[frozenset[str]] = frozenset()
    GRAMMARS: ClassVar[tuple[str, ...]] = ("grammar", "json_schema", "response_format")

    model: str | None = None
    # Tokens of a text at most, in the words of each dialect and of llama.cpp.
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n_predict: int | None = None
    t_max_predict_ms: float | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: list[Pairs] | dict[str, float | bool] | None = None
    ignore_eos: bool | None = None
    repeat_last_n: LastN | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    # As llama.cpp's server names it.
    mirostat_mode: Mirostat | None = msgspec.field(name="mirostat", default=None)
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: FewTexts | None = None
    samplers: FewTexts | Letters | None = None  # names, or letters, in order
    seed: int | None = None
    stream: bool | None = None
    lora: list[ScaledAdapter] | None = None
    chat_template: Any = None

    def sampling(self, **defaults: Any) -> Sampling:
        """The parameters of the sampler."""
        names = Sampling().keywords()
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if isinstance(self.samplers, str):
            try:
                given["samplers"] = by_letters(self.samplers)
            except ValueError as error:
                raise Refusal(400, f"samplers: {error}", "samplers") from None
        return Sampling(**{**defaults, **given})

    @property
    def asks_for_grammar(self) -> bool:
        """Is its text constrained?"""
        return any(getattr(self, name) for name in self.GRAMMARS)

    @property
    def n_texts(self) -> int:
        """Texts that it asks for."""
        return 1

    @property
    def limit(self) -> int | None:
        """Tokens of a text at most: the least that is given; -1: any number, None: not said."""
        given = [n for name in _LIMITS if (n := getattr(self, name)) is not None]
        return min((n for n in given if n >= 0), default=-1 if given else None)

    @property
    def seconds(self) -> float | None:
        """How long a text with a line break may be written; None: as long as it takes."""
        given = self.t_max_predict_ms
        return given / 1e3 if given is not None and given > 0 else None


class OpenAISampled(Sampled, kw_only=True):
    """The same with OpenAI's ranges."""

    temperature: UpTo2 | None = None
    top_p: UpTo1 | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[TokenName, float] | None = None


class _Texts(OpenAISampled, kw_only=True):
    """What completions and chats have in common."""

    n: int | None = None
    stop: Texts | None = None
    stream_options: dict[str, Any] | None = None
    n_probs: int | None = None
    return_progress: bool | None = None

    @property
    def wants_usage(self) -> bool:
        """Does a stream end with token counts?"""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def n_texts(self) -> int:
        """Texts that it asks for."""
        return max(1, self.n or 1)


# Of routes that continue texts: thoughts are known to chats alone.
WITHOUT_CHATS = frozenset(Thinks.__struct_encode_fields__)


class CompletionBody(_Texts, kw_only=True):
    """POST /v1/completions."""

    UNUSED = WITHOUT_CHATS

    prompt: Inputs = ""
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    best_of: int | None = None

    @property
    def n_texts(self) -> int:
        """Texts that it asks for."""
        return n_prompts(self.prompt) * super().n_texts


def n_prompts(given: Any) -> int:
    """How many prompts a field asks for: a text is one, and so is a list of ids."""
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    return len(given) if several else 1


class ChatBody(_Texts, kw_only=True):
    """POST /v1/chat/completions."""

    GRAMMARS = (*Sampled.GRAMMARS, "tools")

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ModelBody(msgspec.Struct, kw_only=True):
    """POST /models/load and /models/unload."""

    model: str


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: llama.cpp's `content`, or `prompt` as lm-evaluation-harness sends it."""

    content: str | None = None
    prompt: str | None = None
    model: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[Id]
    model: str | None = None


class TemplateBody(Thinks, kw_only=True):
    """POST /apply-template."""

    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template: Any = None

    @property
    def asks_for_grammar(self) -> bool:
        """Would its answer be constrained?"""
        return bool(self.tools)


Body = TypeVar("Body")


def decode(data: bytes, kind: type[Body]) -> Body:
    """A body of this kind. Raises Refusal naming what is wrong."""
    try:
        body = decoded(data, kind)
        if isinstance(body, Sampled):
            foreign.check(data, {*body.__struct_encode_fields__} - body.UNUSED)
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error), _path(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply") from None
    for name in FORBIDDEN:
        if getattr(body, name, None) is not None:
            raise Refusal(400, f"{name} is not taken from requests: the model has its own", name)
    return body


def check_adapters(given: Sequence[ScaledAdapter], scales: Sequence[float]) -> None:
    """Refuses a request for other adapters than those with which the model was opened. An adapter
    that the request does not list has the scale 0, as in llama.cpp."""
    asked = {adapter.id: adapter.scale for adapter in given}
    if any(i >= len(scales) for i in asked):
        raise Refusal(400, f"there is no adapter {max(asked)}: the model has {len(scales)}", "lora")
    if [asked.get(i, 0.0) for i in range(len(scales))] != list(scales):
        raise Refusal(
            400,
            "all requests share the adapters and scales with which the server was started "
            "(GET /lora-adapters)",
            "lora",
        )


def check_limits(body: _Texts, settings: Settings) -> None:
    """Refuses what would take too much work or memory."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= settings.max_n:
        raise Refusal(400, f"n must be 1 to {settings.max_n}", "n")
    check_stops([body.stop] if isinstance(body.stop, str) else body.stop or [], "stop", settings)


def check_stops(stops: Sequence[str], name: str, settings: Settings) -> None:
    """Refuses stop texts that are too many or too long. name: of the field."""
    if len(stops) > settings.max_stops:
        raise Refusal(400, f"{name} may have at most {settings.max_stops} texts", name)
    length = settings.max_stop_length
    if any(len(stop) > length for stop in stops):
        raise Refusal(400, f"a text of {name} may have at most {length} characters", name)


def check_lengths(body: Sampled) -> None:
    """Refuses limits of tokens that are none."""
    for name in _LIMITS:
        if (getattr(body, name) or 0) < -1:
            raise Refusal(400, f"{name} must be at least 0, or -1 for any number", name)


def check_count(n: int | None, name: str) -> None:
    """Refuses a number of tokens below 1. name: of the field."""
    if n is not None and n < 1:
        raise Refusal(400, f"{name} must be at least 1", name)


def check_top(n: int | None, name: str, settings: Settings) -> int | None:
    """A number of likely tokens. Raises Refusal."""
    if n is not None and not 0 <= n <= settings.max_top:
        raise Refusal(400, f"{name} must be 0 to {settings.max_top}", name)
    return n


def typed(where: str, value: Mapping[str, Any], kinds: Mapping[str, type[Body]]) -> Body:
    """The value as the struct of its `type`. where: names it in errors. Raises Refusal."""
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(kinds)
        raise Refusal(
            400, f"{where} is of type {kind!r}, which is not supported: known are {known}", where
        )
    try:
        return converted(value, kinds[kind])
    except msgspec.ValidationError as error:
        raise Refusal(400, f"{where}: {error}", where) from None


def _path(message: str) -> str | None:
    """The field that msgspec's message names: "... - at `$.n`"."""
    _, found, path = message.rpartition("at `$")
    return path.rstrip("`").lstrip(".") or None if found else None
