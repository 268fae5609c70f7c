"""Renders a chat template: Jinja in a sandbox with additional limits.

These limits give better messages; the limits of the process (serve.py) catch everything else.
"""

import functools
import inspect
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from serve import Refused

ALONE = True  # the process needs no threads and no others (serve.py)
MAX_TEXT = 16 << 20  # characters of a prompt, and of any intermediate value
MAX_NUMBER = 100_000  # as an argument: widths, counts
MAX_SECONDS = 2.0

_TICK = "__tick__"
_WIDTH = re.compile(r"\d{6,}|\*")  # in a format: a width that is huge, or is an argument


class _Clock:
    end = float("inf")


def _too_much(what: str) -> NoReturn:
    raise Refused(f"the chat template makes {what}: refused")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _check_result(value: Any) -> Any:
    if _size(value) > MAX_TEXT:
        _too_much("a text of more than 16 MiB")
    return value


def _check_arguments(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= MAX_NUMBER:
                _too_much(f"a call with the number {value!r:.20}")
        elif name in ("format", "format_map") and isinstance(value, str) and _WIDTH.search(value):
            _too_much("a text of huge width")
    if name in ("replace", "join", "translate", "indent", "wordwrap"):
        product = 1
        for value in values:
            product *= max(1, _size(value))
        if product > MAX_TEXT * 64:
            _too_much("a huge text")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` of chat templates: unlike jinja2's, without HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """The items of what `map` and its like make, for `tojson`."""
    if not isinstance(value, Iterator):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    items = list(itertools.islice(value, MAX_NUMBER + 1))
    if len(items) > MAX_NUMBER:
        _too_much(f"a list of more than {MAX_NUMBER} items")
    return items


class _Generation(Extension):
    """{% generation %} marks text for training scripts; here it has no effect."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with limits; `clock` is set while a template is rendered."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, clock: _Clock):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            cache_size=0,
        )
        self._clock = clock
        self.globals.pop("lipsum", None)
        self.filters["tojson"] = to_json
        self.filters = {name: self._limited(name, f) for name, f in self.filters.items()}
        self.globals[_TICK] = self.tick

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Some templates change lists, all of which belong to this one rendering."""
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(
            obj, attr, value
        )

    def tick(self) -> str:
        """Raises Refused after the time limit of a template."""
        if time.monotonic() > self._clock.end:
            raise Refused(f"the chat template takes more than {MAX_SECONDS:.0f} s: refused")
        return ""

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps jinja2's marks for arguments
        def limited(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            _check_arguments(name, (*args, *kwargs.values()))
            return _check_result(function(*args, **kwargs))

        return limited

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        owner = getattr(inspect.unwrap(obj), "__self__", None)  # the sandbox wraps str.format
        owners = (owner,) if isinstance(owner, str | bytes | list | tuple) else ()
        name = getattr(obj, "__name__", "")
        _check_arguments(name, (*owners, *args, *kwargs.values()))
        if name == "append" and isinstance(owner, list) and len(owner) >= MAX_NUMBER:
            _too_much(f"a list of more than {MAX_NUMBER} items")
        return _check_result(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        size = _size(left) + _size(right)
        if operator in ("*", "**"):
            for value, other in ((left, right), (right, left)):
                if isinstance(value, int | float):
                    if not abs(value) <= 1 << 53:
                        _too_much("a huge number")
                    if isinstance(other, str | bytes | list | tuple):
                        size = max(size, int(abs(value)) * len(other))
            if operator == "**" and not (abs(left) <= MAX_NUMBER and abs(right) <= 64):
                _too_much("a huge number")
        if operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            _too_much("a text of huge width")
        if size > MAX_TEXT:
            _too_much("a text of more than 16 MiB")
        return super().call_binop(context, operator, left, right)

    def concatenated(self, *values: Any) -> str:
        """The result of `~`."""
        self.tick()
        parts = [str(value) for value in values]
        if sum(map(len, parts)) > MAX_TEXT:
            _too_much("a text of more than 16 MiB")
        return "".join(parts)

    def _parse(self, source: str, name: Any, filename: Any) -> nodes.Template:
        """The syntax tree, with a check of the clock in every iteration of a loop."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
            loop.body.insert(0, nodes.Output([call]))
            nodes.Node.set_lineno(loop, loop.lineno)
        return _Concat(self).visit(tree)


class _Concat(NodeTransformer):
    """Turns `~` into a call of `concatenated`."""

    def __init__(self, environment: _Environment):
        self._environment = environment
        environment.globals["__concat__"] = environment.concatenated

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        name = nodes.Name("__concat__", "load")
        return nodes.Call(name, node.nodes, [], None, None, lineno=node.lineno).set_environment(
            node.environment
        )


def _raise(message: Any) -> NoReturn:
    raise Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


class _Template:
    """A compiled template."""

    def __init__(self, source: str):
        self._clock = _Clock()
        environment = _Environment(self._clock)
        self._template = self._limited(lambda: environment.from_string(source))

    def render(self, names: dict[str, Any]) -> str:
        names = {"raise_exception": _raise, "strftime_now": _now, **names}

        def text() -> str:
            parts, size = [], 0
            for part in self._template.generate(**names):
                size += len(part)
                if size > MAX_TEXT:
                    _too_much("a text of more than 16 MiB")
                parts.append(part)
            return "".join(parts)

        return self._limited(text)

    def _limited(self, work: Callable[[], Any]) -> Any:
        self._clock.end = time.monotonic() + MAX_SECONDS
        try:
            return work()
        except (Refused, MemoryError):
            raise
        except RecursionError:
            raise Refused("the chat template is nested too deeply") from None
        except Exception as error:  # any error of the template's own code
            raise Refused(f"the chat template fails: {_one_line(error)}") from None
        finally:
            self._clock.end = float("inf")


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> _Template:
    return _Template(source)


def answer(source: str, names: dict[str, Any] | None = None) -> str | None:
    """The prompt from the template with these names; without names, only checks the template."""
    template = _compiled(source)
    return None if names is None else template.render(names)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
