"""Grammars: text that a model is held to, as a mask over the logits of every token.

GBNF and JSON schemas become grammars of the package llguidance (children/grammars.py), which
computes the masks (masks.py). Both happen in processes of their own, since a text of some kilobytes
can exhaust stack, memory or time. All fails closed: a grammar that cannot be understood is a
ValueError before anything is generated, and one that gets stuck is a ValueError in the middle;
there is never text without the grammar.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .masks import Vocabulary
from .worker import Refused, WorkerMissing, Workers

MAX_TEXT = 256 << 10  # characters of a grammar or schema

SECONDS = 1.5  # of processor time to try one; on a machine with other work it may last longer
WALL_SECONDS = 60.0
NICENESS = 10  # then it has a tenth of the engine's weight

_workers = Workers("grammars", ("llguidance",), SECONDS, WALL_SECONDS, NICENESS)


def _compiled(kind: str, text: str) -> tuple[str, int]:
    """The arguments of LlamaGrammar, after the grammar was tried. Raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"the grammar has more than {MAX_TEXT} characters")
    try:
        compiled, last_token = _workers.ask(kind=kind, text=text)
        return compiled, last_token
    except Refused as error:
        words = f"the grammar {error}: refused" if error.by_limit else str(error)
        raise ValueError(words) from None
    except WorkerMissing as error:
        words = error.sentence("a grammar needs a Python interpreter to be tried in")
        raise ValueError(words) from None


class LlamaGrammar:
    """A grammar that can be used again and again.

    Made by from_string (GBNF, llama.cpp's notation), from_file and from_json_schema. All raise
    ValueError for a text that is no grammar or takes too much time or memory.
    """

    def __init__(self, compiled: str, last_token: int = -1):
        self._compiled = compiled  # llguidance's notation
        self._last_token = last_token  # the highest number of those that it names

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> "LlamaGrammar":
        """From GBNF with a rule `root`. verbose: there for llama-cpp-python's sake."""
        if not isinstance(grammar, str) or not grammar.strip():
            raise ValueError("a grammar must be a text in GBNF")
        return cls(*_compiled("gbnf", grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> "LlamaGrammar":
        """From a file of GBNF. Raises OSError as well."""
        return cls.from_string(Path(file).read_text(encoding="utf-8"), verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str | dict, verbose: bool = True) -> "LlamaGrammar":
        """JSON that a schema describes. A schema with what cannot be enforced is refused.

        As in llama.cpp, an object has no keys outside `properties` unless additionalProperties
        allows them, and there is little white space.
        """
        try:
            text = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the JSON schema is no JSON: {_one_line(error)}") from None
        return cls(*_compiled("json_schema", text))

    @classmethod
    def from_tool_calls(
        cls, calls: Mapping[str, Any], control: Mapping[str, int] | None = None
    ) -> "LlamaGrammar":
        """Calls of tools, with arguments that follow the tools' schemas.

        calls: what Style.forced returns. control: ids of the control tokens of one model, by their
        texts; the grammar has these tokens in place of the texts. Raises ValueError as
        from_json_schema does.
        """
        return cls(*_compiled("tool_calls", json.dumps({**calls, "control": dict(control or {})})))

    @classmethod
    def json_object(cls) -> "LlamaGrammar":
        """Any JSON object."""
        return cls(*_compiled("json_object", ""))

    def processor(self, vocabulary: Vocabulary) -> "GrammarProcessor":
        """The mask for one generation. Raises ValueError for tokens that the vocabulary lacks."""
        self._fits(vocabulary)
        return GrammarProcessor(self._compiled, vocabulary)

    def check(self, vocabulary: Vocabulary) -> None:
        """Computes the first mask. Raises ValueError if it takes too much time or memory, and for
        tokens that the vocabulary lacks."""
        self._fits(vocabulary)
        matcher = vocabulary.matcher(self._compiled)
        matcher.ask([])
        matcher.answer()

    def _fits(self, vocabulary: Vocabulary) -> None:
        last = vocabulary.n_vocab - 1
        if self._last_token > last:
            raise ValueError(
                f"the grammar names the token <[{self._last_token}]>: the model's are 0 to {last}"
            )


class GrammarProcessor:
    """A logits processor that leaves only tokens with which the grammar can go on.

    Tokens after those of the first call count as generated. Raises ValueError when the grammar
    and the text part, when no token is left, and when a mask takes too much time or memory.
    """

    def __init__(self, compiled: str, vocabulary: Vocabulary):
        self._vocabulary, self._matcher = vocabulary, vocabulary.matcher(compiled)
        self._n_seen: int | None = None  # ids that the matcher knows, or that it never sees
        self._n_asked = -1  # ids of the last mask

    def begin(self, n: int) -> None:
        """Tokens behind the first n ids count as generated; before the first call."""
        self._n_seen = n

    def begin_mask(self, input_ids: np.ndarray) -> None:
        """Begins the mask for these ids, which is computed in the meantime."""
        if self._n_asked != len(input_ids):
            known = len(input_ids) if self._n_seen is None else self._n_seen
            self._n_seen = self._n_asked = len(input_ids)
            self._matcher.ask(input_ids[known:].tolist())

    def mask_ready(self, seconds: float) -> bool:
        """Would a call with the prepared ids return at once? Waits so long for it."""
        return self._matcher.ready(seconds)

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        self.begin_mask(input_ids)
        mask, may_end = self._matcher.answer()
        n = self._vocabulary.n_vocab
        allowed = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[:n]
        allowed = allowed.astype(bool)
        if len(allowed) < n:
            raise ValueError("the grammar's mask does not fit the vocabulary")
        # One end is as good as another, where the grammar may end.
        allowed[self._vocabulary.ends] = may_end
        out = np.where(allowed, scores, -np.inf).astype(np.float32)
        if (out == -np.inf).all():  # NaN is the model's fault, which the sampler says
            raise ValueError("the grammar leaves no token that could follow")
        return out


def response_grammar(response_format: Mapping[str, Any] | None) -> LlamaGrammar | None:
    """The grammar of a chat's response_format; None for text. Raises ValueError."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return LlamaGrammar.from_json_schema(schema) if schema else LlamaGrammar.json_object()
    if kind == "json_schema":
        described = response_format.get("json_schema")
        if isinstance(described, dict) and isinstance(described.get("schema"), dict):
            return LlamaGrammar.from_json_schema(described["schema"])
    raise ValueError(
        'response_format must be {"type": "text"} or {"type": "json_object", "schema": {...}}'
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
