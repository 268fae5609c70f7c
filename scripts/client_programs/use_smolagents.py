"""smolagents: its agents, with OpenAIServerModel."""

from attempts import KEY, MODEL, OPENAI, QUESTION, WEATHER, City, attempt
from smolagents import CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(model_id=MODEL, api_base=OPENAI, api_key=KEY, max_tokens=96)
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]


@tool
def weather(city: City) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return city + ": sun"


def chat():
    return model(MESSAGES).content


def stream():
    return "".join(part.content or "" for part in model.generate_stream(MESSAGES))


def tools():
    return model(MESSAGES, tools_to_call_from=[weather]).tool_calls


def tool_calling_agent():
    """With a model this small only its requests count: a step may be what the agent refuses."""
    agent = ToolCallingAgent([weather], model, max_steps=2, verbosity_level=LogLevel.OFF)
    agent.run(WEATHER)
    return len(agent.memory.steps) >= 2 and asked_in_vain(agent) == ""


def code_agent():
    agent = CodeAgent([], model, max_steps=1, verbosity_level=LogLevel.OFF)
    agent.run("What is 2 + 3?")
    return asked_in_vain(agent) == ""


def code_agent_with_structured_output():
    agent = CodeAgent(
        [],
        model,
        max_steps=1,
        use_structured_outputs_internally=True,
        verbosity_level=LogLevel.OFF,
    )
    agent.run("What is 2 + 3?")
    return asked_in_vain(agent) == ""


def asked_in_vain(agent):
    """What the server answered with an error."""
    errors = [str(step.error) for step in agent.memory.steps if getattr(step, "error", None)]
    return "".join(error for error in errors if "Error code" in error)


attempt(chat, stream, tools, tool_calling_agent, code_agent, code_agent_with_structured_output)
