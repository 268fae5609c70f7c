"""Which parts of a grammar may become terminals of llguidance, and the text for it.

llguidance runs all terminals that the parser expects at a place at once, and takes the longest
match. A terminal that goes on where another is complete, and the text could go on as well, would
win against that reading. So a part of the grammar (regular, of some size) becomes a terminal B only
if no terminal A, B among them, has a text after which both B and what follows A admit bytes that
begin alike. Terminals are compared as if all were expected at every place, which is strict but
simple. A grammar without recursion is mostly a single terminal; strings and numbers of JSON are
terminals; all else are rules over single characters, whose masks take longer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from characters import LAST, character_class
from gbnf import Alt, Char, Node, Ref, Repeat, Rules, Seq, Token, in_a_circle, inner, names

MAX_POSITIONS = 2500  # characters in a terminal, repetitions written out
MAX_STATES = 1500  # of a terminal's automaton
MAX_PAIRS = 100_000  # of terminals
MAX_STEPS = 50_000  # states of two automata side by side, of all pairs together
MAX_DEPTH = 60  # groups in groups in a terminal
MAX_REGEX = 20_000  # characters of a terminal


class _TooLarge(Exception):
    """A part is no good terminal."""


# ---- Sets of characters as bits ----------------------------------------------------------------


def _lead(code: int) -> int:
    return chr(code).encode("utf-8", "surrogatepass")[0]


class _Alphabet:
    """Sets of characters as integers, with a bit for each piece that no set of a grammar cuts."""

    def __init__(self, nodes: Iterable[Node]):
        cuts = {0}
        for node in nodes:
            if isinstance(node, Char):
                cuts.update(edge for low, high in node.ranges for edge in (low, high + 1))
        self._edges = sorted(cut for cut in cuts if cut <= LAST)
        ends = [*self._edges[1:], LAST + 1]
        self._begin = {edge: i for i, edge in enumerate(self._edges)}
        self._end = {end: i + 1 for i, end in enumerate(ends)}
        leads = [(_lead(a), _lead(b - 1)) for a, b in zip(self._edges, ends, strict=True)]
        self._alike = [
            sum(1 << j for j, (a, b) in enumerate(leads) if a <= high and low <= b)
            if high >= 0x80
            else 1 << i
            for i, (low, high) in enumerate(leads)
        ]
        self._known: dict[Char, int] = {}

    def bits(self, node: Char) -> int:
        if node not in self._known:
            found = 0
            for low, high in node.ranges:
                begin, end = self._begin[low], self._end[high + 1]
                found |= (1 << end) - (1 << begin)
            self._known[node] = found
        return self._known[node]

    def widened(self, bits: int) -> int:
        """With all characters whose first byte is that of one of them."""
        found = bits
        for i in _each(bits):
            found |= self._alike[i]
        return found


def _each(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


# ---- Terminals ---------------------------------------------------------------------------------


def regex(node: Node, rules: Rules, depth: int = 0) -> str:
    """A regular expression for a node without recursion. Raises _TooLarge."""
    if depth > MAX_DEPTH:
        raise _TooLarge
    if isinstance(node, Char):
        if not node.ranges:
            raise _TooLarge
        return character_class(node.ranges)
    if isinstance(node, Ref):
        return regex(rules[node.name], rules, depth + 1)
    if isinstance(node, Token):
        raise _TooLarge
    if isinstance(node, Repeat):
        inside = regex(node.part, rules, depth + 1)
        if not isinstance(node.part, Char):
            inside = f"(?:{inside})"
        most = "" if node.most is None else node.most
        short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
        text = inside + (short or f"{{{node.least},{most}}}")
    else:
        text = ""
        for i, part in enumerate(node.parts):
            piece = regex(part, rules, depth + 1)
            text += "|" * (i > 0 and isinstance(node, Alt)) + piece
            if len(text) > MAX_REGEX:
                raise _TooLarge
        text = f"(?:{text})" if isinstance(node, Alt) or not text else text
    return text


class _Automaton:
    """Deterministic, of one terminal: states with edges (characters, state) and whether a text may
    end there. Raises _TooLarge."""

    def __init__(self, node: Node, rules: Rules, alphabet: _Alphabet):
        self._rules, self._alphabet = rules, alphabet
        self._sets: list[int] = []  # of each position
        self._after: list[int] = []  # positions after each, as bits
        first, last, empty = self._build(node)
        known = {(first, empty): 0}
        todo = [(first, empty)]
        self.edges: list[list[tuple[int, int]]] = []
        self.ends: list[bool] = []
        self.first = self._union(first)
        while todo:
            positions, ends = todo.pop(0)
            self.ends.append(ends)
            self.edges.append([])
            for bits, chosen in self._split(positions):
                after = 0
                for p in _each(chosen):
                    after |= self._after[p]
                state = (after, bool(chosen & last))
                if state not in known:
                    if len(known) >= MAX_STATES:
                        raise _TooLarge
                    known[state] = len(known)
                    todo.append(state)
                self.edges[-1].append((bits, known[state]))
        self.onward = [self._any(edges) for edges in self.edges]
        del self._sets, self._after

    @staticmethod
    def _any(edges: list[tuple[int, int]]) -> int:
        found = 0
        for bits, _ in edges:
            found |= bits
        return found

    def _union(self, positions: int) -> int:
        found = 0
        for p in _each(positions):
            found |= self._sets[p]
        return found

    def _split(self, positions: int) -> list[tuple[int, int]]:
        """(characters, positions that admit all of them), without overlap."""
        parts: list[tuple[int, int]] = []
        for p in _each(positions):
            left, found = self._sets[p], []
            for bits, chosen in parts:
                if both := bits & left:
                    found.append((both, chosen | 1 << p))
                    left ^= both
                if rest := bits & ~both:
                    found.append((rest, chosen))
            if left:
                found.append((left, 1 << p))
            parts = found
        joined: dict[int, int] = {}
        for bits, chosen in parts:
            joined[chosen] = joined.get(chosen, 0) | bits
        return [(bits, chosen) for chosen, bits in joined.items()]

    def _link(self, last: int, first: int) -> None:
        for p in _each(last):
            self._after[p] |= first

    def _build(self, node: Node) -> tuple[int, int, bool]:
        """First and last positions of a node, and whether it may be empty."""
        if isinstance(node, Char):
            if len(self._sets) >= MAX_POSITIONS:
                raise _TooLarge
            self._sets.append(self._alphabet.bits(node))
            self._after.append(0)
            bit = 1 << len(self._sets) - 1
            return bit, bit, False
        if isinstance(node, Ref):
            return self._build(self._rules[node.name])
        first = last = 0
        if isinstance(node, Alt):
            empty = False
            for part in node.parts:
                f, e, may = self._build(part)
                first, last, empty = first | f, last | e, empty or may
            return first, last, empty
        if isinstance(node, Seq):
            return self._sequence(self._build(part) for part in node.parts)
        assert isinstance(node, Repeat)
        if node.most is None:
            found = self._sequence(self._build(node.part) for _ in range(max(1, node.least)))
            # The last copy repeats.
            f, e, _ = self._last
            self._link(e, f)
            return found[0], found[1], found[2] or node.least == 0
        before, all_last = 0, 0
        for i in range(node.most):  # what is repeated is never empty
            f, e, _ = self._build(node.part)
            first = first if i else f
            self._link(before, f)
            before = e
            if i + 1 >= node.least:
                all_last |= e
        return first, all_last, node.least == 0

    def _sequence(self, parts: Iterable[tuple[int, int, bool]]) -> tuple[int, int, bool]:
        first, last, empty = 0, 0, True
        for f, e, may in parts:
            self._link(last, f)
            first |= f if empty else 0
            last = last | e if may else e
            empty = empty and may
            self._last = f, e, may
        return first, last, empty


# ---- The choice --------------------------------------------------------------------------------


@dataclass
class _Terminal:
    node: Node
    automaton: _Automaton
    single: bool  # one character
    follow: int = 0


@dataclass
class _Item:
    """A part of the grammar in which terminals are chosen. kind: "terminal", "token", "rule",
    "seq", "alt" or "repeat"."""

    kind: str
    name: str = ""  # of a terminal or rule
    parts: list["_Item"] = field(default_factory=list)
    least: int = 0
    most: int | None = None


class _Chooser:
    def __init__(self, rules: Rules):
        self.rules = rules
        self.alphabet = _Alphabet(_nodes(rules))
        self.refused: set[str] = set()  # regular expressions that must not be terminals
        self.terminals: dict[str, _Terminal] = {}
        self._automata: dict[str, _Automaton | None] = {}
        self._regex: dict[Node, str | None] = {}
        self._simple = _without_recursion(rules)
        self._known_runs: dict[tuple[Node, ...], Seq] = {}
        self.steps = 0

    def choose(self) -> dict[str, _Item]:
        """The rules with terminals that lose nothing."""
        while True:
            self.terminals = {}
            found: dict[str, _Item] = {}
            todo = ["root"]
            while todo:
                name = todo.pop()
                if name not in found:
                    found[name] = self._item(self.rules[name])
                    todo += _rule_names(found[name])
            self._follow(found)
            wrong = self._conflicts()
            if not wrong:
                return found
            self.refused |= wrong

    def _regular(self, node: Node) -> str | None:
        """The regular expression of a node without recursion, unless it is too large."""
        if node not in self._regex:
            try:
                simple = all(name in self._simple for name in names(node))
                self._regex[node] = regex(node, self.rules) if simple else None
            except _TooLarge:
                self._regex[node] = None
        return self._regex[node]

    def _terminal(self, node: Node) -> str | None:
        """The regular expression of a node that may be a terminal, which it becomes."""
        text = self._regular(node)
        if text is None or text in self.refused:
            return None
        if text not in self._automata:
            try:
                self._automata[text] = _Automaton(node, self.rules, self.alphabet)
            except _TooLarge:
                self._automata[text] = None
        automaton = self._automata[text]
        if automaton is None or automaton.ends[0]:  # too large, or may be empty
            return None
        if text not in self.terminals:
            self.terminals[text] = _Terminal(node, automaton, isinstance(node, Char))
        return text

    def _item(self, node: Node) -> _Item:
        text = self._terminal(node)
        if text is not None:
            return _Item("terminal", text)
        if isinstance(node, Char):
            return _Item("alt")  # an empty set
        if isinstance(node, Token):
            return _Item("token", f"<[{'^' * node.negated}{node.number}]>")
        if isinstance(node, Ref):
            return _Item("rule", node.name)
        if isinstance(node, Repeat):
            part = self._item(node.part)
            return _Item("repeat", parts=[part], least=node.least, most=node.most)
        if isinstance(node, Alt):
            return _Item("alt", parts=[self._item(part) for part in node.parts])
        return _Item("seq", parts=self._runs(node.parts))

    def _runs(self, parts: tuple[Node, ...]) -> list[_Item]:
        """The items of a sequence; parts side by side that can be one terminal are one."""
        found: list[_Item] = []
        run: list[Node] = []
        for part in (*parts, None):
            if part is not None and self._regular(part) is not None:
                run.append(part)
                continue
            if run:
                found += self._run(tuple(run), parts)
                run = []
            if part is not None:
                found.append(self._item(part))
        return found

    def _run(self, run: tuple[Node, ...], parts: tuple[Node, ...]) -> list[_Item]:
        if 1 < len(run) < len(parts):
            # One node for each run, so that what is known of it is found again.
            node = self._known_runs.setdefault(run, Seq(run))
            if (text := self._terminal(node)) is not None:
                return [_Item("terminal", text)]
        if len(run) > 2:  # smaller runs may still be possible
            half = len(run) // 2
            return self._run(run[:half], parts) + self._run(run[half:], parts)
        return [self._item(part) for part in run]

    # ---- What follows, and what is lost ----

    def _follow(self, items: dict[str, _Item]) -> None:
        """Sets `follow` of every terminal: the characters that may come after it."""
        nullable: set[str] = set()
        while True:
            more = {n for n in items.keys() - nullable if _may_be_empty(items[n], nullable)}
            if not more:
                break
            nullable |= more
        firsts: dict[str, int] = dict.fromkeys(items, 0)
        follows: dict[str, int] = dict.fromkeys(items, 0)

        def first(item: _Item) -> int:
            if item.kind == "terminal":
                return self.terminals[item.name].automaton.first
            if item.kind == "token":
                return 0  # no text: llguidance tells tokens apart from it
            if item.kind == "rule":
                return firsts[item.name]
            found = 0
            for part in item.parts:
                found |= first(part)
                if item.kind == "seq" and not _may_be_empty(part, nullable):
                    break
            return found

        def spread(item: _Item, after: int) -> None:
            if item.kind == "terminal":
                self.terminals[item.name].follow |= after
            elif item.kind == "rule":
                follows[item.name] |= after
            elif item.kind == "seq":
                for part in reversed(item.parts):
                    spread(part, after)
                    after = first(part) | (after if _may_be_empty(part, nullable) else 0)
            else:
                if item.kind == "repeat" and item.most != 1:
                    after |= first(item)
                for part in item.parts:
                    spread(part, after)

        while True:
            before = dict(firsts)
            for name, item in items.items():
                firsts[name] = first(item)
            if before == firsts:
                break
        while True:
            before = dict(follows)
            for name, item in items.items():
                spread(item, follows[name])
            if before == follows:
                return

    def _conflicts(self) -> set[str]:
        """Terminals that must not be, since they win against other readings."""
        longer = [(t, text) for text, t in self.terminals.items() if not t.single]
        if len(longer) * len(self.terminals) > MAX_PAIRS:
            return {text for _, text in longer}
        found = set()
        for b, text in longer:
            for a in self.terminals.values():
                if a.follow and a.automaton.first & b.automaton.first and self._wins(b, a):
                    found.add(text)
                    break
        return found

    def _wins(self, b: _Terminal, a: _Terminal) -> bool:
        """Is there a text of A after which B goes on with what may follow A?"""
        follow = self.alphabet.widened(a.follow)
        seen = {(0, 0)}
        todo = [(0, 0)]
        while todo:
            at, other = todo.pop()
            if a.automaton.ends[at] and b.automaton.onward[other] & follow:
                return True
            for bits, state in a.automaton.edges[at]:
                for bits_b, state_b in b.automaton.edges[other]:
                    if bits & bits_b and (state, state_b) not in seen:
                        seen.add((state, state_b))
                        todo.append((state, state_b))
            self.steps += 1
            if self.steps > MAX_STEPS:
                return True
        return False


def _nodes(rules: Rules) -> Iterator[Node]:
    todo = list(rules.values())
    while todo:
        node = todo.pop()
        yield node
        todo += inner(node)


def _without_recursion(rules: Rules) -> set[str]:
    """The rules from which no rule leads back to itself."""
    edges = {name: set(names(node)) for name, node in rules.items()}
    while edges and (circle := in_a_circle(edges)) is not None:
        # That rule, and all that lead to it.
        gone = {circle}
        while more := {n for n, to in edges.items() if to & gone} - gone:
            gone |= more
        edges = {n: to for n, to in edges.items() if n not in gone}
    return set(edges)


def _rule_names(item: _Item) -> Iterator[str]:
    if item.kind == "rule":
        yield item.name
    for part in item.parts:
        yield from _rule_names(part)


def _may_be_empty(item: _Item, nullable: set[str]) -> bool:
    if item.kind == "rule":
        return item.name in nullable
    if item.kind == "seq":
        return all(_may_be_empty(part, nullable) for part in item.parts)
    if item.kind == "alt":
        return any(_may_be_empty(part, nullable) for part in item.parts)
    return item.kind == "repeat" and item.least == 0


def as_lark(rules: Rules) -> str:
    """Simplified rules in llguidance's notation."""
    chooser = _Chooser(rules)
    items = chooser.choose()
    terminals = {text: f"T{i}" for i, text in enumerate(chooser.terminals)}
    numbers = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(items)}

    def write(item: _Item) -> str:
        if item.kind == "terminal":
            return terminals[item.name]
        if item.kind == "token":
            return item.name
        if item.kind == "rule":
            return numbers[item.name]
        if item.kind == "repeat":
            most = "" if item.most is None else item.most
            short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((item.least, item.most))
            return f"({write(item.parts[0])}){short or f'{{{item.least},{most}}}'}"
        if item.kind == "alt":
            return "(" + " | ".join(map(write, item.parts)) + ")"
        return " ".join(map(write, item.parts)) or '""'

    lines = [f"{numbers[name]}: {write(item)}" for name, item in items.items()]
    lines += [f"{name}: /{text}/" for text, name in terminals.items()]
    return "\n".join(lines) + "\n"
