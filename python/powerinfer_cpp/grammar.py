"""Grammars: text that a model is held to, as a mask over the logits of every token.

The package llguidance does the parsing (`pip install 'powerinfer_cpp[grammar]'`), first in a
process of its own (worker.py), since a text of some kilobytes can exhaust stack or memory. All
fails closed: a grammar that cannot be understood is a ValueError before anything is generated, and
one that gets stuck is a ValueError in the middle; there is never text without the grammar.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .model import Model
from .worker import Refused, Worker, WorkerMissing

MAX_TEXT = 256 << 10  # characters of a grammar or schema

# What can be used is worked on once more in this process, so half of the time is left for that.
_worker = Worker("grammars", ("llguidance",), seconds=1.25)


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ValueError(
            "grammars need the package llguidance: pip install 'powerinfer_cpp[grammar]'"
        ) from None
    return llguidance


def _compiled(kind: str, text: str) -> str:
    """The grammar in llguidance's notation, after it was tried. Raises ValueError."""
    _llguidance()
    if len(text) > MAX_TEXT:
        raise ValueError(f"the grammar has more than {MAX_TEXT} characters")
    try:
        return _worker.ask(kind=kind, text=text)
    except Refused as error:
        words = f"the grammar {error}: refused" if error.by_limit else str(error)
        raise ValueError(words) from None
    except WorkerMissing as error:
        words = error.sentence("a grammar needs a Python interpreter to be tried in")
        raise ValueError(words) from None


class LlamaGrammar:
    """A grammar that can be used again and again.

    Made by from_string (GBNF, llama.cpp's notation), from_file and from_json_schema. All raise
    ValueError for a text that is no grammar, or when the package llguidance is missing.
    """

    def __init__(self, compiled: str):
        self._compiled = compiled  # llguidance's notation

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> "LlamaGrammar":
        """From GBNF with a rule `root`. verbose: there for llama-cpp-python's sake."""
        if not isinstance(grammar, str) or not grammar.strip():
            raise ValueError("a grammar must be a text in GBNF")
        return cls(_compiled("gbnf", grammar))

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
        return cls(_compiled("json_schema", text))

    @classmethod
    def from_tool_calls(
        cls, calls: Mapping[str, Any], control: Mapping[str, int] | None = None
    ) -> "LlamaGrammar":
        """Calls of tools, with arguments that follow the tools' schemas.

        calls: what Style.forced returns. control: ids of the control tokens of one model, by their
        texts; the grammar has these tokens in place of the texts. Raises ValueError as
        from_json_schema does.
        """
        return cls(_compiled("tool_calls", json.dumps({**calls, "control": dict(control or {})})))

    @classmethod
    def json_object(cls) -> "LlamaGrammar":
        """Any JSON object."""
        return cls(_compiled("json_object", ""))

    def processor(self, vocabulary: "Vocabulary") -> "GrammarProcessor":
        """The mask for one generation."""
        return GrammarProcessor(self._compiled, vocabulary)


class Vocabulary:
    """A model's tokens as llguidance wants them; made once per model, it takes some time.

    Raises ValueError for a model without an end token: nothing could end a grammar's text.
    """

    def __init__(self, model: Model):
        llguidance = _llguidance()
        if model.eos < 0:
            raise ValueError("grammars need a model with an end token")
        ids = range(model.n_vocab)
        self.n_vocab = model.n_vocab
        self.eos = model.eos
        self.ends = np.array([i for i in ids if model.ends(i)], dtype=np.intp)
        texts = [model.text(i) for i in ids]
        # Tokens without bytes are control tokens: a grammar never asks for them.
        special = [i for i in ids if not texts[i]]
        known = {text: i for i, text in enumerate(texts) if text}
        longest = max(map(len, known))

        def tokens_of(text: bytes) -> list[int]:
            """Ids whose bytes are the text: as the model would write it behind other text."""
            ids = model.tokenize_behind(text)
            if b"".join(texts[i] for i in ids) == text:
                return ids
            ids = []
            while text:
                n = next((n for n in range(longest, 0, -1) if text[:n] in known), 0)
                if not n:
                    raise ValueError("the vocabulary has no tokens for what the grammar asks for")
                ids.append(known[text[:n]])
                text = text[n:]
            return ids

        class Wrapped:
            eos_token_id = model.eos
            bos_token_id = model.bos if model.bos >= 0 else None
            tokens = [text or b"\xff<%d>" % i for i, text in zip(ids, texts, strict=True)]
            special_token_ids = special

            def __call__(self, text: bytes) -> list[int]:
                return tokens_of(text)

        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(Wrapped()), n_vocab=model.n_vocab, eos_token=model.eos
        )


class GrammarProcessor:
    """A logits processor that leaves only tokens with which the grammar can go on.

    Tokens after those of the first call count as generated. Raises ValueError when the grammar
    and the text part, or when no token is left.
    """

    def __init__(self, compiled: str, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._matcher = _llguidance().LLMatcher(vocabulary.tokenizer, compiled, log_level=0)
        self._n_seen: int | None = None
        self._check()

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self._n_seen is None:
            self._n_seen = len(input_ids)
        for token in input_ids[self._n_seen :].tolist():
            self._matcher.consume_token(token)
            self._check()
        self._n_seen = len(input_ids)
        n = self._vocabulary.n_vocab
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[:n].astype(bool)
        if len(allowed) < n:
            raise ValueError("the grammar's mask does not fit the vocabulary")
        # One end is as good as another, where the grammar may end.
        allowed[self._vocabulary.ends] = self._matcher.is_accepting()
        out = np.where(allowed, scores, -np.inf).astype(np.float32)
        if (out == -np.inf).all():  # NaN is the model's fault, which the sampler says
            raise ValueError("the grammar leaves no token that could follow")
        return out

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot go on: {_one_line(self._matcher.get_error())}")


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
