"""instructor: objects of pydantic, in its ways to ask for them."""

from typing import Literal

import instructor
from attempts import KEY, MODEL, OPENAI, PERSON, attempt
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def asked(mode):
    return instructor.from_openai(OpenAI(base_url=OPENAI, api_key=KEY), mode=mode)


def made(mode):
    messages = [{"role": "user", "content": PERSON}]
    return asked(mode).chat.completions.create(
        model=MODEL, messages=messages, response_model=Person, max_retries=0, max_tokens=128
    )


def tools():
    return made(instructor.Mode.TOOLS)


def structured_output():
    return made(instructor.Mode.JSON_SCHEMA)


def stream():
    parts = asked(instructor.Mode.TOOLS).chat.completions.create_partial(
        model=MODEL,
        messages=[{"role": "user", "content": PERSON}],
        response_model=Person,
        max_tokens=128,
    )
    return list(parts)[-1].name is not None


attempt(tools, structured_output, stream)
