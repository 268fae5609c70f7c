"""Which neurons fire on a text, layer by layer: python profile_activations.py [MODEL]"""

import sys
from pathlib import Path

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

text = b"Once upon a time, there was a little girl who had a red ball."
with Llama(model, n_ctx=256, verbose=False, sparse="exact", record="fired") as llm:
    llm.eval(llm.tokenize(text))
    fired = llm.activations()  # bool [n_layer, n_tokens, n_ff]
for layer, of in enumerate(fired):
    never = (~of.any(axis=0)).sum()
    print(f"layer {layer}: {of.mean():6.1%} of {of.shape[1]} neurons fire, {never} never did")
