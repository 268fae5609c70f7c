"""Energy use of the processor, from the counters of its packages (RAPL, Linux powercap)."""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Joules of all packages between start() and joules(). On most systems only root can read the
    counters; virtual machines have none."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._ranges: dict[Path, int] = {}  # microjoules at which a counter wraps to 0
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
        """Energy since start(), in joules; None if no counter can be read."""
        if not self._before:
            return None
        used = 0
        for zone, before in self._before.items():
            # A smaller value means that the counter has wrapped.
            used += (self._read(zone) - before) % (self._ranges[zone] + 1)
        return used / 1e6

    @staticmethod
    def _read(zone: Path) -> int:
        return int((zone / "energy_uj").read_text())
