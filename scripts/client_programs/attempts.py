"""What the programs of scripts/clients.py share: where the server is, and how attempts are told.

A program gets the server's address and the model's name as arguments. It tells each attempt in a
line of JSON, {"attempt": its name, "error": what went wrong, or ""}.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Literal

URL, MODEL = sys.argv[1].rstrip("/"), sys.argv[2]
OPENAI = URL + "/v1"  # the base URL of clients of OpenAI's API
KEY = "none"  # most clients want one, and send whatever it is
QUESTION = "Name three animals of the forest."
PERSON = "Anna is 31 years old."
WEATHER = "How is the weather in Paris?"
# Values that end: a small model may write a free text until it has no more tokens.
City = Literal["Paris", "Oslo"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
}


QUERY = "Which animal catches mice?"
DOCUMENTS = ["The fox is red.", "Cats catch mice at night.", "Bears sleep in winter."]

Program = Callable[[], Any]


def attempt(
    *programs: Program, vectors: Sequence[Program] = (), ranks: Sequence[Program] = ()
) -> None:
    """Runs each of these that the model is for, and tells what became of it. A result that is false
    is an error, too: a client that gives no text has failed. vectors: for models that write texts
    or give vectors; ranks: for those that rank texts."""
    able = capabilities() if vectors or ranks else []
    if "rerank" in able:
        programs = tuple(ranks)
    elif "embedding" in able:
        programs = tuple(vectors)
    else:
        programs = (*programs, *vectors)
    failed = False
    for program in programs:
        error = ""
        try:
            if not program():
                error = "the result is empty"
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        failed |= bool(error)
        told = {"attempt": program.__name__.replace("_", " "), "error": error}
        print("\n" + json.dumps(told), flush=True)
    sys.exit(failed)


def capabilities() -> list[str]:
    """What the model says that it is for; empty for one that says nothing."""
    with urllib.request.urlopen(URL + "/v1/models", timeout=30) as answer:
        known = json.load(answer)["data"]
    of = next((each for each in known if each["id"] == MODEL), known[0])
    return list(of.get("capabilities", ()))
