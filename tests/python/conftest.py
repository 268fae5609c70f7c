"""Fixtures, reasons for skips, and the last line `N passed, N failed, N skipped`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
# The only skip reasons that --all accepts: missing hardware, missing permissions, and programs
# that pip cannot install.
HARDWARE = ("GPU", "ISA", "no right to", "no Linux tools", "no Chromium", "no tool to")
# Optional peers: ./run does not install packages that take ten minutes to compile, or bring
# dozens of others.
OPTIONAL = ("llama_cpp", "lm_eval")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the slow tests too; a needless skip is a failure"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "peer(module): compares with a package that may be missing")


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips slow tests without --all, and tests whose reference data or peer is missing."""
    keep, left_out = [], {}
    config.stash[NEEDLESS] = []
    for item in items:
        why = ""
        if item.get_closest_marker("slow") and not config.getoption("--all"):
            why = "slow; ./run test --all runs it"
        elif item.get_closest_marker("shared") and not SHARED.is_dir():
            why = "needs the reference data of ../shared"
        elif (peer := item.get_closest_marker("peer")) and not _is_installed(peer.args[0]):
            why = f"compares with {peer.args[0]}, which is not installed"
            if peer.args[0] not in OPTIONAL:
                config.stash[NEEDLESS].append(item.nodeid)
        if why:
            left_out.setdefault(why, []).append(item)
        else:
            keep.append(item)
    items[:] = keep
    for tests in left_out.values():
        config.hook.pytest_deselected(items=tests)
    config.stash[LEFT_OUT] = left_out


LEFT_OUT = pytest.StashKey[dict]()
NEEDLESS = pytest.StashKey[list[str]]()
COUNTS = pytest.StashKey[str]()


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    kinds = ("passed", "failed", "error", "skipped")
    count = {k: len(terminalreporter.stats.get(k, [])) for k in kinds}
    failed = count["failed"] + count["error"]
    for why, tests in config.stash.get(LEFT_OUT, {}).items():
        names = sorted({t.nodeid.split("[")[0] for t in tests})
        terminalreporter.write_line(f"left out, {len(tests)} tests ({why}): {', '.join(names)}")
    config.stash[COUNTS] = f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With --all a skip for anything but missing hardware fails the run, as does a missing peer."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--all") or reporter is None:
        return
    for test in session.config.stash.get(NEEDLESS, []):
        reporter.write_line(f"left out without need, a peer is missing: {test}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for report in reporter.stats.get("skipped", []):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(word in reason for word in HARDWARE):
            reporter.write_line(f"skipped without need: {report.nodeid}: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


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


@pytest.fixture(scope="session")
def simt_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a python imports the package with the device "simt": the GPU's
    kernels on the CPU, which only test builds have."""
    build, folder = ROOT / "build" / "cpu", tmp_path_factory.mktemp("simt")
    python = ["-DPI_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (
        ["cmake", "--preset", "cpu", *python],
        ["cmake", "--build", "--preset", "cpu", "--target", "_native", "main"],
        ["cmake", "--install", build, "--prefix", folder],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
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
    folder = tmp_path_factory.mktemp("ptx")
    command = [nvcc, "-ptx", "-lineinfo", "-std=c++17", "-arch=sm_86", "-fmad=false"]
    command += ["--expt-relaxed-constexpr", "-DGGML_GPU=cuda"]
    command += [f"-I{ROOT / include}" for include in ("ggml/include", "ggml/src")]

    def make(source: Path) -> Path:
        out = folder / f"{source.stem}.ptx"
        done = subprocess.run([*command, source, "-o", out], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return out

    sources = sorted((ROOT / "ggml/src/gpu").glob("*.cu"))
    with ThreadPoolExecutor(2) as pool:
        return dict(zip((s.stem for s in sources), pool.map(make, sources), strict=True))
