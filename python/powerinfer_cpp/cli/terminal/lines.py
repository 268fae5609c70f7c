"""What the user of a chat types: with line editing on a terminal, as plain lines elsewhere."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from ...core.log import tell
from .history import HistoryFile

_PROMPT, _MORE = "> ", ". "
_GREEN = "ansigreen bold"  # what the user types, as in ./main


class Lines(Protocol):
    """Gives the user's texts one by one."""

    def read(self) -> str | None:
        """The next text, of one or several lines; None at the end of the input. Raises
        KeyboardInterrupt on Ctrl-C."""
        ...


class PlainLines:
    """Lines of stdin. A backslash at the end of a line means that the text goes on."""

    def __init__(self) -> None:
        # Any bytes: they need not be UTF-8.
        if reconfigure := getattr(sys.stdin, "reconfigure", None):
            reconfigure(errors="surrogateescape")

    def read(self) -> str | None:
        """See `Lines`."""
        lines: list[str] = []
        while True:
            if sys.stdin.isatty():
                tell(_MORE if lines else _PROMPT, end="")
            line = sys.stdin.readline()
            if not line:
                return "\n".join(lines) if lines else None
            line = line.rstrip("\r\n")
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])


class EditedLines:
    """Lines of a terminal, with editing, history and completion by prompt_toolkit.

    Text goes to stdout alone, so all this is drawn on stderr. history: None: only this chat's.
    words: what Tab completes at the beginning; those of `files` take a path.
    """

    def __init__(
        self,
        history: HistoryFile | None,
        words: Iterable[str] = (),
        files: Iterable[str] = (),
        colours: bool = True,
    ):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output
        from prompt_toolkit.styles import Style

        self._session: PromptSession[str] = PromptSession(
            multiline=True,  # pasted lines stay lines
            prompt_continuation=lambda width, line, wrapped: _MORE,
            key_bindings=_keys(),
            history=_history(history),
            completer=_completer(tuple(words), tuple(files)),
            complete_while_typing=False,
            output=create_output(stdout=sys.stderr),
            style=Style.from_dict({"": _GREEN}) if colours else None,
            include_default_pygments_style=False,
            enable_open_in_editor=True,
        )

    def read(self) -> str | None:
        """See `Lines`."""
        try:
            return self._session.prompt(_PROMPT)
        except EOFError:
            return None


def _keys():  # type: ignore[no-untyped-def]
    """Enter sends; Alt-Enter, or a backslash before Enter, begins another line."""
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def _(event):  # type: ignore[no-untyped-def]
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event):  # type: ignore[no-untyped-def]
        event.current_buffer.newline(copy_margin=False)

    return keys


def _history(file: HistoryFile | None):  # type: ignore[no-untyped-def]
    from prompt_toolkit.history import History, InMemoryHistory

    if file is None:
        return InMemoryHistory()

    class Kept(History):
        def load_history_strings(self) -> Iterator[str]:
            return reversed(file.texts())

        def store_string(self, string: str) -> None:
            file.add(string)

    return Kept()


def _completer(words: tuple[str, ...], files: tuple[str, ...]):  # type: ignore[no-untyped-def]
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document, event):  # type: ignore[no-untyped-def]
            text = document.text_before_cursor
            word, space, rest = text.partition(" ")
            if space and word in files:
                yield from paths.get_completions(Document(rest), event)
            elif not space and text.startswith("/"):
                for each in words:
                    if each.startswith(text):
                        yield Completion(each, -len(text))

    return Commands()


def can_edit() -> bool:
    """Is this a terminal on which lines can be edited?"""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    if sys.platform != "win32" and os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    try:
        import prompt_toolkit  # noqa: F401
    except ImportError:
        return False
    return True


def open_lines(
    simple: bool, history: Path | None, make: Callable[[HistoryFile | None], Lines]
) -> Lines:
    """The user's lines: those that `make` gives where lines can be edited, unless they are to be
    simple."""
    if simple or not can_edit():
        return PlainLines()
    return make(HistoryFile(history) if history is not None else None)
