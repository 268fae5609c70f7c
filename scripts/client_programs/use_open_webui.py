"""Open WebUI: its own server, of which a new user asks for the models and for a chat."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from attempts import KEY, MODEL, OPENAI, QUESTION, attempt

START_SECONDS = 600.0
with socket.socket() as _socket:
    _socket.bind(("127.0.0.1", 0))
    PORT = _socket.getsockname()[1]
BODY = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24}
token = ""


def ask(path, body=None):
    """The answer to GET, or to POST of JSON."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def start():
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            return ask("/health")
        time.sleep(2)
    raise RuntimeError(log.read_text(errors="replace")[-500:])


def log_in():
    global token
    user = {"name": "A", "email": "a@localhost.localdomain", "password": "A-long-password-1"}
    token = json.loads(ask("/api/v1/auths/signup", user))["token"]
    return token


def models():
    return MODEL in [model["id"] for model in json.loads(ask("/api/models"))["data"]]


def chat():
    done = json.loads(ask("/api/chat/completions", {**BODY, "stream": False}))
    return done["choices"][0]["message"]["content"]


def stream():
    lines = ask("/api/chat/completions", {**BODY, "stream": True}).splitlines()
    parts = [line[6:] for line in lines if line.startswith("data: {")]
    choices = [choice for part in parts for choice in json.loads(part).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


with tempfile.TemporaryDirectory() as data:
    log = Path(data) / "log"
    environment = {
        **os.environ,
        "DATA_DIR": data,
        "OPENAI_API_BASE_URL": OPENAI,
        "OPENAI_API_KEY": KEY,
        "WEBUI_SECRET_KEY": "for this run",
        "ENABLE_OLLAMA_API": "false",
        # Otherwise it downloads a model for its own embeddings at the start.
        "RAG_EMBEDDING_ENGINE": "openai",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("open-webui")),
                *("serve", "--host", "127.0.0.1", "--port", str(PORT)),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        attempt(start, log_in, models, chat, stream)
    finally:
        process.terminate()
        process.wait()
