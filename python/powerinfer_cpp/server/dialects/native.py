"""llama.cpp's own completions: POST /completion, whose fields and answers /infill shares."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from ...core.errors import about_request
from ...run.requests import Request, Ticket
from ...text.completion import Piece
from ...text.grammar import LlamaGrammar
from ...text.logprobs import Placed, TokenBytes
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job, event, owners, timings
from .bodies import Count, Sampled, Texts, check_stops, check_top

LastN = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Entries = Annotated[list[str | int | list[str | int] | dict[str, Any]], msgspec.Meta(min_length=1)]
Prompts = str | Entries | dict[str, Any]
Pairs = Annotated[list[Any], msgspec.Meta(min_length=2, max_length=2)]


class NativeBody(Sampled, kw_only=True):
    """What llama.cpp's completions have in common. n_predict: tokens at most, -1: until the context
    is full; max_tokens is another name for it, as n is for n_cmpl and logprobs for n_probs. A
    temperature below 0 means 0.
    """

    n_predict: int | None = None
    max_tokens: int | None = None
    n_cmpl: int | None = None
    n: int | None = None
    repeat_last_n: LastN | None = None
    stop: Texts | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    logit_bias: list[Pairs] | dict[str, float | bool] | None = None
    ignore_eos: bool | None = None
    n_probs: int | None = None
    logprobs: int | bool | None = None
    post_sampling_probs: bool | None = None
    min_keep: Count | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    t_max_predict_ms: float | None = None
    response_fields: list[str] | None = None

    @property
    def limit(self) -> int:
        """Tokens at most; -1: no limit."""
        return next((n for n in (self.n_predict, self.max_tokens) if n is not None), -1)

    @property
    def n_texts(self) -> int:
        """Texts for each prompt."""
        return next((n for n in (self.n_cmpl, self.n) if n is not None), 1)

    @property
    def seconds(self) -> float | None:
        """How long a text with a line break may be written; None: as long as it takes."""
        given = self.t_max_predict_ms
        return given / 1e3 if given is not None and given > 0 else None

    @property
    def n_top(self) -> int:
        """Likely tokens that are told; 0: none, and no probabilities at all."""
        return int(self.n_probs if self.n_probs is not None else self.logprobs or 0)


class NativeCompletionBody(NativeBody, kw_only=True):
    """POST /completion. prompt: a text, ids, both mixed in one list, or a list of such prompts."""

    prompt: Prompts


def completion_job(
    model: ServedModel, name: str, body: NativeCompletionBody, settings: Settings, owner: str
) -> Job:
    """The job of llama.cpp's completion. Raises Refusal and ValueError."""
    several, prompts = _prompts_of(model, body.prompt, settings)
    options = native_options(model, body, settings, owner)
    if body.n_texts * len(prompts) > settings.max_inputs:
        raise Refusal(400, f"prompt and n_cmpl ask for more than {settings.max_inputs} texts", "n")
    requests = [native_request(model, body, prompt, options) for prompt in prompts]
    form = NativeForm(model, name, body, requests, several or body.n_texts > 1)
    return Job(model, requests, form)


def native_options(
    model: ServedModel, body: NativeBody, settings: Settings, owner: str
) -> dict[str, Any]:
    """Arguments of `ServedModel.request` for a body. Raises Refusal and ValueError."""
    _check(body, settings)
    bias = _bias(model, body, settings)
    return {
        "max_tokens": None if body.limit < 0 else body.limit,
        "params": body.sampling(),
        "last_n": body.repeat_last_n,
        "stop": body.stop,
        "seed": body.seed,
        "n": body.n_texts,
        "logprobs": body.n_top or None,
        "grammar": _grammar(body),
        "logit_bias": bias or None,
        "owner": owner,
    }


def native_request(
    model: ServedModel, body: NativeBody, prompt: str | list[int], options: Mapping[str, Any]
) -> Request:
    """The request for a prompt; options: arguments of `ServedModel.request`."""
    request = model.request(prompt, **options)
    criteria = (
        TimeLimit(model.prompts.name_bytes, body.seconds) if body.seconds is not None else None
    )
    return replace(request, with_end=True, criteria=criteria)


