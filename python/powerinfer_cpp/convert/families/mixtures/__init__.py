"""Families whose layers may choose among experts."""
