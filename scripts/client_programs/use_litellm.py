"""LiteLLM, as a library."""

from typing import Literal

import litellm
from attempts import KEY, MODEL, OPENAI, PARAMETERS, PERSON, QUESTION, URL, WEATHER, attempt
from pydantic import BaseModel

HERE = {"model": f"openai/{MODEL}", "api_base": OPENAI, "api_key": KEY}
MESSAGES = [{"role": "user", "content": QUESTION}]


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def chat():
    done = litellm.completion(**HERE, messages=MESSAGES, max_tokens=24)
    return done.choices[0].message.content


def stream():
    parts = litellm.completion(**HERE, messages=MESSAGES, max_tokens=24, stream=True)
    return "".join(part.choices[0].delta.content or "" for part in parts)


def tools():
    done = litellm.completion(
        **HERE,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}],
        tool_choice="required",
        max_tokens=64,
    )
    return done.choices[0].message.tool_calls[0].function.name == "weather"


def structured_output():
    messages = [{"role": "user", "content": PERSON}]
    done = litellm.completion(**HERE, messages=messages, response_format=Person, max_tokens=64)
    return Person.model_validate_json(done.choices[0].message.content)


def responses():
    done = litellm.responses(**HERE, input=QUESTION, max_output_tokens=24)
    return done.output[0].content[0].text


def messages():
    here = {**HERE, "model": f"anthropic/{MODEL}", "api_base": URL}
    done = litellm.completion(**here, messages=MESSAGES, max_tokens=24)
    return done.choices[0].message.content


def embeddings():
    return litellm.embedding(**HERE, input=["a bear"]).data[0]["embedding"]


attempt(chat, stream, tools, structured_output, responses, messages, embeddings)
