"""How fast prompts may be read while texts are written."""

from collections.abc import Iterable, Mapping

# How long a step may take while texts are written and a prompt waits, and the least rows of a
# prompt in such a step: with fewer, the weights are read for too few tokens.
STEP_SECONDS = 0.25
LEAST_CHUNK = 16

# Rows of prompts that a sender gets at once while others write: an ordinary prompt. Beyond, its
# prompts get a share of the time.
BURST = 512
# The least of these shares; it is one of all senders, if that is more.
LEAST_SHARE = 0.05


class Pace:
    """What rows take, and how many a step may have."""

    def __init__(self) -> None:
        self.row_seconds = 0.0  # of a row of a step with a prompt, on average; 0: not known yet
        self._write_seconds = 0.0  # of a step without one
        self.credit = Credit()

    def most_beside(self, n_batch: int) -> int:
        """Rows of prompts that a step may have beside those of texts that are written."""
        if not self.row_seconds:
            return n_batch
        return min(n_batch, max(LEAST_CHUNK, int(STEP_SECONDS / self.row_seconds)))

    def most_of(self, sender: str, wanted: int, others_write: bool) -> int:
        """Of the rows that a sender's prompts want, those that they get now."""
        if not others_write or not self.row_seconds:
            return wanted
        may = self.credit.rows(sender, self.row_seconds)
        return min(wanted, may) if may >= min(wanted, LEAST_CHUNK) else 0

    def count(
        self, prompts: Mapping[str, int], n_writing: int, seconds: float, senders: Iterable[str]
    ) -> None:
        """Notes a step. prompts: rows of prompts by sender; n_writing: the others; senders: who is
        at work."""
        n_prompt = sum(prompts.values())
        if n_prompt >= LEAST_CHUNK:
            self.row_seconds += _part(self.row_seconds, seconds / (n_prompt + n_writing))
        if n_prompt == 0:
            self._write_seconds += _part(self._write_seconds, seconds)
        elif self.row_seconds:
            # Rows of a long context take longer than others, so their time is counted.
            more = seconds - self._write_seconds if n_writing else seconds
            for sender, n in prompts.items():
                self.credit.spend(sender, max(0.0, more) * n / n_prompt, self.row_seconds)
        self.credit.earn(seconds, senders)


def _part(mean: float, value: float) -> float:
    """What a value changes in a running mean, which is 0 at first."""
    return (value - mean) * (0.3 if mean else 1)


class Credit:
    """Time that the prompts of each sender may take while others write, in seconds.

    A long prompt must not hold up those who write, nor an ordinary one: each sender has the time of
    BURST rows, and it comes back with the sender's share of the time.
    """

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    def rows(self, sender: str, row_seconds: float) -> int:
        """Rows that it may take now. row_seconds: of one."""
        return max(0, int(BURST - self._spent.get(sender, 0.0) / row_seconds))

    def spend(self, sender: str, seconds: float, row_seconds: float) -> None:
        """Counts the time of its prompts; nobody owes more than that of twice BURST."""
        spent = self._spent.get(sender, 0.0) + seconds
        self._spent[sender] = min(2 * BURST * row_seconds, spent)

    def earn(self, seconds: float, senders: Iterable[str]) -> None:
        """Gives back what so much time is for each: to all who spent, by the number of senders that
        are at work."""
        share = seconds * max(LEAST_SHARE, 1 / max(1, len(set(senders))))
        self._spent = {
            sender: spent - share for sender, spent in self._spent.items() if spent > share
        }
