"""powerinfer doctor: shows the capabilities of this machine."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

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
    parser.add_argument("--no-bandwidth", action="store_true", help="skip the measurements")


def isa() -> str:
    """The kernels' instruction set. Raises DeviceError or ValueError for a bad GGML_ISA."""
    out = ffi.new("char const **")
    check(lib.pi_isa(out))
    return ffi.string(out[0]).decode()


def cpu_name() -> str:
    """The processor's name, if the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def read_bandwidth(n_bytes: int, threads: int) -> float:
    """Bytes per second of a plain read of n_bytes of memory."""
    out = ffi.new("double *")
    check(lib.pi_measure_read(threads, n_bytes, out))
    return out[0]


def product_rate(type_name: str, threads: int, n_tokens: int) -> float:
    """Multiply-adds per second of a product with n_tokens tokens."""
    kind, block, size = ffi.new("uint32_t *"), ffi.new("int64_t *"), ffi.new("int64_t *")
    lib.pi_type_by_name(type_name.encode(), kind, block, size)
    out = ffi.new("double *")
    check(lib.pi_measure_product(kind[0], threads, n_tokens, out))
    return out[0]


def run(args: argparse.Namespace) -> None:
    threads = lib.pi_default_threads()
    free = lib.pi_available_memory()
    print(f"powerinfer_cpp  {__version__}")
    print(f"CPU             {cpu_name()}")
    print(f"threads         {threads} (affinity mask and CPU quota)")
    print(f"kernels         {isa()}")
    devices = [
        f"cuda{i}: " + ffi.string(lib.pi_device_name(i)).decode("utf-8", "replace")
        for i in range(lib.pi_n_devices())
    ]
    print(f"GPU             {', '.join(devices) or f'none: {device_note()}'}")
    print(f"memory          {size_text(free)} free to this process")
    if not args.no_bandwidth:
        n_bytes = max(1 << 24, min(1 << 30, free // 2))
        for n in sorted({1, threads}):
            rate = read_bandwidth(n_bytes, n) / 1e9
            print(f"read bandwidth  {rate:.1f} GB/s ({n} threads, {size_text(n_bytes)})")
        for name in ("Q4_0", "Q4_K", "Q8_0", "F16"):
            rate = product_rate(name, threads, 64) / 1e9
            print(f"products        {rate:.0f} G multiply-adds/s ({name}, 64 tokens)")
    print(f"python          {platform.python_version()}, {platform.platform()}")
    for package in PACKAGES:
        try:
            print(f"{package:15} {version(package)}")
        except PackageNotFoundError:
            print(f"{package:15} not installed")
