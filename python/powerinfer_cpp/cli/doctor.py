"""powerinfer doctor: shows the capabilities of this machine."""

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import __version__
from .._native import ffi, lib
from ..core.errors import DeviceError, check
from ..core.options import device_note
from ..placement import disk
from .common import gibibytes, number_of, size_text

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
    parser.add_argument("--device", metavar="NAME", help="measure this GPU only (default: all)")
    parser.add_argument(
        "--disk", metavar="FILE", help="measure only the disk of this file (64 MiB or more)"
    )
    parser.add_argument(
        "--disk-size",
        type=gibibytes,
        default=0.0,
        metavar="GiB",
        help="read only this much at the file's beginning (default: all of it)",
    )
    parser.add_argument(
        "--disk-seconds",
        type=number_of("seconds"),
        default=0.5,
        metavar="S",
        help="for each way of reading (default: 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="--disk's figures as JSON")


def isa() -> str:
    """The kernels' instruction set. Raises DeviceError or ValueError for a bad GGML_ISA."""
    out = ffi.new("char const **")
    check(lib.pi_isa(out))
    return ffi.string(out[0]).decode()


def kernels_line() -> str:
    """The kernels' instruction set, and those that this build is without."""
    missing = ffi.string(lib.pi_isas_left_out()).decode()
    return isa() + (f" (built for one processor: without {missing})" if missing else "")


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


@dataclass(frozen=True)
class DeviceReport:
    """A device: versions, bytes of its memory, rates in bytes per second, times in seconds."""

    id: str
    name: str
    compute: str  # "8.6"
    driver: str  # "" if it is not known
    driver_cuda: str  # the newest CUDA that the driver can run: "13.0"
    cuda: str  # that of this build
    total_bytes: int
    free_bytes: int
    context_bytes: int
    copy_per_s: float  # inside: bytes read and written
    in_per_s: float  # from pinned host memory
    out_per_s: float
    flag_s: float  # a flag to the host and its answer
    launch_s: float  # a graph of one kernel, until it is done
    node_s: float  # each further kernel of a graph

    def lines(self) -> list[tuple[str, str]]:
        """What doctor prints: names and values."""
        memory = f"{size_text(self.total_bytes)}, {size_text(self.free_bytes)} free"
        driver = self.driver or "version not known"
        pcie = f"{self.in_per_s / 1e9:.1f} GB/s to it, {self.out_per_s / 1e9:.1f} GB/s back"
        graph = f"{self.launch_s * 1e6:.1f} us to launch, {self.node_s * 1e6:.2f} us per kernel"
        return [
            ("GPU", f"{self.id}: {self.name}, compute capability {self.compute}"),
            ("  driver", f"{driver}, for CUDA {self.driver_cuda}; this build: CUDA {self.cuda}"),
            ("  memory", f"{memory}; {size_text(self.context_bytes)} taken by the context"),
            ("  copies inside", f"{self.copy_per_s / 1e9:.1f} GB/s read and written"),
            ("  PCIe, pinned", pcie),
            ("  flag and back", f"{self.flag_s * 1e6:.2f} us"),
            ("  graph", graph),
        ]


def device_report(device: str, n_bytes: int = 1 << 28) -> DeviceReport:
    """Measures a device with copies of n_bytes, in about a second.

    Raises DeviceError if there is no such device, OutOfMemoryError if n_bytes are too many.
    """
    out = ffi.new("pi_device_report *")
    out.struct_size = ffi.sizeof("pi_device_report")
    check(lib.pi_measure_device(device.encode(), n_bytes, out))

    def text(field: Any) -> str:
        return str(ffi.string(field).decode("utf-8", "replace"))

    def cuda(version: int) -> str:
        return f"{version // 1000}.{version % 1000 // 10}"

    return DeviceReport(
        device,
        text(out.name),
        f"{out.compute // 10}.{out.compute % 10}",
        text(out.driver),
        cuda(out.driver_cuda),
        cuda(out.cuda),
        out.total_bytes,
        out.free_bytes,
        out.context_bytes,
        out.copy_per_s,
        out.in_per_s,
        out.out_per_s,
        out.flag_s,
        out.launch_s,
        out.node_s,
    )


def print_devices(only: str | None, measured: bool) -> None:
    """What is known of the GPUs. Raises DeviceError where `only` is not there."""
    names = {
        f"cuda{i}": ffi.string(lib.pi_device_name(i)).decode("utf-8", "replace")
        for i in range(lib.pi_n_devices())
    }
    if only is not None:
        names = {only: names.get(only, "")}
    if not names:
        print(f"GPU             none: {device_note()}")
    for device, name in names.items():
        if not measured:
            print(f"GPU             {device}: {name}".rstrip(": "))
            continue
        try:
            report = device_report(device)
        except (DeviceError, MemoryError) as error:
            if only is not None:
                raise
            print(f"GPU             {device}: {name}: cannot be used: {error}")
            continue
        for title, value in report.lines():
            print(f"{title:15} {value}")


def disk_line(rate: disk.Rate) -> str:
    """A row of the table that --disk prints."""
    how = "in order" if rate.in_order else "again" if rate.again else "random"
    return (
        f"{rate.n_bytes // disk.KB:4} KB {how:8} {rate.depth:6} {rate.reads_per_s:11.0f} "
        f"{rate.bytes_per_s / 1e6:9.1f} {rate.cpu_s * 1e6:12.2f}"
    )


def disk_report(args: argparse.Namespace) -> None:
    """Measures the disk of a file and prints it. Raises OSError, ValueError."""
    rates = []
    for rate in disk.sweep(args.disk, int(args.disk_size * (1 << 30)), args.disk_seconds):
        if not (rates or args.json):
            direct = f"direct, multiples of {rate.align} bytes" if rate.direct else "buffered"
            print(f"disk            {args.disk}, {size_text(rate.file_bytes)}")
            print(f"reads           {rate.io}, {direct}")
            if rate.note:
                print(f"note            {rate.note}")
            print("a read           depth     reads/s      MB/s  CPU us/read")
        rates.append(rate)
        if not args.json:
            print(disk_line(rate), flush=True)
    read_us, kb_us = disk.cost(rates)
    if not args.json:
        print(f"cost            {read_us:.1f} + {kb_us:.2f} KB us for a random read, many at once")
        return
    once = ("io", "note", "direct", "align", "file_bytes")
    rows = [asdict(rate) for rate in rates]
    print(
        json.dumps(
            {
                "path": args.disk,
                **{key: rows[0][key] for key in once},
                "read_us": read_us,
                "kb_us": kb_us,
                "rates": [{k: v for k, v in row.items() if k not in once} for row in rows],
            },
            indent=2,
        )
    )


def run(args: argparse.Namespace) -> None:
    if args.disk is not None:
        disk_report(args)
        return
    if args.json:
        raise ValueError("--json is for --disk")
    threads = lib.pi_default_threads()
    free = lib.pi_available_memory()
    print(f"powerinfer_cpp  {__version__}")
    print(f"CPU             {cpu_name()}")
    usable = lib.pi_threads_used(512)
    print(f"threads         {threads} (affinity mask and CPU quota: {usable} processors)")
    print(f"kernels         {kernels_line()}")
    print_devices(args.device, not args.no_bandwidth)
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
