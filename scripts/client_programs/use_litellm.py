"""LiteLLM, as a library."""

from typing import Literal

import litellm
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


def ranks_as(provider, address):
    done = litellm.rerank(
        model=f"{provider}/{MODEL}",
        api_base=address,
        api_key=KEY,
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
    )
    return len(done.results) == 2


def ranks_as_jina():
    return ranks_as("jina_ai", URL + "/v1/rerank")


def ranks_as_cohere():
    return ranks_as("cohere", URL + "/v2/rerank")


def ranks_as_vllm():
    return ranks_as("hosted_vllm", URL)


def ranks_as_an_endpoint():
    return ranks_as("huggingface", URL)


attempt(
    chat,
    stream,
    tools,
    structured_output,
    responses,
    messages,
    vectors=[embeddings],
    ranks=[ranks_as_jina, ranks_as_cohere, ranks_as_vllm, ranks_as_an_endpoint],
)
