"""What the programs of scripts/clients.py share: where the server is, and how attempts are told.

A program gets the server's address and the model's name as arguments. It tells each attempt in a
line of JSON, {"attempt": its name, "error": what went wrong, or ""}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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


def attempt(*programs: Callable[[], Any]) -> None:
    """Runs each of these and tells what became of it. A result that is false is an error, too: a
    client that gives no text has failed."""
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
