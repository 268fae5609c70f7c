"""Continuous batching: several texts share each pass of the engine.

A step computes one token of every text that is being written, and a chunk of the prompts that wait,
then chooses tokens. What a text becomes depends on its own prompt, parameters and seed alone:
`pi_eval_batch` gives the same bits whatever else is in the batch.
"""

import contextlib
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.errors import ContextOverflowError, RequestError
from ..core.sampler import Sampler
from ..core.sampling import Sampling
from ..core.session import Session
from ..core.work import Work
from ..text.completion import Piece, Writer
from ..text.logprobs import Choice, choice
from .growing import GrowingIds
from .sequences import Sequences

# Changes the logits of the next token: called with ids and logits, returns logits.
Processor = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Ends a text before its next token, if it returns true: called with ids and logits.
Criteria = Callable[[np.ndarray, np.ndarray], bool]
MakeSampler = Callable[[int, Sampling, Sequence[int]], Sampler]

# How long a step may take while texts are written and a prompt waits, and the least rows of a
# prompt in such a step: with fewer, the weights are read for too few tokens.
STEP_SECONDS = 0.25
LEAST_CHUNK = 16

# How long a step waits for masks of grammars. A text whose mask takes longer misses steps; the
# others go on.
MASK_SECONDS = 0.01
IDLE_SECONDS = 0.05  # the same while there is nothing else to do


class QueueFull(Exception):
    """There are too many requests."""


@dataclass(frozen=True)
class Request:
    """A prompt, and what to write after it.

    ids: the prompt, at least one id. limit: tokens of each text at most; 0: only the prompt. n: so
    many texts, text i with the seed + i. processors: makes what changes the logits of one text; or
    None. n_top: number of likely tokens whose log-probabilities are recorded; None: none. echo:
    records those of the prompt, too. offset: characters of the prompt, for the offsets of recorded
    tokens. shown: bytes of control tokens that are part of the text. criteria: ends a text. owner:
    whose prefixes may be used, and who waits in one queue.
    """

    ids: Sequence[int]
    limit: int
    params: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stops: Sequence[bytes] = ()
    n: int = 1
    processors: Callable[[], Processor | None] | None = None
    n_top: int | None = None
    echo: bool = False
    offset: int = 0
    with_end: bool = False
    shown: Mapping[int, bytes] = field(default_factory=dict)
    criteria: Criteria | None = None
    owner: str = ""


