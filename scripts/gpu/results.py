"""What the parts found: a line of JSON per check or figure, and a table in Markdown."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


class Results:
    """Appends to FOLDER/results.jsonl, and writes FOLDER/results.md anew. A part that is run again
    replaces its lines."""

    def __init__(self, folder: Path, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines, self._table = folder / "results.jsonl", folder / "results.md"
        self._device = device
        self.failures = 0

    def _read(self) -> list[dict[str, Any]]:
        if not self._lines.exists():
            return []
        return [json.loads(line) for line in self._lines.read_text().splitlines()]

    def _write(self, rows: Iterable[dict[str, Any]]) -> None:
        self._lines.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def begin(self, part: str) -> None:
        """Forgets what the part found before."""
        self._write(row for row in self._read() if row["part"] != part)

    def add(self, part: str, what: str, ok: bool | None = None, **figures: Any) -> None:
        """A check (ok), or figures alone."""
        self.failures += ok is False
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        row = {"part": part, "what": what, "ok": ok, "device": self._device, "time": when}
        row |= {"machine": platform.node(), **figures}
        with self._lines.open("a") as file:
            file.write(json.dumps(row) + "\n")
        word = {True: "passed", False: "FAILED", None: "measured"}[ok]
        shown = ", ".join(f"{k} {v}" for k, v in figures.items() if not isinstance(v, dict))
        print(f"{word:8} {part}: {what}{': ' if shown else ''}{shown}", flush=True)

    def table(self) -> None:
        """Writes results.md."""
        rows = self._read()
        out = [f"# {self._device}", ""]
        for part in dict.fromkeys(row["part"] for row in rows):
            here = [row for row in rows if row["part"] == part]
            fixed = ("part", "what", "ok", "device", "time", "machine")
            keys = list(dict.fromkeys(k for row in here for k in row if k not in fixed))
            out += [f"## {part} ({here[-1]['time'][:10]})", ""]
            out.append("| " + " | ".join(["what", "ok", *keys]) + " |")
            out.append("| --- | --- |" + " --- |" * len(keys))
            for row in here:
                ok = {True: "yes", False: "NO", None: ""}[row["ok"]]
                cells = [row["what"], ok, *(str(row.get(k, "")) for k in keys)]
                out.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            out.append("")
        self._table.write_text("\n".join(out))
