"""Hermes Agent: its command, with a home folder of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from attempts import KEY, MODEL, OPENAI, QUESTION, attempt

HERMES = Path(sys.executable).with_name("hermes")
# It takes no model that says less, whatever the model was trained for.
CONTEXT = 65536


def asked(*options):
    """What it says to a question, with a configuration that knows one provider."""
    with tempfile.TemporaryDirectory() as home:
        model = {"default": MODEL, "provider": "custom", "base_url": OPENAI, "api_key": KEY}
        model |= {"context_length": CONTEXT, "max_tokens": 64}
        # JSON is YAML.
        (Path(home) / "config.yaml").write_text(json.dumps({"model": model}))
        command = [str(HERMES), "chat", "-Q", "-q", QUESTION, "--max-turns", "1", *options]
        done = subprocess.run(
            command,
            env={**os.environ, "HERMES_HOME": home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=800,
        )
    if done.returncode or "Error code" in done.stdout:
        raise RuntimeError((done.stdout + done.stderr)[-500:])
    return done.stdout.strip()


def chat():
    return asked("-t", "clarify")


attempt(chat)
