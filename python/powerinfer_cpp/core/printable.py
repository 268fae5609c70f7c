"""Safe output of text from files on a terminal."""


def printable(text: str) -> str:
    """The text with control characters replaced by Python's escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
