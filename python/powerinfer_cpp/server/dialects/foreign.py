"""Fields of other servers that ask for a constraint or a limit: what a route has no such field for
is refused by name, and never dropped.

A route that has a field of its own with this name takes it. What asks for nothing, such as 0 for a
limit that is off, passes. Fields that change neither what may be written nor how much are not here.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import Refusal


def _has(*names: str) -> Callable[[Any], bool]:
    """Does an object have one of these? Other values ask for nothing."""

    def asks(value: Any) -> bool:
        return isinstance(value, Mapping) and any(value.get(name) is not None for name in names)

    return asks


def _but(*harmless: Any) -> Callable[[Any], bool]:
    """Is a value none of these, nor one that stands for nothing?"""
    return lambda value: bool(value) and value not in harmless


def _names_any(value: Any) -> bool:
    """Does a list name anything? llama.vim wants none of an answer, with [""]."""
    return any(value) if isinstance(value, list) else bool(value)


@dataclass(frozen=True)
class Foreign:
    """why: it is refused, and what to use. asks: does a value that is not null ask for anything?"""

    why: str
    asks: Callable[[Any], bool] = bool


_FORMAT = Foreign("use response_format, json_schema or grammar")
_ANY_FORMAT = Foreign(_FORMAT.why, lambda value: True)
_LAZY = Foreign("a grammar holds from the beginning of an answer")
_TOKENS = Foreign("use logit_bias")
_SHORTEST = Foreign("use ignore_eos, or a grammar")
_MOST = Foreign("use the route's own limit of tokens")
_STOP = Foreign("use the route's own stop texts")
_ONE = Foreign("this route writes one text", _but(1))
_NO_LOGPROBS = Foreign("this route gives no log-probabilities")
_SAMPLERS = Foreign("use samplers")
_TOOLS = Foreign("tools are for chats")
_NO_SEARCH = Foreign("texts are drawn token by token", _but(1))
_THOUGHTS = Foreign("thoughts are known to chats alone")
_BUDGET = Foreign(_THOUGHTS.why, lambda value: value != -1)

FIELDS: Mapping[str, Foreign] = {
    # Constraints of vLLM, SGLang, text-generation-inference, Ollama and llama.cpp.
    "guided_json": _ANY_FORMAT,
    "guided_regex": _FORMAT,
    "guided_choice": _FORMAT,
    "guided_grammar": _FORMAT,
    "guided_whitespace_pattern": _FORMAT,
    "structured_outputs": _FORMAT,
    "structural_tag": _FORMAT,
    "regex": _FORMAT,
    "ebnf": _FORMAT,
    "format": _FORMAT,
    "grammar_lazy": _LAZY,
    "grammar_triggers": _LAZY,
    "bad_words": _TOKENS,
    "bad_words_ids": _TOKENS,
    "allowed_token_ids": _TOKENS,
    "logits_processors": _TOKENS,
    "min_tokens": _SHORTEST,
    "min_new_tokens": _SHORTEST,
    "min_length": _SHORTEST,
    "no_repeat_ngram_size": Foreign("use dry_multiplier"),
    "n_indent": Foreign("use stop"),
    # Formats and tools of other routes.
    "text": Foreign(_FORMAT.why, lambda value: _has("type")(_format(value)) and not _free(value)),
    "output_config": Foreign(_FORMAT.why, _has("format", "effort")),
    "output_format": _FORMAT,
    "tools": _TOOLS,
    "tool_choice": Foreign(_TOOLS.why, _but("auto", "none")),
    "functions": Foreign("use tools"),
    "function_call": Foreign("use tool_choice", _but("auto", "none")),
    "max_tool_calls": Foreign("use parallel_tool_calls"),
    # Limits.
    "max_new_tokens": _MOST,
    "max_length": _MOST,
    "num_predict": Foreign(_MOST.why, _but(-1)),
    "max_time": Foreign("use t_max_predict_ms"),
    "t_max_prompt_ms": Foreign("a prompt is read to its end", _but(-1)),
    "truncate_prompt_tokens": Foreign("prompts are not cut", _but(-1)),
    "stop": _STOP,
    "stop_sequences": _STOP,
    "stop_token_ids": _STOP,
    "stop_regex": _STOP,
    # How many texts, and what is told of them.
    "n": _ONE,
    "n_cmpl": Foreign("use n", _but(1)),
    "num_return_sequences": Foreign("use n", _but(1)),
    "best_of": _NO_SEARCH,
    "num_beams": _NO_SEARCH,
    "use_beam_search": Foreign(_NO_SEARCH.why),
    "logprobs": _NO_LOGPROBS,
    "top_logprobs": _NO_LOGPROBS,
    "n_probs": _NO_LOGPROBS,
    "prompt_logprobs": Foreign("use echo with logprobs, in /v1/completions"),
    "post_sampling_probs": Foreign("probabilities are those of the model"),
    "echo": Foreign("this route does not repeat the prompt"),
    "response_fields": Foreign("this route gives all fields", _names_any),
    "min_keep": Foreign("samplers may leave one token", _but(1)),
    "sampler_seq": _SAMPLERS,
    "sampling_seq": _SAMPLERS,
    # Limits of thoughts, for routes that know none.
    "enable_thinking": Foreign(_THOUGHTS.why, lambda value: not value),
    "chat_template_kwargs": _THOUGHTS,
    "reasoning_effort": _THOUGHTS,
    "reasoning_budget": _BUDGET,
    "reasoning_budget_tokens": _BUDGET,
    "thinking_budget": _BUDGET,
    "thinking_budget_tokens": _BUDGET,
    "thinking_token_budget": _BUDGET,
    "reasoning": Foreign(
        _THOUGHTS.why,
        lambda value: _has("effort", "max_tokens")(value) or _is_off(value, "enabled", False),
    ),
    "thinking": Foreign(
        _THOUGHTS.why,
        lambda value: (
            value is False or _has("budget_tokens")(value) or _is_off(value, "type", "disabled")
        ),
    ),
}


def _format(value: Any) -> Any:
    return value.get("format") if isinstance(value, Mapping) else None


def _free(value: Any) -> bool:
    return bool(_format(value)["type"] == "text")


def _is_off(value: Any, name: str, off: Any) -> bool:
    return isinstance(value, Mapping) and value.get(name) == off


_Given = msgspec.defstruct("_Given", [(name, Any, None) for name in FIELDS])


def check(data: bytes, known: Set[str]) -> None:
    """Refuses a body that asks for something in a field which the route does not know. data: the
    body's JSON. known: the route's fields. Raises Refusal and msgspec.DecodeError."""
    given = msgspec.json.decode(data, type=_Given)
    for name, field in FIELDS.items():
        value = getattr(given, name)
        if value is not None and name not in known and field.asks(value):
            raise Refusal(400, f"{name} is not supported here: {field.why}", name)
