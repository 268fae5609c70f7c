"""What the whole process of ./main takes: never more than its budget, with all that a process has
besides what is planned. Slow: the model is so large that this is little beside it."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import numpy as np
import profiled
import pytest
from powerinfer_cpp.core.gguf import Gguf
from small_mixtures import Mixture

pytestmark = pytest.mark.slow

# 192 MiB of attention and 144 of neurons.
N_EMBD, N_FF, N_LAYER = 4096, 3072, 2
NEURONS = N_LAYER * N_FF * 3 * 2 * N_EMBD
OPTIONS = ["-p", "the quick brown fox", "-n", "10", "--temp", "0", "-s", "1", "-c", "128"]
BUDGETS = 20
STACK = 16 << 10  # of a thread, in the kernel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, so that half of the neurons fire, other ones for each token."""
    path = tmp_path_factory.mktemp("peak") / "model.gguf"
    rates = [np.full(N_FF, 0.5)] * N_LAYER
    profiled.write(path, rates, n_embd=N_EMBD, rank=32, with_rates=False)
    values = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float16) / 64
    with Gguf(path) as gguf, path.open("r+b") as file:
        for i, tensor in enumerate(gguf.tensors):
            norm = len(tensor.shape) == 1
            drawn = np.roll(values, 4999 * i)
            data = np.ones(tensor.shape, np.float32) if norm else np.resize(drawn, tensor.shape)
            file.seek(tensor.offset)
            file.write(data.tobytes())
    return path


def status(pid: int) -> dict[str, int]:
    """Bytes and numbers of a process; nothing once it has ended."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {
        name: int(value) << (10 if unit else 0)
        for name, value, unit in re.findall(r"^(\w+):\s+(\d+)( kB)?$", text, re.MULTILINE)
    }


def run(main: Path, model: Path, budget: int) -> tuple[bytes, int]:
    """The text, and the most that the process took: anonymous and mapped pages, page tables and
    stacks in the kernel."""
    line = [main, "-m", model, *OPTIONS, "--ram-budget", repr(budget / 2**30)]
    peak, mapped = 0, ""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            now = status(process.pid)
            if "VmHWM" not in now:
                continue
            peak = max(peak, now["VmHWM"] + now["VmPTE"] + now["Threads"] * STACK)
            mapped = Path(f"/proc/{process.pid}/maps").read_text() or mapped
            time.sleep(0.002)
        text, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0, errors
    assert ".so" in mapped and ".gguf" not in mapped
    return text, peak


def refused(main: Path, model: Path, budget: int) -> str:
    line = [main, "-m", model, *OPTIONS, "--ram-budget", repr(budget / 2**30)]
    done = subprocess.run(line, capture_output=True, errors="replace")
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr  # the reason, and then what helps


def test_the_process_keeps_to_its_budget(main_path: Path, model: Path) -> None:
    said = refused(main_path, model, 1 << 20)
    (least,) = map(int, re.findall(r"it needs at least (\d+) bytes", said))
    assert f"at least {least} bytes" in refused(main_path, model, least - 1)
    whole = subprocess.run([main_path, "-m", model, *OPTIONS], capture_output=True, check=True)
    run(main_path, model, least)  # writes the bundled file
    most = least + NEURONS
    taken = []
    for i in range(BUDGETS):
        budget = least + (most - least) * i // BUDGETS
        text, peak = run(main_path, model, budget)
        assert text == whole.stdout
        assert peak <= budget, (i, budget, peak)
        taken.append(peak / budget)
    # What is allowed is used.
    assert min(taken) > 0.9, taken


def test_experts_keep_to_it(main_path: Path, tmp_path: Path) -> None:
    """192 MiB of attention and as many of experts."""
    mixture = Mixture(width=4096, n_layer=2, n_expert=16, type="BF16", down="BF16")
    model = mixture.write(tmp_path / "model.gguf")
    (least,) = map(int, re.findall(r"at least (\d+) bytes", refused(main_path, model, 1 << 20)))
    whole = subprocess.run([main_path, "-m", model, *OPTIONS], capture_output=True, check=True)
    experts = 2 * 16 * 3 * 256 * 4096 * 2
    for i in range(8):
        budget = least + experts * i // 12
        text, peak = run(main_path, model, budget)
        assert text == whole.stdout
        assert peak <= budget, (i, budget, peak)
