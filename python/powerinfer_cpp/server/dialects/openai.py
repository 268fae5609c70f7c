"""OpenAI's completions and chats."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...run.requests import Ticket
from ...text.completion import ChatDicts, CompletionDicts, Dicts, Piece, usage
from ...text.grammar import LlamaGrammar
from ...text.tool_chat import Turn
from ..errors import Refusal
from ..recorded import check_recorded, packed
from ..served import ServedModel
from ..settings import Settings
from ..texts import PROGRESS_SECONDS, Form, Job, event, owners, prompt_progress, timings
from .asked import constraint, text_options, time_limit
from .bodies import (
    ChatBody,
    CompletionBody,
    TemplateBody,
    check_limits,
    check_top,
)
from .chats import chat_request, chat_turn
from .histories import of_messages
from .infill import check_suffix
from .offered import Offered, choice_of

Prompt = str | list[int]


class OpenAIForm(Form):
    """Dicts of OpenAI's choices. dicts: makes those of a text, by its number and its ticket.
    behind: of chats, tokens of a text, for those of thoughts. progress: how far a prompt is; None:
    nobody wants to know."""

    def __init__(
        self,
        head: dict[str, Any],
        dicts: Callable[[int, Ticket], Dicts],
        with_usage: bool,
        behind: Callable[[str], Sequence[int]] | None = None,
        progress: Callable[[Ticket], dict[str, float] | None] | None = None,
    ):
        self._progress = progress
        self.silence = None if progress is None else PROGRESS_SECONDS
        self._head, self._dicts, self._with_usage, self._behind = head, dicts, with_usage, behind
        self._tickets: Sequence[Ticket] = ()
        self._owners: Sequence[Ticket] = ()  # of each text
        self._begun: dict[int, Dicts] = {}
        self._n_written: dict[int, int] = {}
        self._n_ended = 0

    def whole(self, tickets: Sequence[Ticket], pieces: Sequence[Sequence[Piece]]) -> Any:
        """The answer as one dict."""
        self._begun = {i: self._dicts(i, ticket) for i, ticket in enumerate(owners(tickets))}
        choices = [self._begun[i].choice(every) for i, every in enumerate(pieces)]
        n_written = sum(every[-1].n_tokens for every in pieces)
        counted = {"usage": self._usage(tickets, n_written), "timings": timings(tickets)}
        return {**self._head, "choices": choices, **counted}

    def begin(self, tickets: Sequence[Ticket]) -> bytes:
        """Nothing: each text has a beginning of its own."""
        self._tickets, self._owners = tickets, owners(tickets)
        return b""

    def push(self, i: int, part: Piece) -> bytes:
        """Chunks for a piece."""
        chunks, ticket = [], self._owners[i]
        if i not in self._begun:
            chunks += self._progresses([ticket])
            self._begun[i] = self._dicts(i, ticket)
            chunks += self._begun[i].begin()
        fresh = self._begun[i].push(part)
        if fresh and i == 0:  # which token of which request the view shows for this text
            fresh[0]["view"] = {"request": ticket.number, "token": part.n_tokens - 1}
        chunks += fresh
        self._n_written[i] = part.n_tokens
        self._n_ended += part.reason is not None
        if self._n_ended == len(self._owners) and chunks and not self._with_usage:
            chunks[-1]["timings"] = timings(self._tickets)
        return b"".join(map(event, chunks))

    def alive(self) -> bytes:
        """How far the prompts are, if that was asked for; else a comment."""
        waiting = [ticket for ticket in self._tickets if ticket.first is None]
        return b"".join(map(event, self._progresses(waiting))) or super().alive()

    def _progresses(self, tickets: Sequence[Ticket]) -> list[dict[str, Any]]:
        """Chunks without text."""
        if self._progress is None:
            return []
        found = [progress for each in tickets if (progress := self._progress(each)) is not None]
        return [{**self._chunk([self._nothing]), "prompt_progress": each} for each in found]

    @property
    def _nothing(self) -> dict[str, Any]:
        """A choice that says nothing yet."""
        head = {"index": 0, "finish_reason": None}
        if self._head["object"] == "chat.completion":
            return {**head, "delta": {"role": "assistant", "content": None}}
        return {**head, "text": "", "logprobs": None}

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        kind = self._head["object"].replace("chat.completion", "chat.completion.chunk")
        return {**self._head, "object": kind, "choices": choices}

    def end(self) -> bytes:
        """Token counts, if they were asked for, and the mark of the end."""
        done = b"data: [DONE]\n\n"
        if not self._with_usage:
            return done
        last = {**self._chunk([]), "timings": timings(self._tickets)}
        counted = self._usage(self._tickets, sum(self._n_written.values()))
        return event({**last, "usage": counted}) + done

    def _usage(self, tickets: Sequence[Ticket], n_written: int) -> dict[str, Any]:
        found = counts(tickets, n_written)
        if self._behind is not None:
            made = [each for each in self._begun.values() if isinstance(each, ChatDicts)]
            n = sum(len(self._behind("".join(each.thoughts))) for each in made)
            found["completion_tokens_details"] = {"reasoning_tokens": n}
        return found


def _progress(
    model: ServedModel, body: CompletionBody | ChatBody
) -> Callable[[Ticket], dict[str, float] | None] | None:
    return partial(prompt_progress, model) if body.return_progress else None


def counts(tickets: Sequence[Ticket], n_written: int) -> dict[str, Any]:
    """`usage`: tokens of all prompts and texts."""
    n_prompt = sum(len(ticket.request.ids) for ticket in tickets)
    cached = sum(ticket.n_reused for ticket in tickets)
    return {**usage(n_prompt, n_written), "prompt_tokens_details": {"cached_tokens": cached}}


def prompts_of(given: Any, settings: Settings, name: str) -> list[Prompt]:
    """A body's prompts: one or several, texts or ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise Refusal(400, f"{name} is empty", name)
    if len({type(entry) for entry in given}) > 1:
        raise Refusal(400, f"{name} mixes texts and ids", name)
    if isinstance(given[0], int):
        return [given]
    if len(given) > settings.max_inputs:
        raise Refusal(400, f"{name} may have at most {settings.max_inputs} entries", name)
    return list(given)


