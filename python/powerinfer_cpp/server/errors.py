"""Errors as clients get them: a status, and the body of a dialect."""

import logging
from typing import Any

from ..core.errors import (
    ContextOverflowError,
    ModelFormatError,
    OutOfMemoryError,
    RequestError,
    StorageError,
)
from ..core.printable import printable
from ..run.engine import EngineDead
from ..run.requests import QueueFull

# Of a program's handlers, `powerinfer serve` adds one that writes to stderr.
log = logging.getLogger("powerinfer_cpp.server")

_MOST_LEFT_OUT = 100  # lines in the log: clients name what they like
_left_out: set[str] = set()


def left_out(what: str) -> None:
    """Tells the log once that something of a request is left out."""
    what = printable(what[:120])
    if what not in _left_out and len(_left_out) < _MOST_LEFT_OUT:
        _left_out.add(what)
        log.warning("%s: left out of requests, as this server has nothing of that kind", what)


_OPENAI = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_TOO_LONG = "context_length_exceeded"
# Statuses and kinds of text-embeddings-inference, for ours.
_TEI = {
    400: (422, "Validation"),
    413: (413, "Validation"),
    429: (429, "Overloaded"),
    500: (424, "Backend"),
    501: (424, "Backend"),
    503: (503, "Unhealthy"),
}
_ANTHROPIC = _OPENAI | {413: "request_too_large", 503: "overloaded_error"}


class Refusal(Exception):
    """A request that is not served. param: the field that is wrong."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def openai(self) -> dict[str, Any]:
        """The body in OpenAI's shape."""
        kind = _OPENAI.get(self.status, "server_error")
        of = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": of}

    def anthropic(self) -> dict[str, Any]:
        """The body in Anthropic's shape."""
        kind = _ANTHROPIC.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def tei(self) -> dict[str, Any]:
        """The body in the shape of text-embeddings-inference."""
        return {"error": self.message, "error_type": self._of_tei()[1]}

    def tei_status(self) -> int:
        """Its status for that."""
        return self._of_tei()[0]

    def _of_tei(self) -> tuple[int, str]:
        if self.code == _TOO_LONG:
            return _TEI[413]
        return _TEI.get(self.status, (self.status, "Validation"))


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told about an error: of faults of the server only their kind. These go to
    the log, with all that is known."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextOverflowError):
        return Refusal(400, str(error), code=_TOO_LONG)
    if isinstance(error, QueueFull):
        return Refusal(429, f"the server is busy: {error}")
    if isinstance(error, EngineDead):
        return Refusal(500, "the engine has stopped: the server must be restarted")
    if isinstance(error, RequestError):
        return Refusal(400, str(error))
    if isinstance(error, OutOfMemoryError):
        return Refusal(503, "the server has no memory left for this request")
    # A file that opened is no other model: it was damaged or changed while it is served.
    if isinstance(error, StorageError | ModelFormatError):
        log.error("a request failed: %s", error)
        return Refusal(500, "the server could not read the model's file", code="storage_error")
    log.error("a request failed: %r", error, exc_info=error)
    return Refusal(500, f"the server failed ({type(error).__name__})")
