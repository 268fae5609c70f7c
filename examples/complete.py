"""Continues a text: python complete.py [MODEL]"""

import sys
from pathlib import Path

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

with Llama(model, n_ctx=256, verbose=False) as llm:
    done = llm("Once upon a time", max_tokens=40, temperature=0.7, seed=1, stop=["\n\n"])
    print(done["choices"][0]["text"])
    print(done["usage"], done["choices"][0]["finish_reason"])
