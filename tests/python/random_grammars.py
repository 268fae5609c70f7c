"""Random grammars in GBNF, texts that they admit, and a recogniser; nothing of ours is in use here.

A node is a tuple: ("set", characters, negated), ("text", string), ("ref", name), ("seq", nodes),
("alt", nodes) or ("repeat", node, least, most). Rules name only rules behind them before their
first character, so that none is left-recursive.
"""

from __future__ import annotations

import random
from functools import cache

ALPHABET = 'ab-1\u00e9\u00e8\u20ac\n"]'
Node = tuple
NAMES = ["root", "item", "Item", "start", "2nd", "x-y", "X-Y", "r1", "T0"]


def grammar(draw: random.Random, most_rules: int = 5) -> dict[str, Node]:
    names = ["root", *draw.sample(NAMES[1:], draw.randint(0, most_rules - 1))]
    return {name: _node(draw, names, names[i + 1 :], 3) for i, name in enumerate(names)}


def _node(draw: random.Random, every: list[str], behind: list[str], depth: int) -> Node:
    kind = draw.choice(["set", "text", "ref", "seq", "seq", "alt", "repeat"])
    if depth == 0 or kind == "ref" and not behind:
        kind = draw.choice(["set", "text"])
    if kind == "set":
        negated = draw.random() < 0.2
        chosen = draw.sample(ALPHABET, draw.randint(1, 4))
        return ("set", "".join(sorted(chosen)), negated)
    if kind == "text":
        return ("text", "".join(draw.choices(ALPHABET, k=draw.choice([0, 1, 1, 2, 3]))))
    if kind == "ref":
        return ("ref", draw.choice(behind))
    if kind == "seq":
        nodes = [_node(draw, every, behind, depth - 1)]
        for _ in range(draw.randint(1, 2)):
            # Behind a character, any rule may follow.
            free = any(not nullable_at_worst(node) for node in nodes)
            nodes.append(_node(draw, every, every if free else behind, depth - 1))
        return ("seq", tuple(nodes))
    if kind == "alt":
        n = draw.randint(2, 3)
        return ("alt", tuple(_node(draw, every, behind, depth - 1) for _ in range(n)))
    least, most = draw.choice(
        [(0, None), (1, None), (0, 1), (2, 2), (0, 0), (1, 3), (2, None), (0, 4)]
    )
    return ("repeat", _node(draw, every, behind, depth - 1), least, most)


def nullable_at_worst(node: Node) -> bool:
    """Might it be empty, whatever the rules are?"""
    kind = node[0]
    if kind == "text":
        return not node[1]
    if kind == "seq":
        return all(map(nullable_at_worst, node[1]))
    if kind == "alt":
        return any(map(nullable_at_worst, node[1]))
    if kind == "repeat":
        return node[2] == 0 or nullable_at_worst(node[1])
    return kind == "ref"


def _character(draw: random.Random, c: str, special: str) -> str:
    code = ord(c)
    forms = [f"\\u{code:04x}", f"\\U{code:08X}"] + [f"\\x{code:02x}"] * (code < 256)
    if c == "\n":
        forms.append("\\n")
    elif c in special:
        forms.append("\\" + c)
    else:
        forms += [c] * 4
    return draw.choice(forms)


