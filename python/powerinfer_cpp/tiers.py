"""Where neurons can live: the numbers and names of the tiers."""

from collections.abc import Sequence
from typing import Any

STORAGE, RAM, GPU = range(3)  # values of blk.N.ffn_tier
NAMES = ("storage", "ram", "gpu")  # by these numbers
TITLES = ("storage", "RAM", "GPU")


def by_name(values: Sequence[Any]) -> dict[str, Any]:
    """Values for storage, RAM and GPU by their names, the fastest first, as people list them."""
    return dict(zip(reversed(NAMES), reversed(values), strict=True))
