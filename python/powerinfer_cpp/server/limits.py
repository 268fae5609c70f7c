"""Guards before any request is served: who asks, from which page, and how much."""

import contextlib
import functools
import hashlib
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import anyio
import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from .connections import GONE
from .dialects.dialect import dialect_of
from .errors import Refusal
from .settings import Settings

RawHeaders = Sequence[tuple[bytes, bytes]]  # names in lower case
LOCAL = ["127.0.0.1", "::1"]  # proxies on this machine
LARGE = 64 << 10  # bytes; JSON of so many takes about a millisecond
OPEN_PATHS = ("/", "/health", "/v1/health")  # and the page's: no key is needed to read them
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))  # bytes that say nothing of the depth
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


class Guard:
    """Refuses requests with a foreign Host or Origin, or without a key.

    A page of another site can make a browser send requests here. Its Origin tells; and if its name
    was bound to this machine's address (DNS rebinding), the Host does. is_page: of the paths that
    need no key, beside OPEN_PATHS.
    """

    def __init__(self, settings: Settings, is_page: Callable[[str], bool]):
        self._settings, self._is_page = settings, is_page
        keys = [key.encode("utf-8", "surrogateescape") for key in settings.api_keys]
        # By digests, so that how long the search takes says nothing of the keys.
        self._owners = {_digest(key): f"key {i}" for i, key in reversed(list(enumerate(keys)))}
        proxies = LOCAL if settings.proxies is None else list(settings.proxies)
        self._proxies = ProxyHeadersMiddleware(_nothing, trusted_hosts=proxies).trusted_hosts
        self._is_proxy = functools.lru_cache(4096)(self._proxies.__contains__)

    def sender(self, headers: RawHeaders, client: Sequence[Any] | None) -> str:
        """Who takes turns with others: a key, or an address, also one that a proxy tells of."""
        if self._owners and (owner := self._owners.get(_digest(_key_in(headers)))):
            return owner
        if client and self._is_proxy(client[0]):
            told = b", ".join(value for name, value in headers if name == b"x-forwarded-for")
            found, _ = self._proxies.get_trusted_client_address(told.decode("latin-1"))
            return sender_of((found, 0) if found else client)
        return sender_of(client)

    def answer(self, scope: Scope) -> Response | None:
        """What a request gets at once, before its body is read; None: it may be served.
        scope["owner"] then says for whom: the number of a key, or "" for all without one; and
        scope["sender"] who takes turns with others: also a key, or an address."""
        headers, path = Headers(scope=scope), scope["path"]
        scope["sender"] = self.sender(scope["headers"], scope.get("client"))
        origin = headers.get("origin")
        try:
            self._check_host(headers.get("host"))
            if origin is not None and not self._allows(origin, headers.get("host", "")):
                raise Refusal(403, _FOREIGN)
            reads = scope["method"] != "POST"  # texts for vectors are posted to the page's path
            is_page = reads and self._is_page(path)
            if origin is None and not is_page:
                _check_site(headers)
            if scope["method"] == "OPTIONS":
                allowed = _preflight(headers.get("access-control-request-headers"))
                return Response(status_code=204, headers=allowed)
            if not is_page and not (reads and path in OPEN_PATHS):
                scope["owner"] = self._owner(scope["headers"])
        except Refusal as refusal:
            return dialect_of(path).refused(refusal)
        return None

    def headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """What every answer has in addition: also a refusal, which a page could not read without
        being allowed to."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or not self._allows(origin, headers.get("host", "")):
            return _ALWAYS
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        return [*_ALWAYS, allowed, (b"vary", b"Origin")]

    def _check_host(self, host: str | None) -> None:
        if host is None:  # a check of health in HTTP/1.0; browsers always send one
            return
        name = _name_of(host)
        if name in self._settings.hosts or "*" in self._settings.hosts:
            return
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return
        raise Refusal(
            403, f"this server is not {name!r}: start it with --allowed-host to serve that"
        )

    def _allows(self, origin: str, host: str) -> bool:
        """May pages of this origin use the server?"""
        if origin in self._settings.origins or "*" in self._settings.origins:
            return True
        with contextlib.suppress(ValueError):  # it is no URL
            parts = urlsplit(origin)
            return bool(parts.netloc) and parts.netloc.lower() == host.lower()
        return False

    def _owner(self, headers: RawHeaders) -> str:
        """Whose request this is: the number of its key. Raises Refusal without one."""
        if not self._owners:
            return ""
        owner = self._owners.get(_digest(_key_in(headers)))
        if owner is None:
            raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")
        return owner


def _key_in(headers: RawHeaders) -> bytes:
    """The key that a request has."""
    found = b""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return token.strip()
        elif name == b"x-api-key":
            found = value
    return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _nothing(*_: Any) -> None:
    """An application that is never called."""


def _check_site(headers: Headers) -> None:
    """Refuses what a browser asks for because a foreign page says so, without an Origin: an image
    or a script. Raises Refusal."""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refusal(403, _FOREIGN)


def owner_key(owner: str, settings: Settings) -> bytes:
    """The key of an owner that `Guard` named; empty where nobody needs one."""
    _, _, number = owner.partition(" ")
    return settings.api_keys[int(number)].encode("utf-8", "surrogateescape") if number else b""


class Guarded:
    """An ASGI application that a guard stands before. turn: waits until a sender may ask, and
    raises Refusal. Nothing is done for a client that has gone meanwhile."""

    def __init__(self, app: ASGIApp, guard: Guard, turn: Callable[[str], Awaitable[None]]):
        self._app, self._guard, self._turn = app, guard, turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        at_once = self._guard.answer(scope)
        try:
            await self._turn(scope["sender"])
        except Refusal as refusal:
            at_once = dialect_of(scope["path"]).refused(refusal)
        if GONE in scope and scope[GONE]():
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += self._guard.headers(scope)
            await send(message)

        await (at_once or self._app)(scope, receive, send_with_headers)


_FOREIGN = "pages of another origin may not use this server (--allowed-origin)"
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


def _preflight(asked: str | None) -> dict[str, str]:
    """The answer to a browser that asks whether its page may send a request with these headers: it
    may with any, if it may use the server. Clients have many of their own (x-stainless-*)."""
    return {
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": asked or "authorization, content-type, x-api-key",
        "access-control-max-age": "600",
        "vary": "Access-Control-Request-Headers",
    }


def sender_of(client: Sequence[Any] | None) -> str:
    """Who a connection without a key comes from. client: address and port, None for none. A machine
    has all addresses of an IPv6 network."""
    return _holder(str(client[0]) if client else "")


@functools.lru_cache(4096)  # parsing takes longer than all else that a connection costs
def _holder(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        plain = address.ipv4_mapped
        return str(plain or ipaddress.ip_network((address, 64), strict=False))
    return host


def _name_of(host: str) -> str:
    """The name in a header Host, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Arriving:
    """Bodies that are arriving, or are read: many clients may send slowly what each may send, and
    each may send many. When they are too many, the oldest that still arrives of who has most bytes
    of such is given up."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._of: Counter[str] = Counter()  # by sender
        self._open: dict[str, dict[Body, None]] = {}  # those that still arrive, oldest first

    def add(self, body: "Body", n_bytes: int, settings: Settings) -> None:
        """Counts more bytes of a body, until `drop`. Raises Refusal if they are too many."""
        sender = body.sender
        self._open.setdefault(sender, {})[body] = None
        body.n_counted += n_bytes
        self.n_bytes += n_bytes
        self._of[sender] += n_bytes
        if self._of[sender] > max(settings.max_body, settings.max_bodies // 4):
            raise Refusal(429, "too many bodies of this client are arriving at the same time")
        while self.n_bytes > settings.max_bodies:
            most = max(self._open, key=self._of.__getitem__)
            if self._of[most] <= self._of[sender]:
                raise Refusal(503, "the server has no room for this body now")
            lost = next(iter(self._open[most]))
            self.drop(lost)
            lost.give_up()

    def arrived(self, body: "Body") -> None:
        """All of it is here; it counts until `drop`."""
        of = self._open.get(body.sender, {})
        of.pop(body, None)
        if not of:
            self._open.pop(body.sender, None)

    def drop(self, body: "Body") -> None:
        """Counts a body no more."""
        self.arrived(body)
        n_bytes, body.n_counted = body.n_counted, 0
        self.n_bytes -= n_bytes
        self._of[body.sender] -= n_bytes
        if not self._of[body.sender]:
            del self._of[body.sender]


class Body:
    """The body of a request, counted with others until it is closed."""

    def __init__(self, request: Request, settings: Settings, arriving: Arriving):
        self._request, self._settings, self._arriving = request, settings, arriving
        self._scope: anyio.CancelScope | None = None
        self._lost = False
        self.sender: str = request.scope.get("sender", "")
        self.n_counted = 0  # bytes
        self.large = False  # does work on it take more than some milliseconds?

    async def read(self) -> bytes:
        """The bytes. Raises Refusal if it is too large or too slow, or others need its room."""
        settings, body = self._settings, bytearray()
        too_large = Refusal(413, f"the body has more than {settings.max_body} bytes")
        if int(self._request.headers.get("content-length", "0")) > settings.max_body:
            raise too_large
        try:
            with anyio.fail_after(settings.body_seconds) as self._scope:
                async for part in self._request.stream():
                    body += part
                    self._arriving.add(self, len(part), settings)
                    if len(body) > settings.max_body:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive in {settings.body_seconds:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the client has gone") from None
        if self._lost:
            raise Refusal(503, "the server needs the room of this body for those of others")
        self._arriving.arrived(self)
        data = bytes(body)
        self.large = len(data) > LARGE
        return data

    def give_up(self) -> None:
        """Ends `read`."""
        self._lost = True
        if self._scope is not None:
            self._scope.cancel()

    def close(self) -> None:
        """Counts it no more."""
        if self.n_counted:
            self._arriving.drop(self)


async def read_body(
    request: Request, settings: Settings, arriving: Arriving | None = None
) -> bytes:
    """The body. Raises Refusal if it is too large, too slow or nested too deeply.

    arriving: with others, which this one is counted with.
    """
    body = Body(request, settings, arriving or Arriving())
    try:
        data = await body.read()
    finally:
        body.close()
    check_depth(data, settings.max_depth)
    return data


def check_depth(body: bytes, most: int) -> None:
    """Raises Refusal for JSON that is nested too deeply for those who work on it later."""
    # Whole arrays at once: a loop over the brackets of 8 MB would hold up all clients for a second.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    signs = np.frombuffer(plain, np.uint8)
    in_text = np.logical_xor.accumulate(signs == ord('"'))
    steps = _STEPS[signs]
    steps[in_text] = 0
    if len(steps) and np.cumsum(steps, dtype=np.int32).max() > most:
        raise Refusal(400, f"the body is nested more than {most} deep")
