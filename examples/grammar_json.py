"""JSON that follows a schema: python grammar_json.py [MODEL]"""

import json
import sys
from pathlib import Path

from powerinfer_cpp import Llama, LlamaGrammar

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

schema = {
    "type": "object",
    "properties": {
        "hero": {"type": "string", "maxLength": 20},
        "animal": {"enum": ["cat", "dog", "bear"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["hero", "animal", "age"],
}
with Llama(model, n_ctx=256, verbose=False) as llm:
    grammar = LlamaGrammar.from_json_schema(schema)
    done = llm("A story in JSON: ", grammar=grammar, max_tokens=100, seed=1)
    print(json.loads(done["choices"][0]["text"]))
