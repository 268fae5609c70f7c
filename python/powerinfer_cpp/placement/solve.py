"""The placement problem, solved by HiGHS: the tier of each group of neurons.

Maximise the firings that faster tiers serve, PowerInfer's equations (2) to (8) with a third tier:

    sum_l  (1 - w) V_l(g_l) + w V_l(m_l)        V_l(k): impact of the k hottest groups of layer l
    sum_l  bytes_l(g_l) <= VRAM                 g_l: groups on the GPU, m_l >= g_l: in GPU or RAM
    sum_l  bytes_l(m_l) - bytes_l(g_l) <= RAM   w: value of a firing served by RAM (GPU: 1)
    g_l = 0  or  g_l >= C_l                     C_l: fewer groups do not make up for the waiting

The neurons of a layer are sorted by rate, so the unknowns are counts: 240 for a model of 80 layers,
where one binary per group would need 35,840. V_l is concave, so it is the minimum of its tangents.
Tangents are added when a solution violates them, first for the relaxation, then for the integers.
The first C_l groups of a layer are one block with one binary. V_l(k)/k falls, so the block's
straight line and the tangents after it are the concave hull of "none, or at least C_l", and the
relaxation is as tight as possible.
"""

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_EPSILON = 1e-9  # relative difference of values that count as equal


@dataclass(frozen=True)
class Layer:
    """Groups of a layer's neurons, the hottest first.

    values: float64 [K], impact of each group, falling. sizes: int64 [K], bytes of each group, equal
    except that the last may be smaller. least: minimum groups on the GPU, if it takes any.
    """

    values: np.ndarray
    sizes: np.ndarray
    least: int = 1

    @property
    def n_full(self) -> int:
        """Groups of the full size."""
        n = len(self.sizes)
        return n - 1 if n > 1 and self.sizes[-1] < self.sizes[0] else n


@dataclass(frozen=True)
class Solution:
    """gpu, memory: int64 [L], groups of each layer on the GPU, and on the GPU or in RAM.

    value: the objective. bound: value of the relaxation, an upper limit for every placement. gap:
    maximum relative distance from the best placement. seconds: time of the solver.
    """

    gpu: np.ndarray
    memory: np.ndarray
    value: float
    bound: float
    gap: float
    seconds: float


def solve(
    layers: Sequence[Layer],
    vram: int,
    ram: int | None = None,
    ram_value: float = 0.0,
    *,
    gap: float = 1e-5,
    time_limit: float = 10.0,
) -> Solution:
    """The best counts of groups per layer.

    vram, ram: bytes for neurons; ram None: the neurons that are not on the GPU fit into RAM.
    ram_value: value of a firing served by RAM (0 to 1), if ram is given. gap: accepted relative
    distance from the optimum. time_limit: seconds after which the best placement found so far is
    returned.

    Raises ValueError without scipy.
    """
    start = time.monotonic()
    program = _Program(layers, vram, ram, ram_value if ram is not None else 0.0)
    relaxed = program.refine(integers=False, gap=gap, until=start + time_limit)
    found = program.refine(integers=True, gap=gap, until=start + time_limit)
    gpu = _filled(layers, found.gpu, vram, split=False)
    memory = np.maximum(gpu, found.memory)
    if ram is not None:
        on_gpu = sum(int(la.sizes[:g].sum()) for la, g in zip(layers, gpu, strict=True))
        memory = _filled(layers, memory, ram + on_gpu, split=True)
    value = value_of(layers, gpu, memory, ram_value if ram is not None else 0.0)
    return Solution(
        gpu,
        memory,
        value,
        max(relaxed.bound, value),
        max(0.0, min(found.bound, relaxed.bound) - value) / max(abs(value), 1e-300),
        time.monotonic() - start,
    )


def _filled(layers: Sequence[Layer], counts: np.ndarray, capacity: int, split: bool) -> np.ndarray:
    """Adds groups while they fit, the hottest first: those with a value below the gap, and neurons
    that never fired in the profile but may fire later.

    split: a layer without any groups may get a part; otherwise it gets all or nothing.
    """
    counts = counts.copy()
    left = capacity - sum(int(la.sizes[:k].sum()) for la, k in zip(layers, counts, strict=True))

    def step(i: int) -> tuple[float, int, int]:
        """The next step in layer i: its value per byte (negated), the layer, the new count."""
        k, n = int(counts[i]), len(layers[i].values)
        to = k + 1 if k or split else n
        size = max(1, int(layers[i].sizes[k:to].sum()))
        return -float(layers[i].values[k:to].sum()) / size, i, to

    steps = [step(i) for i in range(len(layers)) if counts[i] < len(layers[i].values)]
    heapq.heapify(steps)
    while steps:
        _, i, to = heapq.heappop(steps)
        size = int(layers[i].sizes[counts[i] : to].sum())
        if size > left:
            continue
        left -= size
        counts[i] = to
        if to < len(layers[i].values):
            heapq.heappush(steps, step(i))
    return counts


