"""Log-probabilities of tokens, in the shapes of OpenAI's completions and chats."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Choice:
    """A generated token or a token of a prompt, and the most likely tokens at its position.

    logprob: natural logarithm of its probability from the model's own logits, before processors,
    penalties and temperature; None for the first token of a text. top: (token, logprob) of the most
    likely tokens, best first; also None for the first token.
    """

    token: int
    logprob: float | None
    top: list[tuple[int, float]] | None


def choice(token: int, logits: np.ndarray | None, n_top: int) -> Choice:
    """The choice of a token with logits float32 [n_vocab]; None: it is the first token."""
    if logits is None:
        return Choice(token, None, None)
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    n_top = min(n_top, len(x))
    best = np.argpartition(-x, n_top - 1)[:n_top] if n_top else np.empty(0, dtype=int)
    best = best[np.lexsort((best, -x[best]))]
    return Choice(token, float(x[token]), [(int(i), float(x[i])) for i in best])


def token_name(data: bytes) -> str:
    """Text of a token; `bytes:\\xe2\\x82` if its bytes are not a complete text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


# Bytes of a token in a text; the flag: first token of a text, without the space before it.
TokenBytes = Callable[[int, bool], bytes]


@dataclass(frozen=True)
class Placed:
    """A choice, the offset of its text in characters, and whether it is the first token."""

    choice: Choice
    offset: int
    first: bool = False


def completion_logprobs(placed: list[Placed], data: TokenBytes) -> dict[str, Any]:
    """OpenAI's `logprobs` of a completion: lists text_offset, tokens, token_logprobs,
    top_logprobs.

    top_logprobs has the most likely tokens and the chosen one; of tokens with the same text, only
    the most likely one.
    """
    found: dict[str, Any] = {
        "text_offset": [],
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
    }
    for each in placed:
        chosen = each.choice
        top: dict[str, float] | None = None
        if chosen.top is not None:
            top = {}
            for token, logprob in [*chosen.top, (chosen.token, chosen.logprob)]:
                top.setdefault(token_name(data(token, each.first)), logprob)
        found["text_offset"].append(each.offset)
        found["tokens"].append(token_name(data(chosen.token, each.first)))
        found["token_logprobs"].append(chosen.logprob)
        found["top_logprobs"].append(top)
    return found


def chat_logprobs(placed: list[Placed], data: TokenBytes) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat: {"content": a dict per token, "refusal": None}."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        raw = data(token, False)
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": logprob}

    content = [
        entry(p.choice.token, p.choice.logprob)
        | {"top_logprobs": [entry(*pair) for pair in p.choice.top or []]}
        for p in placed
    ]
    return {"content": content, "refusal": None}
