"""OpenAI's agents, over chats and over responses."""

import asyncio
from typing import Literal

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, WEATHER, City, attempt
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=OPENAI, api_key=KEY, max_retries=0)
KINDS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


@function_tool
def weather(city: City) -> str:
    """The weather of a city."""
    return city + ": sun"


def agent(kind, **options):
    # A text that this cuts is an error of the client's, so it is long.
    settings = ModelSettings(max_tokens=1024, tool_choice=options.pop("tool_choice", None))
    model = kind(model=MODEL, openai_client=client)
    return Agent(
        name="A", instructions="Be short.", model=model, model_settings=settings, **options
    )


async def of_both(ask):
    """Both kinds share a client, which belongs to one event loop."""
    return all([await ask(kind) for kind in KINDS])


async def _chat(kind):
    return (await Runner.run(agent(kind), QUESTION)).final_output


async def _stream(kind):
    run = Runner.run_streamed(agent(kind), QUESTION)
    return len([event async for event in run.stream_events()]) > 3


async def _tools(kind):
    # After the call the choice is the model's again, so the run ends.
    done = await Runner.run(agent(kind, tools=[weather], tool_choice="required"), WEATHER)
    return any(item.type == "tool_call_output_item" for item in done.new_items)


async def _structured_output(kind):
    return (await Runner.run(agent(kind, output_type=Person), PERSON)).final_output.name is not None


LOOP = asyncio.new_event_loop()


def chat():
    return LOOP.run_until_complete(of_both(_chat))


def stream():
    return LOOP.run_until_complete(of_both(_stream))


def tools():
    return LOOP.run_until_complete(of_both(_tools))


def structured_output():
    return LOOP.run_until_complete(of_both(_structured_output))


attempt(chat, stream, tools, structured_output)
