"""Any chat template: it must end in a prompt or a TemplateError within its limits, and the next
template must not notice.

Through the process that renders templates for users. The fuzzer does not see into that, so rules
make the templates, in which most bytes choose something that parses.
"""

from __future__ import annotations

import driver
import hostile
from powerinfer_cpp.text.template import ChatTemplate, TemplateError
from powerinfer_cpp.text.worker import MAX_SECONDS

_SECONDS = 2 * MAX_SECONDS + 2  # it is read, then rendered; and a process may have to start
_MOST = 16 << 20  # characters of a prompt
_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <b>&</b> \u00e9\U0001f600\n"},
    {"role": "assistant", "content": ["a", 1, None, {"type": "text", "text": "b"}]},
]

RULES = {
    # Most templates begin with what the others' names stand for.
    "whole": [
        "<text>",
        "{% set n = namespace(x=<value>) %}{% set b = <value> %}<text>",
        "{% macro m(a=1, b=<value>) %}<text>{% endmacro %}{% set n = namespace(x=[1]) %}<text>",
    ],
    "text": ["", "<part><text>", "<part><part><text>"],
    "part": [
        "a",
        "{{ <value> }}",
        "{{- <value> -}}",
        "{% set a = <value> %}",
        "{% set b = <value> %}",
        "{% set n.x = <value> %}",
        "{% set n = namespace(x=<value>) %}",
        "{% set n.x = [n.x, n.x] %}",
        "{% set a, b = <value>, 1 %}",
        "{% set a %}<text>{% endset %}",
        "{% set a | <filter> %}<text>{% endset %}",
        "{% for x in <value> %}<text>{% endfor %}",
        "{% for x in range(<number>) %}<text>{% endfor %}",
        "{% for m in messages %}<text>{% endfor %}",
        "{% for x in <value> if <value> %}<text>{% else %}<text>{% endfor %}",
        "{% for x in <value> recursive %}<text>{{ loop(<value>) }}{% endfor %}",
        "{% for a, b in <value> | items %}<text>{% break %}{% endfor %}",
        "{% for x in <value> %}{% continue %}<text>{% endfor %}",
        "{% if <value> %}<text>{% elif <value> %}<text>{% else %}<text>{% endif %}",
        "{% macro m(a, b=<value>) %}<text>{% endmacro %}",
        "{% call m(<value>) %}<text>{% endcall %}",
        "{% call(a) m() %}<text>{% endcall %}",
        "{% filter <filter> %}<text>{% endfilter %}",
        "{% with a = <value> %}<text>{% endwith %}",
        "{% generation %}<text>{% endgeneration %}",
        "{% block a %}<text>{% endblock %}",
        "{% autoescape <value> %}<text>{% endautoescape %}",
        "{% raw %}<text>{% endraw %}",
        "{% include <value> %}",
        "{# a #}",
        "\n    ",
    ],
    "value": [
        "a",
        "<name>",
        "<name>",
        "<name>",
        "m['content']",
        "m.role",
        "<number>",
        "<number>",
        "'<letters>'",
        "'<letters>'",
        "[<value>]",
        "[<value>, <value>]",
        "(<value>, <value>)",
        "{<value>: <value>}",
        "{'a': <value>}",
        "dict(a=<value>)",
        "range(<number>)",
        "cycler(<value>, <value>)",
        "m(<value>)",
        "<value>(<value>)",
        "<value>(*<value>, **<value>)",
        "<value>[<value>]",
        "<value>[<number>:<number>:<number>]",
        "<value>.<method>",
        "<value>.<method>",
        "(<value> <operator> <value>)",
        "(<value> <operator> <value>)",
        "(<value> if <value> else <value>)",
        "(-<value>)",
        "(not <value>)",
        "<value> | <filter>",
        "(<value> | <filter>)",
        "(<value> is <test>)",
        "(<value> is not <test>)",
        "'<format>' % <value>",
        "'<format>'.format(<value>, a=<value>)",
        "('<format>' | format(<value>))",
        "caller()",
        "self.a()",
        "raise_exception(<value>)",
        "strftime_now('<format>')",
    ],
    "name": """
        messages bos_token a b x loop n.x m undefined add_generation_prompt range dict
        namespace cycler joiner raise_exception strftime_now true none self caller
        varargs kwargs
    """,
    "number": "1 0 -1 2 7 60 1.5 1e308 999 99999 100000 100001 9007199254740993 1e999",
    "letters": ["a", "", "ab", " ", "\\n", "\\t", "<", "\\\\", "{}", "\u00e9", "\\ud800", "\\0"],
    "format": "%s %d %99999d %*d %r %(a)s %c %x {} {0} {a} {:99999} {a.b} {0[0]} {!r} %Y %",
    "operator": "+ - * / // % ** ~ == != < >= and or in",
    "filter": """
        abs attr('a') batch(3) capitalize center(80) count default('d') dictsort escape
        first filesizeformat float forceescape format(1) groupby('role') indent int
        items join join(',') last length list lower map('upper') map(attribute='role')
        max min pprint random reject reject('none') rejectattr('role') replace('a','bb')
        reverse round safe select selectattr('role','equalto','user') slice(3) sort
        string striptags sum sum(start=[]) title tojson tojson(indent=2) trim
        truncate(9) unique upper urlencode urlize wordcount wordwrap(7) xmlattr
    """,
    "method": """
        a append('a') capitalize() center(99999) clear() copy() count('a') encode()
        endswith('a') expandtabs(99999) extend([1]) find('a') format(1,a=2) format_map({'a':1})
        get('a') index('a') insert(0,1) isdigit() items() join('abc') keys() ljust(999)
        lower() lstrip() partition('a') pop() popitem() replace('','aaaa') reverse()
        rfind('a') setdefault('a',1) sort() split() splitlines() startswith('a') strip()
        title() translate({97:'bb'}) update({'a':1}) upper() values() zfill(99999)
        __class__ __init__ __globals__ __dict__ mro() __subclasses__()
        __getattribute__('a') real to_bytes(9,'big') bit_length() index0 cycle('a','b')
        changed(1) previtem length
    """,
    "test": """
        defined boolean callable divisibleby(3) eq(1) escaped even filter in([1])
        iterable lower mapping none number odd sameas(1) sequence string test undefined
        upper lt(2) ne('a')
    """,
}


def run(data: bytes) -> None:
    text = driver.grown(data, RULES, "<whole>")
    clock = hostile.Clock()
    try:
        prompt = ChatTemplate(text, "<s>", "</s>").render(_MESSAGES)
        assert isinstance(prompt, str) and len(prompt) <= _MOST
    except TemplateError:
        pass
    assert clock.seconds() < _SECONDS, text
    good = ChatTemplate("{% for m in messages %}{{ m.role }},{% endfor %}").render(_MESSAGES)
    assert good == "system,user,assistant,", text


if __name__ == "__main__":
    driver.main(run, "template", draw=True)
