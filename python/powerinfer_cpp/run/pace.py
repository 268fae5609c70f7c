"""What of the engine's time a sender may take from others: for prompts, further texts and masks."""

import math
from collections.abc import Iterable, Mapping

# How long a step may take while texts are written and a prompt waits, and the least rows of a
# prompt in such a step: with fewer, the weights are read for too few tokens.
STEP_SECONDS = 0.25
LEAST_CHUNK = 16

# What a sender gets at once while others write: rows of prompts, an ordinary one, or of texts
# beside its first; and seconds for masks. Beyond, it gets a share of the time.
BURST = 512
MASK_BURST = 0.25
# The same for choosing tokens: some samplers look at all of a vocabulary.
CHOICE_BURST = 0.25
# The least of these shares; it is one of all senders, if that is more.
LEAST_SHARE = 0.05
# Of that share, what each kind of work beside the rows gets: masks, and in the server requests,
# short work and long work. With a whole share for each, a sender would have four more.
BESIDE = 0.25


class Pace:
    """What rows take, and how many a step may have."""

    def __init__(self) -> None:
        self.row_seconds = 0.0  # of a row of a step with a prompt, on average; 0: not known yet
        self._write_seconds = 0.0  # of a step without one
        self.rows, self.masks, self.choices = Credit(), Credit(), Credit()

    def most_beside(self, n_batch: int) -> int:
        """Rows of prompts that a step may have beside those of texts that are written."""
        if not self.row_seconds:
            return n_batch
        return min(n_batch, max(LEAST_CHUNK, int(STEP_SECONDS / self.row_seconds)))

    def most_of(self, sender: str, wanted: int, others_write: bool) -> int:
        """Of the rows that a sender's prompts want, those that they get now."""
        if not others_write or not self.row_seconds:
            return wanted
        may = int(self._rows_of(sender))
        return min(wanted, may) if may >= min(wanted, LEAST_CHUNK) else 0

    def many_of(self, sender: str) -> bool:
        """May a step write several texts of a sender while others write?"""
        return not self.row_seconds or self._rows_of(sender) > 0

    def patience(self, sender: str, others_write: bool) -> float:
        """Seconds that a step may wait for the masks of a sender; 0: none is begun."""
        return max(0.0, MASK_BURST - self.masks.spent(sender)) if others_write else math.inf

    def may_choose(self, sender: str) -> bool:
        """May a step write texts of a sender while others write, by what choosing its tokens has
        taken?"""
        return self.choices.spent(sender) < CHOICE_BURST

    def count(
        self,
        prompts: Mapping[str, int],
        writing: Mapping[str, int],
        seconds: float,
        senders: Iterable[str],
    ) -> None:
        """Notes a step. prompts, writing: rows of prompts, and the others, by sender; senders: who
        is at work."""
        n_prompt, n_writing = sum(prompts.values()), sum(writing.values())
        n_rows = n_prompt + n_writing
        if n_prompt >= LEAST_CHUNK:
            self.row_seconds += _part(self.row_seconds, seconds / n_rows)
        most = 2 * BURST * self.row_seconds  # nobody owes more
        if n_prompt == 0:
            self._write_seconds += _part(self._write_seconds, seconds)
        elif self.row_seconds:
            # Rows of a long context take longer than others, so their time is counted.
            more = seconds - self._write_seconds if n_writing else seconds
            for sender, n in prompts.items():
                self.rows.spend(sender, max(0.0, more) * n / n_prompt, most)
        each = min(self.row_seconds, seconds / max(1, n_rows))
        for sender, n in writing.items():
            if n > 1:
                self.rows.spend(sender, (n - 1) * each, most)
        part = share(len(set(senders)))
        self.rows.earn(seconds * part)
        self.masks.earn(seconds * part * BESIDE)
        self.choices.earn(seconds * part)

    def _rows_of(self, sender: str) -> float:
        """Rows that a sender may take at once."""
        return BURST - self.rows.spent(sender) / self.row_seconds


def _part(mean: float, value: float) -> float:
    """What a value changes in a running mean, which is 0 at first."""
    return (value - mean) * (0.3 if mean else 1)


def share(n: int) -> float:
    """Of the time, what one of n senders gets."""
    return max(LEAST_SHARE, 1 / max(1, n))


class Credit:
    """Time that each sender has taken from others, in seconds, until it comes back."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    def spent(self, sender: str) -> float:
        """What a sender has taken, and not got back."""
        return self._spent.get(sender, 0.0)

    def spend(self, sender: str, seconds: float, most: float = math.inf) -> None:
        """Counts what a sender takes; together no more than most."""
        self._spent[sender] = min(most, self.spent(sender) + seconds)

    def earn(self, seconds: float) -> None:
        """Gives so much back to all who spent."""
        self._spent = {s: spent - seconds for s, spent in self._spent.items() if spent > seconds}
