"""A chat of two turns, which share what they have in common: python chat.py [MODEL]

The default model has learnt stories, not chats: it has no template, so a format is named.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from powerinfer_cpp import Llama

DEFAULT = Path(__file__).parents[1] / "models" / "stories-relu.Q8_0.gguf"
chat_format = "alpaca" if len(sys.argv) < 2 else None
model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT

messages: list[Mapping[str, object]] = [{"role": "system", "content": "You tell stories."}]
with Llama(model, n_ctx=512, verbose=False, chat_format=chat_format) as llm:
    for question in ("Tell me of a cat.", "And then?"):
        messages.append({"role": "user", "content": question})
        answer = llm.create_chat_completion(messages, max_tokens=40, seed=1)
        messages.append(answer["choices"][0]["message"])
        print(f"> {question}\n{messages[-1]['content']}")
        n_prompt = answer["usage"]["prompt_tokens"]
        print(f"({llm.stats()['n_prompt']} of {n_prompt} tokens of the prompt were computed)")
