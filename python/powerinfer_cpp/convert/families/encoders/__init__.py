"""Families that give vectors of texts and scores of pairs: rows see both sides."""
