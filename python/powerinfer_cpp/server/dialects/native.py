"""llama.cpp's own completions: POST /completion, whose fields and answers /infill shares."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from ...core.logits import StoppingCriteriaList
from ...run.requests import Request, Ticket
from ...text.completion import Piece
from ...text.logprobs import Placed
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import PROGRESS_SECONDS, Form, Job, event, owners, prompt_progress, timings
from .asked import constraint, limit_of, text_options, time_limit
from .bodies import WITHOUT_CHATS, Count, Sampled, Texts, check_stops, check_top

Entries = Annotated[list[str | int | list[str | int] | dict[str, Any]], msgspec.Meta(min_length=1)]
Prompts = str | Entries | dict[str, Any]


class NativeBody(Sampled, kw_only=True):
    """What llama.cpp's completions have in common. Without a limit, a text ends where the context
    is full. n is another name for n_cmpl, and logprobs for n_probs. A temperature below 0 means 0.
    """

    UNUSED = WITHOUT_CHATS

    n_cmpl: int | None = None
    n: int | None = None
    stop: Texts | None = None
    n_probs: int | None = None
    logprobs: int | bool | None = None
    post_sampling_probs: bool | None = None
    min_keep: Count | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_fields: list[str] | None = None

    @property
    def n_each(self) -> int:
        """Texts for each prompt."""
        return next((n for n in (self.n_cmpl, self.n) if n is not None), 1)

    @property
    def n_texts(self) -> int:
        """Texts that it asks for."""
        return max(1, self.n_each)

    @property
    def n_top(self) -> int:
        """Likely tokens that are told; 0: none, and no probabilities at all."""
        return int(self.n_probs if self.n_probs is not None else self.logprobs or 0)


class NativeCompletionBody(NativeBody, kw_only=True):
    """POST /completion. prompt: a text, ids, both mixed in one list, or a list of such prompts."""

    prompt: Prompts

    @property
    def n_texts(self) -> int:
        """Texts that it asks for."""
        several = isinstance(self.prompt, list) and int not in map(type, self.prompt)
        return (len(self.prompt) if several else 1) * max(1, self.n_each)


def completion_job(
    model: ServedModel, name: str, body: NativeCompletionBody, settings: Settings, owner: str
) -> Job:
    """The job of llama.cpp's completion. Raises Refusal and ValueError."""
    several, prompts = _prompts_of(model, body.prompt, settings)
    options = native_options(model, body, settings, owner)
    if body.n_each * len(prompts) > settings.max_inputs:
        raise Refusal(400, f"prompt and n_cmpl ask for more than {settings.max_inputs} texts", "n")
    requests = [native_request(model, body, prompt, options) for prompt in prompts]
    form = NativeForm(model, name, body, settings, requests, several or body.n_each > 1)
    return Job(model, requests, form)


def native_options(
    model: ServedModel, body: NativeBody, settings: Settings, owner: str
) -> dict[str, Any]:
    """Arguments of `ServedModel.request` for a body. Raises Refusal and ValueError."""
    _check(body, settings)
    return {
        **text_options(model, body, settings, owner, ("n_cmpl", body.n_each)),
        "stop": body.stop,
        "n": body.n_each,
        "logprobs": body.n_top or None,
        "grammar": constraint(body),
    }


def native_request(
    model: ServedModel,
    body: NativeBody,
    prompt: str | list[int],
    options: Mapping[str, Any],
    criteria: StoppingCriteriaList | None = None,
) -> Request:
    """The request for a prompt; options: arguments of `ServedModel.request`."""
    criteria = time_limit(model, body, criteria)
    return replace(model.request(prompt, **options, criteria=criteria), with_end=True)


