"""Hostile chat templates and grammars, by family; each is one short text.

`python hostile.py templates NAME...` works on those named, one after another in one process, and
prints for each how long it took and what it came to, and at the end the most memory of the process
and of its workers. A program of its own, since a test's process has other memory as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import sys
import time

# Lists that hold the one before twice: 2**N leaves in N objects.
_SHARED = (
    "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
)
_LISTS = _SHARED.replace("START", "[1]")
_TWINS = _LISTS + (
    "{% set m = namespace(x=[1]) %}{% for i in range(60) %}{% set m.x = [m.x, m.x] %}{% endfor %}"
)
_BIG = "{% set a = 'a' * 16000000 %}"
_WORDS = "{% set a = 'a ' * 8000000 %}"
_SPACES = "{% set a = '\\t' * 4000000 %}"
_RANGE = "{% set r = range(100000) | list %}"


def _body(setting: str, *uses: str) -> list[str]:
    return [setting + use for use in uses]


TEMPLATES = {
    "compared": _body(
        _TWINS,
        "{{ n.x == m.x }}",
        "{{ n.x != m.x }}",
        "{{ n.x < m.x }}",
        "{{ n.x >= m.x }}",
        "{{ n.x in [m.x] }}",
        "{{ [m.x].index(n.x) }}",
        "{{ [m.x].count(n.x) }}",
        "{% if n.x is eq(m.x) %}{% endif %}",
        "{{ [n.x, m.x] | sort }}",
        "{{ [n.x, m.x] | max }}",
        "{{ {'a': n.x} == {'a': m.x} }}",
    ),
    "printed": _body(
        _LISTS,
        "{{ n.x }}",
        "{{ n.x | string | length }}",
        "{{ n.x ~ '' }}",
        "{{ '%s' % n.x }}",
        "{{ '%r' % [n.x] }}",
        "{{ '{}'.format(n.x) }}",
        "{{ '{!r}'.format(n.x) }}",
        "{{ 'a{x}'.format_map({'x': n.x}) }}",
        "{{ '%s' | format(n.x) }}",
        "{{ {'a': n.x} | xmlattr }}",
        "{{ n.x | string | indent }}",
        "{{ [n.x] | join }}",
        "{{ n.x | pprint }}",
        "{{ n.x | tojson }}",
        "{{ n.x | tojson(indent=4) }}",
        "{{ n.x | upper }}",
        "{{ n.x | escape }}",
        "{{ n.x | urlencode }}",
        "{{ raise_exception(n.x) }}",
    ),
    "hashed": _body(
        "{% set n = namespace(x=(1,)) %}"
        "{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}",
        "{{ {n.x: 1} }}",
        "{{ [n.x] | unique | list }}",
        "{{ {}[n.x] }}",
        "{{ {}.get(n.x) }}",
        "{{ n.x in {} }}",
        "{{ dict([(n.x, 1)]) }}",
        "{{ [{'a': n.x}] | groupby('a') }}",
    ),
    "percent": [
        "{{ '%(a)s' * 1000 % {'a': 'a' * 1000000} }}",
        "{% set p = '%s' * 1000 %}{{ p % (('a' * 1000000,) * 1000) }}",
        "{{ '%99999d' * 100000 % ((1,) * 100000) }}",
        "{{ ('%s' * 30000) | format(*['a' * 99999] * 30000) }}",
        "{{ '{0:99999}' * 100000 }}{{ ('{0:99999}' * 100000).format(1) }}",
        "{{ ('{0}' * 100000).format('a' * 100000) }}",
    ],
    "numbers": [
        "{{ range(100000) | sum(start=9 ** 60) }}{% for i in range(60) %}{{ 9 ** 60 }}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x ** 9 %}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(40) %}"
        "{% set n.x = [n.x, n.x, n.x] | map('int') | sum * 10 ** 60 %}{% endfor %}",
        "{{ '%d' % (10 ** 64) ** 64 ** 4 }}",
    ],
    "texts": [
        _BIG + "{{ (a | list) * 3 }}",
        _BIG + "{{ a.replace('', 'bbbbbbbbbbbbbbb') }}",
        _BIG + "{{ a.join(a) }}",
        _BIG + "{{ (['x'] * 1000) | join(a) }}",
        _BIG + "{{ a.translate({97: 'b' * 10000}) }}",
        _BIG + "{{ a | wordwrap(1, wrapstring='b' * 99999) }}",
        _BIG + "{% for i in range(99999) %}{% set b = a.upper() %}{% endfor %}",
        _BIG + "{% set b = [a, a, a, a, a] | map('upper') | list %}{{ b * 20 }}",
        _WORDS + "{{ a | title }}{{ a.split() | length }}",
        _WORDS + "{{ a | wordcount }}{{ a | indent('b' * 999) }}",
        "{% set a = '\\n' * 4000000 %}{{ a | indent(99999, blank=true) }}",
        _SPACES + "{{ a.expandtabs(99999) }}",
        _SPACES + "{{ a.expandtabs(99999) | length }}",
        _BIG + "{{ a.encode('utf-16') * 9 }}",
        _BIG + "{{ (a ~ '<') | striptags }}{{ ('<' * 16000000) | striptags }}",
        "{{ ('<' * 16000000) | escape | length }}{{ ('&' * 16000000) | forceescape }}",
    ],
    "lists": [
        _RANGE + "{{ (r * 150) | tojson }}",
        _RANGE + "{{ (r * 150) | unique | list | length }}{{ (r * 150) | sort | list }}",
        _RANGE + "{% for x in r %}{% for y in r %}{% endfor %}{% endfor %}",
        _RANGE + "{{ r | map('string') | map('center', 99999) | list | length }}",
        _RANGE + "{{ (r | batch(1) | list) * 150 }}",
        _RANGE + "{{ ([r] * 16000) | sum(start=[]) | length }}",
        _RANGE + "{{ ([r] * 99999) | map('list') | list | length }}",
        _RANGE + "{{ ([r] * 99999) | map('sort') | list | length }}",
        "{{ ([[1]] * 16000000) | map('list') | list | length }}",
        "{{ ([[1]] * 1000000) | sum(start=[]) | length }}",
        "{{ dict(a=[1] * 16000000) | dictsort | tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
        "{% set n = namespace(x={'a': 1}) %}{% for i in range(900) %}"
        "{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x | tojson }}",
        "{{ 'a' in ['b' * 99999] * 99999 and 0 or ([[0] * 99999] * 99999).count([1]) }}"
        "{{ ([[0] * 99999 + [1]] * 99999).count([0] * 99999 + [2]) }}",
    ],
    "conditions": [
        _RANGE + "{% for x in r if r.count(x) > 2 %}{% endfor %}",
        _RANGE + "{% for x in r if (r | sum) == 0 %}{% endfor %}",
        _RANGE + "{% for x in r if -1 in r %}{% endfor %}",
        "{% for x in [1] * 16000000 if x == 2 %}{% endfor %}"
        "{% for x in [1] * 16000000 if x == 2 %}{% endfor %}"
        "{% for x in [1] * 16000000 if x == 2 %}{% endfor %}" * 20,
        _LISTS + "{% for x in n.x recursive %}{{ loop(x) if x is iterable }}{% endfor %}",
        _LISTS + "{% for x in [1] if n.x is in [n.x ~ ''] %}{% endfor %}",
    ],
    "blocks": [
        _BIG + "{% set b %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endset %}",
        _BIG + "{% filter upper %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endfilter %}",
        _BIG + "{% macro f() %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endmacro %}"
        "{{ f() }}",
        _BIG
        + "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 40
        + "{{ a }}"
        + "{% endcall %}" * 40,
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{% set b | replace('', 'a' * 9999) %}{{ 'a' * 99999 }}{% endset %}"
        "{% set b | replace('a', 'a' * 9999) %}{{ 'a' * 99999 }}{% endset %}{{ b }}",
    ],
    "sources": [
        "{{ " + "[" * 120000 + "]" * 120000 + " }}",
        "{{ " + "-" * 200000 + "1 }}",
        "{{ 1" + " + 1" * 60000 + " }}",
        "{{ a" + "|upper" * 40000 + " }}",
        "{{ a" + ".b" * 120000 + " }}",
        "{% if 1 %}" * 10000 + "{% endif %}" * 10000,
        "{% for i in [1, 2] %}" * 60 + "{% endfor %}" * 60,
        "{{ '" + "\\" * 200001 + "' }}",
        "{# " * 80000,
        "{{ 9" + " ** 9" * 500 + " }}",
        "{{ 'a' * 9" + " * 9" * 500 + " }}",
        "{{ [0] * 99999999 * 99 }}{{ (1,) * 999999999 }}",
    ],
}


def templates() -> dict[str, str]:
    """Texts by names such as compared-3."""
    return {
        f"{family}-{i}": text for family, texts in TEMPLATES.items() for i, text in enumerate(texts)
    }


def _chain(n: int) -> str:
    rules = "".join(f"r{i} ::= r{i + 1}\n" for i in range(n))
    return f'root ::= r0\n{rules}r{n} ::= "a"\n'


def _nested(n: int, schema: dict, wrap: str) -> dict:
    for _ in range(n):
        schema = {"type": "array", "items": schema} if wrap == "items" else {wrap: [schema]}
    return schema


def _defs(n: int) -> dict:
    inner = {
        f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(n)
    }
    return {"$defs": {**inner, f"d{n}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _nested_defs(n: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(n):
        schema = {"$defs": {"d": schema}, "type": "object", "properties": {"x": schema}}
    return schema


def _twice(n: int) -> str:
    """Each rule occurs twice in the previous one: a text of 2**n parts."""
    rules = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(n))
    return f'root ::= r0\n{rules}r{n} ::= "a"\n'


# Texts are GBNF, dicts are schemas.
GRAMMARS: dict[str, str | dict] = {
    "4000 chained rules": _chain(4000),
    "1200 chained rules": _chain(1200),
    "9000 chained rules": _chain(9000),
    "a chain with alternatives": _chain(3000).replace(" ::= r", ' ::= "b" | r'),
    "1000 chained $defs": _defs(1000),
    "400 chained $defs": _defs(400),
    "12 nested $defs": _nested_defs(12),
    "400 arrays": _nested(400, {"type": "string"}, "items"),
    "120000 arrays": '{"items":' * 20_000 + "{}" + "}" * 20_000,
    "900 allOf": _nested(900, {"type": "string"}, "allOf"),
    "110 anyOf": _nested(110, {"type": "object", "properties": {"a": {}}}, "anyOf"),
    "a rule of 2**40 parts": _twice(40),
    "a word of 2**30 letters": _twice(30).replace("r30 ::= ", "r30 ::= [a-z] "),
    "9**9 times": 'root ::= "a"{387420489}',
    "repeated repetitions": "root ::= " + "(" * 12 + '"a"' + "{1,99})" * 12,
    "many choices of many": "root ::= ([a-z]{0,900} [0-9]{0,900} [a-z]{0,900}){0,900} [x]",
    "an ambiguous grammar": 'root ::= root root root | "a" root "a" | root root | "a" | ""',
    "500 brackets": "root ::= " + "(" * 500 + '"a"' + ")" * 500,
    "9000 brackets": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000,
    "10000 alternatives": "root ::= " + " | ".join(f'"{i}" root' for i in range(10_000)),
    "a rule that is itself": "root ::= root | root root",
    "patterns": {"type": "string", "pattern": "^(a|b)*a(a|b){400}(c|d)*c(c|d){400}$"},
    "patterns that meet": {
        "allOf": [{"type": "string", "pattern": f"(.*{c}){{99}}.*"} for c in "abcdefgh"]
    },
    "patterns that look ahead": {
        "type": "string",
        "pattern": "".join(f"(?=.*{a}.{{9}}{b})" for a in "abcde" for b in "vwxyz"),
    },
    "assertions in repetitions": {"type": "string", "pattern": r"(?:(?:\b.|x$){1,19}){1,19}"},
    "50000 groups": {"type": "string", "pattern": "(" * 50_000 + ")" * 50_000},
    "properties of characters": {
        "type": "string",
        "pattern": "".join(rf"\P{{{name}}}" for name in ("Cn", "L", "Co", "Lo", "M", "Assigned")),
    },
    "long strings": {"type": "string", "minLength": 10**9},
    "many items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    "a product": {"type": "integer", "multipleOf": 999983, "minimum": -(10**300)},
    "9000 properties": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(9000)},
    },
    "all or nothing": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}{j}": {"const": j}}} for j in range(9)]}
            for i in range(9)
        ]
    },
    "itself": {"$ref": "#"},
    "itself among others": {"allOf": [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}]},
}


def _started(process: int) -> list[int]:
    """The processes that this one started and that have not ended; none where /proc lacks them."""
    found: list[int] = []
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


def _processor_time() -> float:
    """Of this process and of those that it started, whether they have ended or not."""
    seconds, left = sum(os.times()[:4]), _started(os.getpid())
    while left:
        process = left.pop()
        # One that has just ended is missed; if it was waited for, os.times() has it the next time.
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            left += _started(process)
    return seconds


class Clock:
    """Time of a case: the smaller of what the clock says, which other programs of the machine
    lengthen, and of the processor time, its workers' included."""

    def __init__(self) -> None:
        self._begin = time.monotonic(), _processor_time()

    def seconds(self) -> float:
        wall, processor = self._begin
        return min(time.monotonic() - wall, _processor_time() - processor)


