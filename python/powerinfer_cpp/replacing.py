"""Lets packages that import llama_cpp themselves use this one."""

import importlib
import sys

MODULES = (
    "llama",
    "llama_cache",
    "llama_chat_format",
    "llama_grammar",
    "llama_speculative",
    "llama_tokenizer",
    "llama_types",
)


def replace_llama_cpp() -> None:
    """Makes `import llama_cpp` and imports from its modules find powerinfer_cpp, in this process.

    Call it before anything imports llama_cpp: raises RuntimeError if something has.
    """
    ours = importlib.import_module(__package__)
    found = sys.modules.get("llama_cpp")
    if found is not None and found is not ours:
        raise RuntimeError("llama_cpp is imported already: call replace_llama_cpp() before that")
    sys.modules["llama_cpp"] = ours
    for name in MODULES:
        sys.modules[f"llama_cpp.{name}"] = importlib.import_module(f".{name}", __package__)
