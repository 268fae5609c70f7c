"""What a body of any dialect asks of its texts: constraints, limits, biases."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.errors import about_request
from ...core.logits import StoppingCriteriaList
from ...text.grammar import LlamaGrammar, response_grammar
from ...text.logprobs import TokenBytes
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from .bodies import Sampled, check_lengths

_MOST_INDENT = 1024  # bytes of a line that are looked at


def text_options(
    model: ServedModel,
    body: Sampled,
    settings: Settings,
    owner: str,
    texts: tuple[str, int] = ("n", 1),
) -> dict[str, Any]:
    """Arguments of `ServedModel.request` that mean the same in all dialects. texts: how many there
    are of a prompt, and the field that says so. Raises Refusal and ValueError."""
    check_lengths(body)
    if body.seconds is not None and texts[1] > 1:
        words = f"t_max_predict_ms needs {texts[0]} 1: each text has a time of its own"
        raise Refusal(400, words, "t_max_predict_ms")
    limit = limit_of(body, settings)
    return {
        "max_tokens": None if limit == -1 else limit,
        "params": body.sampling(**settings.defaults.sampling),
        "last_n": body.repeat_last_n,
        "seed": body.seed,
        "logit_bias": _bias(model, body, settings) or None,
        "owner": owner,
    }


def limit_of(body: Sampled, settings: Settings) -> int | None:
    """Tokens of a text at most, as a body or the server says; -1: any number, None: not said."""
    return settings.defaults.max_tokens if body.limit is None else body.limit


@about_request()
def constraint(body: Sampled, **of_dialect: Mapping[str, Any] | None) -> LlamaGrammar | None:
    """The grammar that a body asks for. of_dialect: what the dialect says in its own words, like a
    response_format; by names, whose underscores are points. Raises Refusal and ValueError."""
    formats = {name.replace("__", "."): given for name, given in of_dialect.items()}
    formats["response_format"] = body.response_format
    asked: dict[str, Any] = {
        name: given
        for name, given in formats.items()
        if given is not None and given.get("type") != "text"
    }
    asked |= {"grammar": body.grammar} if body.grammar else {}
    asked |= {} if body.json_schema is None else {"json_schema": body.json_schema}
    if len(asked) > 1:
        names = sorted(asked)
        raise Refusal(400, f"{' and '.join(names)} exclude each other", names[0])
    if body.grammar:
        return LlamaGrammar.from_string(body.grammar)
    if body.json_schema is not None:
        return response_grammar({"type": "json_object", "schema": body.json_schema})
    return next((response_grammar(given) for given in asked.values()), None)


def time_limit(
    model: ServedModel, body: Sampled, others: StoppingCriteriaList | None = None
) -> StoppingCriteriaList | None:
    """What ends a text: the time that a body gives it, and others."""
    if body.seconds is None:
        return others
    return StoppingCriteriaList(
        [*(others or ()), TimeLimit(model.prompts.name_bytes, body.seconds)]
    )


class TimeLimit:
    """Ends a text so many seconds after its first token, once it has a line break: as
    `t_max_predict_ms` asks for. For one text."""

    reason = "length"

    def __init__(self, data: TokenBytes, seconds: float):
        self._bytes, self._seconds = data, seconds
        self._began: tuple[float, int] | None = None
        self._has_line = False

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> bool:
        """Does it end here?"""
        now = time.monotonic()
        if self._began is None:
            self._began = now, len(ids)
        begin, n_prompt = self._began
        if not self._has_line and len(ids) > n_prompt:
            self._has_line = b"\n" in self._bytes(int(ids[-1]), False)
        return self._has_line and now - begin > self._seconds


class Indentation:
    """Ends a text where one of its lines, but for the first, has fewer spaces and tabs in front: as
    llama.cpp's `n_indent` asks for. n_prompt: ids before the text."""

    reason = "length"
    n_prompt = 0

    def __init__(self, data: TokenBytes, least: int):
        self._bytes, self._least = data, least

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> bool:
        """Does it end here?"""
        line = b""
        for token in ids[: self.n_prompt - 1 if self.n_prompt else None : -1]:
            line = self._bytes(int(token), False) + line
            if b"\n" in line or len(line) > _MOST_INDENT:
                break
        _, begun, behind = line.rpartition(b"\n")
        said = behind.lstrip(b" \t")
        return bool(begun and said) and len(behind) - len(said) < self._least


def _bias(model: ServedModel, body: Sampled, settings: Settings) -> dict[int | str, float]:
    """Biases by id, of pairs or a dict whose keys are ids or texts; False: never. Raises
    Refusal."""
    given, wrong = body.logit_bias or [], "logit_bias must have an id or a text, and a number"
    # In JSON's keys, an id is a text.
    pairs = (
        [(_token(key), value) for key, value in given.items()]
        if isinstance(given, dict)
        else [tuple(pair) for pair in given]
    )
    if len(pairs) > settings.max_bias:
        raise Refusal(400, f"logit_bias may have at most {settings.max_bias} tokens", "logit_bias")
    found: dict[int | str, float] = {}
    if body.logit_bias is None:
        found |= settings.defaults.logit_bias

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
    if settings.defaults.ignore_eos if body.ignore_eos is None else body.ignore_eos:
        add(model.prompts.end_tokens, -math.inf)
    return found


def _token(key: str) -> int | str:
    """What a key of JSON's names: an id is a text there."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return key
    return int(key) if len(digits) < 11 else -1  # which no token has
