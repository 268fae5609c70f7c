"""LlamaIndex, by llama-index-llms-openai-like."""

from typing import Literal

from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, WEATHER, City, attempt
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

model = OpenAILike(
    model=MODEL,
    api_base=OPENAI,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_tokens=64,
    max_retries=0,
    timeout=600,
)
MESSAGES = [ChatMessage(role="user", content=QUESTION)]


class Person(BaseModel):
    """A person."""

    name: Literal["Anna", "Ben"]
    age: int


def weather(city: City) -> str:
    """The weather of a city."""
    return city + ": sun"


def chat():
    return model.chat(MESSAGES).message.content


def stream():
    return "".join(part.delta or "" for part in model.stream_chat(MESSAGES))


def tools():
    of = [FunctionTool.from_defaults(fn=weather)]
    done = model.chat_with_tools(of, user_msg=WEATHER, tool_required=True)
    return model.get_tool_calls_from_response(done)


def structured_output():
    return model.structured_predict(Person, PromptTemplate(PERSON)).name is not None


def completions():
    of = OpenAILike(model=MODEL, api_base=OPENAI, api_key=KEY, is_chat_model=False, max_tokens=24)
    return of.complete("Once upon a time").text


def embeddings():
    of = OpenAILikeEmbedding(model_name=MODEL, api_base=OPENAI, api_key=KEY)
    return len(of.get_text_embedding_batch(["a bear", "a fox"])) == 2


attempt(chat, stream, tools, structured_output, completions, embeddings)
