"""outlines, with its backend for OpenAI's API."""

from typing import Literal

import outlines
from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, attempt
from openai import OpenAI
from pydantic import BaseModel

model = outlines.from_openai(OpenAI(base_url=OPENAI, api_key=KEY, max_retries=0), MODEL)


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


def chat():
    return model(QUESTION, max_tokens=24)


def stream():
    return "".join(model.stream(QUESTION, max_tokens=24))


def structured_output():
    return Person.model_validate_json(model(PERSON, Person, max_tokens=64))


attempt(chat, stream, structured_output)
