"""Numbers and names of the tiers where neurons can live."""

from collections.abc import Sequence
from typing import Any

STORAGE, RAM, GPU = range(3)  # values of blk.N.ffn_tier
NAMES = ("storage", "ram", "gpu")  # by these numbers
TITLES = ("storage", "RAM", "GPU")


def by_name(values: Sequence[Any]) -> dict[str, Any]:
    """Values for storage, RAM and GPU as a dict by name, the fastest tier first."""
    return dict(zip(reversed(NAMES), reversed(values), strict=True))
