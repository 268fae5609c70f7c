"""What is asked of a scheduler or a loop, and what they answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.checks import whole_or_none
from ..core.errors import ContextOverflowError
from ..core.logits import LogitsProcessor, StoppingCriteria
from ..core.sampler import Breakers
from ..core.sampling import Sampling
from ..core.work import Work
from ..text.completion import Piece
from ..text.logprobs import Choice
from .drafts import Drafts


class QueueFull(Exception):
    """There are too many requests."""


@dataclass(frozen=True)
class Request:
    """A prompt, and what to write after it.

    ids: the prompt, at least one id. limit: tokens of each text at most; 0: only the prompt. n: so
    many texts, text i with the seed + i. processors: makes what changes the logits of one text; or
    None. n_top: number of likely tokens whose log-probabilities are recorded; None: none. echo:
    records those of the prompt, too. offset: characters of the prompt, for the offsets of recorded
    tokens. shown: bytes of control tokens that are part of the text. criteria: ends a text. drafts:
    makes what guesses the tokens of one text; or None. generated: bool [n], which ids of the prompt
    were generated; None: none. endless: ids alone, without text, until the criteria end them.
    owner: whose prefixes may be used. sender: who takes turns with others.
    last_n: tokens that get penalties, -1: all; None: as many as usual. breakers: those of params,
    if they are known. shared: positions of the prompt at which later prompts are
    likely to differ, such as the end of a system message.
    """

    ids: Sequence[int]
    limit: int
    params: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stops: Sequence[bytes] = ()
    n: int = 1
    processors: Callable[[], LogitsProcessor | None] | None = None
    n_top: int | None = None
    echo: bool = False
    offset: int = 0
    with_end: bool = False
    shown: Mapping[int, bytes] = field(default_factory=dict)
    criteria: StoppingCriteria | None = None
    drafts: Callable[[], Drafts | None] | None = None
    generated: np.ndarray | None = None
    endless: bool = False
    owner: str = ""
    sender: str = ""
    last_n: int | None = None
    breakers: Breakers | None = None
    shared: Sequence[int] = ()


@dataclass
class Ticket:
    """A request on its way. Times are those of time.perf_counter()."""

    request: Request
    number: int
    asked: float
    body: int = 0  # the number of the first that was asked for with it
    began: float | None = None  # when its prompt was taken up
    first: float | None = None  # its first token
    ended: float | None = None
    n_reused: int = 0  # positions of the prompt that were known
    n_tokens: int = 0  # of all texts
    n_drafted: int = 0  # tokens that were guessed, of all texts, and those that were right
    n_accepted: int = 0
    echoed: list[Choice] = field(default_factory=list)  # of the prompt, before the first piece


@dataclass(frozen=True)
class Update:
    """What a step brought for one text of a request: a piece, or why it failed.

    ticket.ended is set with the last one of a request. tokens: ids that were chosen since the last
    update of the text.
    """

    ticket: Ticket
    index: int
    piece: Piece | None
    tokens: Sequence[int] = ()
    error: Exception | None = None


@dataclass
class Done:
    """What ended requests took: tokens of prompts that were computed and that were known, tokens
    that were written, guessed, and guessed rightly, and seconds, summed over the texts. n_most:
    tokens of the longest. n_in_steps: texts of each pass so far, of all passes together."""

    n_requests: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_written: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_most: int = 0
    n_in_steps: int = 0
    prompt_s: float = 0.0
    written_s: float = 0.0

    def add(self, ticket: Ticket) -> None:
        """Counts a request that has ended."""
        self.n_requests += 1
        if ticket.began is None or ticket.first is None or ticket.ended is None:
            return
        self.n_prompt += len(ticket.request.ids) - ticket.n_reused
        self.n_reused += ticket.n_reused
        self.n_written += ticket.n_tokens
        self.n_drafted += ticket.n_drafted
        self.n_accepted += ticket.n_accepted
        longest = len(ticket.request.ids) + -(-ticket.n_tokens // ticket.request.n)
        self.n_most = max(self.n_most, longest)
        self.prompt_s += ticket.first - ticket.began
        self.written_s += ticket.ended - ticket.first


@dataclass(frozen=True)
class Snapshot:
    """A scheduler between two steps. texts: of each active text its ticket and index, its
    positions, and those it has computed. work, done: so far. n_kept: prefixes that are kept."""

    texts: Sequence[tuple[Ticket, int, int, int]]
    work: Work
    done: Done
    n_steps: int
    n_waiting: int
    n_kept: int


def n_following(n_prompt: int, n_ctx: int, max_tokens: int | None) -> int:
    """Tokens that can follow a prompt; max_tokens: at most so many, None or <= 0: any number.
    Raises ContextOverflowError for 0."""
    max_tokens = whole_or_none("max_tokens", max_tokens)
    room = n_ctx - n_prompt
    if room <= 0:
        raise ContextOverflowError(
            f"the prompt has {n_prompt} tokens, which leaves no room in a context of {n_ctx} "
            "(n_ctx of Llama, -c of commands)"
        )
    return min(max_tokens, room) if max_tokens and max_tokens > 0 else room
