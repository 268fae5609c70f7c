"""Statistics of neurons (convert/statistics)."""

from ..convert.statistics import Statistics, embed_statistics, merged

__all__ = ["Statistics", "embed_statistics", "merged"]
