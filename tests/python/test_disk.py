"""powerinfer doctor --disk: figures of a small file on whatever disk there is, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from powerinfer_cpp.cli import main
from powerinfer_cpp.placement import disk

LEAST = 64 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is just large enough, without blocks on the disk."""
    made = tmp_path_factory.mktemp("disk") / "file"
    with open(made, "wb") as file:
        file.truncate(LEAST)
    return made


@pytest.fixture(autouse=True)
def _io(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POWERINFER_IO", raising=False)


def test_a_rate(path: Path) -> None:
    for in_order in (False, True):
        rate = disk.measure(str(path), 7168, 16, in_order, seconds=0.01)
        assert rate.reads_per_s > 0 and rate.cpu_s > 0
        assert rate.bytes_per_s == pytest.approx(7168 * rate.reads_per_s)
        assert rate.io in ("uring", "threads") and rate.file_bytes == LEAST


def test_table(path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--disk", str(path), "--disk-seconds", "0.002"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("disk ") and str(path) in lines[0]
    assert lines[1].split()[1] in ("uring,", "threads,")
    rows = [line for line in lines if " KB " in line and line[0] == " "]
    assert len(rows) == len(disk.SIZES) * len(disk.DEPTHS) + 1 + len(disk.IN_ORDER)
    assert all(float(word) > 0 for row in rows for word in row.split()[-3:-1])
    assert lines[-1].startswith("cost ")


def test_json(path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERINFER_IO", "threads")
    line = ["doctor", "--json", "--disk", str(path), "--disk-seconds", "0.002"]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["io"] == "threads" and found["file_bytes"] == LEAST
    assert found["read_us"] >= 0 and found["kb_us"] >= 0
    assert {row["n_bytes"] for row in found["rates"]} == {*disk.SIZES, disk.IN_ORDER[0][0]}
    assert sum(row["again"] for row in found["rates"]) == 1
    assert sum(row["in_order"] for row in found["rates"]) == len(disk.IN_ORDER)


def test_cost() -> None:
    def rate(kb: int, depth: int, micros: float, again: bool = False) -> disk.Rate:
        speed = 1e6 / micros
        return disk.Rate(
            kb * disk.KB, depth, False, again, speed, speed, 0.0, "", "", True, 512, LEAST
        )

    deep = [rate(kb, 128, 12.5 + 0.98 * kb) for kb in (4, 8, 16, 64)]
    others = [rate(4, 1, 100.0), rate(4, 128, 1.0, again=True)]
    assert disk.cost(deep + others) == pytest.approx((12.5, 0.98))
    throttled = [rate(kb, 128, 1.0 * kb) for kb in (4, 8, 16, 64)]
    assert disk.cost(throttled) == pytest.approx((0.0, 1.0))
    noisy = [rate(kb, 128, 20.0 - kb / 16) for kb in (4, 8, 16, 64)]
    a, b = disk.cost(noisy)
    assert 16 < a < 20 and b == 0
    assert disk.cost([rate(4, 128, 8.0)]) == pytest.approx((0.0, 2.0))


def test_refusals(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(*line: object) -> str:
        assert main(["doctor", *map(str, line)]) == 1
        return capsys.readouterr().err

    small = tmp_path / "small"
    small.write_bytes(b"x" * 1000)
    message = error("--disk", small)
    assert str(small) in message and "at least 64 MiB" in message and "1000 bytes" in message
    assert "at least 64 MiB" in error("--disk", path, "--disk-size", "0.01")
    assert "no such file" in error("--disk", tmp_path / "missing")
    assert "directory" in error("--disk", tmp_path) or "regular file" in error("--disk", tmp_path)
    assert "--disk" in error("--json")
    assert "seconds" in error("--disk", path, "--disk-seconds", "0")
    monkeypatch.setenv("POWERINFER_IO", "aio")
    assert "POWERINFER_IO must be threads or uring" in error("--disk", path)
    with pytest.raises(ValueError, match="multiple of 512"):
        disk.measure(str(path), 1000)
