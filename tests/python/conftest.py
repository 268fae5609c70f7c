"""Circles of tests, fixtures, reasons for skips, and the last line `N passed, N failed, N skipped`.

Tests run in several processes (pytest-xdist), a file in one of them; those of a file that says
`ALONE = True` are independent, and go to whoever is free. The files that take longest come first.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import passed
import pytest

if TYPE_CHECKING:
    import anthropic
    import openai
    import serving

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
# The only skip reasons that --all accepts: missing hardware, missing permissions, and programs
# that pip cannot install.
HARDWARE = ("GPU", "ISA", "no right to", "no Linux tools", "no Chromium", "no Node.js")
HARDWARE += ("no tool to",)
# Packages that --nightly installs and --all does not: some take minutes to compile, others bring
# dozens more.
NIGHTLY = ("llama_cpp", "lm_eval", "ray", "schemathesis", "ziglang")
SECONDS = 300  # after which a test is stopped, unless its mark `timeout` says otherwise
GRACE = 30  # and so many later its process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the slow tests too; a needless skip is a failure"
    )
    parser.addoption("--nightly", action="store_true", help="run everything; it takes hours")
    parser.addoption("--record", action="store_true", help="write CPU-seconds to limits.json")


def circle_of(config: pytest.Config) -> str:
    """test, all or nightly."""
    if config.getoption("--nightly"):
        return "nightly"
    return "all" if config.getoption("--all") else "test"


def pytest_configure(config: pytest.Config) -> None:
    # Before test modules are imported, and in every worker; programs and commands inherit it.
    circle = os.environ["PI_CIRCLE"] = circle_of(config)
    os.environ["PI_RECORD"] = "1" if config.getoption("--record") else ""
    # A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for mark in (
        "peer(module): compares with a package that may be missing",
        "about(path, ...): only --nightly runs it where these are as in the commit of .ci/base",
    ):
        config.addinivalue_line("markers", mark)
    import effort

    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    whole = not (chosen or any(config.getoption(name, "") for name in ("-k", "-m", "lf")))
    config.pluginmanager.register(effort.Effort(circle, whole, config.getoption("--record")))
    if not _is_worker(config):
        passed.commit(ROOT)  # before the tests change anything
        config.stash[LEFT_OUT], config.stash[NEEDLESS] = {}, []
        if config.pluginmanager.has_plugin("xdist"):
            config.pluginmanager.register(_FromWorkers(config))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than cores: some tests wait for a disk, a clock or another process."""
    usable = getattr(os, "sched_getaffinity", None)
    return (len(usable(0)) if usable else os.cpu_count() or 1) + 1


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Where even the mark `timeout` does not end a test, because it hangs in native code, its
    process ends, and pytest-xdist names the test."""
    seconds = int(item.get_closest_marker("timeout").args[0]) + GRACE
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of the commands in disturbing.py."""
    import disturbing

    return disturbing.inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def command(request: pytest.FixtureRequest, given: Path, tmp_path_factory: pytest.TempPathFactory):
    """The disturbing.Command whose name is the parameter."""
    import disturbing

    folder = tmp_path_factory.mktemp(request.param)
    return disturbing.Command(request.param, disturbing.commands(given)[request.param], folder)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _git(*arguments: str) -> str | None:
    """What git says of this checkout; None if it fails or is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@cache
def _changed(*paths: str) -> bool:
    """Whether these differ from the commit that a change builds on (.ci/base names it); also where
    that is unknown."""
    base = ROOT / ".ci" / "base"
    commit = base.read_text().strip() if base.is_file() else ""
    if not commit or _git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return True
    same = _git("diff", "--quiet", commit, "--", *paths) is not None
    return not same or _git("ls-files", "--others", "--exclude-standard", "--", *paths) != ""


def _why_not(item: pytest.Item, circle: str) -> tuple[str, bool]:
    """Why a test is left out, "" if it is not; and whether that is a fault of the circle."""
    peer = item.get_closest_marker("peer")
    module = peer.args[0] if peer else ""
    if circle != "nightly" and (item.get_closest_marker("nightly") or module in NIGHTLY):
        return "./run test --nightly runs it", False
    if circle == "test" and item.get_closest_marker("slow"):
        return "slow; ./run test --all runs it", False
    if circle != "nightly" and not item.config.getoption("--record"):
        about = item.get_closest_marker("about")
        if about and not _changed(*about.args):
            return f"{', '.join(about.args)} are as in the commit of .ci/base", False
        if circle == "all" and item.nodeid in passed.before(ROOT):
            return "passed in ./run test at this commit", False
    if item.get_closest_marker("shared") and not SHARED.is_dir():
        return "needs the reference data of ../shared", False
    if peer and not _is_installed(module):
        return f"compares with {module}, which is not installed", circle != "test"
    return "", False


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what belongs to a wider circle, and tests whose reference data or peer is missing;
    groups the others."""
    import effort

    circle = circle_of(config)
    keep, gone, left_out, needless = [], [], {}, []
    for item in items:
        why, needed = _why_not(item, circle)
        if not why:
            keep.append(item)
            continue
        gone.append(item)
        left_out.setdefault(why, []).append(item.nodeid)
        if needed:
            needless.append(item.nodeid)
    # Long files first: one that began last would run while the other processes have nothing to do.
    cost = effort.recorded(circle)
    keep.sort(key=lambda item: -cost.get(effort.row(item.nodeid), 1.0))
    for item in keep:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS))
        if not item.get_closest_marker("xdist_group") and not getattr(item.module, "ALONE", False):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items[:] = keep
    if gone:
        config.hook.pytest_deselected(items=gone)
    if _is_worker(config):
        config.workeroutput["left_out"], config.workeroutput["needless"] = left_out, needless
    else:
        config.stash[LEFT_OUT], config.stash[NEEDLESS] = left_out, needless


