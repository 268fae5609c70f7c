"""The same text with drafts: python drafts.py [MODEL]

They save time with models whose weights do not fit the caches, as the default one's do.
"""

import sys
from pathlib import Path

from powerinfer_cpp.llama_speculative import LlamaPromptLookupDecoding

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

texts = []
for draft in (None, LlamaPromptLookupDecoding(num_pred_tokens=8)):
    with Llama(model, n_ctx=512, verbose=False, draft_model=draft) as llm:
        done = llm("The dog ran. The dog ran. The dog", max_tokens=60, temperature=0)
        texts.append(done["choices"][0]["text"])
        stats = llm.stats()
        what = "without drafts" if draft is None else "with drafts"
        print(f"{what}: {stats['n_gen']} tokens in {1000 * stats['gen_s']:.0f} ms")
print("the same text" if texts[0] == texts[1] else "DIFFERENT TEXTS")