def peak() -> int:
    """Peak memory of this process in bytes. ru_maxrss would include the parent's."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def run_templates(*names: str) -> None:
    from powerinfer_cpp.text.template import ChatTemplate

    messages = [{"role": "user", "content": "Hello"}]
    texts = templates()
    for name in names:
        clock = Clock()
        try:
            came_to = f"a text of {len(ChatTemplate(texts[name]).render(messages))} characters"
        except ValueError as error:
            came_to = f"ValueError: {error}"
        seconds = clock.seconds()
        again = ChatTemplate("{{ messages[0].content }}").render(messages) == "Hello"
        print(json.dumps([name, seconds, came_to, again]), flush=True)


def run_grammars(model: str, *names: str) -> None:
    from powerinfer_cpp.text import grammar

    from powerinfer_cpp import Llama, LlamaGrammar

    with Llama(model, n_ctx=512, verbose=False) as llm:
        good = LlamaGrammar.from_string('root ::= "a"')
        llm("x", grammar=good)
        for name in names:
            grammar._workers.close()  # its processor time would count for the case that ends it
            clock, given = Clock(), GRAMMARS[name]
            try:
                schema = isinstance(given, dict) or given.startswith("{")
                make = LlamaGrammar.from_json_schema if schema else LlamaGrammar.from_string
                done = llm("x", grammar=make(given), max_tokens=64, temperature=2.0, seed=1)
                came_to = f"a text of {len(done['choices'][0]['text'])} characters"
            except ValueError as error:
                came_to = f"ValueError: {error}"
            seconds = clock.seconds()
            again = llm("x", grammar=LlamaGrammar.from_string('root ::= "ok"'))
            print(json.dumps([name, seconds, came_to, again["choices"][0]["text"] == "ok"]))
            sys.stdout.flush()


if __name__ == "__main__":
    {"templates": run_templates, "grammars": run_grammars}[sys.argv[1]](*sys.argv[2:])
    print(peak())
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
