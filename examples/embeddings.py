"""Which of some sentences is nearest to a question: python embeddings.py [MODEL]"""

import sys
from pathlib import Path

import numpy as np

from powerinfer_cpp import LLAMA_POOLING_TYPE_MEAN, Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

sentences = ["The cat slept on the mat.", "It was a sunny day.", "Tom likes red apples."]
with Llama(
    model, n_ctx=256, embedding=True, pooling_type=LLAMA_POOLING_TYPE_MEAN, verbose=False
) as llm:
    known = np.array(llm.embed(sentences, normalize=True))
    asked = np.array(llm.embed("A dog slept on the bed.", normalize=True))
for i in np.argsort(-known @ asked):
    print(f"{known[i] @ asked:.3f}  {sentences[i]}")
