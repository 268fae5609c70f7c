"""Starts a server and asks it with OpenAI's package: python server_client.py [MODEL]

Needs both: pip install '.[serve]' openai, in a clone
"""

import subprocess
import sys
from pathlib import Path

from openai import OpenAI

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

command = [sys.executable, "-m", "powerinfer_cpp", "serve", "-m", str(model), "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
try:
    assert server.stdout is not None  # it is a pipe
    line = server.stdout.readline()  # "serving NAME at http://127.0.0.1:PORT/"
    print(line, end="")
    client = OpenAI(base_url=f"{line.split()[-1]}v1", api_key="none")
    for part in client.completions.create(
        model="any", prompt="Once upon a time", max_tokens=40, seed=1, stream=True
    ):
        print(part.choices[0].text, end="", flush=True)
    print()
finally:
    server.terminate()
    server.wait()
