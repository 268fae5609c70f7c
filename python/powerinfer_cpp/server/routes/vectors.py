"""Routes that make vectors of texts, and rank texts."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from ... import __version__
from ..answering import WholeResponse
from ..dialects import ranks, vectors
from ..dialects.dialect import TEI
from ..errors import Refusal
from ..models import Models
from ..recorded import Recorded
from ..served import ServedModel
from ..settings import Settings
from ..vectors import Turns
from .preparing import Made, Preparing
from .route import Call, Cost, Route, json

_SCORES = "Scores of texts for a query, the best first (Jina, Cohere; TEI)."


class VectorRoutes:
    """What is asked of a model about vectors and scores. recorded: what answers may keep."""

    def __init__(
        self, models: Models, settings: Settings, preparing: Preparing, recorded: Recorded
    ):
        self._models, self._settings = models, settings
        self._preparing, self._recorded = preparing, recorded
        self._running: set[asyncio.Future[Any]] = set()  # calls that run, or wait for their turn

    def end(self) -> None:
        """Ends the answers that are being computed, with an error that says so: once the models
        are closing."""
        for call in list(self._running):
            call.cancel()

    def table(self) -> list[Route]:
        """The routes."""
        of_tei = ("Vectors of texts (TEI).", self._tei, vectors.TeiEmbedBody, TEI)
        many = Cost.MANY_TEXTS
        return [
            Route(
                "/v1/embeddings",
                "Vectors of texts (OpenAI).",
                self._embeddings,
                vectors.EmbeddingBody,
                cost=many,
            ),
            *[
                Route(path, _SCORES, self._rerank, ranks.RerankBody, cost=many)
                for path in ("/v1/rerank", "/v1/reranking", "/v2/rerank")
            ],
            Route(
                "/v1/score",
                "Scores of pairs of texts (vLLM).",
                self._score,
                ranks.ScoreBody,
                cost=many,
            ),
            *[Route(path, *of_tei, many) for path in ("/embed", "/")],
            Route("/info", "What the model makes of texts (TEI).", self._info, None, TEI),
        ]

    def _answer(
        self, call: Call, n_bytes: int, work: Callable[[Turns], Awaitable[bytes]]
    ) -> Response:
        """What work gives. n_bytes: of the answer."""

        async def run(work: Callable[..., Made], *of: Any) -> Made:
            running = asyncio.ensure_future(self._preparing.embedded(call.sender, work, *of))
            self._running.add(running)
            try:
                return await running
            except asyncio.CancelledError:
                if self._models.closing:
                    raise Refusal(503, "the server is ending") from None
                raise
            finally:
                self._running.discard(running)

        turns = Turns(run, lambda: bool(self._models.writing()))
        reserve = self._models.get(call.model).reserve
        taken = self._recorded.take(call.sender, n_bytes, reserve)
        return WholeResponse(lambda: work(turns), call.dialect, taken.close)

    async def _embeddings(self, call: Call) -> Response:
        model, name = self._of(call)
        asked, shape = await self._made(call, vectors.embedding_texts)
        n_bytes = vectors.vector_bytes(model, asked, shape, self._settings)
        work = functools.partial(vectors.embeddings, model, name, asked, shape)
        return self._answer(call, n_bytes, work)

    async def _tei(self, call: Call) -> Response:
        model, _ = self._of(call)
        asked, shape = await self._made(call, vectors.tei_texts)
        n_bytes = vectors.vector_bytes(model, asked, shape, self._settings)
        work = functools.partial(vectors.tei_vectors, model, asked, shape)
        return self._answer(call, n_bytes, work)

    async def _rerank(self, call: Call) -> Response:
        asked = await self._made(call, ranks.ranked_pairs)
        n_bytes = ranks.rank_bytes(call.body, ranks.texts_of(call.body))
        work = functools.partial(ranks.ranked, *self._of(call), call.body, asked)
        return self._answer(call, n_bytes, work)

    async def _score(self, call: Call) -> Response:
        asked = await self._made(call, ranks.scored_pairs)
        work = functools.partial(ranks.scored, *self._of(call), call.body, asked)
        return self._answer(call, ranks.ENTRY_BYTES * len(asked.ids), work)

    def _of(self, call: Call) -> tuple[ServedModel, str]:
        """The model, and what it is called in answers."""
        return self._models.get(call.model), self._models.name_of(call.model)

    async def _made(self, call: Call, make: Callable[..., Made]) -> Made:
        """What make gives for the body, in a thread: it tokenises."""
        model, _ = self._of(call)
        return await self._preparing.made(call, make, model, call.body, self._settings)

    async def _info(self, call: Call) -> Response:
        model, name = self._of(call)
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        pooling = {"pooling": model.vectors.pooling}
        kind = {"reranker": labels} if model.vectors.ranks else {"embedding": pooling}
        n, n_inputs = model.vectors.inputs.max_tokens, self._settings.max_inputs
        return json(
            {
                "model_id": name,
                "model_sha": None,
                "model_dtype": "float32",
                "model_type": kind,
                "max_concurrent_requests": self._settings.max_turns,
                "max_input_length": n,
                "max_batch_tokens": n,
                "max_batch_requests": None,
                "max_client_batch_size": n_inputs,
                "auto_truncate": self._settings.truncate,
                "tokenization_workers": 1,
                "version": __version__,
                "sha": None,
                "docker_label": None,
            }
        )