def completion_job(
    model: ServedModel, name: str, body: CompletionBody, settings: Settings, owner: str
) -> Job:
    """The job of a completion. Raises Refusal and ValueError."""
    check_limits(body, settings)
    check_suffix(model, body)
    if body.best_of not in (None, 1, body.n):
        raise Refusal(400, "best_of is not supported", "best_of")
    asked = body.n_probs or None if body.logprobs is None else body.logprobs
    n_top = check_top(None if asked is False else asked, "logprobs", settings)
    prompts = prompts_of(body.prompt, settings, "prompt")
    n = body.n or 1
    options = text_options(model, body, settings, owner, ("n", n))
    if n * len(prompts) > settings.max_inputs:
        raise Refusal(400, f"prompt and n ask for more than {settings.max_inputs} texts", "n")
    if body.limit is None and settings.defaults.max_tokens is None:
        options["max_tokens"] = 16
    grammar = constraint(body)
    requests = [
        model.request(
            prompt,
            **options,
            stop=body.stop,
            n=n,
            logprobs=None if n_top is None else int(n_top),
            echo=bool(body.echo),
            grammar=grammar,
            suffix=body.suffix or None,
            criteria=time_limit(model, body),
        )
        for prompt in prompts
    ]
    fields = ("prompt", "n", "max_tokens", "echo", "logprobs")
    check_recorded(requests, settings.max_recorded, fields if n_top is not None else fields[:3])
    named = None if n_top is None else model.prompts.name_bytes
    head = CompletionDicts(name, named).head

    def dicts(i: int, ticket: Ticket) -> Dicts:
        text, placed = model.prompts.text(prompts[i // n]) if body.echo else "", []
        if ticket.echoed:
            placed = model.prompts.placed(ticket.request.ids, text, ticket.echoed)
        return CompletionDicts(name, named, (text, placed), head, i, packed)

    form = OpenAIForm(head, dicts, body.wants_usage, progress=_progress(model, body))
    return Job(model, requests, form)


def chat_job(model: ServedModel, name: str, body: ChatBody, settings: Settings, owner: str) -> Job:
    """The job of a chat. Raises Refusal and ValueError."""
    check_limits(body, settings)
    for field in ("functions", "function_call"):
        if getattr(body, field):
            raise Refusal(400, f"{field} is not supported: use tools", field)
    n_top = check_top(body.top_logprobs, "top_logprobs", settings)
    if n_top and not body.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    if not body.logprobs:
        n_top = check_top(body.n_probs or None, "n_probs", settings)
    recorded = n_top or 0 if body.logprobs or n_top else None
    grammar = constraint(body)
    turn = turn_of(model, body, body.parallel_tool_calls, grammar)
    n = body.n or 1
    request = chat_request(
        model,
        turn,
        [body.stop] if isinstance(body.stop, str) else body.stop or [],
        criteria=time_limit(model, body, turn.criteria),
        n=n,
        logprobs=recorded,
        **text_options(model, body, settings, owner, ("n", n)),
    )
    check_recorded([request], settings.max_recorded, ("n", "max_tokens", "top_logprobs"))
    named = None if recorded is None else model.prompts.name_bytes
    head = ChatDicts(name, named).head

    def dicts(i: int, ticket: Ticket) -> Dicts:
        return ChatDicts(name, named, copy.deepcopy(turn.parser), head, i, packed)

    behind = model.prompts.behind
    form = OpenAIForm(head, dicts, body.wants_usage, behind, _progress(model, body))
    return Job(model, [request], form)


def count_chat_tokens(model: ServedModel, body: ChatBody) -> int:
    """Tokens of the prompt. Raises Refusal and ValueError."""
    turn = turn_of(model, body, body.parallel_tool_calls, constraint(body))
    return len(model.prompts.ids(turn.text))


def turn_of(
    model: ServedModel,
    body: ChatBody | TemplateBody,
    parallel: bool | None = None,
    grammar: LlamaGrammar | None = None,
) -> Turn:
    """The turn that answers a chat. Raises Refusal and ValueError."""
    return chat_turn(
        model,
        of_messages(body.messages, model.omit_media).messages,
        Offered.of(body.tools),
        choice_of(body.tool_choice),
        parallel,
        grammar,
        body.thinking(model.thinking),
    )
