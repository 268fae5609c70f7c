"""What was measured, and the page that shows it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engines import Case, Perplexity

Rounds = dict[int, float]  # by round: a round in which something failed is missing


def median(of: Rounds | None) -> float | None:
    return statistics.median(of.values()) if of else None


def ratio(a: Rounds | None, b: Rounds | None) -> float | None:
    """Medians of the rounds that both have."""
    both = sorted((a or {}).keys() & (b or {}).keys())
    if not a or not b or not both:
        return None
    return statistics.median(a[i] for i in both) / statistics.median(b[i] for i in both)


def figure(x: float) -> str:
    """Three digits, or all of those before the point."""
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def spread(of: Rounds | None, scale: float = 1.0) -> str:
    """The median, and the lowest and highest of several rounds."""
    if not of:
        return "-"
    values = [x * scale for x in of.values()]
    text = figure(statistics.median(values))
    return text if len(values) < 2 else f"{text} ({figure(min(values))} to {figure(max(values))})"


def times(x: float | None) -> str:
    return "-" if x is None else f"{x:.2f}"


def rows(columns: Iterable[str], body: Iterable[Iterable[str]], words: int) -> list[str]:
    """A table of Markdown; the first `words` columns are words, the others numbers."""
    columns = list(columns)
    rules = ["---"] * words + ["---:"] * (len(columns) - words)
    cells = [columns, rules, *body]
    return ["| " + " | ".join(text.replace("|", "/") for text in row) + " |" for row in cells]


@dataclass
class Measured:
    """All figures. Keys: engine, type of keys and values, test."""

    speeds: dict[tuple[str, str, Case], Rounds] = field(default_factory=dict)
    # Bytes that a token reads, and the share of neurons computed, as our engine counted them.
    n_bytes: dict[tuple[str, str, Case], int] = field(default_factory=dict)
    neurons: dict[tuple[str, str, Case], float] = field(default_factory=dict)
    reads: Rounds = field(default_factory=dict)  # bytes per second of a plain read
    copies: Rounds = field(default_factory=dict)  # seconds of a copy of the file
    firsts: dict[str, Rounds] = field(default_factory=dict)  # seconds to the first token
    # By engine, file, and type of keys and values.
    quality: dict[tuple[str, str, str], Perplexity] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # sentences

    def skip(self, sentence: str) -> None:
        if sentence not in self.left_out:
            self.left_out.append(sentence)

    def as_json(self) -> dict[str, Any]:
        """Every sample."""
        speeds = [
            {
                "engine": engine,
                "type_kv": kv,
                **test._asdict(),
                "round": i,
                "avg_ts": x,
                "bytes_per_token": self.n_bytes.get((engine, kv, test)),
                "neurons_computed": self.neurons.get((engine, kv, test)),
            }
            for (engine, kv, test), of in self.speeds.items()
            for i, x in of.items()
        ]
        quality = [
            {"engine": engine, "file": file, "type_kv": kv, **x._asdict(), "n_tokens": x.n_tokens}
            for (engine, file, kv), x in self.quality.items()
        ]
        firsts = [
            {"engine": engine, "round": i, "s": s}
            for engine, of in self.firsts.items()
            for i, s in of.items()
        ]
        return {
            "speeds": speeds,
            "read_bytes_per_s": [{"round": i, "value": x} for i, x in self.reads.items()],
            "copy_s": [{"round": i, "value": x} for i, x in self.copies.items()],
            "first_token_s": firsts,
            "perplexities": quality,
            "left_out": self.left_out,
        }


@dataclass(frozen=True)
class Page:
    """engines: names in the order of columns. pairs: whose ratios are shown. plain: the engine of
    ours that computes every weight, whose bytes per token count for others."""

    found: Measured
    engines: list[str]
    pairs: list[tuple[str, str]]
    plain: str

    def speed(self) -> list[str]:
        of = self.found.speeds
        columns = ["KV", "test", *self.engines, *(f"{a} / {b}" for a, b in self.pairs)]
        body = [
            [
                kv,
                str(test),
                *(spread(of.get((engine, kv, test))) for engine in self.engines),
                *(
                    times(ratio(of.get((a, kv, test)), of.get((b, kv, test))))
                    for a, b in self.pairs
                ),
            ]
            for kv, test in self._tests()
        ]
        return rows(columns, body, 2)

    def reading(self) -> list[str]:
        """GB/s of decoding beside a plain read."""
        found, body = self.found, []
        for kv, test in self._tests():
            for engine in self.engines:
                speeds = found.speeds.get((engine, kv, test))
                n_bytes = found.n_bytes.get((engine, kv, test))
                if n_bytes is None:
                    n_bytes = found.n_bytes.get((self.plain, kv, test))
                if not speeds or n_bytes is None:
                    continue
                rates = {i: x * n_bytes for i, x in speeds.items()}
                share, neurons = ratio(rates, found.reads), found.neurons.get((engine, kv, test))
                cells = [kv, str(test), engine, figure(n_bytes / 1e6), spread(rates, 1e-9)]
                cells.append("-" if share is None else f"{share:.0%}")
                body.append([*cells, "-" if neurons is None else f"{neurons:.1%}"])
        columns = ["KV", "test", "engine", "MB per token", "GB/s", "of a plain read", "neurons"]
        return rows(columns, body, 3) if body else []

    def start(self) -> list[str]:
        found = self.found
        body = [
            [engine, spread(found.firsts[engine]), times(ratio(found.firsts[engine], found.copies))]
            for engine in self.engines
            if engine in found.firsts
        ]
        return rows(["engine", "s", "/ copy"], body, 1) if body else []

    def quality(self) -> list[str]:
        found, body = self.found.quality, []
        compared = any(x.kl_99 is not None for x in found.values())
        for (engine, file, kv), x in found.items():
            cells = [file, kv, engine, f"{x.value:.4f}", f"{x.error:.4f}", f"{x.n_tokens:,}"]
            if compared:
                cells.append("-" if x.kl_99 is None else f"{x.kl_99:.6f}")
                cells.append("-" if x.same_top is None else f"{x.same_top:.2f}%")
            body.append(cells)
        columns = ["file", "KV", "engine", "perplexity", "±", "tokens scored"]
        columns += ["99% KLD", "same top token"] if compared else []
        return rows(columns, body, 3) if body else []

    def text(self, title: str, facts: list[str]) -> str:
        """facts: lines on the model, the machine and the engines."""
        found = self.found
        n = len(found.reads) or max((len(of) for of in found.speeds.values()), default=1)
        several = "; medians, with the lowest and highest of the rounds" if n > 1 else ""
        if found.reads:
            facts = [*facts, f"plain read: {spread(found.reads, 1e-9)} GB/s, once in each round"]
        lines = [f"# {title}", "", *(f"- {fact}" for fact in facts)]
        lines += ["", "## Speed", "", f"Tokens/s{several}.", "", *self.speed()]
        if reading := self.reading():
            lines += ["", "## Reading", ""]
            lines.append(
                "Decoding: tokens/s times the bytes of weights and of keys and values that a token "
                f"reads. For other engines these bytes are those that {self.plain} counted, of the "
                "same weights and the same positions."
            )
            lines += ["", *reading]
        if start := self.start():
            lines += ["", "## Start", ""]
            lines.append(
                "Seconds from the start of the program to its first token, with the file in the "
                "page cache, and that over the time in which the same threads copy the file into "
                f"fresh memory: {spread(found.copies)} s."
            )
            lines += ["", *start]
        if quality := self.quality():
            lines += ["", "## Quality", "", *quality]
        if found.left_out:
            lines += ["", "## Left out", "", *(f"- {sentence}" for sentence in found.left_out)]
        return "\n".join(lines) + "\n"

    def _tests(self) -> list[tuple[str, Case]]:
        return list(dict.fromkeys((kv, test) for _, kv, test in self.found.speeds))
