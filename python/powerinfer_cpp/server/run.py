"""Runs the application with uvicorn."""

import asyncio
import ipaddress
import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from ..core.log import tell
from ..core.plan import from_storage
from ..core.printable import printable
from ..core.sequences.embedding import no_texts
from ..core.system import allow_many_files, n_open_files
from ..text.chat import FALLBACK
from .app import Server
from .connections import BACKLOG, Connections, most_of
from .errors import log
from .protocol import timed_protocol
from .settings import Settings

# How long a thread may keep Python's lock that another waits for; Python's own is 5 ms. The
# engine's thread takes it several times in each step.
SWITCH_SECONDS = 0.0005
END_SECONDS = 1.5  # from the signal to end until texts are cut off
_LOGGERS = ("powerinfer_cpp", "uvicorn", "uvicorn.access")  # the last one keeps to itself
_WITHOUT_CHATS = (
    "warning: {} has no chat template: the page continues texts, and chats use "
    f"{FALLBACK} (--chat-format names another)"
)


def run(
    paths: Mapping[str, Path],
    options: Mapping[str, Any],
    settings: Settings,
    host: str,
    port: int,
    verbose: bool = False,
    to_file: logging.Handler | None = None,
    ready: str = "",
) -> None:
    """Serves until the process is told to end. verbose: logs requests. to_file: where messages go,
    too. ready: what stderr is told when the models are loaded. Raises what kept a model from
    loading, and OSError if the port is taken."""
    allow_many_files()  # each connection is one
    sys.setswitchinterval(SWITCH_SECONDS)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    if verbose:
        log.setLevel(logging.INFO)
    sockets = listen(host, port, settings.send_seconds)
    warn_if_open(sockets, settings)
    server = Server(paths, options, settings)
    served = Uvicorn(server, sockets, verbose, ready)
    if to_file is not None:  # behind uvicorn's own configuration
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(to_file)
    served.run()
    if server.models.failure is not None:
        raise server.models.failure


def warn_if_open(sockets: Sequence[socket.socket], settings: Settings) -> None:
    """Says so if other machines may use the server, and nothing asks them for a key."""
    others = [
        address
        for address, *_ in (each.getsockname() for each in sockets)
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    ]
    if others and not settings.api_keys:
        words = "whoever reaches this machine may use the server: --api-key-file asks for a key"
        log.warning("%s: %s", " and ".join(others), words)


def listen(host: str, port: int, silence: float = 30.0) -> list[socket.socket]:
    """Sockets bound to every address of a name; port 0: any that is free. Raises OSError, and
    ValueError for what is no port.

    silence: seconds without a word from a client's machine before its connections are closed.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"the port must be 0 to 65535, not {port}")
    found: list[socket.socket] = []
    try:
        for family, kind, _, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            made = socket.socket(family, kind)
            found.append(made)
            # On Windows SO_REUSEADDR would let two servers share a port.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            made.setsockopt(socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _notice_lost_machines(made, silence)
            made.bind((address[0], port, *address[2:]))
            port = made.getsockname()[1]
    except OSError as error:
        for each in found:
            each.close()
        raise OSError(error.errno, f"cannot listen at {host}:{port}: {error.strerror}") from None
    return found


def _notice_lost_machines(listening: socket.socket, seconds: float) -> None:
    """Connections inherit these options. A machine that loses its power or its network says no
    goodbye: only probes find out that nobody waits for an answer."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, round(seconds / 3))
    values = {
        "TCP_KEEPIDLE": probe,
        "TCP_KEEPINTVL": probe,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": round(seconds * 1000),  # Linux: what was sent and not acknowledged
    }
    for name, value in values.items():
        if option := getattr(socket, name, None):
            listening.setsockopt(socket.IPPROTO_TCP, option, value)


class Uvicorn(uvicorn.Server):
    """Ends when a model cannot be loaded, and says when all can be used."""

    def __init__(
        self,
        server: Server,
        sockets: Sequence[socket.socket],
        verbose: bool = False,
        ready: str = "",
    ):
        most = server.settings.max_connections
        self.connections = Connections(most_of(n_open_files()) if most is None else most)
        config = uvicorn.Config(
            server.app,
            http=timed_protocol(server.settings, self.connections, server.overdue),
            backlog=BACKLOG,
            proxy_headers=False,  # the guard reads them
            loop="auto",  # uvloop where there is one
            ws="none",
            access_log=verbose,
            log_level="info" if verbose else "warning",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        super().__init__(config)
        self._of, self._sockets = server, list(sockets)
        self._told, self._ready = False, ready
        host, port = self._sockets[0].getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until it is told to end."""
        super().run(sockets or self._sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Texts that are being written have END_SECONDS to end by themselves."""
        asyncio.get_running_loop().call_later(END_SECONDS, self._of.end)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self._of.models.failure is not None:
            return True
        if not self._told and self._of.models.ready:
            self._told = True
            if self._ready:
                tell(self._ready)
            for name, model in self._of.models.all().items():
                if words := from_storage(model.runtime.plan()):
                    tell(printable(f"{name} {words} (--plan says what it takes)"))
                if not model.writes:
                    route = "rerank" if model.vectors.ranks else "embeddings"
                    tell(printable(f"{name}: {no_texts(model.model)} (POST /v1/{route})"))
                elif self._of.models.chat_formats[name] is None:
                    tell(printable(_WITHOUT_CHATS.format(name)))
            print(f"serving {', '.join(self._of.models.names)} at {self.url}", flush=True)
        return await super().on_tick(counter)
