"""Routes that write texts, and that count them or turn them into tokens."""

from collections.abc import Callable, Mapping

from starlette.responses import Response

from ...core.errors import about_request
from ..answering import encode
from ..dialects import openai
from ..dialects.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TemplateBody,
    TokenizeBody,
    check_adapters,
)
from ..dialects.dialect import ANTHROPIC
from ..dialects.infill import InfillBody, infill_job
from ..dialects.messages import CountBody, MessagesBody, count_tokens, messages_job
from ..dialects.native import NativeCompletionBody, completion_job
from ..dialects.responses import ResponsesBody, count_response_tokens, responses_job
from ..errors import Refusal
from ..models import Models
from ..recorded import Recorded, packed, recorded_bytes
from ..settings import Settings
from ..texts import Job, answer
from ..update_queues import UpdateQueues
from .preparing import Preparing
from .route import Call, Cost, Route, Serve, as_json, json

_COUNT = {"object": "response.input_tokens"}


class TextRoutes:
    """What is asked of a model about texts, in all dialects."""

    def __init__(
        self,
        models: Models,
        settings: Settings,
        queues: UpdateQueues,
        preparing: Preparing,
        recorded: Recorded,
    ):
        self._models, self._settings, self._queues = models, settings, queues
        self._preparing, self._recorded = preparing, recorded

    def table(self) -> list[Route]:
        """The routes."""
        texts, counts, chat = self._texts, self._counts, Cost.TEMPLATE
        said = "Counts the tokens of a chat"
        return [
            Route(
                "/v1/chat/completions",
                "Answers a chat (OpenAI).",
                texts(openai.chat_job),
                ChatBody,
                cost=chat,
                streams=True,
            ),
            Route(
                "/v1/responses",
                "Answers a chat, without state (OpenAI).",
                texts(responses_job),
                ResponsesBody,
                cost=chat,
                streams=True,
            ),
            Route(
                "/v1/messages",
                "Answers a chat (Anthropic).",
                texts(messages_job),
                MessagesBody,
                ANTHROPIC,
                chat,
                streams=True,
            ),
            Route(
                "/v1/completions",
                "Continues texts (OpenAI).",
                texts(openai.completion_job),
                CompletionBody,
                streams=True,
            ),
            Route(
                "/completion",
                "Continues texts (llama.cpp).",
                texts(completion_job),
                NativeCompletionBody,
                streams=True,
            ),
            Route(
                "/infill",
                "Writes between two texts (llama.cpp).",
                texts(infill_job),
                InfillBody,
                streams=True,
            ),
            Route(
                "/v1/chat/completions/input_tokens",
                f"{said} (OpenAI).",
                counts(openai.count_chat_tokens, _COUNT),
                ChatBody,
                cost=chat,
            ),
            Route(
                "/v1/responses/input_tokens",
                f"{said} (OpenAI).",
                counts(count_response_tokens, _COUNT),
                ResponsesBody,
                cost=chat,
            ),
            Route(
                "/v1/messages/count_tokens",
                f"{said} (Anthropic).",
                counts(count_tokens, {}),
                CountBody,
                ANTHROPIC,
                chat,
            ),
            Route(
                "/apply-template",
                "The prompt of a chat.",
                self._apply_template,
                TemplateBody,
                cost=chat,
            ),
            Route("/tokenize", "The ids of a text.", self._tokenize, TokenizeBody),
            Route("/detokenize", "The text of ids.", self._detokenize, DetokenizeBody),
        ]

    def _texts(self, make: Callable[..., Job]) -> Serve:
        """Serves the job that make gives."""

        async def serve(call: Call) -> Response:
            body, name = call.body, self._models.name_of(call.model)
            model = self._models.get(call.model)
            model.check_writes()
            if body.lora is not None:
                check_adapters(body.lora, [scale for _, scale in model.runtime.adapters.listed()])
            model.engine.check_room(call.sender, body.n_texts)
            of = (model, name, body, self._settings, call.owner)
            job = (await self._preparing.made(call, make, *of)).sent_by(call.sender)
            n_bytes = recorded_bytes(job.requests)
            taken = self._recorded.take(call.sender, n_bytes, model.reserve)
            return answer(self._queues, job, bool(body.stream), self._settings, taken)

        return serve

    def _counts(self, count: Callable[..., int], head: Mapping[str, str]) -> Serve:
        """Serves a number of tokens, behind a head."""

        async def serve(call: Call) -> Response:
            model = self._models.get(call.model)
            n = await self._preparing.made(call, count, model, call.body)
            return json({**head, "input_tokens": n})

        return serve

    async def _tokenize(self, call: Call) -> Response:
        body, model = call.body, self._models.get(call.model)
        text = body.content if body.prompt is None else body.prompt
        if text is None:
            raise Refusal(400, "there is no content", "content")
        special = body.add_special_tokens if body.add_special is None else body.add_special
        data = text.encode("utf-8", "surrogatepass")

        def work() -> bytes:
            ids = model.prompts.tokenize(data, bool(special), body.parse_special)
            return encode({"tokens": ids})

        return as_json(await self._preparing.made(call, work))

    async def _detokenize(self, call: Call) -> Response:
        model = self._models.get(call.model)

        def work() -> bytes:
            with about_request():
                data = model.prompts.detokenize(call.body.tokens, special=True)
            text = packed(data.decode("utf-8", "replace"))
            return encode({"content": text, "prompt": text})

        return as_json(await self._preparing.made(call, work))

    async def _apply_template(self, call: Call) -> Response:
        model = self._models.get(call.model)
        turn = await self._preparing.made(call, openai.turn_of, model, call.body)
        return json({"prompt": turn.text})
