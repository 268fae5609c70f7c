"""Log-probabilities of tokens, in the shapes of OpenAI's completions and chats."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# A likely token of a position; candidates are kept packed, some 12 bytes each instead of the
# hundred of Python's objects: a client may ask for millions of them.
LIKELY = np.dtype([("token", np.int32), ("logprob", np.float64)])
_BLOCK = 256  # logits of which the greatest is found first


@dataclass(frozen=True, slots=True)
class Choice:
    """A generated token or a token of a prompt, and the most likely tokens at its position.

    logprob: natural logarithm of its probability from the model's own logits, before processors,
    penalties and temperature; None for the first token of a text. likely: LIKELY [n], the most
    likely tokens, best first, and of equal ones the smaller ids; also None for the first token.
    """

    token: int
    logprob: float | None
    likely: np.ndarray | None

    @property
    def top(self) -> list[tuple[int, float]] | None:
        """The most likely tokens as (token, logprob)."""
        return None if self.likely is None else self.likely.tolist()


def choice(token: int, logits: np.ndarray | None, n_top: int) -> Choice:
    """The choice of a token with logits float32 [n_vocab]; None: it is the first token."""
    if logits is None:
        return Choice(token, None, None)
    most = logits.max()
    # Terms of 32 bits, a sum of 64: each term is off by less than a millionth of itself.
    total = float(most) + math.log(float(np.exp(logits - most).sum(dtype=np.float64)))
    best = likeliest(logits, n_top)
    likely = np.empty(len(best), LIKELY)
    likely["token"], likely["logprob"] = best, logits[best].astype(np.float64) - total
    return Choice(token, float(logits[token]) - total, likely)


def likeliest(logits: np.ndarray, n: int) -> np.ndarray:
    """intp [n]: where the n greatest of logits float32 [n_vocab] are, greatest first, and of equal
    ones the first; all of them if there are fewer."""
    n = min(n, len(logits))
    if n == 0:
        return np.empty(0, np.intp)
    found = _not_below(logits, n)
    values = logits[found]
    if len(found) > 4 * n and not np.isnan(values).any():  # many are equal, or lie together
        least = np.partition(values, len(values) - n)[len(values) - n]
        above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
        chosen = np.concatenate([above, equal[: n - len(above)]])
        found, values = found[chosen], values[chosen]
    return found[np.lexsort((found, -values))[:n]]


def _not_below(logits: np.ndarray, n: int) -> np.ndarray:
    """Where at least n logits are, among them the n greatest. Blocks of which n have a logit that
    is not below a bound have n such logits: only the greatest of each block are compared."""
    n_blocks = len(logits) // _BLOCK
    if n_blocks > n:
        greatest = logits[: n_blocks * _BLOCK].reshape(n_blocks, _BLOCK).max(axis=1)
        found = np.flatnonzero(logits >= np.partition(greatest, n_blocks - n)[n_blocks - n])
        if len(found) >= n:  # not if logits are no numbers
            return found
    return np.arange(len(logits))


def token_name(data: bytes) -> str:
    """Text of a token; `bytes:\\xe2\\x82` if its bytes are not a complete text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


# Bytes of a token in a text; the flag: first token of a text, without the space before it.
TokenBytes = Callable[[int, bool], bytes]
# What a token's dict becomes in the shapes below: a server makes JSON of it at once.
Pack = Callable[[dict[str, Any]], Any]


def as_it_is(found: dict[str, Any]) -> Any:
    """Packs nothing."""
    return found


@dataclass(frozen=True, slots=True)
class Placed:
    """A choice, the offset of its text in characters, and whether it is the first token."""

    choice: Choice
    offset: int
    first: bool = False


def completion_logprobs(
    placed: list[Placed], data: TokenBytes, pack: Pack = as_it_is
) -> dict[str, Any]:
    """OpenAI's `logprobs` of a completion: lists text_offset, tokens, token_logprobs,
    top_logprobs.

    top_logprobs has the most likely tokens and the chosen one; of tokens with the same text, only
    the most likely one. Each of its entries is packed.
    """
    found: dict[str, Any] = {
        "text_offset": [],
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
    }
    for each in placed:
        chosen = each.choice
        top: dict[str, Any] = {}
        for token, logprob in [*(chosen.top or ()), (chosen.token, chosen.logprob)]:
            top.setdefault(token_name(data(token, each.first)), logprob)
        found["text_offset"].append(each.offset)
        found["tokens"].append(token_name(data(chosen.token, each.first)))
        found["token_logprobs"].append(chosen.logprob)
        found["top_logprobs"].append(None if chosen.likely is None else pack(top))
    return found


def chat_logprobs(placed: list[Placed], data: TokenBytes, pack: Pack = as_it_is) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat: {"content": a packed dict per token, "refusal": None}."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        raw = data(token, False)
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": logprob}

    content = [
        pack(
            entry(p.choice.token, p.choice.logprob)
            | {"top_logprobs": [entry(*pair) for pair in p.choice.top or []]}
        )
        for p in placed
    ]
    return {"content": content, "refusal": None}
