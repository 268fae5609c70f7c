"""DSPy."""

import contextlib
from typing import Literal

import dspy
from attempts import KEY, MODEL, OPENAI, PERSON, QUESTION, WEATHER, City, attempt
from dspy.utils.exceptions import AdapterParseError

HERE = {"api_base": OPENAI, "api_key": KEY, "max_tokens": 256, "cache": False}
dspy.configure(lm=dspy.LM(f"openai/{MODEL}", **HERE))
# Whether to send a schema DSPy decides by the name; a single model answers to any name.
KNOWN = dspy.LM("openai/gpt-4o-mini", **HERE)


class People(dspy.Signature):
    """Find the person."""

    text: str = dspy.InputField()
    name: Literal["Anna", "Ben"] = dspy.OutputField()
    age: int = dspy.OutputField()


def chat():
    return dspy.settings.lm(QUESTION)


def prediction():
    return dspy.Predict("question -> answer")(question=QUESTION).answer is not None


def structured_output():
    with dspy.context(lm=KNOWN, adapter=dspy.JSONAdapter()):
        return dspy.Predict(People)(text=PERSON).name is not None


def tools():
    """DSPy has no schema for arguments of any kind, so a small model misses ReAct's format: only
    its requests count."""

    def weather(city: City) -> str:
        return city + ": sun"

    agent = dspy.ReAct("question -> answer", tools=[weather], max_iters=2)
    with dspy.context(lm=KNOWN, adapter=dspy.JSONAdapter()), contextlib.suppress(AdapterParseError):
        agent(question=WEATHER)
    return True


def embeddings():
    of = dspy.Embedder(f"openai/{MODEL}", api_base=OPENAI, api_key=KEY, caching=False)
    return len(of(["a bear", "a fox"])) == 2


attempt(chat, prediction, structured_output, tools, vectors=[embeddings])