@dataclass
class Ticket:
    """A request on its way. Times are those of time.perf_counter()."""

    request: Request
    number: int
    asked: float
    began: float | None = None  # when its prompt was taken up
    first: float | None = None  # its first token
    ended: float | None = None
    n_reused: int = 0  # positions of the prompt that were known
    n_tokens: int = 0  # of all texts
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
    that were written, and seconds, summed over the texts."""

    n_requests: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_written: int = 0
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
        self.prompt_s += ticket.first - ticket.began
        self.written_s += ticket.ended - ticket.first


class _Text:
    """One text: what is computed of it, and how its next token is chosen."""

    def __init__(self, ticket: Ticket, index: int, limit: int):
        of = ticket.request
        self.ticket, self.index = ticket, index
        self.ids = GrowingIds(of.ids)
        self.n_prompt = len(of.ids)
        self.seq = -1
        self.n_done = 0  # positions that are computed
        self.sampler: Sampler | None = None
        self.processor: Processor | None = None
        self.writer = Writer(limit, of.stops, of.offset, of.with_end)
        self.fresh: list[int] = []  # tokens since the last update
        self.late: np.ndarray | None = None  # logits whose token is not chosen yet

    def foresee(self) -> None:
        """Lets the processor begin for the next token."""
        if hasattr(self.processor, "begin_mask"):
            with contextlib.suppress(ValueError):  # the call says it
                self.processor.begin_mask(self.ids.all)

    def ready(self, seconds: float) -> bool:
        """Can the next token be chosen at once? Waits so long for it."""
        return not hasattr(self.processor, "mask_ready") or self.processor.mask_ready(seconds)

    def prepare(self, make_sampler: MakeSampler) -> None:
        """Makes what chooses its tokens, when it gets a place: thousands of texts may wait."""
        if self.sampler is None:
            of = self.ticket.request
            self.processor = of.processors() if of.processors else None
            self.sampler = make_sampler(of.seed + self.index, of.params, of.ids)

    @property
    def n_left(self) -> int:
        """Positions to compute before the next token can be chosen."""
        return len(self.ids) - self.n_done

    @property
    def writes(self) -> bool:
        """Has it chosen a token that is computed next?"""
        return len(self.ids) > self.n_prompt and self.n_left == 1

    def flags(self) -> np.ndarray:
        """bool [n]: which of its ids were generated."""
        return np.arange(len(self.ids)) >= self.n_prompt


class Scheduler:
    """Texts that are written together in one session. Use it from one thread at a time.

    n_parallel: texts that are computed at the same time; n_queue: that may wait. The session must
    have the fields that `sequences.fields` gives. make_sampler: a sampler of a seed and parameters,
    for what follows ids.
    text: bytes of a token, None for an end token.
    """

    def __init__(
        self,
        session: Session,
        n_seq: int,
        n_logits: int,
        n_parallel: int,
        n_queue: int,
        make_sampler: MakeSampler,
        text: Callable[[int], bytes | None],
    ):
        self._session, self._sequences = session, Sequences(session, n_seq)
        self._n_logits, self._n_parallel, self._n_queue = n_logits, n_parallel, n_queue
        self._make_sampler, self._text = make_sampler, text
        self._active: list[_Text] = []
        self._waiting: OrderedDict[str, deque[_Text]] = OrderedDict()  # by owner: they take turns
        self._cancelled: set[int] = set()  # tickets
        self._left: dict[int, int] = {}  # texts of a ticket that have not ended
        self._numbers = itertools.count(1)
        self.n_waiting = 0  # texts that have no place yet
        self._n_promised = 0  # texts of tickets that are not added yet
        self._lock = threading.Lock()  # of this number
        self._row_seconds = 0.0  # of a prompt's rows, on average
        self._crowded = False  # positions ran out, and no text has ended since
        self.n_steps = 0
        self.done = Done()
        # Called with a ticket, the number of a token of its first text, and the row of the last
        # eval from which that token is chosen.
        self.watch: Callable[[Ticket, int, int], None] | None = None

    # ---- Requests ------------------------------------------------------------------------

    def tickets(self, requests: Sequence[Request]) -> list[Ticket]:
        """Checked requests, to be added, all or none; any thread may call this.

        They may wait if the queue has room for all their texts, or is empty: however many one
        caller asks for at once, an idle scheduler takes them. Raises QueueFull, RequestError for an
        empty prompt, and ContextOverflowError for one that leaves no room.
        """
        n_ctx = self._session.n_ctx
        for request in requests:
            if not request.ids:
                raise RequestError("the prompt is empty")
            if len(request.ids) + (request.limit > 0) > n_ctx:
                raise ContextOverflowError(
                    f"the prompt has {len(request.ids)} tokens, which leaves no room in a context "
                    f"of {n_ctx}"
                )
        more = sum(request.n for request in requests)
        with self._lock:
            n = self.n_waiting + self._n_promised
            if n and n + more > self._n_queue + max(0, self._n_parallel - self.n_active):
                raise QueueFull(f"{n} texts are waiting already")
            self._n_promised += more
        return [Ticket(request, next(self._numbers), time.perf_counter()) for request in requests]

    def add(self, ticket: Ticket) -> None:
        """Puts the texts of a request into the queue."""
        request = ticket.request
        with self._lock:
            self._n_promised -= request.n
        limit = min(request.limit, self._session.n_ctx - len(request.ids))
        texts = [_Text(ticket, i, limit) for i in range(request.n)]
        self._waiting.setdefault(request.owner, deque()).extend(texts)
        self._left[ticket.number] = len(texts)
        self.n_waiting += len(texts)

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request without further updates, before the next step computes anything."""
        if ticket.number in self._left:
            self._cancelled.add(ticket.number)

    @property
    def n_active(self) -> int:
        """Texts that are being computed."""
        return len(self._active)

    @property
    def n_kept(self) -> int:
        """Prefixes that are kept."""
        return self._sequences.n_kept

    @property
    def idle(self) -> bool:
        """Is there nothing to do?"""
        return not self._active and not self._waiting

    def texts(self) -> list[tuple[Ticket, int, int, int]]:
        """Of each active text: its ticket and index, its positions, and those it has computed."""
        return [(t.ticket, t.index, len(t.ids), t.n_done) for t in self._active]

    def work(self) -> Work:
        """The work of the session so far."""
        return self._session.work()

    # ---- Steps ---------------------------------------------------------------------------

    def step(self) -> list[Update]:
        """One pass of the engine. An error of the engine ends the texts that took part in it."""
        self._drop_cancelled()
        updates = self._admit() + self._choose_late(0.0)
        rows = self._choose_rows()
        if not rows:
            return updates or self._choose_late(IDLE_SECONDS)
        self.n_steps += 1
        try:
            while not self._compute(rows):
                rows = self._choose_rows()
        except Exception as error:
            return updates + [self._fail(text, error) for text in rows]
        return updates + self._choose_tokens(rows)

    def fail_all(self, error: Exception) -> list[Update]:
        """Ends every request with an error."""
        texts = self._active + [text for queue in self._waiting.values() for text in queue]
        self._waiting.clear()
        self.n_waiting = 0
        return [self._fail(text, error) for text in texts]

    def _drop_cancelled(self) -> None:
        gone, self._cancelled = self._cancelled, set()
        if not gone:
            return
        self._crowded = False
        for text in [t for t in self._active if t.ticket.number in gone]:
            self._active.remove(text)
            self._sequences.keep(text.seq)
        for owner, queue in list(self._waiting.items()):
            left = deque(t for t in queue if t.ticket.number not in gone)
            if left:
                self._waiting[owner] = left
            else:
                del self._waiting[owner]
        self.n_waiting = sum(map(len, self._waiting.values()))
        for number in gone:
            self._left.pop(number, None)

    def _admit(self) -> list[Update]:
        """Gives places to texts that wait; owners take turns. Returns those that cannot begin."""
        passed: set[str] = set()
        failed: list[Update] = []
        while len(self._active) < self._n_parallel and len(passed) < len(self._waiting):
            if self._crowded and self._active:
                break
            owner = next(o for o in self._waiting if o not in passed)
            queue = self._waiting[owner]
            if self._waits_for_sibling(queue[0]):
                passed.add(owner)
                continue
            text = queue.popleft()
            self.n_waiting -= 1
            del self._waiting[owner]
            if queue:  # behind the others
                self._waiting[owner] = queue
            try:
                text.prepare(self._make_sampler)
            except Exception as error:  # of this text: the others go on
                failed.append(self._fail(text, error))
                continue
            self._begin(text)
        return failed

    def _waits_for_sibling(self, text: _Text) -> bool:
        """Will another text of the request have computed the prompt soon?"""
        return any(t.ticket is text.ticket and t.n_done < t.n_prompt - 1 for t in self._active)

    def _begin(self, text: _Text) -> None:
        ticket, of = text.ticket, text.ticket.request
        text.seq, text.n_done = self._sequences.take(of.owner, text.ids.all, text.flags())
        if of.echo and text.index == 0 and len(text.ids) == text.n_prompt:
            self._session.truncate(0, text.seq)  # all of its logits are needed
            text.n_done, ticket.echoed = 0, [choice(of.ids[0], None, of.n_top or 0)]
        if ticket.began is None:
            ticket.began, ticket.n_reused = time.perf_counter(), text.n_done
        self._active.append(text)
        if of.limit:
            text.foresee()

    def _choose_rows(self) -> dict[_Text, int]:
        """How many rows of each text are computed: one of those that write, and a chunk of prompts,
        the first come first."""
        rows = {text: 1 for text in self._active if text.writes}
        left = self._session.n_batch - len(rows)
        if rows and self._row_seconds:
            left = min(left, max(LEAST_CHUNK, int(STEP_SECONDS / self._row_seconds)))
        for text in self._active:
            n = 0 if text.writes else min(text.n_left, left, self._most_rows(text, rows))
            if n > 0:
                rows[text] = n
                left -= n
        return rows

    def _most_rows(self, text: _Text, rows: dict[_Text, int]) -> int:
        """Rows whose logits can be kept, if an echo needs them all."""
        if not self._echoes(text):
            return self._session.n_batch
        echoed = sum(n for t, n in rows.items() if self._echoes(t))
        return self._n_logits - len(self._active) - echoed

    @staticmethod
    def _echoes(text: _Text) -> bool:
        return text.ticket.request.echo and text.index == 0 and text.n_done < text.n_prompt

    def _put_back(self, text: _Text) -> None:
        """Takes a text's place away; it is computed again later, with the same result."""
        self._sequences.forget(text.seq)
        text.seq, text.n_done, text.late = -1, 0, None
        owner = text.ticket.request.owner
        self._waiting.setdefault(owner, deque()).appendleft(text)
        self.n_waiting += 1

    def _compute(self, rows: dict[_Text, int]) -> bool:
        """Computes these rows. If positions run out, makes room instead and returns False."""
        total = sum(rows.values())
        ids, seqs = np.empty(total, np.int32), np.empty(total, np.int32)
        keep, generated = np.zeros(total, bool), np.empty(total, bool)
        at = 0
        for text, n in rows.items():
            part, done = slice(at, at + n), text.n_done
            ids[part] = text.ids.all[done : done + n]
            seqs[part] = text.seq
            generated[part] = np.arange(done, done + n) >= text.n_prompt
            keep[part] = self._echoes(text)
            keep[at + n - 1] |= n == text.n_left
            at += n
        begin = time.perf_counter()
        try:
            self._session.eval(ids, keep, seqs, generated)
        except ContextOverflowError:  # nothing was computed
            if not self._make_room():
                raise
            return False
        n_prompt = sum(n for text, n in rows.items() if n > 1)
        if n_prompt >= LEAST_CHUNK:
            seconds = (time.perf_counter() - begin) / n_prompt
            self._row_seconds += (seconds - self._row_seconds) * (0.3 if self._row_seconds else 1)
        return True

    def _make_room(self) -> bool:
        """Frees positions of what is kept, else those of the text that came last."""
        if self._sequences.forget_oldest():
            return True
        if len(self._active) < 2:
            return False
        self._put_back(self._active.pop())
        self._crowded = True
        return True

    def _choose_tokens(self, rows: dict[_Text, int]) -> list[Update]:
        """Chooses a token for each text whose last position was computed."""
        ready: list[tuple[_Text, int]] = []
        at = 0
        for text, n in rows.items():
            if self._echoes(text):
                self._echo(text, at, n)
            at += n
            text.n_done += n
            if text.n_left == 0:
                ready.append((text, at - 1))
        for text, row in ready:
            if self.watch is not None and text.index == 0:
                self.watch(text.ticket, text.writer.n_tokens, row)
        plain = [(text, row) for text, row in ready if text.processor is None]
        updates = []
        chosen: dict[_Text, int] = {}
        try:
            samplers = [text.sampler for text, _ in plain if text.sampler is not None]
            tokens = self._session.sample_rows(samplers, [row for _, row in plain])
            chosen = {text: token for (text, _), token in zip(plain, tokens, strict=True)}
        except ValueError:  # one of them has no token to choose; which one is found below
            pass
        until = time.monotonic() + MASK_SECONDS
        for text, row in ready:
            if text not in chosen and not text.ready(max(0.0, until - time.monotonic())):
                text.late = self._session.logits(row).copy()
                continue
            update = self._choose_token(text, self._session.logits(row), chosen.get(text))
            if update is not None:
                updates.append(update)
        return updates

    def _choose_late(self, seconds: float) -> list[Update]:
        """Chooses the tokens that had to wait; waits so long for one of them."""
        until, updates = time.monotonic() + seconds, []
        late = [text for text in self._active if text.late is not None]
        for text in late:
            share = max(0.0, until - time.monotonic()) / len(late)
            if text.late is not None and text.ready(share):
                logits, text.late = text.late, None
                update = self._choose_token(text, logits, None)
                if update is not None:
                    updates.append(update)
        return updates

    def _choose_token(self, text: _Text, logits: np.ndarray, token: int | None) -> Update | None:
        """Adds a token, which is chosen here unless it is given."""
        try:
            if token is None:
                token = self._choose(text, logits)
            return self._add(text, token, logits)
        except Exception as error:  # of a grammar, or logits that are no numbers
            return self._fail(text, error)

    def _choose(self, text: _Text, logits: np.ndarray) -> int:
        assert text.sampler is not None
        if text.processor is not None:
            logits = text.processor(text.ids.all, logits.copy())
            logits = np.ascontiguousarray(logits, dtype=np.float32)
        return text.sampler.sample(logits, self._session.n_vocab)

    def _echo(self, text: _Text, at: int, n: int) -> None:
        """Records the choices of a prompt's tokens after these rows."""
        n_top = text.ticket.request.n_top or 0
        for i in range(min(n, text.n_prompt - 1 - text.n_done)):
            following = text.ticket.request.ids[text.n_done + i + 1]
            logits = self._session.logits(at + i)
            text.ticket.echoed.append(choice(following, logits, n_top))

    def _add(self, text: _Text, token: int, logits: np.ndarray) -> Update | None:
        """Adds a chosen token to a text."""
        ticket, of = text.ticket, text.ticket.request
        if ticket.first is None:
            ticket.first = time.perf_counter()
        record = None
        if of.n_top is not None:
            record = choice(token, logits, of.n_top)
        if of.limit == 0:  # only the prompt was asked for
            return self._end(text, Piece("", "length", 0))
        if of.criteria is not None and of.criteria(text.ids.all, logits):
            return self._end(text, text.writer.finish())
        text.fresh.append(token)
        data = of.shown[token] if token in of.shown else self._text(token)
        piece = text.writer.push(data, record)
        ticket.n_tokens += 1
        if piece is not None and piece.reason:
            return self._end(text, piece)
        text.ids.append(token)
        assert text.sampler is not None
        text.sampler.accept([token])
        text.foresee()
        if piece is None:
            return None
        fresh, text.fresh = text.fresh, []
        return Update(ticket, text.index, piece, fresh)

    def _end(self, text: _Text, piece: Piece) -> Update:
        self._active.remove(text)
        self._sequences.keep(text.seq)
        self._count_end(text.ticket)
        return Update(text.ticket, text.index, piece, text.fresh)

    def _fail(self, text: _Text, error: Exception) -> Update:
        if text in self._active:
            self._active.remove(text)
            self._sequences.forget(text.seq)
        self._count_end(text.ticket)
        return Update(text.ticket, text.index, None, text.fresh, error)

    def _count_end(self, ticket: Ticket) -> None:
        self._crowded = False
        self._left[ticket.number] -= 1
        if self._left[ticket.number] == 0:
            del self._left[ticket.number]
            ticket.ended = time.perf_counter()
            self.done.add(ticket)
