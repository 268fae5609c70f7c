"""One text that is written: what is known of it, and how its next token is chosen.

Every text goes this way, whether a scheduler computes it beside others (scheduler.py) or a loop in
the caller's thread (loop.py): they compute rows, and a `Generation` makes tokens and text of them.
"""

import contextlib
from collections.abc import Callable

import numpy as np

from ..core.logits import LogitsProcessor, has_masks, processed
from ..core.sampler import Sampler, Samplers
from ..core.state import checkpoints_of
from ..text.completion import Piece, Writer
from ..text.logprobs import choice
from .drafts import NO_IDS, Drafts, Guess
from .growing import GrowingIds
from .requests import Ticket

# Bytes that a token adds to a text; None for an end token.
TokenText = Callable[[int], bytes | None]


class Generation:
    """A text of a request; index: which one.

    ids: the prompt and what was chosen after it. n_done: positions of them that are computed. seq:
    the sequence that holds them, -1: none. guessed: ids that may follow, computed in the last eval
    as well; row: the row of that eval that the next token follows from. checkpoints: positions
    where the states of layers are kept.
    """

    def __init__(self, ticket: Ticket, index: int, limit: int, text: TokenText):
        of = ticket.request
        self.ticket, self.index = ticket, index
        self.ids = GrowingIds(of.ids, of.generated)
        self.n_prompt = len(of.ids)
        self.checkpoints = checkpoints_of(self.n_prompt, of.shared)
        self.seq = -1
        self.n_done = 0
        self.row = 0
        self.guessed = NO_IDS
        self.sampler: Sampler | None = None
        self.processor: LogitsProcessor | None = None
        self.drafts: Drafts | None = None
        self.writer = None if of.endless else Writer(limit, of.stops, of.offset, of.with_end)
        self.token = -1  # the last one that was chosen
        self.fresh: list[int] = []  # tokens since the last update
        self.late: np.ndarray | None = None  # logits whose token is not chosen yet
        self.has_masks = False  # does the processor compute masks beside the engine?
        self.foreseen = False  # has it begun for the next token?
        self.step = 0  # the last one that wrote it
        self._text = text

    def prepare(self, samplers: Samplers) -> None:
        """Makes what chooses its tokens, when it gets a place: thousands of texts may wait."""
        if self.sampler is None:
            of = self.ticket.request
            self.processor = of.processors() if of.processors else None
            self.has_masks = has_masks(self.processor)
            self.drafts = of.drafts() if of.drafts else None
            self.sampler = samplers.make(
                of.params, of.seed + self.index, of.ids, of.last_n, of.breakers
            )

    @property
    def sender(self) -> str:
        """Who takes turns with others."""
        return self.ticket.request.sender or self.ticket.request.owner

    @property
    def body(self) -> int:
        """Which texts were asked for together."""
        return self.ticket.body

    @property
    def n_left(self) -> int:
        """Positions to compute before the next token can be chosen."""
        return len(self.ids) - self.n_done

    @property
    def writes(self) -> bool:
        """Has it chosen a token that is computed next?"""
        return self.n_left == 1 and self.ids.written

    @property
    def n_tokens(self) -> int:
        """Tokens that were chosen, without an end token."""
        return len(self.ids) - self.n_prompt

    def append(self, token: int) -> None:
        """Adds a token that was not chosen, as part of a prompt."""
        assert self.sampler is not None
        self.ids.append(token, generated=False)
        self.sampler.accept((token,))
        self.foreseen = False

    # ---- Drafts --------------------------------------------------------------------------

    def guess(self, most: int, guess: Guess, beside: int = 1) -> int:
        """Finds ids that may follow, at most so many; returns how many. guess: that of its
        sequence. beside: texts that are computed in the same pass."""
        self.guessed = NO_IDS
        if self.drafts is not None:
            owner = self.ticket.request.owner
            self.guessed = self.drafts.propose(self.ids.all, most, beside, owner, guess)
            self.ticket.n_drafted += len(self.guessed)
        return len(self.guessed)

    def computed(self, seconds: float) -> None:
        """Its last token was computed, with what it guessed, in so many seconds."""
        if self.drafts is not None:
            self.drafts.computed(len(self.guessed), seconds)

    # ---- Choosing ------------------------------------------------------------------------

    def foresee(self) -> None:
        """Lets the processor begin for the next token, if it has not."""
        if self.foreseen:
            return
        self.foreseen = True
        if hasattr(self.processor, "begin_mask"):
            with contextlib.suppress(ValueError):  # the call says it
                self.processor.begin_mask(self.ids.all)

    def ready(self, seconds: float) -> bool:
        """Can the next token be chosen at once? Waits so long for it. It must be foreseen."""
        return not hasattr(self.processor, "mask_ready") or self.processor.mask_ready(seconds)

    def choose(self, logits: np.ndarray, token: int | None = None) -> Piece | None:
        """Chooses the next token, unless it is given; returns what it makes certain of the text.

        logits: float32 [n_vocab] of the last position, a view. Raises what the processor, the
        criteria and the sampler raise.
        """
        of = self.ticket.request
        assert self.sampler is not None
        if token is None:
            scores = processed(self.processor, self.ids.all, logits)
            token = self.sampler.sample(scores, len(scores))
        self.token = token
        record = None if of.n_top is None else choice(token, logits, of.n_top)
        if of.limit == 0:  # only the prompt was asked for
            return Piece("", "length", 0)
        if of.criteria is not None and of.criteria(self.ids.all, logits.copy()):
            reason = getattr(of.criteria, "reason", "stop")
            return Piece("", reason, 0) if self.writer is None else self.writer.finish(reason)
        piece = None
        if self.writer is not None:
            self.fresh.append(token)
            self.ticket.n_tokens += 1
            data = of.shown[token] if token in of.shown else self._text(token)
            piece = self.writer.push(data, record)
            if piece is not None and piece.reason:
                return piece
        self.ids.append(token)
        self.sampler.accept((token,))
        self.foreseen = False
        self._follow(token)
        return piece

    def _follow(self, token: int) -> None:
        """Takes what was computed after this token, if it was guessed."""
        if len(self.guessed) and self.guessed[0] == token:
            assert self.drafts is not None
            self.guessed = self.guessed[1:]
            self.n_done, self.row = self.n_done + 1, self.row + 1
            self.ticket.n_accepted += 1
            self.drafts.advanced()
        else:
            self.guessed = NO_IDS
