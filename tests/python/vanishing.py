"""Clients on a machine that loses its network, and says no goodbye. In a namespace of its own:

    unshare --user --map-root-user --net python vanishing.py MODEL

Prints, as JSON, what became of their requests.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import serving
from powerinfer_cpp.server.settings import Settings

STEP = 0.05  # seconds, so that 240 tokens take 12
HERE, THERE = "10.77.0.1", "10.77.0.2"
CLIENT = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(sys.argv[3].encode())
print("asked", flush=True)
time.sleep(600)
"""


def ip(*words: str) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def other_machine() -> Iterator[list[str]]:
    """The words in front of a command that runs it there; the link is `there`, seen from it."""
    with subprocess.Popen(["unshare", "--net", "sleep", "600"]) as process:
        try:
            there = ["nsenter", "--target", str(process.pid), "--net"]
            mine = Path("/proc/self/ns/net").readlink()
            theirs = Path(f"/proc/{process.pid}/ns/net")
            serving.wait_for(lambda: theirs.readlink() != mine)
            ip("link", "set", "lo", "up")
            ip(*f"link add here type veth peer name there netns {process.pid}".split())
            ip(*f"address add {HERE}/24 dev here".split())
            ip("link", "set", "here", "up")
            for words in (f"address add {THERE}/24 dev there", "link set there up"):
                subprocess.run([*there, "ip", *words.split()], check=True)
            yield there
        finally:
            process.kill()


def slow_down(server: serving.InThread) -> None:
    """Steps take STEP seconds."""
    step = server.model.scheduler.step

    def slow() -> Any:
        time.sleep(STEP)
        return step()

    server.model.scheduler.step = slow  # type: ignore[method-assign]


def main(model: Path) -> None:
    """Two clients ask, one for a stream; then the link goes down."""
    settings = Settings(send_seconds=1, hosts=(HERE,))
    with (
        other_machine() as there,
        serving.in_thread(model, settings, host=HERE, n_parallel=2) as server,
        contextlib.ExitStack() as clients,
    ):
        slow_down(server)
        scheduler = server.model.scheduler
        for stream in (False, True):
            body = {"prompt": "Once", "max_tokens": 240, "temperature": 0, "stream": stream}
            body["logit_bias"] = {"2": -100}
            data = serving.request("v1/completions", json.dumps(body).encode(), Host=HERE)
            command = [*there, sys.executable, "-c", CLIENT, HERE, str(server.port), data.decode()]
            client = clients.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, errors="replace")
            )
            clients.callback(client.kill)
            assert client.stdout is not None and client.stdout.readline() == "asked\n"
        serving.wait_for(lambda: scheduler.n_active == 2)
        began = scheduler.n_steps
        subprocess.run([*there, "ip", "link", "set", "there", "down"], check=True)
        serving.wait_for(lambda: server.idle)
        steps = scheduler.n_steps - began
        serving.wait_for(lambda: server.n_connections == 0)
        print(json.dumps({"steps": steps, "connections": server.n_connections}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
