"""Chat templates of model files: rendered by jinja2 in a process with limits of time and memory.

A template comes with a model and is as trustworthy as any download. jinja2's sandbox keeps it from
Python, the process (worker.py) from hanging this one or filling its memory. The rules by which it
is rendered stand in children/templates.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from functools import cached_property
from typing import Any

from .worker import Refused, Worker, WorkerMissing

MAX_TEMPLATE = 256 << 10  # characters

WORKER = "templates", ("jinja2", "markupsafe")  # of children/, and what that imports
_worker = Worker(*WORKER)


class TemplateError(ValueError):
    """A chat template that cannot be used, or that refuses the messages.

    by_limit: it took too much, or there is no process to render it; which says nothing of what the
    template takes.
    """

    def __init__(self, message: str, by_limit: bool = False):
        super().__init__(message)
        self.by_limit = by_limit


class ChatTemplate:
    """A template of a model file.

    bos_token, eos_token: texts of these tokens. Raises TemplateError when source is no template.
    May be used from several threads.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = ""):
        if len(source) > MAX_TEMPLATE:
            raise TemplateError(f"the chat template has more than {MAX_TEMPLATE} characters")
        self.source = source
        self._names = {"bos_token": bos_token, "eos_token": eos_token}
        _ask(source=source)

    def render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool = True, /, **more: Any
    ) -> str:
        """The prompt for messages. Raises TemplateError.

        more: further names for the template; they and the messages may hold what JSON can.
        """
        names = {"messages": messages, "add_generation_prompt": add_generation_prompt, **more}
        return _ask(source=self.source, names={**self._names, **names})

    def rendered(
        self, messages: list[dict[str, Any]], names: dict[str, Any], begins: bool = False
    ) -> str:
        """The text of a chat without tools. begins: with the beginning of an answer. Raises
        TemplateError."""
        return self.render(messages, begins, **{**self.without_tools, **names})

    @property
    def without_tools(self) -> dict[str, Any]:
        """Names of a chat without tools. Raises TemplateError by a limit."""
        found = self._without_tools
        return (
            found if "datetime" not in found else {**found, "datetime": f"{date.today():%b %d %Y}"}
        )

    @cached_property
    def _without_tools(self) -> dict[str, Any]:
        """The first of `_NO_TOOLS` that the template takes."""
        question = [{"role": "user", "content": "Hi"}]
        for names in _NO_TOOLS:
            with suppressed_refusal():
                self.render(question, **names)
                return names
        return _NO_TOOLS[0]


# There are none; templates that go through tools that are not there, or join functions to a text
# (Firefunction's, with the day beside them), fail without these.
_NO_TOOLS: tuple[dict[str, Any], ...] = (
    {"tools": None},
    {"tools": []},
    {"tools": [], "functions": "", "datetime": ""},
)


@contextmanager
def suppressed_refusal() -> Iterator[None]:
    """Within it, a template may refuse what it is asked; what ends it by a limit is raised."""
    try:
        yield
    except TemplateError as error:
        if error.by_limit:
            raise


def _plain(value: Any) -> Any:
    """value with dicts in place of other mappings, as JSON wants them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _ask(**request: Any) -> Any:
    try:
        return _worker.ask(**_plain(request))
    except Refused as error:
        words = f"the chat template {error}: refused" if error.by_limit else str(error)
        raise TemplateError(words, error.by_limit) from None
    except WorkerMissing as error:
        words = error.sentence("a chat template needs a Python interpreter to run in")
        raise TemplateError(f"{words}, and chat_format does without", by_limit=True) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"messages must hold only what JSON can: {error}") from None