def written(rules: dict[str, Node], draw: random.Random) -> str:
    """The grammar as GBNF, in one of its many forms."""

    def space() -> str:
        return draw.choice([" ", " ", "\t", "  "])

    def form(node: Node, inside: bool) -> str:
        kind = node[0]
        if kind == "set":
            special = "]-^\\"
            body = "".join(_character(draw, c, special) for c in node[1] if c != "-")
            body += "-" * ("-" in node[1])
            return f"[{'^' * node[2]}{body}]"
        if kind == "text":
            return '"' + "".join(_character(draw, c, '"\\') for c in node[1]) + '"'
        if kind == "ref":
            return node[1]
        if kind == "repeat":
            inner = f"({form(node[1], True)})"
            if node[1][0] in ("set", "ref"):
                inner = draw.choice([inner, form(node[1], inside)])
            least, most = node[2], node[3]
            forms = [f"{{{least},{'' if most is None else most}}}"]
            forms += [f"{{ {least} }}"] * (least == most)
            short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
            return inner + draw.choice(["", space()]) + draw.choice([short or forms[0], *forms])
        if kind == "seq":
            parts = [form(part, True) for part in node[1]]
            parts = [f"({p})" if n[0] == "alt" else p for p, n in zip(parts, node[1], strict=True)]
            return space().join(parts)
        between = draw.choice([" | ", "|", " |\n  ", " | # a choice\n\t"])
        text = between.join(form(part, True) for part in node[1])
        return f"({text})" if inside else text

    lines = [
        f"{n} ::={draw.choice([' ', chr(10)])}{form(node, False)}" for n, node in rules.items()
    ]
    draw.shuffle(lines)
    return draw.choice(["\n", "\n\n", " # end\n", "\r\n"]).join(lines) + draw.choice(
        ["", "\n", " #"]
    )


class Endless(Exception):
    """The text became too long."""


def derived(rules: dict[str, Node], draw: random.Random, most: int = 60) -> str:
    """A text of the grammar. Raises Endless."""
    steps = 0

    def of(node: Node, depth: int) -> str:
        nonlocal steps
        steps += 1
        if steps > 20 * most or depth > 40:
            raise Endless
        kind = node[0]
        if kind == "set":
            if not node[2]:
                return draw.choice(node[1])
            return draw.choice(
                [c for c in ALPHABET + "z~\u00ea\u4e00\U0001f600" if c not in node[1]]
            )
        if kind == "text":
            return node[1]
        if kind == "ref":
            return of(rules[node[1]], depth + 1)
        if kind == "seq":
            return "".join(of(part, depth + 1) for part in node[1])
        if kind == "alt":
            return of(draw.choice(node[1]), depth + 1)
        least, many = node[2], node[3]
        n = draw.randint(least, least + 3 if many is None else many)
        return "".join(of(node[1], depth + 1) for _ in range(n))

    text = of(rules["root"], 0)
    if len(text) > most:
        raise Endless
    return text


def changed(text: str, draw: random.Random) -> str:
    """The text with one character more, less, or another."""
    at = draw.randrange(len(text) + 1)
    kind = draw.choice(["more", "less", "other", "swap"])
    c = draw.choice(ALPHABET + "z")
    if kind == "more" or not text:
        return text[:at] + c + text[at:]
    if kind == "swap":
        return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
    return text[:at] + (c if kind == "other" else "") + text[at + 1 :]


def admits(rules: dict[str, Node], text: str) -> bool:
    """Is the text one of the grammar's? By all ways of reading it."""

    @cache
    def ends(node: Node, at: int) -> frozenset[int]:
        """Where a text of the node that begins at `at` may end."""
        kind = node[0]
        if kind == "set":
            fits = at < len(text) and (text[at] in node[1]) != node[2]
            return frozenset([at + 1] if fits else [])
        if kind == "text":
            return frozenset([at + len(node[1])] if text.startswith(node[1], at) else [])
        if kind == "ref":
            return ends(rules[node[1]], at)
        if kind == "seq":
            found = {at}
            for part in node[1]:
                found = {end for begin in found for end in ends(part, begin)}
            return frozenset(found)
        if kind == "alt":
            return frozenset(end for part in node[1] for end in ends(part, at))
        least, most = node[2], node[3]
        now, found = {at}, {at} if least == 0 else set()
        for i in range(1, (least + len(text) + 1 if most is None else most) + 1):
            now = {end for begin in now for end in ends(node[1], begin)}
            if i >= least:
                if now <= found and most is None:
                    break
                found |= now
        return frozenset(found)

    return len(text) in ends(rules["root"], 0)
