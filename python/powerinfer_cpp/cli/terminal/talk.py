"""A conversation: what was said, how the next answer is made, and how it is kept in a file."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ContextOverflowError
from ...llama import Llama
from ...text.chat import Message, content_text
from .history import replace_file

_MOST = 64 << 20  # bytes of a conversation's file
_ROLES = ("user", "assistant")


class Talk:
    """Messages, and the model that answers them.

    plain: the model has no chat format, so that what the user writes is continued as a text, which
    the messages are parts of. keywords: of create_chat_completion or create_completion.
    """

    def __init__(self, llm: Llama, system: str, keywords: dict[str, Any], plain: bool):
        self.llm, self.system, self.keywords, self.plain = llm, system, keywords, plain
        self.messages: list[Message] = []
        self.full = False  # the last answer ended where the context does
        self._thoughts = ""  # of the last answer

    def say(self, text: str) -> None:
        """Adds what the user says. Parts of a text are on lines of their own, unless one begins
        with a space; an empty one lets the model go on."""
        if self.plain:
            text = self._joint(text) + text
        if text or not self.plain:
            self.messages.append({"role": "user", "content": text})

    def _joint(self, text: str) -> str:
        before = self.text()
        apart = not before or not text or before[-1].isspace() or text[0].isspace()
        return "" if apart else "\n"

    def text(self) -> str:
        """All messages as one text."""
        return "".join(message["content"] for message in self.messages)

    def take_back(self) -> bool:
        """Removes the last answer, for another one; False if there is nothing to answer."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return bool(self.messages)

    def answer(
        self, forget: Callable[[], None], think: Callable[[str], None] = lambda piece: None
    ) -> Iterator[str]:
        """The pieces of the answer to the messages; `heard` adds it to them.

        forget: called for each time that the oldest messages are dropped, so that the others fit.
        think: called with the pieces of thoughts and their tags. Raises the errors of
        create_chat_completion.
        """
        self.full, self._thoughts = False, ""
        thinks = False
        while True:
            try:
                chunks = self._chunks()
                break
            except ContextOverflowError:
                few = 2 if self.plain else 3
                if len(self.messages) < few:
                    raise
                forget()
                self.messages = self.messages[few - 1 :]
        for chunk in chunks:
            choice = chunk["choices"][0]
            if choice["finish_reason"] == "length" and (self.keywords["max_tokens"] or 0) <= 0:
                self.full = True
            delta = {"content": choice["text"]} if self.plain else choice["delta"]
            if thought := delta.get("reasoning_content"):
                think(thought if thinks else f"<think>\n{thought}")
                self._thoughts += thought
                thinks = True
            if piece := delta.get("content"):
                if thinks:
                    think("\n</think>\n\n")
                thinks = False
                yield piece

    def heard(self, text: str) -> None:
        """Adds an answer."""
        said = {"role": "assistant", "content": text}
        if self._thoughts:
            said["reasoning_content"] = self._thoughts
        self.messages.append(said)

    def _chunks(self) -> Any:
        if self.plain:
            return self.llm.create_completion(self.text(), **self.keywords)
        return self.llm.create_chat_completion(self.with_system(), **self.keywords)

    def with_system(self) -> list[Message]:
        """All messages, the system's first, if there is one."""
        told: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return told + self.messages

    # ---- Files ---------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes the messages as a JSON list, all of them or nothing.

        Raises OSError, and ValueError for a file that is there and no conversation.
        """
        if os.path.lexists(path):
            try:
                read_messages(path)
            except ValueError:
                raise ValueError(
                    f"{path} is something else than a conversation, so it stays"
                ) from None
        replace_file(path, messages_text(self.with_system()))

    def load(self, path: Path) -> None:
        """Takes the messages of a file in place of these. Raises OSError, and ValueError for a file
        that is no conversation."""
        messages = read_messages(path)
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        if system and self.plain:
            raise ValueError(f"{path} has a system message, which needs a chat template")
        self.system, self.messages = system, messages


def messages_text(messages: Sequence[Message]) -> bytes:
    """Messages as JSON."""
    for ascii_only in (False, True):  # what is no Unicode has escapes for JSON only
        text = json.dumps(list(messages), indent=1, ensure_ascii=ascii_only) + "\n"
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            continue
    raise AssertionError("ASCII is UTF-8")


def read_messages(path: Path) -> list[Message]:
    """The messages of a file, each with a role and a text: a JSON list, or an object with such a
    list under "messages". Raises OSError, and ValueError that names the file."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise ValueError(f"{path} is too large for a conversation")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    if isinstance(found, dict):
        found = found.get("messages")
    if not isinstance(found, list):
        raise ValueError(f"{path} has no list of messages")
    return [_message(f"{path}: message {i + 1}", entry, i == 0) for i, entry in enumerate(found)]


def _message(where: str, entry: Any, first: bool) -> Message:
    role = entry.get("role") if isinstance(entry, dict) else None
    if role not in _ROLES and not (first and role == "system"):
        allowed = "system, user or assistant" if first else "user or assistant"
        raise ValueError(f"{where} has not the role {allowed}")
    try:
        return {"role": role, "content": content_text(entry)}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
