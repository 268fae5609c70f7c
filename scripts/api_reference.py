#!/usr/bin/env python3
"""Writes docs/api.md: the public classes and functions of the package, from their docstrings.

  python scripts/api_reference.py

The package must be installed in its present state. Names without a docstring are an error.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import powerinfer_cpp

TARGET = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# The Python API

Made from the docstrings by `scripts/api_reference.py`. \
[llama-cpp-python.md](llama-cpp-python.md) says what differs from llama-cpp-python, \
[examples](../examples) has short programs. \
Sizes in square brackets are numpy shapes. Names that are not here are not promised.
"""
# By heading: names, by the modules that have them.
SECTIONS: dict[str, dict[str, str]] = {
    "Models": {"powerinfer_cpp": "Llama", "powerinfer_cpp.adapters": "LoraAdapter"},
    "Grammars": {"powerinfer_cpp": "LlamaGrammar"},
    "States and caches": {
        "powerinfer_cpp": "LlamaState BaseLlamaCache LlamaRAMCache LlamaDiskCache"
    },
    "Tokenizers": {"powerinfer_cpp": "BaseLlamaTokenizer LlamaTokenizer"},
    "Between logits and tokens": {
        "powerinfer_cpp": "LogitsProcessorList StoppingCriteriaList MinTokensLogitsProcessor"
    },
    "Errors": {
        "powerinfer_cpp": "ModelFormatError UnsupportedModelError RequestError "
        "ContextOverflowError OutOfMemoryError DeviceError StorageError Cancelled"
    },
    "The package": {"powerinfer_cpp": "main_path replace_llama_cpp"},
    "Drafts": {
        "powerinfer_cpp.llama_speculative": "LlamaDraftModel LlamaPromptLookupDecoding "
        "LlamaModelDecoding"
    },
    "Chat formats": {
        "powerinfer_cpp.llama_chat_format": "register_chat_format "
        "register_chat_completion_handler get_chat_completion_handler ChatFormatterResponse "
        "Jinja2ChatFormatter FormatHandler LlamaChatCompletionHandlerRegistry "
        "LlamaChatCompletionHandlerNotFoundException hf_tokenizer_config_to_chat_formatter "
        "hf_tokenizer_config_to_chat_completion_handler"
    },
    "GGUF files": {"powerinfer_cpp.gguf": "Gguf Tensor"},
    "Preparing and judging models": {
        "powerinfer_cpp.convert": "convert",
        "powerinfer_cpp.quantize": "quantize Choice",
        "powerinfer_cpp.profile": "profile Statistics",
        "powerinfer_cpp.predictor": "train_predictors Report LayerReport",
        "powerinfer_cpp.perplexity": "perplexity Estimate compare Comparison",
        "powerinfer_cpp.bundle": "bundle",
    },
    "Handles of the engine": {"powerinfer_cpp.model": "Model Session"},
    "Types of answers": {
        "powerinfer_cpp.answers": "Completion CompletionChunk CompletionChoice "
        "CompletionLogprobs ChatCompletion ChatChunk ChatChoice ChatChunkChoice ChatMessage "
        "ChatDelta ChatLogprobs ChosenLogprob TokenLogprob ToolCall ToolCallDelta CalledFunction "
        "FunctionDelta Usage Embeddings EmbeddingData EmbeddingUsage Plan Stats Percentiles Audit "
        "Tier Parts Storage"
    },
}
# Names of the package that stand under others: other names for the same thing, and types.
ELSEWHERE = {"LlamaCache", "LogitsProcessor", "StoppingCriteria", "__version__"}
PARTS = {
    "LlamaTokens": "The model, token by token",
    "LlamaVectors": "Vectors and ranks",
    "Llama": "Texts and chats",
}


class Undocumented(Exception):
    """Public names without a docstring."""


