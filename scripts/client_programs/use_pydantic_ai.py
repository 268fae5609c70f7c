"""pydantic-ai, over chats and over responses."""

import asyncio
from typing import Literal

from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, WEATHER, City, attempt
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

KINDS = (OpenAIChatModel, OpenAIResponsesModel)
SETTINGS = {"max_tokens": 64}
LOOP = asyncio.new_event_loop()


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def agents(**options):
    """One for each kind of API."""
    provider = OpenAIProvider(base_url=OPENAI, api_key=KEY)
    for kind in KINDS:
        yield Agent(kind(MODEL, provider=provider), model_settings=SETTINGS, **options)


def outputs(text, **options):
    found = [LOOP.run_until_complete(agent.run(text)).output for agent in agents(**options)]
    return all(each is not None for each in found)


def chat():
    return outputs(QUESTION)


async def _streamed(agent):
    async with agent.run_stream(QUESTION) as run:
        return [part async for part in run.stream_text(debounce_by=None)]


def stream():
    return all(len(LOOP.run_until_complete(_streamed(agent))) > 2 for agent in agents())


def tools():
    # The output is the call of a tool, which is therefore forced.
    return outputs(PERSON, output_type=ToolOutput(Person))


def structured_output():
    return outputs(PERSON, output_type=NativeOutput(Person))


def offered_tools():
    def weather(city: City) -> str:
        """The weather of a city."""
        return city + ": sun"

    return outputs(WEATHER, tools=[weather])


attempt(chat, stream, tools, structured_output, offered_tools)
