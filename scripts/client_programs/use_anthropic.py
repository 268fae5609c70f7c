"""Anthropic's package."""

from typing import Literal

from anthropic import Anthropic
from attempts import KEY, MODEL, PARAMETERS, PERSON, QUESTION, URL, WEATHER, attempt
from pydantic import BaseModel

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def models():
    return [model.id for model in client.models.list()]


def chat():
    done = client.messages.create(model=MODEL, messages=MESSAGES, max_tokens=24)
    return done.content[0].text and done.usage.output_tokens


def stream():
    with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=24) as events:
        text = "".join(events.text_stream)
        return text and events.get_final_message().stop_reason


def tools():
    done = client.messages.create(
        model=MODEL,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[{"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}],
        tool_choice={"type": "any"},
        max_tokens=64,
    )
    return [block.name for block in done.content if block.type == "tool_use"]


def structured_output():
    messages = [{"role": "user", "content": PERSON}]
    done = client.messages.parse(
        model=MODEL, messages=messages, output_format=Person, max_tokens=64
    )
    return done.parsed_output


def count_tokens():
    return client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens


attempt(models, chat, stream, tools, structured_output, count_tokens)
