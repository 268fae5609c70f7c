"""Perplexity (measure/perplexity.py)."""

from .measure.perplexity import Comparison, Estimate, compare, perplexity

__all__ = ["Comparison", "Estimate", "compare", "perplexity"]
