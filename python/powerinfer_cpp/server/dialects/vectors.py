"""Vectors of texts: OpenAI's embeddings, with what other servers' clients send, and those of
text-embeddings-inference (TEI)."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from anyio import to_thread

from ...core.errors import ContextOverflowError, about_request
from ...core.sequences.embedding import MOST_NORM, normalized
from ..answering import encode
from ..errors import Refusal
from ..recorded import packed
from ..served import ServedModel
from ..settings import Settings
from ..vectors import Asked, Turns
from .bodies import Inputs
from .openai import Prompt, prompts_of

NUMBER_BYTES = 24  # of a number as JSON, with its comma
MANY = 1 << 14  # numbers that take some milliseconds to write
# Cohere's, NVIDIA's and vLLM's names of what a text is for, beside those of the model's prompts.
_OTHER_KINDS = ("classification", "clustering")
_SAYS_PROMPT = ("prompt", "prompt_name", "task", "input_type")
_CUTS = {"NONE": False, "END": True, True: True, False: False}  # Cohere's words, too


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings. prompt, prompt_name, task, input_type: what stands before the texts, one
    of them. normalized, normalize, embd_normalize: names of one field, the last as llama.cpp's
    number. truncate_prompt_tokens: -1 is as many as the model takes."""

    input: Inputs
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    task: str | None = None
    input_type: str | None = None
    normalized: bool | None = None
    normalize: bool | None = None
    embd_normalize: int | None = None
    truncate: bool | str | None = None
    truncate_prompt_tokens: int | None = None


class TeiEmbedBody(msgspec.Struct, kw_only=True):
    """POST /embed, and POST /."""

    inputs: Inputs
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = None


@dataclass(frozen=True)
class Shape:
    """dimensions: of each vector, which are then scaled to length 1; None: all. norm: llama.cpp's
    number, see Settings. base64: of float32, in place of numbers."""

    dimensions: int | None
    norm: int
    base64: bool = False

    def of(self, vector: np.ndarray) -> np.ndarray:
        """A vector [width], or those of a text's tokens [n, width], in this shape."""
        cut = vector[..., : self.dimensions]
        return cut if self.norm < 0 else _scaled(cut, self.norm)

    def shown(self, vector: np.ndarray) -> Any:
        """The same as it stands in an answer."""
        if not self.base64:
            return self.of(vector).tolist()
        return base64.b64encode(self.of(vector).astype("<f4").tobytes()).decode()


def _scaled(vectors: np.ndarray, norm: int) -> np.ndarray:
    if norm == 2:
        return normalized(vectors)
    sizes = np.abs(vectors.astype(np.float64))
    if norm == 0:  # as 16-bit integers
        size = sizes.max(axis=-1, keepdims=True) / 32760
    else:
        size = (sizes**norm).sum(axis=-1, keepdims=True) ** (1 / norm)
    return (vectors / np.where(size == 0, 1, size)).astype(np.float32)


# ---- What is asked for -------------------------------------------------------------------


def embedding_texts(
    model: ServedModel, body: EmbeddingBody, settings: Settings
) -> tuple[Asked, Shape]:
    """What a body asks for. Raises Refusal, and RequestError."""
    check_vectors(model, 400)
    if body.encoding_format not in (None, "float", "base64"):
        raise Refusal(400, "encoding_format must be float or base64", "encoding_format")
    shape = Shape(
        _dimensions(model, body.dimensions),
        _norm(body, settings),
        body.encoding_format == "base64",
    )
    if shape.base64 and model.vectors.pooling == "none":
        words = "encoding_format must be float: a text has a vector for each token here"
        raise Refusal(400, words, "encoding_format")
    cut, most = _cut(body, settings)
    texts = prompts_of(body.input, settings, "input")
    return _read(model, texts, _prompt(model, body), cut, most, "input"), shape


def tei_texts(model: ServedModel, body: TeiEmbedBody, settings: Settings) -> tuple[Asked, Shape]:
    """What a body of TEI asks for. Raises Refusal, and RequestError."""
    check_vectors(model, 501)
    check_direction(body.truncation_direction)
    many = isinstance(body.inputs, list) and len(body.inputs) > settings.max_inputs
    if many and not isinstance(body.inputs[0], int):
        raise Refusal(413, f"inputs may have at most {settings.max_inputs} entries", "inputs")
    shape = Shape(_dimensions(model, body.dimensions), 2 if body.normalize else -1)
    texts = prompts_of(body.inputs, settings, "inputs")
    with about_request():
        prompt = model.vectors.inputs.prompt(body.prompt_name)
    cut = settings.truncate if body.truncate is None else body.truncate
    return _read(model, texts, prompt, cut, None, "inputs"), shape


def check_vectors(model: ServedModel, status: int) -> None:
    """Refuses texts for a model that has no vectors of them."""
    if model.vectors.ranks:
        words = "this model ranks texts, and gives no vectors of them (POST /v1/rerank)"
        raise Refusal(status, words, "model")
    if model.vectors.pooling is None:
        words = "this model's file asks for a kind of pooling that there is not (--pooling)"
        raise Refusal(501, words, "model")


def check_direction(given: str | None) -> None:
    """Refuses to cut a text at its beginning."""
    if given is not None and given.lower() != "right":
        words = "truncation_direction must be Right: texts are cut at their end"
        raise Refusal(400, words, "truncation_direction")


def vector_bytes(model: ServedModel, asked: Asked, shape: Shape, settings: Settings) -> int:
    """Bytes of the vectors as JSON, at most. Raises Refusal if they are too many."""
    n = asked.n_tokens if model.vectors.pooling == "none" else len(asked.ids)
    n_bytes = n * (shape.dimensions or model.vectors.width) * NUMBER_BYTES
    if n_bytes > settings.max_recorded:
        raise Refusal(400, "input has too many entries for --max-recorded", "input")
    return n_bytes