class NativeForm(Form):
    """Dicts of llama.cpp's completions.

    settings: of the server. requests: of the job. several: the answer is a list, of the texts of
    all requests.
    """

    def __init__(
        self,
        model: ServedModel,
        name: str,
        body: NativeBody,
        settings: Settings,
        requests: Sequence[Request],
        several: bool = False,
    ):
        self._most = limit_of(body, settings)
        given = settings.defaults
        self._ignores_eos = given.ignore_eos if body.ignore_eos is None else body.ignore_eos
        self._model, self._name, self._body, self._several = model, name, body, several
        self._requests = [of for of in requests for _ in range(of.n)]  # of each text
        self._tickets: Sequence[Ticket] = ()  # of each text
        self._new_line = [False] * len(self._requests)
        self.silence = PROGRESS_SECONDS if body.return_progress else None
        self._begun: set[int] = set()

    def whole(self, tickets: Sequence[Ticket], pieces: Sequence[Sequence[Piece]]) -> Any:
        """The answer as one dict, or a list of those of all texts."""
        self._tickets = owners(tickets)
        found = []
        for i, parts in enumerate(pieces):
            text = "".join(part.text for part in parts)
            self._new_line[i] = "\n" in text
            tokens = [token for part in parts for token in part.ids]
            placed = [each for part in parts for each in part.placed]
            found.append(self._end(i, parts[-1], text, tokens, placed))
        return found if self._several else found[0]

    def begin(self, tickets: Sequence[Ticket]) -> bytes:
        """Nothing comes before the first text."""
        self._tickets = owners(tickets)
        return b""

    def push(self, i: int, part: Piece) -> bytes:
        """Events for a piece; the last one of a text has the counts."""
        self._new_line[i] |= "\n" in part.text
        head = b"" if i in self._begun else self._told(i)
        self._begun.add(i)
        if not part.reason:
            return head + event(self._partial(i, part))
        last = event(self._partial(i, part)) if part.text or part.ids else b""
        return head + last + event(self._end(i, part, "", (), ()))

    def alive(self) -> bytes:
        """How far the prompts are, if that was asked for; else a comment."""
        first = {id(ticket): i for i, ticket in reversed(list(enumerate(self._tickets)))}
        waiting = sorted(i for i in first.values() if self._tickets[i].first is None)
        return b"".join(map(self._told, waiting)) or super().alive()

    def _told(self, i: int) -> bytes:
        """An event without text that says how far a prompt is, if that was asked for."""
        found = None
        if self._body.return_progress:
            found = prompt_progress(self._model, self._tickets[i])
        if found is None:
            return b""
        return event({**self._partial(i, Piece("", None, 0)), "prompt_progress": found})

    def _partial(self, i: int, part: Piece) -> dict[str, Any]:
        found: dict[str, Any] = {
            "index": i,
            "content": part.text,
            "tokens": list(part.ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": part.n_tokens,
            "tokens_evaluated": len(self._requests[i].ids),
        }
        if self._body.timings_per_token:
            found["timings"] = timings([self._tickets[i]], time.perf_counter())
        return {**found, **self._probabilities(part.placed)}

    def _end(
        self, i: int, last: Piece, text: str, tokens: Sequence[int], placed: Sequence[Placed]
    ) -> dict[str, Any]:
        request, ticket = self._requests[i], self._tickets[i]
        n_ids, body, n_most = len(request.ids), self._body, self._most
        limit, full = last.reason == "length", n_ids + last.n_tokens >= self._model.n_ctx
        ended = "limit" if limit else "eos" if last.stop is None else "word"
        prompt = self._model.prompts.detokenize(list(request.ids), special=True)
        found = {
            "index": i,
            "content": text,
            "tokens": list(tokens) if body.return_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": self._name,
            "tokens_predicted": last.n_tokens,
            "tokens_evaluated": n_ids,
            "generation_settings": self._settings(i),
            "prompt": prompt.decode("utf-8", "replace"),
            "has_new_line": self._new_line[i],
            "truncated": limit and full and last.n_tokens != n_most,
            "stop_type": ended,
            "stopping_word": last.stop or "",
            "tokens_cached": n_ids + last.n_tokens,
            "timings": timings([ticket]),
            **self._probabilities(placed),
        }
        return found if not body.response_fields else nested(found, body.response_fields)

    def _settings(self, i: int) -> dict[str, Any]:
        """What the text was written with, under llama.cpp's names."""
        body, request = self._body, self._requests[i]
        sampling = request.params.keywords()
        sampling["mirostat"] = sampling.pop("mirostat_mode")
        last_n = body.repeat_last_n
        return {
            **sampling,
            "samplers": list(request.params.samplers or ()),
            "repeat_last_n": self._model.runtime.samplers.last_n if last_n is None else last_n,
            "seed": request.seed,
            "stop": [stop.decode("utf-8") for stop in request.stops],
            "n_predict": -1 if self._most is None else self._most,
            "max_tokens": -1 if self._most is None else self._most,
            "ignore_eos": self._ignores_eos,
            "logit_bias": body.logit_bias or [],
            "n_probs": body.n_top,
            "min_keep": 0,
            "grammar": body.grammar or "",
            "stream": bool(body.stream),
            "timings_per_token": bool(body.timings_per_token),
            "post_sampling_probs": False,
            "n_ctx": self._model.n_ctx,
            "lora": [
                {"id": number, "scale": scale}
                for number, (_, scale) in enumerate(self._model.runtime.adapters.listed())
            ],
        }

    def _probabilities(self, placed: Sequence[Placed]) -> dict[str, Any]:
        """`completion_probabilities` of tokens; nothing without them."""

        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            data = self._model.prompts.name_bytes(token, False)
            text = data.decode("utf-8", "replace")
            return {"id": token, "token": text, "bytes": list(data), "logprob": logprob}

        told = [
            entry(each.choice.token, each.choice.logprob)
            | {"top_logprobs": [entry(*pair) for pair in each.choice.top or []]}
            for each in placed
        ]
        return {"completion_probabilities": told} if told else {}


def nested(found: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """What is found under each path, whose keys are parted by slashes; by the paths."""
    told: dict[str, Any] = {}
    for path in paths:
        value: Any = found
        for key in path.split("/"):
            value = value[key] if isinstance(value, dict) and key in value else _MISSING
        if value is not _MISSING:
            told[path] = value
    return told


_MISSING = object()


def _check(body: NativeBody, settings: Settings) -> None:
    """Refuses what would take too much, and what is not done here."""
    if not 1 <= body.n_each <= settings.max_n:
        raise Refusal(400, f"n_cmpl must be 1 to {settings.max_n}", "n_cmpl")
    check_stops([body.stop] if isinstance(body.stop, str) else body.stop or [], "stop", settings)
    check_top(body.n_top, "n_probs", settings)
    if body.post_sampling_probs and body.n_top:
        words = "post_sampling_probs is not supported: probabilities are those of the model"
        raise Refusal(400, words, "post_sampling_probs")
    if (body.min_keep or 0) > 1:
        raise Refusal(400, "min_keep above 1 is not supported", "min_keep")


def _prompts_of(
    model: ServedModel, given: Prompts, settings: Settings
) -> tuple[bool, list[str | list[int]]]:
    """Is the answer a list, and the prompts. Raises Refusal."""
    if isinstance(given, str | dict):
        return False, [_text_of(given)]
    kinds = {type(entry) for entry in given}
    if kinds <= {int, str} and int in kinds:
        return False, [_mixed(model, given)]
    if len(given) > settings.max_inputs:
        raise Refusal(400, f"prompt may have at most {settings.max_inputs} entries", "prompt")
    if int in kinds:
        raise Refusal(400, "prompt mixes ids with whole prompts", "prompt")
    found: list[str | list[int]] = []
    for entry in given:
        if isinstance(entry, list):
            found.append(_mixed(model, entry))
        else:
            assert isinstance(entry, str | dict)
            found.append(_text_of(entry))
    return True, found


def _text_of(given: str | dict[str, Any]) -> str:
    if isinstance(given, str):
        return given
    if given.get("multimodal_data"):
        raise Refusal(400, "this server takes text alone, no multimodal_data", "prompt")
    text = given.get("prompt_string")
    if not isinstance(text, str):
        raise Refusal(400, "a prompt that is an object needs prompt_string, a text", "prompt")
    return text


def _mixed(model: ServedModel, given: Sequence[Any]) -> list[int]:
    """Ids of a list of ids and texts; a text at its beginning gets BOS, if the model asks for it.
    Raises Refusal for ids that the model does not have."""
    ids: list[int] = []
    for i, part in enumerate(given):
        if isinstance(part, str):
            data = part.encode("utf-8", "surrogatepass")
            ids += model.prompts.tokenize(data, add_bos=False, special=True)
            bos = model.model.bos
            if i == 0 and model.model.add_bos and ids[:1] != [bos]:
                ids.insert(0, bos)
        elif 0 <= part < model.model.n_vocab:
            ids.append(part)
        else:
            raise Refusal(400, f"ids must be 0 to {model.model.n_vocab - 1}, not {part}", "prompt")
    return ids
