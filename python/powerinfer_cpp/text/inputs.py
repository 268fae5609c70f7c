"""What a model that gives vectors or scores reads: texts with prompts, and pairs of texts."""

import re
from collections.abc import Callable, Sequence
from functools import cached_property

from ..core.errors import ContextOverflowError, UnsupportedModelError
from ..core.model import Model
from ..core.session import as_tokens
from .prompts import Prompts, Text, encoded

# sentence-transformers' names of what a text is for, and the prompts that may stand for it.
_KINDS = {
    "query": ("query", "search_query", "web_search_query"),
    "document": ("document", "passage", "corpus", "search_document"),
}
_KINDS |= {"search_query": _KINDS["query"]}
_KINDS |= dict.fromkeys(("passage", "search_document"), _KINDS["document"])
# The instruction of a template for pairs, which takes another one's place.
_INSTRUCTION = re.compile(r"(?<=<Instruct>: ).*?(?=\n<Query>)", re.DOTALL)
_HOLES = re.compile(r"\{(query|document|instruction)\}")


class TextInputs:
    """Ids of the texts of a model.

    max_tokens: of a text, with those that the tokenizer adds: the context of the session that will
    compute them. prompts: by name, as sentence-transformers has them; default_prompt: the
    name of the one that texts get otherwise. kinds: what `prompt_for` takes beside their names.
    """

    kinds = tuple(_KINDS)

    def __init__(self, model: Model, prompts: Prompts, n_ctx: int):
        self._model, self._prompts = model, prompts
        value = model.gguf.value
        names = value("powerinfer.embedding.prompt_names", [])
        texts = value("powerinfer.embedding.prompts", [])
        self.prompts: dict[str, str] = dict(zip(names, texts, strict=False))
        self.default_prompt: str | None = value("powerinfer.embedding.default_prompt")
        self.max_tokens = n_ctx

    def prompt(self, name: str | None = None, text: str | None = None) -> str:
        """What stands before a text. Raises ValueError for a name that is none of the prompts'."""
        if text is not None:
            return text
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ValueError(
                f"prompt_name must be one of the model's prompts ({known}), not {name!r}"
            )
        return self.prompts[name]

    def prompt_for(self, kind: str) -> str:
        """The prompt for texts of a kind, "query" or "document" and their other names; without one
        the default."""
        return self.prompt(next((n for n in _KINDS.get(kind, (kind,)) if n in self.prompts), None))

    def ids(
        self, text: Text, prompt: str = "", truncate: bool = True, most: int | None = None
    ) -> list[int]:
        """The ids of a text with its prompt, and of what the tokenizer puts around them; given ids
        as they are. truncate: cut a text that is too long, of which the last token stays if the
        tokenizer adds it; else ContextOverflowError. most: tokens from where on it is too long;
        None, or more than max_tokens: these."""
        if isinstance(text, str | bytes):
            data = encoded(prompt) + encoded(text)
            ids = self._prompts.tokenize(data, special=True)
            last = int(self._model.add_eos)
        else:
            ids, last = as_tokens(text, "input").tolist(), 0
        room = self.max_tokens if most is None else min(most, self.max_tokens)
        if len(ids) <= room:
            return ids
        if not truncate:
            raise ContextOverflowError(
                f"a text of {len(ids)} tokens exceeds the {room} of this model"
            )
        return ids[: max(0, room - last)] + ids[len(ids) - last :]

    # ---- Pairs ---------------------------------------------------------------------------

    @cached_property
    def _template(self) -> str | None:
        """Of pairs, for a model that is no encoder."""
        template = self._model.gguf.value("tokenizer.chat_template.rerank")
        return template if isinstance(template, str) else None

    @cached_property
    def _n_types(self) -> int:
        found = [t for t in self._model.gguf.tensors if t.name == "token_types.weight"]
        return int(found[0].shape[0]) if found else 1

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str | None = None,
        truncate: bool = True,
        most: int | None = None,
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The ids and the token types of a query with each document.

        Of a pair that is too long the document is cut, unless truncate is False. instruction: what
        the model is to judge, in place of its template's. most: tokens to which documents are cut
        in any case. Raises ContextOverflowError if the query leaves no room and for pairs that must
        not be cut, ValueError for an instruction that the model has no place for.
        """
        if most is not None:
            documents = [self._begin_of(document, most) for document in documents]
        if self._template is not None:
            return self._filled(query, documents, instruction, truncate)
        if instruction is not None:
            raise ValueError("instruction: this model's pairs have no place for one")
        if not self._model.is_encoder:
            raise UnsupportedModelError(
                f"{self._model.path}: there is no template of pairs "
                "(tokenizer.chat_template.rerank)"
            )
        return self._joined(query, documents, truncate)

    def _joined(
        self, query: str, documents: Sequence[str], truncate: bool
    ) -> tuple[list[list[int]], list[list[int]]]:
        """An encoder's: BOS, query, EOS, perhaps the separator, document, EOS."""
        value, model = self._model.gguf.value, self._model
        before = [model.bos] if model.add_bos else []
        behind = [model.eos] if model.add_eos else []
        between = list(behind)
        if value("tokenizer.ggml.add_sep_token", False):
            between.append(int(value("tokenizer.ggml.seperator_token_id", model.eos)))
        first = [*before, *self._prompts.tokenize(encoded(query), False, True), *between]
        room = self._room(len(first) + len(behind))
        ids, types = [], []
        for document in documents:
            own = self._prompts.tokenize(encoded(document), False, True)
            self._check_pair(len(first) + len(own) + len(behind), truncate)
            second = own[:room] + behind
            ids.append(first + second)
            types.append([0] * len(first) + [int(self._n_types > 1)] * len(second))
        return ids, types

    def _filled(
        self, query: str, documents: Sequence[str], instruction: str | None, truncate: bool
    ) -> tuple[list[list[int]], list[list[int]]]:
        """A template's: the texts in it are no control tokens."""
        template = self._template or ""
        texts = {"query": query}
        if instruction is not None:
            if not _INSTRUCTION.search(template):
                raise ValueError("instruction: the model's template has no place for one")
            template = _INSTRUCTION.sub("{instruction}", template, count=1)
            texts["instruction"] = instruction
        ids = []
        for document in documents:
            found = self._segments(template, {**texts, "document": document})
            self._check_pair(len(found), truncate)
            if len(found) > self.max_tokens:
                self._room(len(self._segments(template, {**texts, "document": ""})))
                found = self._fitting(template, texts, document)
            ids.append(found)
        return ids, [[0] * len(of) for of in ids]

    def _fitting(self, template: str, texts: dict[str, str], document: str) -> list[int]:
        """With as much of the document as there is room for."""

        def filled(part: str) -> list[int]:
            return self._segments(template, {**texts, "document": part})

        fits = _longest(document, lambda part: len(filled(part)) <= self.max_tokens)
        return filled(fits)

    def _begin_of(self, document: str, most: int) -> str:
        """So many tokens of a document at most, as whole characters."""

        def fits(part: str) -> bool:
            return len(self._prompts.tokenize(encoded(part), False, True)) <= most

        return document if fits(document) else _longest(document, fits)

    def _segments(self, template: str, texts: dict[str, str]) -> list[int]:
        """The ids of a template with its texts: its own control tokens, and the text between."""
        ids: list[int] = []
        for i, part in enumerate(self._controls.split(template)):
            if i % 2:
                ids += self._prompts.tokenize(encoded(part), False, True)
            elif part:
                text = _HOLES.sub(lambda hole: texts.get(hole[1], hole[0]), part)
                ids += self._prompts.tokenize(encoded(text), False, False)
        return ids

    @cached_property
    def _controls(self) -> re.Pattern[str]:
        """Those of the template."""
        found = sorted(set(re.findall(r"<[^<>\s]+>", self._template or "")))
        names = [n for n in found if len(self._prompts.tokenize(n.encode(), False, True)) == 1]
        return re.compile(f"({'|'.join(map(re.escape, names))})" if names else "(?!)()")

    def _check_pair(self, n: int, truncate: bool) -> None:
        if n > self.max_tokens and not truncate:
            raise ContextOverflowError(
                f"a pair of {n} tokens exceeds the {self.max_tokens} of this model"
            )

    def _room(self, taken: int) -> int:
        if taken >= self.max_tokens:
            raise ContextOverflowError(
                f"the query leaves no room for a document: {taken} of {self.max_tokens} tokens"
            )
        return self.max_tokens - taken


def _longest(text: str, fits: Callable[[str], bool]) -> str:
    """The longest beginning of a text that fits; the text itself does not."""
    shorter, longer = 0, len(text)
    while longer - shorter > 1:
        n = (shorter + longer) // 2
        shorter, longer = (n, longer) if fits(text[:n]) else (shorter, n)
    return text[:shorter]