def doc(name: str, thing: Any) -> str:
    """A docstring. Raises Undocumented."""
    text = inspect.getdoc(thing)
    if not text or text.startswith(f"{getattr(thing, '__name__', '')}("):  # as dataclasses have
        raise Undocumented(f"{name} has no docstring")
    return text


def arguments(node: ast.FunctionDef) -> list[str]:
    """The parameters of a function as its source writes them, without self."""
    of = node.args
    positional = [*of.posonlyargs, *of.args]
    defaults = [None] * (len(positional) - len(of.defaults)) + of.defaults
    found = [_argument(a, d) for a, d in zip(positional, defaults, strict=True)]
    if of.posonlyargs:
        found.insert(len(of.posonlyargs), "/")
    if positional and positional[0].arg in ("self", "cls"):
        found = found[1:]
    if of.vararg:
        found.append(f"*{_argument(of.vararg, None)}")
    elif of.kwonlyargs:
        found.append("*")
    found += [_argument(a, d) for a, d in zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    if of.kwarg:
        found.append(f"**{_argument(of.kwarg, None)}")
    return found


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = "" if argument.annotation is None else f": {_type(argument.annotation)}"
    if default is None:
        return argument.arg + kind
    return f"{argument.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


class _Unquoted(ast.NodeTransformer):
    """Names in quotes, which come later in the source, as names; Literal keeps its texts."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.parse(node.value).body[0].value if isinstance(node.value, str) else node


def _type(node: ast.expr) -> str:
    """A type as the source writes it."""
    return ast.unparse(_Unquoted().visit(node))


def is_dict(thing: Any) -> bool:
    """Is it a TypedDict?"""
    return isinstance(thing, type) and hasattr(thing, "__required_keys__")


def _node(thing: Any) -> Any:
    """The definition of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def call(name: str, parts: list[str], result: str = "") -> str:
    """A call, on one line if that is short."""
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) > 90:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    return line


def block(text: str) -> str:
    """A block of code."""
    return f"```python\n{text}\n```\n"


def signature(name: str, node: ast.FunctionDef) -> str:
    """A function with its parameters and its result."""
    result = f" -> {_type(node.returns)}" if node.returns is not None else ""
    return call(name, arguments(node), result)


def members(kind: type) -> Iterator[tuple[str, type, Any]]:
    """Public methods and properties of a class in the order of the source, those of its bases
    first: name, defining class, definition."""
    last = {}  # of several definitions, the one that counts
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] == "powerinfer_cpp":
            for name, thing in vars(base).items():
                if not name.startswith("_") and not dataclasses.is_dataclass(thing):
                    last[name] = base, thing
    for name, (base, thing) in last.items():
        if callable(inspect.unwrap(getattr(thing, "__func__", thing))) or _is_property(thing):
            yield name, base, thing


def _is_property(thing: Any) -> bool:
    return isinstance(thing, property) or type(thing).__name__ == "cached_property"


def member(of: str, name: str, thing: Any) -> str:
    """A method or property of a class: an item of a list if it is short."""
    if _is_property(thing):
        node = _node(getattr(thing, "fget", None) or thing.func)
        kind = f": {_type(node.returns)}" if node.returns is not None else ""
        line, text = f"{of}.{name}{kind}", doc(f"{of}.{name}", thing)
    else:
        thing = getattr(thing, "__func__", thing)
        line, text = signature(f"{of}.{name}", _node(thing)), doc(f"{of}.{name}", thing)
    if "\n" not in text and "\n" not in line:
        return f"- `{line}`: {text}\n"
    return f"#### {of}.{name}\n\n{block(line)}\n{text}\n"


def fields(kind: type) -> list[str]:
    """The fields of a dataclass or of a dict, as the source writes them."""
    found = [n for n in _node(kind).body if isinstance(n, ast.AnnAssign)]
    public = [n for n in found if not ast.unparse(n.target).startswith("_")]
    defaults = (f" = {ast.unparse(n.value)}" if n.value else "" for n in public)
    named = (f"{ast.unparse(n.target)}: {_type(n.annotation)}" for n in public)
    return [name + default for name, default in zip(named, defaults, strict=True)]


