"""The programs that the parts run, where they come from, and how they are run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("flags", "device_ops", "mixture", "device_states", "split", "homes", "stream")
TOOLS = ("gpu_model", "gpu_speed")
MIB = 1 << 20


class Failed(Exception):
    """A program failed, ran too long, or there was no room for what it needs."""


def say(text: str) -> None:
    print(f"gpu.sh: {text}", file=sys.stderr, flush=True)


def names(device: str) -> list[str]:
    """The programs that a device needs. Results of a card are compared with those of the shim."""
    if device.startswith("simt"):
        return [*(f"test_{test}" for test in TESTS), *TOOLS]
    return [*(f"card_{test}" for test in TESTS), "test_device_ops", *TOOLS]


def built(device: str) -> Path:
    """Builds them here, for the card at hand. Raises Failed."""
    simt = device.startswith("simt")
    preset = "cpu" if simt else "cuda"
    configure = ["cmake", "--preset", preset]
    if not simt:
        sys.path.insert(0, str(ROOT / "scripts"))
        import find_cuda

        found = find_cuda.answer(find_cuda.machine(), os.environ)
        say(found.sentence)
        if found.status != find_cuda.POSSIBLE:
            raise Failed(found.sentence)
        configure += found.options
    build = ["cmake", "--build", "--preset", preset, "--target", *names(device)]
    for command in (configure, build):
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        except OSError as error:
            raise Failed(f"{command[0]}: {error}") from None
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return ROOT / "build" / preset / "tests"


def used_on_card() -> int | None:
    """Bytes in use on the first GPU, as the driver counts them."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return int(done.stdout) * MIB
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


class Watch:
    """The most that was used on the card between enter and exit, more than before."""

    def __init__(self, wanted: bool) -> None:
        self.peak: int | None = None
        self._before = used_on_card() if wanted else None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while self._before is not None and not self._end.wait(0.2):
            if (now := used_on_card()) is not None:
                self.peak = max(self.peak or 0, now - self._before)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@dataclass
class Runner:
    """Runs programs on a device; a part must end before `deadline` (time.monotonic())."""

    device: str
    toy: bool
    binaries: Path
    folder: Path  # of models
    llama_bench: Path | None = None
    deadline: float = field(default=float("inf"))
    machine: dict[str, Any] = field(default_factory=dict)  # speed.report()

    @property
    def simt(self) -> bool:
        return self.device.startswith("simt")

    def test(self, name: str) -> str:
        return f"{'test' if self.simt else 'card'}_{name}"

    def run(self, program: str | Path, *arguments: object, most: float = 1e9) -> str:
        """stdout of a program. Raises Failed; what runs too long is killed with its children."""
        command = [str(self.binaries / program), *map(str, arguments)]
        left = min(most, self.deadline - time.monotonic())
        if left <= 0:
            raise Failed("no time is left in this part")
        try:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}") from None
        try:
            out, err = child.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise Failed(f"{' '.join(command)}: not done after {left:.0f} s") from None
        if child.returncode:
            said = (err + out).decode(errors="replace").strip().splitlines()[-5:]
            raise Failed(
                f"{Path(program).name}: exit status {child.returncode}: {' | '.join(said)}"
            )
        return out.decode(errors="replace")

    def speed(self, model: Path, **options: object) -> dict[str, Any]:
        """Figures of gpu_speed; with "vram_peak" as the driver counts it, if there is one."""
        chosen: dict[str, object] = {"model": model, "device": self.device, **options}
        arguments = [x for name, value in chosen.items() for x in (f"--{name}", value)]
        with Watch(not self.simt and chosen["device"] != "cpu" and "plan" not in options) as watch:
            figures: dict[str, Any] = json.loads(self.run("gpu_speed", *arguments))
        if watch.peak is not None:
            figures["vram_peak"] = watch.peak
        return figures

    def model(self, name: str, n_bytes: int, **shape: object) -> Path:
        """A model that gpu_model writes, once. Raises Failed if there is no room for it."""
        path = self.folder / f"gpu-{name}.gguf"
        if path.exists():
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.folder).free < n_bytes:
            raise Failed(f"{self.folder} has no room for {n_bytes / 1e9:.1f} GB: see --folder")
        arguments = [x for key, value in shape.items() for x in (f"--{key}", value)]
        self.run("gpu_model", "--out", path, *arguments)
        return path
