"""Text to ids and back, for one model: prompts, chats, infill, bytes of tokens, grammars."""

import codecs
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..core.checks import whole
from ..core.log import say
from ..core.logits import LogitBias, LogitsProcessorList, LogitsProcessors, combined
from ..core.model import Model
from ..core.session import as_tokens
from ..core.state import common_prefix
from . import chat
from .grammar import LlamaGrammar
from .infill import FimTokens, fim_tokens, infill_ids
from .logprobs import Choice, Placed
from .masks import Vocabulary
from .thinking import Thinking
from .thought_limit import ThoughtLimit, ThoughtProcessor, Waiting
from .tool_chat import Turn, control_tokens, prepare
from .tools import ToolRequest

Text = str | bytes | Sequence[int]

_LONG = 1 << 16  # tokens whose bytes are joined at once: other threads get their turn in between


def encoded(text: str | bytes) -> bytes:
    """A text as bytes, which surrogate escapes may stand for."""
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def has_template(source: object) -> bool:
    """Is a file's value of tokenizer.chat_template one?"""
    return isinstance(source, str) and bool(source.strip())


class Prompts:
    """What goes into a model as text, and what comes out; any thread may use it.

    The vocabulary and the file's header never change, so this needs no lock: in_use only keeps the
    model open meanwhile, and raises if it is closed. named, name: the format of chats; None: the
    file's own template, else chat.FALLBACK with a warning. spm_infill: the suffix comes before the
    prefix. verbose: warnings also go to stderr.
    """

    def __init__(
        self,
        model: Model,
        in_use: Callable[[], AbstractContextManager[None]],
        named: chat.ChatFormat | None,
        name: str | None,
        spm_infill: bool,
        verbose: bool,
    ):
        self._model, self._in_use = model, in_use
        self._named, self.name = named, name
        self._for_tools: chat.ChatFormat | None = None
        self._fell_back = False
        self.spm_infill, self._verbose = spm_infill, verbose
        self._vocabulary: Vocabulary | None = None
        self._making = threading.Lock()  # of the vocabulary

    # ---- Tokens --------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """`Llama.tokenize`."""
        if not isinstance(text, bytes | bytearray | memoryview):
            raise TypeError(f"tokenize takes bytes, not {type(text).__name__}")
        with self._in_use():
            ids = self._model.tokenize(bytes(text), special)
        before = [self._model.bos] if add_bos and self._model.add_bos else []
        after = [self._model.eos] if add_bos and self._model.add_eos else []
        return before + ids + after

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """`Llama.detokenize`."""
        # Each distinct token is looked up once: a server gets millions of them.
        if set(map(type, tokens)) == {int}:
            ids: Sequence[int] = tokens
        else:
            ids = [whole("a token id", token) for token in tokens]
        with self._in_use():
            known = {token: self._model.text(token, special) for token in set(ids)}
            parts = (ids[first : first + _LONG] for first in range(0, len(ids), _LONG))
            text = b"".join(b"".join(map(known.__getitem__, part)) for part in parts)
        begins = not prev_tokens and len(tokens) > 0 and tokens[0] == self._model.bos
        return text[1:] if begins and text.startswith(b" ") else text

    def behind(self, text: str | bytes, special: bool = False) -> list[int]:
        """The ids of a text that follows another. special: texts of control tokens become those."""
        with self._in_use():
            return self._model.tokenize_behind(encoded(text), special=special)

    def token_bytes(self, token: int) -> bytes | None:
        """Bytes that a token adds to a text; None for an end token."""
        with self._in_use():
            return None if self._model.ends(token) else self._model.text(token)

    def _text_bytes(self, token: int) -> bytes:
        with self._in_use():
            return self._model.text(token)

    def any_bytes(self, token: int) -> bytes:
        """Bytes of a token, also of a control token."""
        with self._in_use():
            return self._model.text(token, True)

    def name_bytes(self, token: int, first: bool) -> bytes:
        """Bytes of a token for logprobs; first: without the added space before a text."""
        data = self.any_bytes(token)
        return data[1:] if first and data.startswith(b" ") else data

    @cached_property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        with self._in_use():
            return [i for i in range(self._model.n_vocab) if self._model.ends(i)]

    def placed(self, ids: Sequence[int], text: str, rows: Sequence[Choice]) -> list[Placed]:
        """The choices of a prompt's tokens with their places in its text."""
        shown, begins = [self.any_bytes(token) for token in ids], self.any_bytes(ids[0])
        if ids[0] == self._model.bos and not text.startswith(begins.decode("utf-8", "replace")):
            shown[0] = b""
        # Tokenizers may add a space before a text; it is not part of the text.
        visible = text.encode("utf-8", "surrogateescape").decode("utf-8", "ignore")
        spaced = b"".join(shown).decode("utf-8", "ignore") == f" {visible}"
        first = next((i for i, data in enumerate(shown) if data), None)
        found, n_chars, decoder = [], 0, codecs.getincrementaldecoder("utf-8")("ignore")
        for i, (row, data) in enumerate(zip(rows, shown, strict=True)):
            strip = spaced and i == first
            found.append(Placed(row, n_chars, strip))
            n_chars += len(decoder.decode(data[1:] if strip else data))
        return found

    # ---- Constraints ---------------------------------------------------------------------

    @property
    def vocabulary(self) -> Vocabulary:
        """What grammars need of the model. Made once; then nobody waits for it."""
        if self._vocabulary is None:
            with self._making, self._in_use():
                self._vocabulary = self._vocabulary or Vocabulary(self._model)
        return self._vocabulary

    def processors(
        self,
        given: LogitsProcessors,
        bias: Mapping[int | str, float] | None,
        grammar: LlamaGrammar | None,
        limit: ThoughtLimit | None = None,
    ) -> LogitsProcessorList | None:
        """What changes the logits of a text: the caller's functions, then biases, then the grammar,
        which waits for the end of thoughts that have a limit. Raises ValueError for what is no
        grammar, and for biases of no tokens."""
        found = LogitsProcessorList()
        if (function := combined("logits_processor", given, LogitsProcessorList)) is not None:
            found.append(function)
        if bias:
            found.append(LogitBias(bias, self._model.n_vocab))
        if grammar is not None and not isinstance(grammar, LlamaGrammar):
            raise ValueError("grammar must be a LlamaGrammar, LlamaGrammar.from_string for example")
        held = None if grammar is None else grammar.processor(self.vocabulary)
        if limit is not None:
            waiting = None if held is None else Waiting(held, self.vocabulary)
            special = partial(self.behind, special=True)
            found.append(ThoughtProcessor(limit, waiting, self._text_bytes, special))
        elif held is not None:
            found.append(held)
        return found or None

    # ---- Prompts -------------------------------------------------------------------------

    def ids(self, prompt: Text) -> list[int]:
        """The ids of a prompt: with BOS if the file asks for it, or if there are none; given ids as
        they are."""
        if not isinstance(prompt, str | bytes):
            return as_tokens(prompt, "prompt").tolist()
        with self._in_use():
            ids = self._model.tokenize(encoded(prompt), special=True)
        bos = self._model.bos
        if bos >= 0 and (not ids or self._model.add_bos and ids[0] != bos):
            ids = [bos, *ids]
        return ids

    def positions(self, text: str, ids: Sequence[int], lengths: Iterable[int]) -> list[int]:
        """How many of a prompt's ids the first characters of its text have; lengths: of these."""
        known = np.asarray(ids)
        return [common_prefix(known, np.asarray(self.ids(text[:n]))) for n in set(lengths)]

    def text(self, prompt: Text) -> str:
        """The text of a prompt."""
        if isinstance(prompt, str):
            return prompt
        data = prompt if isinstance(prompt, bytes) else self.detokenize(prompt)
        return data.decode("utf-8", "ignore")

    def infill_ids(
        self,
        prefix: Text,
        suffix: Text,
        files: Sequence[tuple[str, str]] = (),
        most: int | None = None,
    ) -> list[int]:
        """The ids after which the text between prefix and suffix follows (infill.py)."""
        before, behind = (
            encoded(part) if isinstance(part, str | bytes) else as_tokens(part, name).tolist()
            for name, part in (("prompt", prefix), ("suffix", suffix))
        )
        with self._in_use():
            of = (self.fim_tokens, before, behind, self.spm_infill, files, most)
            return infill_ids(self._model, *of)

    @cached_property
    def fim_tokens(self) -> FimTokens | None:
        """The tokens around prefix and suffix; None: the model does not fill in."""
        return fim_tokens(self._model.gguf, self._model.n_vocab)

    # ---- Chats ---------------------------------------------------------------------------

    @property
    def chats_with(self) -> str | None:
        """What makes the prompts of chats: "template" (the file's own, or another that was set),
        "handler", or the name of a format. None: nothing does, and chats fall back to llama-2; such
        a model is usually one that continues texts."""
        if isinstance(self._named, chat.TemplateFormat):
            return "template"
        if self._named is not None and not self._fell_back:
            return self.name or "handler"
        return "template" if has_template(self._value("tokenizer.chat_template")) else None

    def use_template(self, source: str) -> None:
        """Chats use this template from now on. Raises ValueError for a bad one."""
        self._named = self._for_tools = self._template(source)

    def turn(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: object,
        tool_choice: object,
        grammar: LlamaGrammar | None,
        parallel_tool_calls: bool | None = None,
        chat_format: chat.ChatFormat | None = None,
        thinking: Thinking | None = None,
    ) -> Turn:
        """The prompt of a chat, and how its answer is constrained and read."""
        request = ToolRequest.of(tools, tool_choice, parallel_tool_calls)
        used = chat_format or self.format(request)
        return prepare(
            used,
            messages,
            request,
            self.control_tokens,
            grammar,
            thinking,
            compare=self._model.has_states or self._model.has_windows,
        )

    def format(self, request: ToolRequest | None) -> chat.ChatFormat:
        """The chat's format; some files have a template of their own for requests with tools."""
        if self._named is None:
            self._named = self._template_format("tokenizer.chat_template")
        if self._named is None:
            self._fell_back, self.name = True, chat.FALLBACK
            self._named = chat.named_format(self.name)
            words = f"{self._model.path} has no chat template: its chats use {self.name}"
            say(f"{words} (chat_format names another)", self._verbose, logging.WARNING)
        if request is None or not isinstance(self._named, chat.TemplateFormat):
            return self._named
        if self._for_tools is None:
            special = self._template_format("tokenizer.chat_template.tool_use")
            self._for_tools = special or self._named
        return self._for_tools

    def control_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        """Those of these texts that are control tokens, with their ids."""
        with self._in_use():
            return control_tokens(self._model, texts)

    def _template_format(self, key: str) -> chat.TemplateFormat | None:
        source = self._value(key)
        return self._template(source) if has_template(source) else None

    def _value(self, key: str) -> Any:
        with self._in_use():
            return self._model.gguf.value(key)

    def _template(self, source: str) -> chat.TemplateFormat:
        bos, eos = (
            self.any_bytes(token).decode("utf-8", "replace") if token >= 0 else ""
            for token in (self._model.bos, self._model.eos)
        )
        return chat.TemplateFormat(source, bos, eos)