def a_class(name: str, kind: type) -> str:
    """A class with its members."""
    text = [f"### {name}\n"]
    own = next((b for b in kind.__mro__ if "__init__" in vars(b)), None)
    if dataclasses.is_dataclass(kind):
        text.append(block(call(name, fields(kind))))
    elif own is not None and own.__module__.startswith("powerinfer_cpp"):
        text.append(block(call(name, arguments(_node(own.__init__)))))
    elif issubclass(kind, Exception):
        text.append(f"A kind of {', '.join(base.__name__ for base in kind.__bases__)}.\n")
    text.append(doc(name, kind) + "\n")
    if own is not None and own.__module__.startswith("powerinfer_cpp") and own.__init__.__doc__:
        text.append(inspect.getdoc(own.__init__) + "\n")
    parts: dict[str, list[str]] = {}
    for each, base, thing in members(kind):
        part = PARTS[base.__name__] if kind is powerinfer_cpp.Llama else ""
        parts.setdefault(part, []).append(member(name, each, thing))
    for part, found in parts.items():
        text += [f"**{part}**\n"] if part else []
        text += sorted(found, key=lambda said: said[0] == "#")  # items of lists first
    return "\n".join(text)


def a_dict(name: str, kind: Any) -> str:
    """A type of dicts: an item of a list. Bases with an underscore are not told of."""
    keys = [f"`{field}`" for field in fields(kind)]
    for base in _node(kind).bases:  # at run time the only base is dict
        named = ast.unparse(base)
        if named[0] == "_":
            parent = getattr(sys.modules[kind.__module__], named)
            keys = [*(f"`{field}`" for field in fields(parent)), *keys]
        elif named != "TypedDict":
            keys = [f"those of {named}", *keys]
    return f"- **{name}**: {' '.join(doc(name, kind).split())} Keys: {', '.join(keys)}.\n"


def page() -> str:
    """The whole document. Raises Undocumented, also for names of the package that it lacks."""
    told = {n for of in SECTIONS.values() for n in of.get("powerinfer_cpp", "").split()}
    promised = {name for name in powerinfer_cpp.__all__ if not name.isupper()} - ELSEWHERE
    if promised != told:
        raise Undocumented(f"SECTIONS and __all__ differ: {sorted(promised ^ told)}")
    text, contents = [], []
    for title, modules in SECTIONS.items():
        text.append(f"## {title}\n")
        links = []
        for module, names in modules.items():
            if module != "powerinfer_cpp":
                text.append(f"From `{module}`:\n")
            for name in names.split():
                thing = getattr(importlib.import_module(module), name)
                if is_dict(thing):
                    text.append(a_dict(name, thing))
                    continue
                links.append(f"[{name}](#{name.lower()})")
                if inspect.isclass(thing):
                    text.append(a_class(name, thing))
                else:
                    said = block(signature(name, _node(thing)))
                    text.append(f"### {name}\n\n{said}\n{doc(name, thing)}\n")
        contents.append(f"- {title}: {', '.join(links)}" if links else f"- {title}")
    lines = "\n".join([HEAD, "\n".join(contents) + "\n", *text]).splitlines()
    return _tight(lines)


def _tight(lines: list[str]) -> str:
    """The lines, without empty ones between items of a list."""
    found: list[str] = []
    for i, line in enumerate(lines):
        between = i > 0 and not line and lines[i - 1][:2] == "- " and lines[i + 1 : i + 2]
        if between and lines[i + 1][:2] == "- ":
            continue
        found.append(line)
    return "\n".join(found) + "\n"


def main() -> int:
    try:
        TARGET.write_text(page(), encoding="utf-8")
    except Undocumented as error:
        print(f"api_reference: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
