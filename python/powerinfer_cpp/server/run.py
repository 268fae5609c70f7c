"""Runs the application with uvicorn."""

import contextlib
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from .app import Server
from .protocol import timed_protocol
from .settings import Settings


def run(
    paths: Mapping[str, Path],
    options: Mapping[str, Any],
    settings: Settings,
    host: str,
    port: int,
    verbose: bool = False,
) -> None:
    """Serves until the process is told to end. Raises what kept a model from loading, and OSError
    if the port is taken."""
    _allow_many_connections()
    server = Server(paths, options, settings)
    config = uvicorn.Config(
        server.app,
        host=host,
        port=port,
        http=timed_protocol(settings.header_seconds),
        loop="uvloop",
        ws="none",
        access_log=verbose,
        log_level="info" if verbose else "warning",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    Uvicorn(config, server).run()
    if server.models.failure is not None:
        raise server.models.failure


class Uvicorn(uvicorn.Server):
    """Ends when a model cannot be loaded, and says when all can be used."""

    def __init__(self, config: uvicorn.Config, server: Server):
        super().__init__(config)
        self._of = server
        self._told = False

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self._of.models.failure is not None:
            return True
        if not self._told and self._of.models.ready:
            self._told = True
            names = ", ".join(self._of.models.names)
            print(f"serving {names} at http://{_shown(self.config)}", flush=True)
        return await super().on_tick(counter)


def _shown(config: uvicorn.Config) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{host}:{config.port}/"


def _allow_many_connections() -> None:
    """Raises the limit of open files to what this process may have."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
