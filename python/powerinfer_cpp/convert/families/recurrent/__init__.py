"""Families whose layers may have a state."""
