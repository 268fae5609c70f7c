"""Routes that make vectors of texts, and rank texts."""

import functools
from collections.abc import Awaitable, Callable

from starlette.responses import Response

from ... import __version__
from ..answering import WholeResponse
from ..dialects import ranks, vectors
from ..dialects.dialect import TEI
from ..models import Models
from ..recorded import Recorded
from ..settings import Settings
from ..vectors import InTurn
from .preparing import Preparing
from .route import Call, Route, json

_SCORES = "Scores of texts for a query, the best first (Jina, Cohere; TEI)."


class VectorRoutes:
    """What is asked of a model about vectors and scores. recorded: what answers may keep."""

    def __init__(
        self, models: Models, settings: Settings, preparing: Preparing, recorded: Recorded
    ):
        self._models, self._settings = models, settings
        self._preparing, self._recorded = preparing, recorded

    def table(self) -> list[Route]:
        """The routes."""
        said = "Vectors of texts (TEI)."
        return [
            Route(
                "/v1/embeddings",
                "Vectors of texts (OpenAI).",
                self._embeddings,
                vectors.EmbeddingBody,
            ),
            *[
                Route(path, _SCORES, self._rerank, ranks.RerankBody)
                for path in ("/v1/rerank", "/v1/reranking", "/v2/rerank")
            ],
            Route("/v1/score", "Scores of pairs of texts (vLLM).", self._score, ranks.ScoreBody),
            Route("/embed", said, self._tei, vectors.TeiEmbedBody, TEI),
            Route("/", said, self._tei, vectors.TeiEmbedBody, TEI),
            Route("/info", "What the model makes of texts (TEI).", self._info, None, TEI),
        ]

    def _in_turn(self, call: Call) -> tuple[InTurn, Callable[[], bool]]:
        """When calls of the engine are run, and whether texts are written meanwhile."""
        in_turn = functools.partial(self._preparing.embedded, call.sender)
        return in_turn, lambda: bool(self._models.writing())

    def _answer(
        self,
        call: Call,
        n_bytes: int,
        work: Callable[[InTurn, Callable[[], bool]], Awaitable[bytes]],
    ) -> Response:
        """What work gives. n_bytes: of the answer."""
        model, turn = self._models.get(call.model), self._in_turn(call)
        taken = self._recorded.take(call.sender, n_bytes, model.reserve)
        return WholeResponse(lambda: work(*turn), call.dialect, taken.close)

    async def _embeddings(self, call: Call) -> Response:
        model, name = self._models.get(call.model), self._models.name_of(call.model)
        of = (model, call.body, self._settings)
        asked, shape = await self._preparing.made(call, vectors.embedding_texts, *of)
        n_bytes = vectors.vector_bytes(model, asked, shape, self._settings)
        answer = functools.partial(vectors.embeddings, model, name, asked, shape)
        return self._answer(call, n_bytes, answer)

    async def _tei(self, call: Call) -> Response:
        model = self._models.get(call.model)
        of = (model, call.body, self._settings)
        asked, shape = await self._preparing.made(call, vectors.tei_texts, *of)
        n_bytes = vectors.vector_bytes(model, asked, shape, self._settings)
        return self._answer(
            call, n_bytes, functools.partial(vectors.tei_vectors, model, asked, shape)
        )

    async def _rerank(self, call: Call) -> Response:
        model, name, body = (
            self._models.get(call.model),
            self._models.name_of(call.model),
            call.body,
        )
        asked = await self._preparing.made(call, ranks.ranked_pairs, model, body, self._settings)
        n_bytes = ranks.rank_bytes(body, ranks.texts_of(body))
        return self._answer(
            call, n_bytes, functools.partial(ranks.ranked, model, name, body, asked)
        )

    async def _score(self, call: Call) -> Response:
        model, name, body = (
            self._models.get(call.model),
            self._models.name_of(call.model),
            call.body,
        )
        asked = await self._preparing.made(call, ranks.scored_pairs, model, body, self._settings)
        n_bytes = ranks.ENTRY_BYTES * len(asked.ids)
        return self._answer(
            call, n_bytes, functools.partial(ranks.scored, model, name, body, asked)
        )

    async def _info(self, call: Call) -> Response:
        model, name = self._models.get(call.model), self._models.name_of(call.model)
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