def value_of(
    layers: Sequence[Layer], gpu: Any, memory: Any = None, ram_value: float = 0.0
) -> float:
    """The objective for counts of groups [L] on the GPU, and on the GPU or in RAM."""
    total = 0.0
    for i, layer in enumerate(layers):
        total += (1 - ram_value) * float(layer.values[: gpu[i]].sum())
        if memory is not None:
            total += ram_value * float(layer.values[: memory[i]].sum())
    return total


@dataclass(frozen=True)
class _Round:
    """A solution of the current problem, and an upper bound of every solution."""

    gpu: np.ndarray
    memory: np.ndarray
    value: float
    bound: float


class _Curve:
    """Columns of one count per layer: a block of the first groups, the rest one by one, the last.

    With weight w they add w V(count) to the objective. The columns, each with one entry per layer:
    block (binary: the first `least` groups), more (integer: full groups after the block), last
    (binary: the smaller group at the end), value (of `more`, below its tangents). first: index of
    the first column in the problem.
    """

    COLUMNS = 4

    def __init__(self, layers: Sequence[Layer], weight: float, least: Sequence[int], first: int):
        n = len(layers)
        self.n, self.weight = n, weight
        self.block, self.more, self.last, self.value = (
            first + k * n + np.arange(n) for k in range(self.COLUMNS)
        )
        self.least = np.minimum(least, [len(layer.values) for layer in layers])
        full = np.array([layer.n_full for layer in layers])
        self.n_more = np.maximum(0, full - self.least)
        self.has_last = np.array([len(la.values) for la in layers]) > np.maximum(full, self.least)
        # prefix[l][k]: impact of the first k groups after the block.
        self.prefix = [
            np.concatenate(([0.0], np.cumsum(layer.values[c : c + k])))
            for layer, c, k in zip(layers, self.least, self.n_more, strict=True)
        ]
        self.block_value = np.array(
            [la.values[:c].sum() for la, c in zip(layers, self.least, strict=True)]
        )
        self.block_bytes = np.array(
            [la.sizes[:c].sum() for la, c in zip(layers, self.least, strict=True)], dtype=np.int64
        )
        self.group_bytes = np.array([la.sizes[0] for la in layers], dtype=np.int64)
        self.last_bytes = np.array([la.sizes[-1] for la in layers], dtype=np.int64)
        self.last_value = np.array([la.values[-1] for la in layers])
        self.cuts = {(i, j) for i in range(n) for j in _ladder(self.n_more[i])}

    def upper(self) -> np.ndarray:
        """Upper bounds of the columns [4 n]; the lower ones are 0."""
        best = np.array([p[-1] for p in self.prefix])
        return np.concatenate([np.ones(self.n), self.n_more, self.has_last, best])

    def costs(self) -> np.ndarray:
        """Coefficients of the columns in the objective [4 n]."""
        zero, one = np.zeros(self.n), np.ones(self.n)
        return self.weight * np.concatenate([self.block_value, zero, self.last_value, one])

    def byte_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns and bytes of a unit of each, layer by layer within each kind [3 n]."""
        columns = np.concatenate([self.block, self.more, self.last])
        return columns, np.concatenate([self.block_bytes, self.group_bytes, self.last_bytes])

    def rows(self, rows: "_Rows") -> None:
        """Adds the constraints between the columns of a layer, and the tangents."""
        for i in range(self.n):
            k = int(self.n_more[i])
            if k:  # no groups after the block without the block
                rows.add([(self.more[i], 1), (self.block[i], -k)], -math.inf, 0)
            if self.has_last[i]:  # the last group comes last
                rows.add([(self.last[i], 1), (self.block[i], -1)], -math.inf, 0)
                rows.add([(self.more[i], 1), (self.last[i], -k)], 0, math.inf)
        for i, j in sorted(self.cuts):
            slope = self.prefix[i][j + 1] - self.prefix[i][j]
            rows.add(
                [(self.value[i], 1), (self.more[i], -slope)],
                -math.inf,
                self.prefix[i][j] - slope * j,
            )

    def tighten(self, x: np.ndarray, slack: float) -> bool:
        """Adds the tangents that a solution violates by more than slack; returns if any."""
        before = len(self.cuts)
        for i in range(self.n):
            at, n = float(x[self.more[i]]), int(self.n_more[i])
            if not n:
                continue
            j = min(int(at + 1e-6), n - 1)
            true = float(np.interp(at, (j, j + 1), self.prefix[i][j : j + 2]))
            if x[self.value[i]] > true + slack:
                self.cuts |= {(i, k) for k in (j - 1, j, j + 1) if 0 <= k < n}
        return len(self.cuts) > before

    def counts(self, x: np.ndarray) -> np.ndarray:
        """Groups of each layer in an integer solution [n]."""
        whole = np.rint(x).astype(np.int64)
        return whole[self.block] * self.least + whole[self.more] + whole[self.last]


class _Rows:
    """Rows of a growing sparse matrix, with bounds."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, entries: Any, low: float, high: float) -> None:
        row = len(self._low)
        self._entries += [(row, int(column), float(a)) for column, a in entries]
        self._low.append(low)
        self._high.append(high)

    def constraint(self, n_columns: int) -> Any:
        optimize, sparse = _scipy()
        row, column, a = zip(*self._entries, strict=True)
        matrix = sparse.csr_array((a, (row, column)), shape=(len(self._low), n_columns))
        return optimize.LinearConstraint(matrix, self._low, self._high)