class NativeForm:
    """Dicts of llama.cpp's completions.

    requests: of the job. several: the answer is a list, of the texts of all requests.
    """

    def __init__(
        self,
        model: ServedModel,
        name: str,
        body: NativeBody,
        requests: Sequence[Request],
        several: bool = False,
    ):
        self._model, self._name, self._body, self._several = model, name, body, several
        self._requests = [of for of in requests for _ in range(of.n)]  # of each text
        self._tickets: Sequence[Ticket] = ()  # of each text
        self._new_line = [False] * len(self._requests)

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
        if not part.reason:
            return event(self._partial(i, part))
        last = event(self._partial(i, part)) if part.text or part.ids else b""
        return last + event(self._end(i, part, "", (), ()))

    def end(self) -> bytes:
        """Nothing comes after the last text."""
        return b""

    def error(self, refusal: Refusal) -> bytes:
        """The event for an error."""
        return event(refusal.openai())

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
        n_ids, body = len(request.ids), self._body
        limit, full = last.reason == "length", n_ids + last.n_tokens >= self._model.n_ctx
        timed_out = isinstance(request.criteria, TimeLimit) and request.criteria.over
        ended = "limit" if limit or timed_out else "eos" if last.stop is None else "word"
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
            "truncated": limit and full and last.n_tokens != body.limit,
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
            "n_predict": body.limit,
            "max_tokens": body.limit,
            "ignore_eos": bool(body.ignore_eos),
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


class TimeLimit:
    """Ends a text so many seconds after its first token, once it has a line break: as
    `t_max_predict_ms` asks for. For one text. over: has it ended one?"""

    def __init__(self, data: TokenBytes, seconds: float):
        self._bytes, self._seconds = data, seconds
        self._began: tuple[float, int] | None = None
        self._has_line = self.over = False

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> bool:
        """Does it end here?"""
        now = time.monotonic()
        if self._began is None:
            self._began = now, len(ids)
        begin, n_prompt = self._began
        if not self._has_line and len(ids) > n_prompt:
            self._has_line = b"\n" in self._bytes(int(ids[-1]), False)
        self.over = self._has_line and now - begin > self._seconds
        return self.over


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
    if body.limit < -1:
        raise Refusal(400, "n_predict must be at least -1", "n_predict")
    if not 1 <= body.n_texts <= settings.max_n:
        raise Refusal(400, f"n_cmpl must be 1 to {settings.max_n}", "n_cmpl")
    check_stops([body.stop] if isinstance(body.stop, str) else body.stop or [], "stop", settings)
    check_top(body.n_top, "n_probs", settings)
    if body.post_sampling_probs and body.n_top:
        words = "post_sampling_probs is not supported: probabilities are those of the model"
        raise Refusal(400, words, "post_sampling_probs")
    if (body.min_keep or 0) > 1:
        raise Refusal(400, "min_keep above 1 is not supported", "min_keep")
    if body.seconds is not None and body.n_texts > 1:
        words = "t_max_predict_ms needs n_cmpl 1: each text has a time of its own"
        raise Refusal(400, words, "t_max_predict_ms")


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


def _bias(model: ServedModel, body: NativeBody, settings: Settings) -> dict[int | str, float]:
    """Biases by id, of pairs or a dict whose keys are ids or texts; False: never. Raises
    Refusal."""
    given, wrong = body.logit_bias or [], "logit_bias must have an id or a text, and a number"
    # In JSON's keys, an id is a text.
    pairs = (
        [(int(key) if _is_id(key) else key, value) for key, value in given.items()]
        if isinstance(given, dict)
        else [tuple(pair) for pair in given]
    )
    if len(pairs) > settings.max_bias:
        raise Refusal(400, f"logit_bias may have at most {settings.max_bias} tokens", "logit_bias")
    found: dict[int | str, float] = {}

    def add(ids: Sequence[int], bias: float) -> None:
        for id_ in ids:
            found[id_] = found.get(id_, 0.0) + bias

    for token, bias in pairs:
        if isinstance(token, float) and token.is_integer():  # as everywhere in a body
            token = int(token)
        if isinstance(bias, bool) and not bias:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, int | float) or isinstance(token, bool):
            raise Refusal(400, f"{wrong} or false", "logit_bias")
        if isinstance(token, str):
            data = token.encode("utf-8", "surrogatepass")
            add(model.prompts.tokenize(data, add_bos=False), float(bias))
        elif isinstance(token, int) and 0 <= token < model.model.n_vocab:
            add([token], float(bias))
        else:
            raise Refusal(400, f"{wrong}; ids are 0 to {model.model.n_vocab - 1}", "logit_bias")
        if len(found) > settings.max_bias:
            words = f"logit_bias may have at most {settings.max_bias} tokens"
            raise Refusal(400, words, "logit_bias")
    if body.ignore_eos:
        add(model.prompts.end_tokens, -math.inf)
    return found


def _is_id(key: str) -> bool:
    digits = key.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 11


@about_request()
def _grammar(body: NativeBody) -> LlamaGrammar | None:
    if body.grammar and body.json_schema is not None:
        raise Refusal(400, "grammar and json_schema exclude each other", "grammar")
    if body.json_schema is not None:
        if not body.json_schema:
            return LlamaGrammar.json_object()
        return LlamaGrammar.from_json_schema(body.json_schema)
    return LlamaGrammar.from_string(body.grammar) if body.grammar else None
