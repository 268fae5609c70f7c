"""How likely the tokens of several texts are, one after the other: python logprobs.py [MODEL]"""

import sys
from pathlib import Path

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

with Llama(model, n_ctx=256, verbose=False) as llm:
    for text in ("The cat sat on the mat.", "The mat sat on the cat.", "Mat the on cat sat."):
        done = llm(text, max_tokens=1, echo=True, logprobs=3, temperature=0)
        found = done["choices"][0]["logprobs"]
        assert found is not None  # they were asked for
        # Of the first token there is none, and the new one is not the text's.
        known = [each for each in found["token_logprobs"][:-1] if each is not None]
        print(f"{sum(known) / len(known):6.2f} per token: {text}")
        following = found["top_logprobs"][-1]
    print("most likely next:", following)
