"""Energy that the processor takes, as its packages count it (RAPL, through Linux' powercap)."""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules of all packages between start() and joules(). Most systems let only root read them,
    virtual machines have none."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._ranges: dict[Path, int] = {}  # microjoules after which a counter begins at 0 again
        self._before: dict[Path, int] = {}
        for zone in sorted(root.glob("*-rapl:*")):
            try:
                if (zone / "name").read_text().startswith("package"):
                    (zone / "energy_uj").read_text()
                    self._ranges[zone] = int((zone / "max_energy_range_uj").read_text())
            except OSError:
                continue

    def start(self) -> None:
        """Reads the counters."""
        self._before = {zone: self._read(zone) for zone in self._ranges}

    def joules(self) -> float | None:
        """Energy since start(); None where no counter can be read."""
        if not self._before:
            return None
        used = 0
        for zone, before in self._before.items():
            # A counter that began anew is smaller than it was.
            used += (self._read(zone) - before) % (self._ranges[zone] + 1)
        return used / 1e6

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())
