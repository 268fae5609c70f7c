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
    event in a stream; None: events have no names. bare: are its paths served without /v1, too?
    status: of that response."""

    body: Callable[[Refusal], Any]
    event: str | None
    bare: bool
    status: Callable[[Refusal], int] = lambda refusal: refusal.status

    def refused(self, refusal: Refusal) -> Response:
        """The response for a refusal."""
        status = self.status(refusal)
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        data = msgspec.json.encode(self.body(refusal))
        return Response(data, status, headers, media_type="application/json")


OPENAI = Dialect(Refusal.openai, None, bare=True)
ANTHROPIC = Dialect(Refusal.anthropic, "error", bare=False)
# Of text-embeddings-inference, Hugging Face's server.
TEI = Dialect(Refusal.tei, None, bare=False, status=Refusal.tei_status)
_OF_TEI = ("/", "/embed", "/info")


def dialect_of(path: str) -> Dialect:
    """That of a path, also of one where nothing is."""
    if path in _OF_TEI:
        return TEI
    return ANTHROPIC if path.startswith("/v1/messages") else OPENAI
