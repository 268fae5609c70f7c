"""What goes into a `Llama` as text, and what comes out: prompts, chats, bytes of tokens."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .core.log import say
from .core.session import as_tokens
from .llama_embeddings import LlamaEmbeddings
from .text import chat
from .text.grammar import LlamaGrammar
from .text.infill import infill_ids
from .text.thinking import Thinking
from .text.tool_chat import Turn, control_tokens, prepare
from .text.tools import ToolRequest

Text = str | bytes | Sequence[int]


def encoded(text: str | bytes) -> bytes:
    """A text as bytes, which surrogate escapes may stand for."""
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def has_template(source: object) -> bool:
    """Is a file's value of tokenizer.chat_template one?"""
    return isinstance(source, str) and bool(source.strip())


class LlamaPrompts(LlamaEmbeddings):
    """A `Llama` that turns prompts and chats into ids, and ids into bytes."""

    _fell_back = False

    @property
    def chats_with(self) -> str | None:
        """What makes the prompts of chats: "template" (the file's own, or another that was set),
        "handler", or the name of a format. None: nothing does, and chats fall back to
        llama-2; such a model is usually one that continues texts."""
        if self.chat_handler is not None:
            return self.chat_format or "handler"
        if isinstance(self._named_format, chat.TemplateFormat):
            return "template"
        if self._named_format is not None and not self._fell_back:
            return self.chat_format
        return "template" if has_template(self._value("tokenizer.chat_template")) else None

    def _turn(
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
        used = chat_format or self._format(request)
        return prepare(used, messages, request, self._control_tokens, grammar, thinking)

    def _format(self, request: ToolRequest | None) -> chat.ChatFormat:
        """The chat's format; some files have a template of their own for requests with tools."""
        if self._named_format is None:
            self._named_format = self._template_format("tokenizer.chat_template")
        if self._named_format is None:
            self._fell_back, self.chat_format = True, chat.FALLBACK
            self._named_format = chat.named_format(self.chat_format)
            words = f"{self.model_path} has no chat template: its chats use {self.chat_format}"
            say(f"{words} (chat_format names another)", self.verbose, logging.WARNING)
        if request is None or not isinstance(self._named_format, chat.TemplateFormat):
            return self._named_format
        if self._tool_format is None:
            special = self._template_format("tokenizer.chat_template.tool_use")
            self._tool_format = special or self._named_format
        return self._tool_format

    def _template_format(self, key: str) -> chat.TemplateFormat | None:
        source = self._value(key)
        return self._template(source) if has_template(source) else None

    def _value(self, key: str) -> Any:
        with self._in_use:
            return self._model.gguf.value(key)

    def _template(self, source: str) -> chat.TemplateFormat:
        with self._in_use:
            bos, eos = (
                self._model.text(token, True).decode("utf-8", "replace") if token >= 0 else ""
                for token in (self._model.bos, self._model.eos)
            )
        return chat.TemplateFormat(source, bos, eos)

    def _control_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        with self._in_use:
            return control_tokens(self._model, texts)

    def _name_bytes(self, token: int, first: bool) -> bytes:
        """Bytes of a token for logprobs; first: without the added space before a text."""
        with self._in_use:
            data = self._model.text(token, True)
        return data[1:] if first and data.startswith(b" ") else data

    def _prompt_ids(self, prompt: Text) -> list[int]:
        if not isinstance(prompt, str | bytes):
            return as_tokens(prompt).tolist()
        prompt = encoded(prompt)
        with self._in_use:
            ids = self._model.tokenize(prompt, special=True)
        bos = self._model.bos
        if bos >= 0 and (not ids or self._model.add_bos and ids[0] != bos):
            ids = [bos, *ids]
        return ids

    def _infill_ids(self, prefix: Text, suffix: Text) -> list[int]:
        """The ids after which the text between prefix and suffix follows (infill.py)."""
        before, behind = (
            encoded(part) if isinstance(part, str | bytes) else as_tokens(part).tolist()
            for part in (prefix, suffix)
        )
        with self._in_use:
            return infill_ids(self._model, self._fim_tokens, before, behind, self.spm_infill)

    def _prompt_text(self, prompt: Text) -> str:
        if isinstance(prompt, str):
            return prompt
        data = prompt if isinstance(prompt, bytes) else self.detokenize(prompt)
        return data.decode("utf-8", "ignore")
