"""How the protocols differ in what every route needs: where they are, and how they say no."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from ..errors import Refusal


@dataclass(frozen=True)
class Dialect:
    """A protocol. body: of the response to a request that is not served. event: the name of such an
    event in a stream; None: events have no names. root: its paths; "" for all others. bare: are
    they served without /v1, too?"""

    body: Callable[[Refusal], Any]
    event: str | None
    root: str
    bare: bool

    def refused(self, refusal: Refusal) -> Response:
        """The response for a refusal."""
        headers = {"retry-after": "1"} if refusal.status in (429, 503) else {}
        data = msgspec.json.encode(self.body(refusal))
        return Response(data, refusal.status, headers, media_type="application/json")


OPENAI = Dialect(Refusal.openai, None, "", bare=True)
ANTHROPIC = Dialect(Refusal.anthropic, "error", "/v1/messages", bare=False)


def dialect_of(path: str) -> Dialect:
    """That of a path, also of one where nothing is."""
    return ANTHROPIC if path.startswith(ANTHROPIC.root) else OPENAI
