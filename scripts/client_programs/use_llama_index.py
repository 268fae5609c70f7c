"""LlamaIndex, by llama-index-llms-openai-like and its packages for vectors and ranks."""

from typing import Literal

from attempts import (
    DOCUMENTS,
    KEY,
    MODEL,
    OPENAI,
    PERSON,
    QUERY,
    QUESTION,
    URL,
    WEATHER,
    City,
    attempt,
)
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
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


def embeddings_of_an_endpoint():
    of = TextEmbeddingsInference(model_name=MODEL, base_url=URL)
    return len(of.get_text_embedding_batch(["a bear", "a fox"])) == 2


def ranked(ranker):
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    found = ranker.postprocess_nodes(nodes, query_str=QUERY)
    return len(found) == 2 and found[0].score >= found[1].score


def ranks_as_jina():
    return ranked(JinaRerank(model=MODEL, base_url=OPENAI, api_key=KEY, top_n=2))


def ranks_as_an_endpoint():
    return ranked(TextEmbeddingInference(base_url=URL, top_n=2, model_name=MODEL))


attempt(
    chat,
    stream,
    tools,
    structured_output,
    completions,
    vectors=[embeddings, embeddings_of_an_endpoint],
    ranks=[ranks_as_jina, ranks_as_an_endpoint],
)
