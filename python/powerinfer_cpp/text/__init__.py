"""Between messages and token ids: chat templates, tools, grammars, answers in OpenAI's shape."""
