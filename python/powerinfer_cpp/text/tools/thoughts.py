"""How models write thoughts, which stand between two tags where an answer begins."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thoughts:
    """How thoughts are written.

    opening, closing: the tags, without the white space around them. begin, end: the same as a
    template writes them, with it. field: under which name a template takes the thoughts of earlier
    messages; "content": with their tags before the text; None: it has no place for them.
    """

    opening: str
    closing: str
    begin: str = ""
    end: str = ""
    field: str | None = None

    @property
    def head(self) -> str:
        """What stands before thoughts."""
        return self.begin or f"{self.opening}\n"

    @property
    def tail(self) -> str:
        """What stands between thoughts and the answer."""
        return self.end or f"\n{self.closing}\n\n"

    def opened_by(self, prompt: str) -> bool:
        """Does a prompt end with the opening tag, so that the answer begins with thoughts?"""
        return prompt.rstrip().endswith(self.opening)

    def written(self, thoughts: str) -> str:
        """Thoughts with their tags."""
        return f"{self.head}{thoughts}{self.tail}"