class _Program:
    """The mixed-integer problem; tangents are added to it."""

    def __init__(self, layers: Sequence[Layer], vram: int, ram: int | None, ram_value: float):
        self._layers, self._ram_value = layers, ram_value
        least = [max(1, layer.least) for layer in layers]
        self._gpu = _Curve(layers, 1.0 - ram_value, least, 0)
        self._curves = [self._gpu]
        self._memory: _Curve | None = None
        if ram is not None:
            n = _Curve.COLUMNS * len(layers)
            self._memory = _Curve(layers, ram_value, [1] * len(layers), n)
            self._curves.append(self._memory)
        # Whole units keep the coefficients small, and so the capacities exact in floating point.
        self._unit = math.gcd(*(int(b) for c in self._curves for b in c.byte_columns()[1])) or 1
        self._vram = max(0, vram) // self._unit
        self._ram = None if ram is None else max(0, ram) // self._unit

    def refine(self, integers: bool, gap: float, until: float) -> _Round:
        """Solves and adds tangents until the value of the solution is exact.

        Returns the best placement seen (for a relaxation: all counts 0) and the bound.
        """
        none = np.zeros(len(self._layers), dtype=np.int64)
        best, bound = _Round(none, none, 0.0, math.inf), math.inf
        while True:
            left = until - time.monotonic()
            if left <= 0 and math.isfinite(bound):
                break
            x, top = self._solve(integers, gap, max(left, 1.0))
            bound = min(bound, top)
            if x is None:  # out of time
                break
            if integers:
                gpu, memory = self._counts(x)
                value = value_of(self._layers, gpu, memory, self._ram_value)
                if value >= best.value:
                    best = _Round(gpu, memory, value, bound)
                if bound - best.value <= gap * abs(best.value):
                    break
            slack = _EPSILON * max(1.0, abs(top)) / len(self._layers)
            tightened = [curve.tighten(x, slack) for curve in self._curves]
            if not any(tightened):
                break
        return _Round(best.gpu, best.memory, best.value, bound)

    def _solve(self, integers: bool, gap: float, seconds: float) -> tuple[np.ndarray | None, float]:
        """A solution of the current problem (None if time ran out) and a bound of its objective."""
        optimize, _ = _scipy()
        upper = np.concatenate([c.upper() for c in self._curves])
        kinds = np.repeat(np.tile([1, 1, 1, 0], len(self._curves)), len(self._layers))
        result = optimize.milp(
            -np.concatenate([c.costs() for c in self._curves]),
            constraints=self._rows().constraint(len(upper)),
            bounds=optimize.Bounds(0, upper),
            integrality=kinds if integers else np.zeros_like(kinds),
            options={"mip_rel_gap": gap / 2, "time_limit": seconds},
        )
        bound = result.mip_dual_bound if integers else result.fun
        if bound is None or not math.isfinite(bound):
            bound = -math.inf if result.x is None else result.fun
        return result.x, -float(bound)

    def _rows(self) -> _Rows:
        rows = _Rows()
        columns, sizes = self._gpu.byte_columns()
        units = sizes // self._unit
        rows.add(zip(columns, units, strict=True), -math.inf, self._vram)
        if self._memory is not None and self._ram is not None:
            others, more = self._memory.byte_columns()
            others_units = more // self._unit
            both = [*zip(others, others_units, strict=True), *zip(columns, -units, strict=True)]
            rows.add(both, -math.inf, self._ram)
            n = len(self._layers)
            for i in range(n):  # what is on the GPU is in memory
                own = [(others[k], others_units[k]) for k in range(i, 3 * n, n)]
                gpu = [(columns[k], -units[k]) for k in range(i, 3 * n, n)]
                rows.add(own + gpu, 0, math.inf)
        for curve in self._curves:
            curve.rows(rows)
        return rows

    def _counts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gpu = self._gpu.counts(x)
        if self._memory is None:
            return gpu, np.array([len(layer.values) for layer in self._layers])
        return gpu, np.maximum(gpu, self._memory.counts(x))


def _ladder(n: int) -> list[int]:
    """Initial tangents: at 0, 1, 3, 7, ... of n segments, and at the last."""
    rungs = {(1 << k) - 1 for k in range(int(n).bit_length())} | {int(n) - 1}
    return [j for j in rungs if 0 <= j < n]


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError:
        raise ValueError(
            "placement needs the package scipy: pip install 'powerinfer_cpp[place]'"
        ) from None
    return optimize, sparse
