"""LangChain, by langchain-openai."""

from typing import Literal

from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, WEATHER, City, attempt
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

model = ChatOpenAI(base_url=OPENAI, api_key=KEY, model=MODEL, max_tokens=64, max_retries=0)


class Person(BaseModel):
    name: Literal["Anna", "Ben"]
    age: int


@tool
def weather(city: City) -> str:
    """The weather of a city."""
    return city + ": sun"


def chat():
    return model.invoke(QUESTION).content


def stream():
    return "".join(part.content for part in model.stream(QUESTION))


def tools():
    return model.bind_tools([weather], tool_choice="any").invoke(WEATHER).tool_calls


def structured_output():
    return model.with_structured_output(Person).invoke(PERSON)


def structured_output_by_a_call():
    return model.with_structured_output(Person, method="function_calling").invoke(PERSON)


def responses():
    of = ChatOpenAI(
        base_url=OPENAI, api_key=KEY, model=MODEL, max_tokens=64, use_responses_api=True
    )
    return of.invoke(QUESTION).content


def embeddings():
    # Otherwise it sends ids of OpenAI's own tokenizer, which mean other words here.
    of = OpenAIEmbeddings(
        base_url=OPENAI, api_key=KEY, model=MODEL, check_embedding_ctx_length=False
    )
    return len(of.embed_documents(["a bear", "a fox"])) == 2


attempt(
    chat,
    stream,
    tools,
    structured_output,
    structured_output_by_a_call,
    responses,
    vectors=[embeddings],
)
