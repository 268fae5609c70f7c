"""OpenAI's package."""

from typing import Literal

from attempts import KEY, MODEL, OPENAI, PARAMETERS, PERSON, QUESTION, WEATHER, attempt
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=OPENAI, api_key=KEY, max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def models():
    return [model.id for model in client.models.list()]


def chat():
    done = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24)
    return done.choices[0].message.content and done.usage.total_tokens


def stream():
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, **options)
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    return text and parts[-1].usage.completion_tokens


def tools():
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[{"type": "function", "function": TOOL}],
        tool_choice="required",
        max_tokens=64,
    )
    return done.choices[0].message.tool_calls[0].function.name == "weather"


def structured_output():
    messages = [{"role": "user", "content": PERSON}]
    done = client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=Person, max_tokens=64
    )
    return done.choices[0].message.parsed


def responses():
    done = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=24)
    return done.output_text


def responses_stream():
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=24) as events:
        kinds = [event.type for event in events]
        return kinds[-1] in ("response.completed", "response.incomplete") and len(kinds) > 5


def responses_tools():
    done = client.responses.create(
        model=MODEL,
        input=WEATHER,
        tools=[{"type": "function", **TOOL}],
        tool_choice="required",
        max_output_tokens=64,
    )
    return done.output[0].type == "function_call"


def responses_structured_output():
    done = client.responses.parse(
        model=MODEL, input=PERSON, text_format=Person, max_output_tokens=64
    )
    return done.output_parsed


def completions():
    return client.completions.create(model=MODEL, prompt="Once", max_tokens=24).choices[0].text


def embeddings():
    done = client.embeddings.create(model=MODEL, input=["a bear", "a fox"])
    return len(done.data) == 2 and done.data[0].embedding


attempt(
    models,
    chat,
    stream,
    tools,
    structured_output,
    responses,
    responses_stream,
    responses_tools,
    responses_structured_output,
    completions,
    vectors=[embeddings],
)
