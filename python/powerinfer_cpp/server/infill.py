"""llama.cpp's /infill: what belongs between a prefix and a suffix."""

from collections.abc import Sequence
from typing import Any

from ..run.requests import Ticket
from ..text.completion import Piece
from .bodies import Sampled, Texts, check_stops
from .errors import Refusal
from .served import ServedModel
from .settings import Settings
from .texts import Job, event, timings

NO_FIM = "this model has no FIM tokens: it cannot write between two texts"


class InfillBody(Sampled, kw_only=True):
    """POST /infill. prompt: how the middle begins. n_predict: tokens at most, -1: until the context
    is full. A temperature below 0 means 0, as in llama.cpp."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    n_predict: int = -1
    stop: Texts | None = None


class InfillForm:
    """Dicts of llama.cpp's completions."""

    def __init__(self, model: str):
        self._model = model
        self._tickets: Sequence[Ticket] = ()
        self._last: Piece | None = None

    def whole(self, tickets: Sequence[Ticket], pieces: Sequence[Sequence[Piece]]) -> Any:
        """The answer as one dict."""
        self._tickets, self._last = tickets, pieces[0][-1]
        return self._end("".join(part.text for part in pieces[0]))

    def begin(self, tickets: Sequence[Ticket]) -> bytes:
        """Nothing comes before the first text."""
        self._tickets = tickets
        return b""

    def push(self, i: int, part: Piece) -> bytes:
        """An event for a piece; the last one has the counts."""
        self._last = part
        if part.reason:
            return event(self._end(part.text))
        return event({"index": 0, "content": part.text, "stop": False})

    def end(self) -> bytes:
        """Nothing comes after the last text."""
        return b""

    def error(self, refusal: Refusal) -> bytes:
        """The event for an error."""
        return event(refusal.openai())

    def _end(self, text: str) -> dict[str, Any]:
        last, ticket = self._last, self._tickets[0]
        assert last is not None
        ended = "limit" if last.reason == "length" else "eos" if last.stop is None else "word"
        return {
            "index": 0,
            "content": text,
            "stop": True,
            "stop_type": ended,
            "stopping_word": last.stop or "",
            "model": self._model,
            "tokens_evaluated": len(ticket.request.ids),
            "tokens_predicted": last.n_tokens,
            "tokens_cached": len(ticket.request.ids) + last.n_tokens,
            "truncated": False,
            "timings": timings(self._tickets),
        }


def infill_job(
    model: ServedModel, name: str, body: InfillBody, settings: Settings, owner: str
) -> Job:
    """The job of a text in the middle. Raises Refusal and ValueError."""
    check_stops([body.stop] if isinstance(body.stop, str) else body.stop or [], "stop", settings)
    if body.n_predict < -1:
        raise Refusal(400, "n_predict must be at least -1", "n_predict")
    if not model.fills:
        raise Refusal(400, NO_FIM)
    request = model.request(
        body.input_prefix,
        suffix=body.input_suffix,
        begin=body.prompt,
        max_tokens=None if body.n_predict < 0 else body.n_predict,
        params=body.sampling(),
        stop=body.stop,
        seed=body.seed,
        owner=owner,
    )
    return Job(model, [request], InfillForm(name))


def check_suffix(model: ServedModel, body: Any) -> None:
    """Refuses a completion's suffix that the model cannot take. Raises Refusal."""
    if body.suffix and not model.fills:
        raise Refusal(400, NO_FIM, "suffix")
    if body.suffix and body.echo and body.logprobs is not None:
        raise Refusal(400, "a suffix with echo has no logprobs of the prompt", "logprobs")
