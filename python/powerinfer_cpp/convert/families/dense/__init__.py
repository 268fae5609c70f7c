"""Families whose layers have one feed-forward block."""
