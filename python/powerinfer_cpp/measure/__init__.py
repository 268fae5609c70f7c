"""Figures of a model: perplexity, speed, traces of its neurons."""
