"""Text from files on a terminal."""


def printable(text: str) -> str:
    """Without characters that a terminal would obey, which stand as Python writes them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
