"""Scores of texts for a query: Jina's and Cohere's rerank, that of text-embeddings-inference (TEI),
and vLLM's score."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from anyio import to_thread

from ...core.errors import about_request
from ..answering import encode
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..vectors import Asked, Turns
from .bodies import Texts
from .dialect import OPENAI, TEI, Dialect
from .vectors import check_direction

ENTRY_BYTES = 128  # of a result as JSON, but for its text
# Documents for which Cohere counts one search.
SEARCH = 100

Document = str | dict[str, Any]


class RerankBody(msgspec.Struct, kw_only=True):
    """POST /v1/rerank, /v2/rerank and others. `documents` are Jina's and Cohere's, texts or objects
    with `text`; `texts` are TEI's, whose answer is a list. instruction: what is to be judged, of
    models that ask for one."""

    query: Document
    documents: list[Document] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    instruction: str | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None

    @property
    def dialect(self) -> Dialect:
        """How it is refused."""
        return OPENAI if self.texts is None else TEI


class ScoreBody(msgspec.Struct, kw_only=True):
    """POST /v1/score. text_1: one text for all of text_2, or as many as these."""

    text_1: Texts
    text_2: Texts
    model: str | None = None
    instruction: str | None = None
    raw_scores: bool | None = None
    truncate_prompt_tokens: int | None = None


def ranked_pairs(model: ServedModel, body: RerankBody, settings: Settings) -> Asked:
    """The pairs of a body. Raises Refusal, and RequestError."""
    check_ranks(model)
    _check(body, settings)
    query, given = _text_of(body.query, "query"), texts_of(body)
    most, cut = body.max_tokens_per_doc, body.truncate is not False
    with about_request():
        pairs = model.vectors.inputs.pairs(query, given, body.instruction, cut, most)
    return _asked(*pairs)


def scored_pairs(model: ServedModel, body: ScoreBody, settings: Settings) -> Asked:
    """The pairs of a body of vLLM's. Raises Refusal, and RequestError."""
    check_ranks(model)
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    for name, texts in (("text_1", first), ("text_2", second)):
        if not texts:
            raise Refusal(400, f"{name} is empty", name)
        if len(texts) > settings.max_inputs:
            raise Refusal(400, f"{name} may have at most {settings.max_inputs} entries", name)
    if body.truncate_prompt_tokens not in (None, -1):
        words = "truncate_prompt_tokens must be -1: pairs are cut to what the model takes"
        raise Refusal(400, words, "truncate_prompt_tokens")
    if len(first) not in (1, len(second)):
        words = f"text_1 has {len(first)} texts and text_2 {len(second)}: one, or as many, are used"
        raise Refusal(400, words, "text_1")
    inputs = model.vectors.inputs
    with about_request():
        if len(first) == 1:
            return _asked(*inputs.pairs(first[0], second, body.instruction))
        each = [
            inputs.pairs(query, [text], body.instruction)
            for query, text in zip(first, second, strict=True)
        ]
    return _asked(
        [ids for many, _ in each for ids in many], [of for _, many in each for of in many]
    )


def check_ranks(model: ServedModel) -> None:
    """Refuses pairs for a model that has no scores of them."""
    if not model.vectors.ranks:
        words = "this model does not rank texts: start the server with a model that ranks"
        raise Refusal(501, words, "model")


def texts_of(body: RerankBody) -> list[str]:
    """The documents of a body. Raises Refusal."""
    if body.texts is not None:
        return body.texts
    return [_text_of(each, f"documents[{i}]") for i, each in enumerate(body.documents or ())]


def rank_bytes(body: RerankBody, texts: Sequence[str]) -> int:
    """Bytes of the answer as JSON, about."""
    shown = body.return_documents or body.return_text
    return sum(ENTRY_BYTES + (2 * len(text) if shown else 0) for text in texts)


def _asked(ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Asked:
    return Asked(*([np.asarray(of, np.int32) for of in each] for each in (ids, types)))


def _check(body: RerankBody, settings: Settings) -> None:
    name = "documents" if body.texts is None else "texts"
    given = body.documents if body.texts is None else body.texts
    if body.texts is not None and body.documents is not None:
        raise Refusal(400, "give documents or texts, not both", "texts")
    if not given:
        raise Refusal(400, f"{name} is empty or missing", name)
    if len(given) > settings.max_inputs:
        status = 400 if body.texts is None else 413
        raise Refusal(status, f"{name} may have at most {settings.max_inputs} entries", name)
    for field in ("top_n", "max_tokens_per_doc"):
        if (n := getattr(body, field)) is not None and n < 1:
            raise Refusal(400, f"{field} must be at least 1", field)
    check_direction(body.truncation_direction)


def _text_of(given: Document, name: str) -> str:
    text = given if isinstance(given, str) else given.get("text")
    if not isinstance(text, str):
        raise Refusal(400, f"{name} must be a text, or an object with `text`", name)
    return text


# ---- The answers -------------------------------------------------------------------------


async def ranked(
    model: ServedModel,
    name: str,
    body: RerankBody,
    asked: Asked,
    turns: Turns,
) -> bytes:
    """The answer to a body as JSON, the best first; of equal ones the first. turns: see
    `Vectors.calls`."""
    scores = await _scores(model, asked, bool(body.raw_scores), turns)
    texts = texts_of(body)

    def written() -> bytes:
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: body.top_n]
        if body.texts is not None:
            shown = bool(body.return_text)
            return encode(
                [
                    {"index": i, "score": scores[i]} | ({"text": texts[i]} if shown else {})
                    for i in order
                ]
            )
        results = [
            {"index": i, "relevance_score": scores[i]}
            | ({"document": {"text": texts[i]}} if body.return_documents else {})
            for i in order
        ]
        units = {"search_units": -(-len(scores) // SEARCH)}
        return encode(
            {
                "id": f"rerank-{uuid.uuid4().hex}",
                "model": name,
                "object": "list",
                "results": results,
                "usage": _usage(asked),
                "meta": {"api_version": {"version": "2"}, "billed_units": units},
            }
        )

    return await to_thread.run_sync(written)


async def scored(
    model: ServedModel,
    name: str,
    body: ScoreBody,
    asked: Asked,
    turns: Turns,
) -> bytes:
    """The answer to a body of vLLM's as JSON, in the order of the pairs."""
    scores = await _scores(model, asked, bool(body.raw_scores), turns)
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
    head = {"id": f"score-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return encode({**head, "model": name, "data": data, "usage": _usage(asked)})


async def _scores(model: ServedModel, asked: Asked, raw: bool, turns: Turns) -> list[float]:
    scores = [0.0] * len(asked.ids)
    async for group, found in model.vectors.calls(asked, turns):
        for i, score in zip(group, model.vectors.scores(found, raw).tolist(), strict=True):
            scores[i] = score
    return scores


def _usage(asked: Asked) -> dict[str, int]:
    return {"prompt_tokens": asked.n_tokens, "total_tokens": asked.n_tokens}
