"""Prints a text while it is written, then how fast that was: python stream.py [MODEL]"""

import sys
from pathlib import Path

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

with Llama(model, n_ctx=256, verbose=False) as llm:
    for chunk in llm("The little dragon", max_tokens=60, seed=1, stream=True):
        print(chunk["choices"][0]["text"], end="", flush=True)
    stats = llm.stats()
    fired = sum(stats["share_fired"]) / len(stats["share_fired"])
    print(
        f"\n{stats['n_gen']} tokens, {stats['gen_ts']:.0f} a second; {fired:.0%} of neurons fired"
    )
