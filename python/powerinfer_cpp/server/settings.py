"""What a server allows, and what requests get that do not say more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Defaults:
    """What texts are written with whose requests do not say it.

    sampling: arguments of `Sampling`. max_tokens: None: each dialect has its own. logit_bias: by
    the ids of tokens.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False


@dataclass(frozen=True)
class Settings:
    """Limits of a server.

    api_keys: whoever has none of them is refused; empty: anybody is served. hosts: names in the
    header Host that are this server; empty: only loopback names and addresses. origins: of pages
    that may use it, beside its own. page: is there one of its own. proxies: addresses and networks
    whose X-Forwarded-For says who asks; None: this machine's. defaults: of requests that write
    texts. truncate, embd_normalize: of vectors of requests that do not say it; the latter as
    llama.cpp's: -1 none, 0 by the largest, else a norm. Sizes are bytes, times seconds.
    """

    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] | None = None
    page: bool = True
    defaults: Defaults = Defaults()
    truncate: bool = False
    embd_normalize: int = 2
    max_body: int = 8 << 20
    max_bodies: int = 256 << 20  # of all bodies that are arriving
    max_depth: int = 64  # of JSON
    body_seconds: float = 30.0  # for a body to arrive
    send_seconds: float = 30.0  # for a client to take what it was sent
    header_seconds: float = 10.0
    max_headers: int = 64 << 10
    max_around: int = 16 << 10  # around the data of a chunked body, besides 8 for each of its bytes
    max_connections: int | None = None  # None: as many as the process may have, but for a rest
    max_turns: int = 256  # requests of a client that wait since it asks too often
    max_n: int = 64
    max_stops: int = 32
    max_stop_length: int = 1024
    max_bias: int = 2048
    max_top: int = 100  # likely tokens with log-probabilities
    # Of what the answers of a client keep until they are written, as recorded.py counts it.
    max_recorded: int = 256 << 20
    max_inputs: int = 2048  # of embeddings, or prompts of one request
