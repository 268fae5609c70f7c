"""What the package sentence-transformers says of a checkpoint: how one vector is made of a text's
rows, what is computed behind that, prompts, and the longest text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.errors import ModelFormatError, UnsupportedModelError
from .checkpoint import open_checkpoint, read_json, read_json_value
from .tensors import Output, Weights, from_weight
from .unread import WAY
from .writer import Entry, array, boolean, string, uint32

_MODULES = "modules.json"
_RANK = 4
# The names of its settings, and the numbers of a GGUF's pooling_type.
_KINDS = {"mean": 1, "cls": 2, "lasttoken": 3}
_OLD = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}
# Modules that change no vector, or only its length, which whoever computes embeddings decides.
_HARMLESS = ("Transformer", "Pooling", "Normalize", "Dropout")
_DENSE = "Dense"
_DENSE_NAMES = ("dense_2", "dense_3")  # of a GGUF's tensors
_ACTIVATIONS = ("identity", "tanh")


@dataclass
class Sentence:
    """kind: pooling_type of the GGUF; None: the checkpoint does not say, or says another kind.

    dense: the folders of layers behind the pooling. max_tokens: of a text, with those that the
    tokenizer adds; None: the model's.
    """

    kind: int | None = None
    dense: list[Path] = field(default_factory=list)
    normalize: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    notes: list[str] = field(default_factory=list)

    def entries(
        self, architecture: str, n_ctx: int, widths: list[int], ranks: bool
    ) -> Iterator[Entry]:
        """The GGUF's keys. widths: of a row, and behind each dense layer of the model's own."""
        kind = _RANK if ranks else self.kind
        if kind is not None:
            yield uint32(f"{architecture}.pooling_type", kind)
        if self.max_tokens is not None and self.max_tokens < n_ctx:
            yield uint32("powerinfer.embedding.max_tokens", self.max_tokens)
        if self.kind is not None:
            yield boolean("powerinfer.embedding.normalize", self.normalize)
        if self.prompts:
            yield array("powerinfer.embedding.prompt_names", "STRING", list(self.prompts))
            yield array("powerinfer.embedding.prompts", "STRING", list(self.prompts.values()))
        if self.default_prompt is not None:
            yield string("powerinfer.embedding.default_prompt", self.default_prompt)
        if self.dense:
            names = [_activation(folder / "config.json") for folder in self.dense]
            own = [_ACTIVATIONS[0]] * (len(widths) - 1)
            yield array("powerinfer.dense.activations", "STRING", own + names)
        rows = [Weights(open_checkpoint(where)).rows("linear.weight") for where in self.dense]
        for ours, (n_in, n_out) in zip(_DENSE_NAMES, pairwise(widths + rows), strict=False):
            yield uint32(f"{architecture}.{ours}_feat_in", n_in)
            yield uint32(f"{architecture}.{ours}_feat_out", n_out)

    def outputs(self, widths: list[int]) -> Iterator[Output]:
        """The tensors of the dense layers, which stay F32. widths: as in entries().

        Raises UnsupportedModelError if a GGUF has no place for all of them.
        """
        names = _DENSE_NAMES[len(widths) - 1 :]
        if len(self.dense) > len(names):
            raise UnsupportedModelError(
                f"{self.dense[-1]}: a dense layer behind {len(_DENSE_NAMES)} others, of which the "
                "model's projection is one, is not supported"
            )
        n_embd = widths[-1]
        for ours, folder in zip(names, self.dense, strict=False):
            path = folder / "config.json"
            weights = Weights(open_checkpoint(folder))
            n = weights.rows("linear.weight")
            matrix = weights.take("linear.weight", n, n_embd)
            yield from_weight(f"{ours}.weight", matrix, exact=True)
            if "linear.bias" in weights:
                yield from_weight(f"{ours}.bias", weights.take("linear.bias", n))
            if rest := weights.rest():
                raise ModelFormatError(f"{path}: a dense layer with tensors {', '.join(rest)}")
            n_embd = n


def read_sentence(folder: Path, allow_unknown: bool = False) -> Sentence:
    """Reads modules.json and the folders that it names, else 1_Pooling; and the other settings.

    Raises ModelFormatError for malformed files; UnsupportedModelError for modules and kinds of
    pooling that change the vectors and are not known here, which are a note with allow_unknown.
    """
    found, path = Sentence(), folder / "1_Pooling"

    def refuse(what: str) -> None:
        if not allow_unknown:
            raise UnsupportedModelError(f"{what} and is not supported here; {WAY}")
        found.notes.append(f"{what} and is left out")

    for name, where in _modules(folder / _MODULES) if (folder / _MODULES).is_file() else ():
        if name == "Pooling":
            path = where
        elif name == _DENSE and len(found.dense) < len(_DENSE_NAMES):
            found.dense.append(where)
        elif name not in _HARMLESS:
            refuse(f"{folder / _MODULES}: module {name} changes embeddings")
        found.normalize |= name == "Normalize"
    for where in found.dense:
        _activation(where / "config.json")
    path = path / "config.json"
    if path.is_file():
        values = read_json(path)
        modes = _modes(values)
        if len(modes) == 1 and modes[0] in _KINDS:
            found.kind = _KINDS[modes[0]]
        elif modes:
            refuse(f"{path}: pooling by {' and '.join(modes)} makes other vectors")
        if values.get("include_prompt") is False:
            refuse(f"{path}: include_prompt false leaves the prompt out of the pooling")
    _settings(folder, found)
    return found


def _settings(folder: Path, found: Sentence) -> None:
    """Prompts, and the longest text."""
    path = folder / "config_sentence_transformers.json"
    values = read_json(path) if path.is_file() else {}
    prompts = values.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise ModelFormatError(f"{path}: prompts are not texts by name")
    found.prompts = dict(prompts)
    name = values.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise ModelFormatError(f"{path}: default_prompt_name {name!r} is none of the prompts")
    found.default_prompt = name
    limits = []
    for file, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        values = read_json(folder / file) if (folder / file).is_file() else {}
        limit = values.get(key)
        if isinstance(limit, int | float) and not isinstance(limit, bool) and 1 <= limit < 1 << 31:
            limits.append(int(limit))
        if limits:  # the first one decides
            found.max_tokens = limits[0]
            return


def _activation(path: Path) -> str:
    name = str(read_json(path).get("activation_function", "torch.nn.modules.activation.Tanh"))
    found = name.rpartition(".")[2].lower()
    if found not in _ACTIVATIONS:
        raise UnsupportedModelError(f"{path}: a dense layer with the activation {name}")
    return found


def _modes(values: dict[str, Any]) -> list[str]:
    """The kinds of pooling that are on."""
    named = values.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in (named if isinstance(named, list) else [named])]
    known = {key: mode for mode, key in _OLD.items()}
    return [
        known.get(key, key.removeprefix("pooling_mode_"))
        for key, value in values.items()
        if key.startswith("pooling_mode_") and value is True
    ]


def _modules(path: Path) -> list[tuple[str, Path]]:
    """The kind of each module, and its folder."""
    found = read_json_value(path)
    if not isinstance(found, list) or not all(
        isinstance(m, dict) and isinstance(m.get("type"), str) and isinstance(m.get("path"), str)
        for m in found
    ):
        raise ModelFormatError(f"{path}: not a list of modules")
    modules = [(m["type"].rpartition(".")[2], path.parent / m["path"]) for m in found]
    for name, where in modules:
        if where != path.parent and where.parent != path.parent:
            raise ModelFormatError(f"{path}: module {name} is outside the folder")
    return modules
