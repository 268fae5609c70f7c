"""What chats have in common in all dialects: what is asked for, and answers as rows of blocks."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...run.requests import Request, Ticket
from ...text.completion import Piece
from ...text.completion import events as events_of
from ...text.grammar import LlamaGrammar
from ...text.thinking import Thinking
from ...text.tool_chat import Turn
from ...text.tools import CallArguments, CallBegin, Content, Part, Thought, parts
from ..served import ServedModel
from ..texts import Form
from .offered import Offered


def chat_turn(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    offered: Offered,
    tool_choice: Any = None,
    parallel: bool | None = None,
    grammar: LlamaGrammar | None = None,
    thinking: Thinking | None = None,
) -> Turn:
    """The turn that answers messages; these and the choice are in the shape of OpenAI's chats.
    Raises what `ServedModel.turn` does."""
    thinking = model.thinking if thinking is None else thinking
    turn = model.turn(messages, offered.tools, tool_choice, grammar, parallel, thinking)
    return replace(turn, parser=offered.parser(turn.parser))


def chat_request(model: ServedModel, turn: Turn, stops: Sequence[str], **options: Any) -> Request:
    """The request of a turn. stops: the client's; options: of `ServedModel.request`, which come
    before those of the turn."""
    of_turn = {
        "grammar": turn.grammar,
        "shown": turn.shown,
        "limit": turn.limit,
        "shared": turn.shared,
        "criteria": turn.criteria,
    }
    return model.request(turn.text, stop=[*stops, *turn.stop], **{**of_turn, **options})


@dataclass
class Block:
    """A text of an answer, or a call: text is then its arguments. Blocks are counted from 0.

    thought: the text is what the model thinks. complete: it does not end because there may be no
    more tokens, or with broken arguments.
    """

    index: int
    call: CallBegin | None
    thought: bool = False
    pieces: list[str] = field(default_factory=list)  # of its text so far
    complete: bool = True

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.pieces)


class BlockForm(Form):
    """The form of a chat with one answer, which is written as blocks, one after another."""

    def __init__(self, turn: Turn):
        self._parser = turn.parser
        self._n_blocks = 0
        self._open: Block | None = None
        self._ticket: Ticket | None = None
        self._last = Piece("", None, 0)

    @property
    def ticket(self) -> Ticket:
        """The answer's ticket, after `begin` or `whole`."""
        assert self._ticket is not None
        return self._ticket

    @property
    def last(self) -> Piece:
        """The latest piece."""
        return self._last

    @property
    def reason(self) -> str:
        """Why the answer ended: "stop", "length" or "tool_calls"."""
        reason = self._last.reason or "stop"
        return self._parser.reason(reason) if self._parser else reason

    # ---- Form ----------------------------------------------------------------------------

    def whole(self, tickets: Sequence[Ticket], pieces: Sequence[Sequence[Piece]]) -> Any:
        """The answer as one value."""
        self._ticket, every = tickets[0], pieces[0]
        found = parts(event for part in every for event in events_of(self._parser, part))
        self._last = every[-1]
        return self.answer(found)

    def begin(self, tickets: Sequence[Ticket]) -> bytes:
        """Events before the first block."""
        self._ticket = tickets[0]
        return self.opening()

    def push(self, i: int, part: Piece) -> bytes:
        """Events for a piece."""
        data, self._last = [], part
        for event in events_of(self._parser, part):
            if isinstance(event, Content | Thought):
                thought = isinstance(event, Thought)
                if self._open is not None and self._open.thought != thought:
                    data.append(self._end_block(True))
                if self._open is None:
                    data.append(self._begin_block(None, thought))
                data.append(self._grow(event.text))
            elif isinstance(event, CallBegin):
                data += [self._end_block(True), self._begin_block(event)]
            elif isinstance(event, CallArguments):
                data.append(self._grow(event.text))
            else:
                data.append(self._end_block(event.complete))
        if part.reason:
            data.append(self._end_block(part.reason != "length"))
        return b"".join(data)

    def _begin_block(self, call: CallBegin | None, thought: bool = False) -> bytes:
        self._open = Block(self._n_blocks, call, thought)
        self._n_blocks += 1
        return self.block_begins(self._open)

    def _grow(self, text: str) -> bytes:
        assert self._open is not None
        self._open.pieces.append(text)
        return self.block_grows(self._open, text)

    def _end_block(self, complete: bool) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        block.complete = complete
        return self.block_ends(block)

    # ---- What a dialect says -------------------------------------------------------------

    @abstractmethod
    def answer(self, found: Sequence[Part]) -> Any:
        """The whole answer: its thoughts, texts and calls."""

    @abstractmethod
    def opening(self) -> bytes:
        """Events before the first block."""

    @abstractmethod
    def block_begins(self, block: Block) -> bytes: ...

    @abstractmethod
    def block_grows(self, block: Block, text: str) -> bytes: ...

    @abstractmethod
    def block_ends(self, block: Block) -> bytes: ...
