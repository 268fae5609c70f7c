"""Whether, how much and how visibly a model thinks: one setting for the fields of all dialects."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FORMATS = ("auto", "none", "deepseek")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Names under which templates look for it.
EFFORT_NAMES = {"reasoning_effort", "thinking_effort", "reasoning_strength"}
# Arguments of create_chat_completion that are about this.
THINKING = (
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning_budget",
    "reasoning_format",
    "continue_final_message",
)
# Names of a template that have their own arguments, or are the model's.
_TAKEN = (
    "self",
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "continue_final_message",
    "raise_exception",
    "strftime_now",
)


@dataclass(frozen=True)
class Thinking:
    """What a chat asks of its model's thoughts.

    on: whether it thinks; None: as its template does by itself. effort: a word for how much.
    budget: tokens of thoughts at most; None: any number. names: further names for the template.
    raw: thoughts stay in the text, with their tags. continues: a last message of the assistant's is
    the beginning of the answer; None: where nothing else decides how the answer begins. begins: the
    prompt ends with what begins an answer.
    """

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    names: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    continues: bool | None = None
    begins: bool = True

    def template_names(self) -> dict[str, Any]:
        """Names that tell a template, under all that templates know."""
        told: dict[str, Any] = {}
        if self.on is not None:
            told = {"enable_thinking": self.on, "thinking": self.on}
            told["thinking_mode"] = "enabled" if self.on else "disabled"
        if self.effort is not None:
            told |= dict.fromkeys(EFFORT_NAMES, self.effort)
        if self.budget is not None:
            told["thinking_budget"] = self.budget
        return {**told, **self.names}

    def asked(
        self,
        *,
        chat_template_kwargs: object = None,
        enable_thinking: object = None,
        reasoning_effort: object = None,
        reasoning_budget: object = None,
        reasoning_format: object = None,
        continue_final_message: object = None,
        add_generation_prompt: object = None,
    ) -> "Thinking":
        """The same with what a request asks for; None: it does not say.

        reasoning_budget: tokens; -1: any number, 0: no thoughts. reasoning_format: "auto" and
        "deepseek" split thoughts from the answer, "none" leaves them in it. Raises ValueError,
        which names the field.
        """
        names = template_kwargs(chat_template_kwargs)
        where = "chat_template_kwargs."
        on = _flag(f"{where}enable_thinking", names.pop("enable_thinking", None))
        if isinstance(names.get("thinking"), bool):  # DeepSeek's name
            on = names.pop("thinking") if on is None else on
        given = _flag("enable_thinking", enable_thinking)
        on = on if given is None else given
        effort = names.pop("reasoning_effort", None)
        if effort is not None and not isinstance(effort, str):
            raise ValueError(f"{where}reasoning_effort must be a string")
        if reasoning_effort is not None:
            if reasoning_effort not in EFFORTS:
                raise ValueError(f"reasoning_effort must be one of {', '.join(EFFORTS)}")
            on = reasoning_effort != "none" if given is None else on
            effort = reasoning_effort if on else None
        budget, limit = self.budget, _budget(reasoning_budget)
        if limit is not None:
            budget = None if limit < 0 else limit
            on = False if limit == 0 else on
        if reasoning_format not in (None, *FORMATS):
            raise ValueError(f"reasoning_format must be one of {', '.join(FORMATS)}")
        continues = _flag("continue_final_message", continue_final_message)
        begins = _flag("add_generation_prompt", add_generation_prompt)
        if continues and begins:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        # What a request says counts more than what a server does.
        if budget == 0 and on and limit is None:
            budget = None
        before = None if limit and self.budget == 0 else self.on
        return replace(
            self,
            on=before if on is None else on,
            effort=self.effort if effort is None else effort,
            budget=budget,
            names={**self.names, **names},
            raw=self.raw if reasoning_format is None else reasoning_format == "none",
            continues=self.continues if continues is None else continues,
            begins=begins is not False,
        )


def template_kwargs(given: object) -> dict[str, Any]:
    """Further names for a template. Raises ValueError for others than a dict, and for names that
    are taken."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ValueError("chat_template_kwargs must be an object")
    for name in given:
        if name in _TAKEN:
            raise ValueError(f"chat_template_kwargs.{name} cannot be set")
    return dict(given)


def _flag(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def _budget(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise ValueError("reasoning_budget must be a whole number of at least -1")
    return value
