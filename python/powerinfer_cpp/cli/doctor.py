"""powerinfer doctor: what this machine offers."""

import argparse
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from .. import __version__
from .._native import ffi, lib
from ..errors import check
from ..options import device_note
from .common import size_text

PACKAGES = (
    "numpy",
    "gguf",
    "safetensors",
    "sentencepiece",
    "cffi",
    "jinja2",
    "llguidance",
    "huggingface-hub",
    "torch",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-bandwidth", action="store_true", help="leave out the measurement")


def isa() -> str:
    """The kernels' instruction set. Raises DeviceError or ValueError for a forced one."""
    out = ffi.new("char const **")
    check(lib.pi_isa(out))
    return ffi.string(out[0]).decode()


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def read_bandwidth(array: np.ndarray, threads: int, rounds: int = 3) -> float:
    """Bytes per second that `threads` threads read, each its part of an array far beyond caches.

    numpy's maximum, the best of some rounds: a lower bound of what kernels can reach.
    """
    parts = np.array_split(array, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return array.nbytes / best


def run(args: argparse.Namespace) -> None:
    threads = lib.pi_default_threads()
    free = lib.pi_available_memory()
    print(f"powerinfer_cpp  {__version__}")
    print(f"CPU             {cpu_name()}")
    print(f"threads         {threads} (affinity mask and CPU quota)")
    print(f"kernels         {isa()}")
    devices = [
        ffi.string(lib.pi_device_name(i)).decode("utf-8", "replace")
        for i in range(lib.pi_n_devices())
    ]
    print(f"GPU             {', '.join(devices) or f'none: {device_note()}'}")
    print(f"memory          {size_text(free)} free to this process")
    if not args.no_bandwidth:
        array = np.ones(max(1 << 24, min(1 << 30, free // 2)) // 8, dtype=np.int64)
        for n in sorted({1, threads}):
            rate, size = read_bandwidth(array, n) / 1e9, size_text(array.nbytes)
            print(f"read bandwidth  {rate:.1f} GB/s ({n} threads, numpy's maximum of {size})")
        del array
    print(f"python          {platform.python_version()}, {platform.platform()}")
    for package in PACKAGES:
        try:
            print(f"{package:15} {version(package)}")
        except PackageNotFoundError:
            print(f"{package:15} not installed")
