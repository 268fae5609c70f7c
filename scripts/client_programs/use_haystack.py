"""Haystack, with huggingface-api-haystack for vectors and ranks."""

from typing import Literal

from attempts import (
    DOCUMENTS,
    KEY,
    MODEL,
    OPENAI,
    PARAMETERS,
    PERSON,
    QUERY,
    QUESTION,
    URL,
    WEATHER,
    attempt,
)
from haystack import Document
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from pydantic import BaseModel

HERE = {"api_base_url": OPENAI, "api_key": Secret.from_token(KEY), "model": MODEL}


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def reply(text, streaming_callback=None, **options):
    options = {"max_completion_tokens": 64, **options}
    of = OpenAIChatGenerator(**HERE, generation_kwargs=options)
    said = [ChatMessage.from_user(text)]
    return of.run(said, streaming_callback=streaming_callback)["replies"][0]


def chat():
    return reply(QUESTION).text


def stream():
    parts = []
    return reply(QUESTION, parts.append).text and len(parts) > 2


def tools():
    tool = Tool(
        name="weather", description="The weather.", parameters=PARAMETERS, function=lambda city: ""
    )
    of = OpenAIChatGenerator(**HERE, generation_kwargs={"tool_choice": "required"}, tools=[tool])
    return of.run([ChatMessage.from_user(WEATHER)])["replies"][0].tool_calls


def structured_output():
    return Person.model_validate_json(reply(PERSON, response_format=Person).text)


def embeddings():
    return OpenAITextEmbedder(**HERE).run("a bear")["embedding"]


def embeddings_of_documents():
    of = HuggingFaceAPIDocumentEmbedder(
        api_type="text_embeddings_inference", api_params={"url": URL}, token=Secret.from_token(KEY)
    )
    made = of.run([Document(content=text) for text in DOCUMENTS])["documents"]
    return all(each.embedding for each in made)


def ranks():
    of = HuggingFaceTEIRanker(url=URL, token=Secret.from_token(KEY))
    found = of.run(QUERY, [Document(content=text) for text in DOCUMENTS])["documents"]
    return sorted(each.content for each in found) == sorted(DOCUMENTS)


attempt(
    chat,
    stream,
    tools,
    structured_output,
    vectors=[embeddings, embeddings_of_documents],
    ranks=[ranks],
)
