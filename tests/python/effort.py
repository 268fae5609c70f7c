"""What tests cost: CPU-seconds per file, a table of the slowest files, and limits.

CPU-seconds of a test are those of its process and of every child that it waited for; the fixtures
that it was the first to use are in them. What several files use is counted apart, as "builds"
(`shared_work`): else the file that happens to come first would pay. A file of many programs has a
row for each. tests/python/limits.json holds for each circle and row what was recorded
(`--record`). A row that took more than twice its record is named, or more than that where the
other rows, too, took more than recorded: such a machine is slow or busy. Where the whole circle
ran, it fails if it took more than one and a half times what is recorded of its rows.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

LIMITS = Path(__file__).with_name("limits.json")
FACTOR = 2.0  # of a row: between processors; and for what runs beside
CIRCLE = 1.5  # of the whole, in which what single rows take more or less is lost
LEAST = 10.0  # CPU-seconds that every row may take
ROWS = 15  # of the table
BUILDS = "builds"  # the row of what several files use
APART = ("test_native.py", "test_sanitizers.py")  # whose cases have rows of their own


def row(test: str) -> str:
    """The row in which a test is counted, by its id: `test_file.py`, or `test_file.py[case]`."""
    path, _, rest = test.partition("::")
    file, (_, _, case) = Path(path).name, re.sub(r"@\w+$", "", rest).partition("[")
    return f"{file}[{case}" if case and file in APART else file


def recorded(circle: str) -> dict[str, float]:
    """CPU-seconds by row of a circle, as they were recorded."""
    if not LIMITS.is_file():
        return {}
    return json.loads(LIMITS.read_text()).get(circle, {})


def limits(spent: dict[str, float], known: dict[str, float]) -> dict[str, float]:
    """CPU-seconds that each row may take, in proportion to what the other rows took."""
    both = [name for name in spent if known.get(name)]
    now, before = (sum(seconds[name] for name in both) for seconds in (spent, known))
    allowed = {}
    for name in spent:
        own = known.get(name, 0.0)
        others = before - own
        pace = (now - (spent[name] if own else 0.0)) / others if others > 0 else 1.0
        allowed[name] = max(1.0, pace) * max(LEAST, FACTOR * own)
    return allowed


def most(spent: dict[str, float], known: dict[str, float]) -> float:
    """CPU-seconds that the rows may take together. A row of which a part had passed before
    (passed.py) counts as a whole."""
    return CIRCLE * sum(known.get(name, LEAST) for name in spent)


def cpu_seconds() -> float:
    """CPU time of this process and its children so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


_lock = threading.Lock()
_shared = 0.0  # CPU-seconds of shared_work in this process


def shared_work(
    command: Sequence[str | Path], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command whose result several files use; stdout has its stderr as well."""
    global _shared
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        with _lock:
            _shared += used.ru_utime + used.ru_stime
        out.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), "")


class Effort:
    """The plugin: measures in workers, adds up and judges in the controller."""

    def __init__(self, circle: str, whole: bool, record: bool) -> None:
        self.circle, self.whole, self.record = circle, whole, record
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)
        self.count = 0
        self._start = self._start_shared = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self._start, self._start_shared = cpu_seconds(), _shared
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if call.when == "teardown":
            shared = _shared - self._start_shared
            report.user_properties.append((BUILDS, shared))
            report.user_properties.append(("cpu", cpu_seconds() - self._start - shared))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = row(report.nodeid)
        self.wall[name] += report.duration
        if report.when == "teardown":
            self.count += 1
            spent = dict(report.user_properties)
            self.cpu[name] += spent.get("cpu", 0.0)
            if spent.get(BUILDS):
                self.cpu[BUILDS] += spent[BUILDS]

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter) -> None:
        if not self.count:
            return
        known = recorded(self.circle)
        allowed = limits(self.cpu, known)
        total = sum(self.cpu.values())
        write = terminalreporter.write_line
        write(f"slowest of {len(self.cpu):3} rows            CPU s  limit  wall s")
        for name in sorted(self.cpu, key=self.cpu.__getitem__, reverse=True)[:ROWS]:
            write(f"{name:30} {self.cpu[name]:7.1f}{allowed[name]:7.0f}{self.wall[name]:8.1f}")
        limit = f"{most(self.cpu, known):7.0f}" if known else "      -"
        write(f"{'all':30} {total:7.1f}{limit}{sum(self.wall.values()):8.1f}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.whole or not self.count:
            return
        if self.record:
            kept = json.loads(LIMITS.read_text()) if LIMITS.is_file() else {}
            kept[self.circle] = {name: round(self.cpu[name], 1) for name in sorted(self.cpu)}
            LIMITS.write_text(json.dumps(kept, indent=1) + "\n")
            return
        if not (known := recorded(self.circle)):
            return
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")

        def say(name: str, spent: float, limit: float) -> None:
            words = f"{name}: {spent:.0f} CPU-seconds of {limit:.0f} (limits.json)"
            reporter.write_line(f"over its limit: {words}", red=True)

        for name, limit in limits(self.cpu, known).items():
            if self.cpu[name] > limit:
                say(name, self.cpu[name], limit)
        total, limit = sum(self.cpu.values()), most(self.cpu, known)
        if total > limit:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            say("the circle", total, limit)