def _read(
    model: ServedModel,
    texts: Sequence[Prompt],
    prompt: str,
    cut: bool,
    most: int | None,
    name: str,
) -> Asked:
    """The ids of texts. name: of the field that has them."""
    found = []
    for i, text in enumerate(texts):
        where = name if len(texts) == 1 else f"{name}[{i}]"
        if not isinstance(text, str):
            _check_ids(model, text, where, name)
        with about_request():
            try:
                ids = model.vectors.inputs.ids(text, prompt, cut, most)
            except ContextOverflowError as error:
                words = f"{where}: {error} (truncate cuts it)"
                raise ContextOverflowError(words) from None
        if not ids:
            raise Refusal(400, f"{where} has no tokens, and so no vector", name)
        found.append(np.asarray(ids, np.int32))
    return Asked(found)


def _check_ids(model: ServedModel, ids: Sequence[int], where: str, name: str) -> None:
    """Refuses ids that the model does not have, as those of tiktoken that LangChain sends."""
    n = model.model.n_vocab
    if ids and not 0 <= min(ids) <= max(ids) < n:
        raise Refusal(
            400,
            f"{where}: token ids must be at least 0 and below {n}: these are ids of another "
            "vocabulary: send texts (LangChain: check_embedding_ctx_length=False)",
            name,
        )


def _dimensions(model: ServedModel, given: int | None) -> int | None:
    width = model.vectors.width
    if given is not None and not 1 <= given <= width:
        raise Refusal(400, f"dimensions must be 1 to {width}, not {given}", "dimensions")
    return given


def _norm(body: EmbeddingBody, settings: Settings) -> int:
    if body.embd_normalize is not None:
        if not -1 <= body.embd_normalize <= MOST_NORM:
            raise Refusal(400, f"embd_normalize must be -1 to {MOST_NORM}", "embd_normalize")
        return body.embd_normalize
    flag = body.normalize if body.normalized is None else body.normalized
    if flag is None:
        return settings.embd_normalize if body.dimensions is None else 2
    return 2 if flag else -1


def _cut(body: EmbeddingBody, settings: Settings) -> tuple[bool, int | None]:
    """Are texts cut that are too long, and from which number of tokens on are they so? None: what
    the model takes."""
    n = body.truncate_prompt_tokens
    if n is not None and (n < -1 or n == 0):
        words = "truncate_prompt_tokens must be at least 1, or -1 for what the model takes"
        raise Refusal(400, words, "truncate_prompt_tokens")
    given = body.truncate
    if given is None:
        return settings.truncate or n is not None, n if n != -1 else None
    if given not in _CUTS:
        raise Refusal(400, "truncate must be true, false, NONE or END", "truncate")
    return _CUTS[given], n if n != -1 else None


def _prompt(model: ServedModel, body: EmbeddingBody) -> str:
    """What stands before each text."""
    inputs = model.vectors.inputs
    given = {name: value for name in _SAYS_PROMPT if (value := getattr(body, name)) is not None}
    if len(given) > 1:
        raise Refusal(400, f"give one of {', '.join(given)}", next(iter(given)))
    known = ", ".join(inputs.prompts) or "none"
    if body.task is not None and body.task not in inputs.prompts:
        raise Refusal(400, f"task must be one of the model's ({known}), not {body.task!r}", "task")
    if (kind := body.input_type) is not None:
        if kind not in (*inputs.prompts, *inputs.kinds, *_OTHER_KINDS):
            kinds = ", ".join((*inputs.kinds, *_OTHER_KINDS))
            words = f"input_type must be one of {kinds} or the model's prompts ({known})"
            raise Refusal(400, f"{words}, not {kind!r}", "input_type")
        return inputs.prompt_for(kind)
    with about_request():
        return inputs.prompt(body.prompt_name if body.task is None else body.task, body.prompt)


# ---- The answers -------------------------------------------------------------------------


async def embeddings(
    model: ServedModel,
    name: str,
    asked: Asked,
    shape: Shape,
    turns: Turns,
) -> bytes:
    """The answer of /v1/embeddings as JSON. turns: see `Vectors.calls`."""

    def entry(i: int, vector: np.ndarray) -> Any:
        return packed({"object": "embedding", "index": i, "embedding": shape.shown(vector)})

    data = await _entries(model, asked, entry, turns)
    usage = {"prompt_tokens": asked.n_tokens, "total_tokens": asked.n_tokens}
    found = {"object": "list", "data": data, "model": name, "usage": usage}
    return await to_thread.run_sync(encode, found)


async def tei_vectors(model: ServedModel, asked: Asked, shape: Shape, turns: Turns) -> bytes:
    """The answer of /embed as JSON."""

    def entry(_: int, vector: np.ndarray) -> Any:
        return packed(shape.shown(vector))

    data = await _entries(model, asked, entry, turns)
    return await to_thread.run_sync(encode, data)


async def _entries(
    model: ServedModel,
    asked: Asked,
    entry: Callable[[int, np.ndarray], Any],
    turns: Turns,
) -> list[Any]:
    """What entry makes of the number and the vector of each text, in their order."""
    data: list[Any] = [None] * len(asked.ids)
    async for group, found in model.vectors.calls(asked, turns):

        def write(group: Sequence[int] = group, found: Any = found) -> None:
            for i, vector in zip(group, found, strict=True):
                data[i] = entry(i, vector)

        if sum(vector.size for vector in found) > MANY:
            await to_thread.run_sync(write)
        else:
            write()
    return data