LEFT_OUT = pytest.StashKey[dict[str, list[str]]]()
NEEDLESS = pytest.StashKey[list[str]]()
COUNTS = pytest.StashKey[str]()


class _FromWorkers:
    """What the controller, which collects nothing, has from its workers: they all collect alike."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        output = getattr(node, "workeroutput", {})
        if "left_out" in output:
            self._config.stash[LEFT_OUT] = output["left_out"]
            self._config.stash[NEEDLESS] = output["needless"]


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    kinds = ("passed", "failed", "error", "skipped")
    count = {k: len(terminalreporter.stats.get(k, [])) for k in kinds}
    failed = count["failed"] + count["error"]
    for why, tests in config.stash.get(LEFT_OUT, {}).items():
        names = sorted({nodeid.split("[")[0] for nodeid in tests})
        terminalreporter.write_line(f"left out, {len(tests)} tests ({why}): {', '.join(names)}")
    config.stash[COUNTS] = f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keeps what the quick circle passed. With --all a skip for anything but missing hardware fails
    the run, as does a missing peer."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if _is_worker(session.config) or reporter is None:
        return
    if circle_of(session.config) == "test":
        ended = {kind: _ids(reporter, kind) for kind in ("passed", "failed", "error")}
        passed.keep(ROOT, ended["passed"] - ended["failed"] - ended["error"])
        return
    for test in session.config.stash.get(NEEDLESS, []):
        reporter.write_line(f"left out without need, a peer is missing: {test}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for report in reporter.stats.get("skipped", []):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(word in reason for word in HARDWARE):
            reporter.write_line(f"skipped without need: {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _ids(reporter, kind: str) -> set[str]:
    """The tests that ended so, without the groups that pytest-xdist appends."""
    return {re.sub(r"@\w+$", "", report.nodeid) for report in reporter.stats.get(kind, [])}


def pytest_unconfigure(config: pytest.Config) -> None:
    if COUNTS in config.stash:
        print(config.stash[COUNTS], flush=True)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data beside the checkout; tests that use it carry the mark `shared`."""
    return SHARED


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model."""
    return ROOT / "models" / "stories-relu.Q8_0.gguf"


@pytest.fixture(scope="session")
def tokenizer_path() -> Path:
    """The SentencePiece model of the default model."""
    return ROOT / "models" / "tokenizer.model"


@pytest.fixture(scope="session")
def main_path() -> Path:
    """The program `main`: the one in PI_MAIN, else the installed one."""
    if os.environ.get("PI_MAIN"):
        return Path(os.environ["PI_MAIN"])
    import powerinfer_cpp

    return Path(powerinfer_cpp.main_path())


@pytest.fixture(scope="module")
def client(running: serving.InThread) -> openai.OpenAI:
    """OpenAI's client of the server that a module runs."""
    return running.openai()


@pytest.fixture(scope="module")
def claude(running: serving.InThread) -> anthropic.Anthropic:
    """Anthropic's client of the server that a module runs."""
    return running.anthropic()


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the models of servers answer with a text, byte by byte."""
    import tiny
    from powerinfer_cpp.server.served import ServedModel

    def say(text: str) -> None:
        original = ServedModel.request

        def request(self: ServedModel, prompt: object, **options: object) -> object:
            made = original(self, prompt, **options)
            return replace(made, processors=lambda: tiny.Say(self.model, text))

        monkeypatch.setattr(ServedModel, "request", request)

    return say


@pytest.fixture(scope="session")
def simt_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a python imports the package with the device "simt": the GPU's
    kernels on the CPU, which no product links."""
    from builds import CPU

    folder = tmp_path_factory.mktemp("simt")
    shutil.copytree(CPU / "with_test_devices", folder, dirs_exist_ok=True)
    package = "powerinfer_cpp"
    shutil.copytree(ROOT / "python" / package, folder / package, dirs_exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if not found:
        pytest.skip("no nvcc: the CUDA sources are compiled where a GPU toolkit is installed")
    return found


@pytest.fixture(scope="session")
def ptx(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The GPU kernels in PTX, by .cu file without its ending; with the lines of the sources."""
    from effort import shared_work

    folder = tmp_path_factory.mktemp("ptx")
    command = [nvcc, "-ptx", "-lineinfo", "-std=c++17", "-arch=sm_86", "-fmad=false"]
    command += ["--expt-relaxed-constexpr", "-DGGML_GPU=cuda"]
    command += [f"-I{ROOT / include}" for include in ("ggml/include", "ggml/src")]

    def make(source: Path) -> Path:
        out = folder / f"{source.stem}.ptx"
        done = shared_work([*command, source, "-o", out])
        assert done.returncode == 0, done.stdout[-4000:]
        return out

    sources = sorted((ROOT / "ggml/src/cuda").rglob("*.cu"))
    with ThreadPoolExecutor(2) as pool:
        return dict(zip((s.stem for s in sources), pool.map(make, sources), strict=True))
