"""Heads of calls and arguments in tags, as models write them: with other or no quotes, as an
attribute or behind a sign, and without the end of their tag."""

import functools
import re
from typing import NamedTuple

from .values import Step, past_space

_MOST_HOLE = 256  # characters of a name, id or key
_MOST = 1024  # characters of a head

# In the text of a style: what joins a hole to its tag, holes with their quotes, an attribute that
# says whether a value is a raw text, a fence, white space, and signs.
_TOKENS = re.compile(
    r"""(?P<equals>(?:\s+name)?="?(?=\{))"""
    r"""|\{(?P<hole>name|key|id)\}"?|(?P<told>\s+\w+="\{text\}")"""
    r"""|(?P<fence>```\w*)|(?P<space>\s+)|(?P<sign>(?:(?!```|=?"?\{(?:name|key|id)\}|\s).)+)"""
)


class _Part(NamedTuple):
    """whole: what is written; begun: what may become it; open: more of it may follow. needed: it
    cannot be left out."""

    whole: re.Pattern[str]
    begun: re.Pattern[str]
    open: bool = True
    needed: bool = True
    hole: str = ""


def _hole(name: str) -> _Part:
    chars = r"[^<>={}\"'`]" if name == "id" else r"[^\s:<>={}\"'`]"
    return _Part(
        re.compile(rf"\s*[\"']?(?!/)({chars}{{1,{_MOST_HOLE}}})[\"']?[ \t]*"),
        re.compile(rf"\s*[\"']?(?!/){chars}{{0,{_MOST_HOLE}}}[\"']?[ \t]*"),
        needed=name != "id",
        hole=name,
    )


_EQUALS = _Part(
    re.compile(r"(?:\s+name)?\s*=\s*"),
    re.compile(r"\s*(?:n|na|nam|name)?\s*=?\s*"),
    open=False,
)
_TOLD = _Part(
    re.compile(r"""\s*\w{1,16}\s*=\s*["']?(\w{1,16})["']?"""),
    re.compile(r"""\s*(?:\w{0,16}\s*=?\s*["']?\w{0,16}["']?)"""),
    needed=False,
    hole="text",
)
_FENCE = _Part(re.compile(r"```\w{0,16}"), re.compile(r"`{0,2}|```\w{0,16}"), needed=False)
# The end of a tag, or what stands in its place, as in `<parameter=city: Rome`.
_END = _Part(
    re.compile(r"[ \t:=/]*>|[ \t]*[:=][ \t:=/]*(?=[^ \t:=/>])|[ \t]*(?=\n)"),
    re.compile(r"[ \t:=/]*"),
    open=False,
)


class Head:
    """A text with holes, such as <parameter={key}>. White space stands for any, or none."""

    def __init__(self, text: str):
        self.parts: list[_Part | str] = []  # a text stands for itself, or is white space
        tokens = list(_TOKENS.finditer(text.strip()))
        kinds = [str(token.lastgroup) for token in tokens]
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
            named = kinds[i - 2 : i] == ["equals", "hole"] or kinds[i - 1 : i] == ["told"]
            if kind == "hole":
                self.parts.append(_hole(token["hole"]))
            elif kind in ("equals", "told", "fence"):
                self.parts.append({"equals": _EQUALS, "told": _TOLD, "fence": _FENCE}[kind])
            else:
                self.parts.append(_END if named and token[0] == ">" else token[0])
        self.stem = tokens[0][0] if kinds[:1] == ["sign"] else ""  # which it begins with

    def match(self, text: str, at: int, final: bool) -> tuple[Step, int, dict[str, str]]:
        """END, MORE or REFUSED, the place behind, and what the holes have."""
        begin, found = at, dict[str, str]()
        for part in self.parts:
            if isinstance(part, str):
                if part.isspace():
                    at = past_space(text, at)
                elif text.startswith(part, at):
                    at += len(part)
                elif part.startswith(text[at : at + len(part)]):
                    return self._waits(begin, len(text), final), at, found
                else:
                    return Step.REFUSED, at, found
                continue
            match = part.whole.match(text, at)
            over = match is not None and (final or not part.open or match.end() < len(text))
            if not over and not final and part.begun.fullmatch(text, at):
                return self._waits(begin, len(text), final), at, found
            if match is not None:
                at = match.end()
                if part.hole:
                    found[part.hole] = match[1]
            elif part.needed:
                return Step.REFUSED, at, found
        return Step.END, at, found

    def _waits(self, begin: int, end: int, final: bool) -> Step:
        return Step.REFUSED if final or end - begin > _MOST else Step.MORE


head = functools.cache(Head)
