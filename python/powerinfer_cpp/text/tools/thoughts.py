"""How models write thoughts, which stand between two tags where an answer begins."""

import re
from dataclasses import dataclass

_TAG = re.compile(r"[<\[][^<>\[\]]+[>\]]")


@dataclass(frozen=True)
class Thoughts:
    """How thoughts are written.

    opening, closing: the tags, without the white space around them. begin, end: the same as a
    template writes them, with it. field: under which name a template takes the thoughts of earlier
    messages; "content": with their tags before the text; None: it has no place for them.
    lead, last: tags before and after the text of an answer, which are no part of it. around:
    further tags that are none where thoughts may stand anywhere.
    """

    opening: str
    closing: str
    begin: str = ""
    end: str = ""
    field: str | None = None
    lead: str = ""
    last: str = ""
    around: tuple[str, ...] = ()

    @property
    def leads(self) -> list[str]:
        """What may stand before the text of an answer, the longest first: a prompt ends within
        `lead`, or a call follows where the text would."""
        tags = list(_TAG.finditer(self.lead))
        if not tags:
            return []
        ends = [self.lead[at:] for at in range(tags[-1].start() + 1)]
        begins = [self.lead[: tag.start()] for tag in tags[1:]]
        return sorted({text.strip() for text in [*ends, *begins]}, key=len, reverse=True)

    @property
    def anywhere(self) -> bool:
        """May thoughts stand anywhere in an answer? Their tags are control tokens then, which no
        text has."""
        return "|" in self.opening

    @property
    def frames(self) -> list[str]:
        """Where thoughts stand anywhere: the tags that are never part of an answer's text."""
        alone = [tag[0] for tag in _TAG.finditer(self.opening)]
        leads = [self.lead[: tag.start()] for tag in _TAG.finditer(self.lead)]
        bare = alone if len(alone) == 1 else []
        texts = [self.opening, *bare, self.closing, self.lead, *leads, self.last, *self.around]
        return sorted({text.strip() for text in texts} - {""}, key=len, reverse=True)

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
