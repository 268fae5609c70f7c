"""Continuous batching: several texts share each pass of the engine.

A step computes one token of every text that is being written, and a chunk of the prompts that wait,
then chooses tokens. What a text becomes depends on its own prompt, parameters and seed alone:
`pi_eval_batch` gives the same bits whatever else is in the batch.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from ..core.errors import ContextOverflowError
from ..core.log import say
from ..core.sampler import Samplers
from ..core.session import Session
from ..core.state import checkpoint_flags
from ..core.work import Work
from ..text.completion import Piece
from ..text.logprobs import choice
from ..text.processor_time import elsewhere
from .drafts import NO_IDS
from .generation import Generation, TokenText
from .pace import Pace
from .queue import Queue
from .requests import Done, Request, Snapshot, Ticket, Update
from .sequences import Sequences
from .turns import shared

# How long a step waits for masks of grammars. A text whose mask takes longer misses steps; the
# others go on.
MASK_SECONDS = 0.01
IDLE_SECONDS = 0.05  # the same while there is nothing else to do


# Called with a ticket, the number of a token of its first text, and the row of the last eval from
# which that token is chosen.
Watch = Callable[[Ticket, int, int], None]


class Keeper(Protocol):
    """Keeps prefixes beyond this process. Called by the thread that runs the scheduler.

    step: the lengths of these are multiples of it.
    """

    step: int

    def computed(self, owner: str, seq: int, ids: np.ndarray, generated: np.ndarray) -> None:
        """A sequence holds these int32 ids [n]. generated: bool [n]."""

    def gone(self, seq: int) -> None:
        """A sequence holds nothing any more."""

    def release(self) -> bool:
        """Gives positions back, since texts need them. Were there any?"""


class Scheduler:
    """Texts that are written together in one session. Use it from one thread at a time.

    n_parallel: texts that are computed at the same time; n_queue: of one sender that may wait. The
    session must have the fields that `sequences.fields` gives. text: bytes of a token, None for an
    end token.
    """

    def __init__(
        self,
        session: Session,
        n_seq: int,
        n_logits: int,
        n_parallel: int,
        n_queue: int,
        samplers: Samplers,
        text: TokenText,
    ):
        self._session, self._sequences = session, Sequences(session, n_seq)
        self._n_logits, self._n_parallel = n_logits, n_parallel
        self._queue = Queue(session.n_ctx, n_parallel, n_queue)
        self._samplers, self._text = samplers, text
        self._active: list[Generation] = []
        self._cancelled: set[int] = set()  # tickets
        self._left: dict[int, int] = {}  # texts of a ticket that have not ended
        self._pace, self.done = Pace(), Done()
        self._guess_seconds = 0.0  # before the last pass
        self._crowded = False  # positions ran out, and no text has ended since
        self.n_steps = self.n_changes = 0  # steps, and places that texts got or left
        self._senders: tuple[int, set[str]] = 0, set()  # of active texts, at this n_changes
        self._updates: list[Update] = []  # of the step that runs
        self._watch: Watch | None = None
        self._watched_from = 0  # rows of steps behind this one can be watched
        self._keeper: Keeper | None = None

    def keep_with(self, keeper: Keeper) -> Sequences:
        """Tells a keeper of what is computed from now on. Returns the sequences, for its use in the
        thread that runs the scheduler."""
        self._keeper, self._sequences.when_dropped = keeper, keeper.gone
        return self._sequences

    @property
    def watch(self) -> Watch | None:
        """Is called for the tokens that are chosen from rows that were computed since it was set.
        What it raises ends the watching, and nothing else."""
        return self._watch

    @watch.setter
    def watch(self, see: Watch | None) -> None:
        self._watch, self._watched_from = see, self.n_steps

    # ---- Requests ------------------------------------------------------------------------

    def tickets(self, requests: Sequence[Request]) -> list[Ticket]:
        """`Queue.tickets`. Any thread may call this."""
        return self._queue.tickets(requests, self.n_active)

    def check_room(self, more: Mapping[str, int]) -> None:
        """`Queue.check_room`. Any thread may call this."""
        self._queue.check_room(more, self.n_active)

    def add(self, ticket: Ticket) -> None:
        """Puts the texts of a request into the queue."""
        request = ticket.request
        self._queue.redeem(ticket)
        limit = min(request.limit, self._session.n_ctx - len(request.ids))
        texts = [Generation(ticket, i, limit, self._text) for i in range(request.n)]
        self._left[ticket.number] = len(texts)
        self._queue.add(texts)

    def cancel(self, ticket: Ticket) -> None:
        """Ends a request without further updates, before the next step computes anything."""
        if ticket.number in self._left:
            self._cancelled.add(ticket.number)

    @property
    def n_active(self) -> int:
        """Texts that are being computed."""
        return len(self._active)

    @property
    def n_waiting(self) -> int:
        """Texts that have no place yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Is there nothing to do?"""
        return not self._active and not self._queue

    @property
    def n_kept(self) -> int:
        """Prefixes that are kept."""
        return self._sequences.n_kept

    def work(self) -> Work:
        """The work of the session so far."""
        return self._session.work()

    def snapshot(self) -> Snapshot:
        """What it is doing, and has done."""
        texts = [(t.ticket, t.index, len(t.ids), t.n_done) for t in self._active]
        counts = self.n_steps, self.n_waiting, self.n_kept
        return Snapshot(texts, self.work(), replace(self.done), *counts)

    # ---- Steps ---------------------------------------------------------------------------

    def step(self) -> list[Update]:
        """In four phases, texts get places, drafts guess, one pass computes, and tokens are chosen.
        In each of them, an error of a text ends that text alone."""
        self._drop_cancelled()
        self._admit()
        ready = [text for text in self._active if text.n_left == 0 and text.late is None]
        if not ready:  # else the last pass has computed what follows, too
            self._choose_late(0.0, True)
            ready = self._pass()
            if not ready and not self._updates:
                self._choose_late(IDLE_SECONDS, False)
        self._choose_tokens(ready)
        updates, self._updates = self._updates, []
        return updates

    def fail_all(self, error: Exception) -> list[Update]:
        """Ends every request with an error, after one of this object that no text explains: it
        asks neither the session nor the counts for anything, and cannot be used any more."""
        texts, self._active = [*self._active, *self._queue.clear()], []
        updates, self._updates = self._updates, []
        for text in texts:
            text.ticket.ended = time.perf_counter()
            updates.append(Update(text.ticket, text.index, None, text.fresh, error))
        return updates

    def _drop_cancelled(self) -> None:
        gone, self._cancelled = self._cancelled, set()
        if not gone:
            return
        self._crowded = False
        for text in [t for t in self._active if t.ticket.number in gone]:
            self._leave(text)
        self._queue.remove(gone)
        for number in gone:
            self._left.pop(number, None)

    # ---- Places --------------------------------------------------------------------------

    def _admit(self) -> None:
        """Gives places to texts that wait."""
        while self._queue and (self._has_place() or self._give_way()):
            text = self._queue.take(self._places(), self._may_begin)
            if text is None:
                break
            try:
                text.prepare(self._samplers)
                self._begin(text)
            except Exception as error:
                self._fail(text, error)

    def _places(self) -> Counter[str]:
        return Counter(text.sender for text in self._active)

    def _has_place(self) -> bool:
        return len(self._active) < self._n_parallel and not (self._crowded and self._active)

    def _may_begin(self, text: Generation) -> bool:
        """Not if another text of the request will have computed the prompt soon."""
        return not any(t.ticket is text.ticket and t.n_done < t.n_prompt - 1 for t in self._active)

    def _give_way(self) -> bool:
        """Takes a place from the sender with the most, if one that waits has two fewer. What the
        text has computed is kept, if positions do not run out. Is there a place now?"""
        places, victim = self._places(), self._last_of_most()
        most = 0 if victim is None else places[victim.sender]
        if victim is None or most < 2:
            return False
        few = (t for t in self._queue.firsts() if places[t.sender] + 2 <= most)
        if not any(map(self._may_begin, few)):
            return False
        self._put_back(victim, keep=not self._crowded)
        return True

    def _last_of_most(self) -> Generation | None:
        """Of the senders with the most places, the text that came last."""
        places = self._places()
        most = max(places.values(), default=0)
        return next((t for t in reversed(self._active) if places[t.sender] == most), None)

    def _begin(self, text: Generation) -> None:
        ticket, of = text.ticket, text.ticket.request
        text.seq, text.n_done = self._sequences.take(
            of.owner, text.ids.all, text.ids.generated, text.sender
        )
        text.checkpoints |= self._sequences.partings(text.seq, text.n_done)
        if self._keeper is not None:
            step = self._keeper.step
            text.checkpoints = {at - at % step for at in text.checkpoints if at >= step}
        if self._must_echo(text):
            self._session.truncate(0, text.seq)  # all of its logits are needed
            text.n_done, ticket.echoed = 0, [choice(of.ids[0], None, of.n_top or 0)]
        if ticket.began is None:
            ticket.began, ticket.n_reused = time.perf_counter(), text.n_done
        self._active.append(text)
        self.n_changes += 1
        if of.limit:
            self._foresee(text, self._others(text.sender))

    def _others(self, sender: str) -> bool:
        """Are texts of other senders written?"""
        if self._senders[0] != self.n_changes:  # it is asked for each token
            self._senders = self.n_changes, {text.sender for text in self._active}
        return not self._senders[1] <= {sender}

    def _put_back(self, text: Generation, keep: bool) -> None:
        """Takes a text's place away; what is not known then is computed again, with the same
        result. keep: what it has computed, if that can be."""
        self._leave(text, keep)
        text.seq, text.n_done, text.late, text.guessed = -1, 0, None, NO_IDS
        self._queue.put_back(text)

    def _leave(self, text: Generation, keep: bool = True) -> None:
        """Ends a text's use of its sequence, without what was guessed. keep: what it has
        computed, if that can be: others may begin with it."""
        self.n_changes += 1
        if text in self._active:
            self._active.remove(text)
        if text.seq >= 0:
            self._sequences.leave(text.seq, text.n_done if keep else 0)

    # ---- Guesses -------------------------------------------------------------------------

    def _turns(self, texts: list[Generation]) -> list[Generation]:
        """Of the texts that write, those of this step: all, but where senders share the engine one
        of each sender who has taken its share; its texts take turns. Who has chosen tokens for
        longer than its share has none."""
        of: dict[str, list[Generation]] = {}
        for text in texts:
            of.setdefault(text.sender, []).append(text)
        if len(of) > 1:
            for sender, several in of.items():
                if len(several) > 1 and not self._pace.many_of(sender):
                    of[sender] = [min(several, key=lambda text: text.step)]
            of = {s: each for s, each in of.items() if self._pace.may_choose(s)} or of
        return [text for several in of.values() for text in several]

    def _choose_rows(self) -> dict[Generation, int]:
        """How many rows of each text are computed: one of those that write now. Prompts share the
        others, by senders and then by texts."""
        rows = dict.fromkeys(self._turns([t for t in self._active if t.writes]), 1)
        left = self._session.n_batch - len(rows)
        if rows:
            left = self._pace.most_beside(left)
        wanted = {text: text.n_left for text in self._active if not text.writes and text.n_left}
        echoed = {text: n for text, n in wanted.items() if self._must_echo(text)}
        # All logits of these must be kept, beside the last ones of the others.
        wanted.update(shared(echoed, self._n_logits - len(self._active)))
        by_sender = Counter[str]()
        for text, n in wanted.items():
            by_sender[text.sender] += n
        writers = {text.sender for text in rows}
        most = {s: self._pace.most_of(s, n, bool(writers - {s})) for s, n in by_sender.items()}
        for sender, n in shared(most, left).items():
            of = {text: n for text, n in wanted.items() if text.sender == sender}
            rows.update((text, share) for text, share in shared(of, n).items() if share > 0)
        if all(text.writes for text in rows):  # beside a prompt, a pass takes longer anyway
            self._guess(rows, left)
        return rows

    def _guess(self, rows: dict[Generation, int], left: int) -> None:
        """Adds what the drafts of these texts guess, up to so many rows. One that fails is
        switched off for its text, which needs none."""
        left, begin = min(left, self._n_logits - len(rows)), time.perf_counter()
        for text in rows:
            room = min(left, self._session.n_ctx - len(text.ids))
            of_sequence = partial(self._session.guess, sequence=text.seq)
            try:
                more = text.guess(room, of_sequence, len(rows))
            except Exception as error:
                text.drafts, text.guessed, more = None, NO_IDS, 0
                say(f"a text goes on without drafts: {error}", False, logging.WARNING)
            rows[text] += more
            left -= more
        self._guess_seconds = time.perf_counter() - begin

    # ---- The pass ------------------------------------------------------------------------

    def _pass(self) -> list[Generation]:
        """Computes rows; the texts whose next token can be chosen."""
        rows = self._choose_rows()
        if not rows:
            return []
        self.n_steps, self.done.n_in_steps = self.n_steps + 1, self.done.n_in_steps + len(rows)
        try:
            while not self._compute(rows):
                rows = self._choose_rows()
        except Exception as error:
            rows = self._compute_apart(rows, error)
        return self._computed(rows)

    def _compute_apart(
        self, rows: dict[Generation, int], error: Exception
    ) -> dict[Generation, int]:
        """After an error, the rows of the text that waits longest, alone: the error may be of one
        text, as where only its experts cannot be read. The others wait for the next step. A text
        that fails alone ends, and all do if two fail one after the other: then it is no text's."""
        if len(rows) > 1:
            for text in sorted(rows, key=lambda text: text.step)[:2]:
                text.guessed = NO_IDS
                alone = {text: 1 if text.writes else rows[text]}
                try:
                    text.n_done = self._session.cut_back(text.n_done, text.seq)
                    return alone if self._compute(alone) else {}  # there is room now
                except Exception as alone_error:
                    error = alone_error
                    self._fail(text, error)
                    del rows[text]
        for text in rows:
            self._fail(text, error)
        return {}

    @staticmethod
    def _must_echo(text: Generation) -> bool:
        """Does it record the choices of its prompt, and has not recorded all?"""
        of = text.ticket.request
        return of.echo and text.index == 0 and len(text.ticket.echoed) < text.n_prompt

    def _compute(self, rows: dict[Generation, int]) -> bool:
        """Computes these rows. If positions run out, makes room instead and returns False."""
        total = sum(rows.values())
        ids, seqs = np.empty(total, np.int32), np.empty(total, np.int32)
        keep, generated = np.zeros(total, bool), np.empty(total, bool)
        checkpoint, at = np.zeros(total, bool), 0
        for text, n in rows.items():
            part, done = slice(at, at + n), text.n_done
            if text.writes:
                ids[at], ids[at + 1 : at + n] = text.ids.all[done], text.guessed
                generated[part] = keep[part] = True
            else:
                ids[part] = text.ids.all[done : done + n]
                generated[part] = text.ids.generated[done : done + n]
                keep[part] = self._must_echo(text)
                keep[at + n - 1] |= n == text.n_left
                kept_before = checkpoint_flags(done, n, text.checkpoints)
                if kept_before is not None:
                    checkpoint[part] = kept_before
            seqs[part] = text.seq
            at += n
        begin = time.perf_counter()
        try:
            self._session.eval(ids, keep, seqs, generated, checkpoint)
        except ContextOverflowError:  # nothing was computed
            if any(text.guessed.size for text in rows):
                for text in [t for t in rows if t.writes]:
                    rows[text], text.guessed = 1, NO_IDS
                return self._compute(rows)
            if not self._make_room():
                raise
            return False
        prompts, writing = Counter[str](), Counter[str]()
        for text, n in rows.items():
            (writing if text.writes else prompts)[text.sender] += n
            text.step = self.n_steps
        seconds = time.perf_counter() - begin
        self._pace.count(prompts, writing, seconds, self._places())
        if not prompts:
            for text in rows:
                text.computed(seconds + self._guess_seconds)
        return True

    def _make_room(self) -> bool:
        """Frees positions of what is kept, else those of a text."""
        before = self._session.free_positions()
        if self._sequences.forget_one():
            if self._keeper is not None and self._session.free_positions() == before:
                self._keeper.release()  # it may have the same pages
            return True
        if self._keeper is not None and self._keeper.release():
            return True
        text = self._last_of_most()
        if text is None or len(self._active) < 2:
            return False
        self._put_back(text, keep=False)
        self._crowded = True
        return True

    def _computed(self, rows: Mapping[Generation, int]) -> list[Generation]:
        """Counts computed rows; returns the texts whose next token can be chosen."""
        at, ready = 0, []
        for text, n in rows.items():
            first, at = at, at + n
            done = 1 if text.writes else n  # what was guessed counts when it is chosen
            try:
                if self._must_echo(text):
                    self._echo(text, first, n)
                text.n_done, text.row = text.n_done + done, first + done - 1
                if text.n_left == 0:
                    if text.index == 0 and len(text.ids) == text.n_prompt:
                        self._tell_keeper(text)
                    ready.append(text)
            except Exception as error:
                self._fail(text, error)
        return ready

    def _echo(self, text: Generation, at: int, n: int) -> None:
        """Records the choices of a prompt's tokens after these rows."""
        n_top = text.ticket.request.n_top or 0
        for i in range(min(n, text.n_prompt - 1 - text.n_done)):
            following = text.ticket.request.ids[text.n_done + i + 1]
            logits = self._session.logits(at + i)
            text.ticket.echoed.append(choice(following, logits, n_top))

    def _tell_keeper(self, text: Generation) -> None:
        if self._keeper is not None:
            n, owner = text.n_done, text.ticket.request.owner
            self._keeper.computed(owner, text.seq, text.ids.all[:n], text.ids.generated[:n])

    # ---- Choices -------------------------------------------------------------------------

    def _choose_tokens(self, ready: Sequence[Generation]) -> None:
        """Chooses a token for each text whose last position was computed."""
        if self._watch is not None:
            self._see(ready)
        chosen = self._sampled([text for text in ready if text.processor is None])
        until, senders = time.monotonic() + MASK_SECONDS, {text.sender for text in ready}
        for text in ready:
            try:
                logits = self._session.logits(text.row)
                if text in chosen or self._has_mask(text, until, senders - {text.sender}):
                    self._choose_token(text, logits, chosen.get(text))
                else:
                    text.late, text.guessed = logits.copy(), NO_IDS
                    self._session.truncate(text.n_done, text.seq)
            except Exception as error:  # of a grammar, or logits that are no numbers
                self._fail(text, error)

    def _see(self, ready: Sequence[Generation]) -> None:
        """Shows rows to who watches, but for those of passes before that, which guesses left."""
        try:
            for text in ready:
                if self._watch and text.index == 0 and text.step > self._watched_from:
                    self._watch(text.ticket, text.n_tokens, text.row)
        except Exception as error:
            self._watch = None
            say(f"neurons cannot be watched any more: {error}", False, logging.WARNING)

    def _sampled(self, plain: Sequence[Generation]) -> dict[Generation, int]:
        """Tokens of texts without a processor, by all threads; of none, if one text has no token
        to choose: which one is found where each chooses for itself."""
        samplers = {text: text.sampler for text in plain if text.sampler is not None}
        before = [(t.sender, s, s.seconds) for t, s in samplers.items() if self._others(t.sender)]
        try:
            tokens = self._session.sample_rows([*samplers.values()], [text.row for text in plain])
        except ValueError:
            return {}
        for sender, sampler, seconds in before:
            self._pace.choices.spend(sender, sampler.seconds - seconds)
        return dict(zip(plain, tokens, strict=True))

    def _has_mask(self, text: Generation, until: float, others: Collection[str]) -> bool:
        """Can its token be chosen? Waits until then, if its sender has not made others wait too
        often."""
        if not self._foresee(text, bool(others)):
            return False
        begin = time.monotonic()
        patience = self._pace.patience(text.sender, bool(others))
        found = text.ready(max(0.0, min(patience, until - begin)))
        if others and text.has_masks:
            self._pace.masks.spend(text.sender, time.monotonic() - begin)
        return found

    def _foresee(self, text: Generation, others: bool) -> bool:
        """Begins a text's next mask, unless its sender has taken its time from others. Is it
        begun?"""
        if not text.has_masks or self._pace.patience(text.sender, others) > 0:
            text.foresee()
        return text.foreseen

    def _choose_late(self, seconds: float, busy: bool) -> None:
        """Chooses the tokens that had to wait; waits so long for one of them. busy: may others be
        written meanwhile?"""
        until = time.monotonic() + seconds
        late = [text for text in self._active if text.late is not None]
        for text in late:
            share = max(0.0, until - time.monotonic()) / len(late)
            others = busy and self._others(text.sender)
            try:
                if text.late is not None and self._foresee(text, others) and text.ready(share):
                    logits, text.late = text.late, None
                    self._choose_token(text, logits, None)
            except Exception as error:
                self._fail(text, error)

    def _choose_token(self, text: Generation, logits: np.ndarray, token: int | None) -> None:
        """Adds a token, which is chosen here unless it is given."""
        ticket, n_guessed = text.ticket, len(text.guessed)
        others, before, begin = self._others(text.sender), elsewhere(), time.perf_counter()
        try:
            piece = text.choose(logits, token)
        finally:
            if others:
                self._pace.choices.spend(text.sender, time.perf_counter() - begin)
                if text.has_masks:  # what it took elsewhere
                    self._pace.masks.spend(text.sender, elsewhere() - before)
        if ticket.first is None:
            ticket.first = time.perf_counter()
        if piece is not None and piece.reason:
            self._end(text, piece)
            return
        if n_guessed and not len(text.guessed):  # the last guess was right, or the next one wrong
            self._session.truncate(text.n_done, text.seq)
        self._foresee(text, others)
        if piece is not None:
            fresh, text.fresh = text.fresh, []
            self._updates.append(Update(ticket, text.index, piece, fresh))

    # ---- Ends ----------------------------------------------------------------------------

    def _end(self, text: Generation, piece: Piece) -> None:
        self._updates.append(Update(text.ticket, text.index, piece, text.fresh))
        try:
            self._session.truncate(text.n_done, text.seq)  # without what was guessed
            self._tell_keeper(text)
        except Exception as error:  # the text is whole
            say(f"a text was not kept: {error}", False, logging.WARNING)
        self._leave(text)
        self._count_end(text)

    def _fail(self, text: Generation, error: Exception) -> None:
        self._updates.append(Update(text.ticket, text.index, None, text.fresh, error))
        self._leave(text, keep=False)
        self._count_end(text)

    def _count_end(self, text: Generation) -> None:
        self._crowded, ticket = False, text.ticket
        self._left[ticket.number] -= 1
        if self._left[ticket.number] == 0:
            del self._left[ticket.number]
            ticket.ended = time.perf_counter()
            self.done.add(ticket)
