"""What an adapter of the package peft adds to the weights of its base model.

Names: adapters have those of the modules that were trained, in a model of transformers. That may be
a base model, one with a head, or one that also sees images, as checkpoints may be; and a training
loop may have put more in front, or the adapter's own name behind (`lora_A.default.weight`).
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.errors import ModelFormatError, UnsupportedModelError
from ..checkpoint import open_adapter
from ..families.family import Family, name_behind
from ..tensors import Output, Weights, check_type
from ..weight import Weight, widen
from .low_rank import LowRank

_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.(?P<adapter>[^.]+))?\.weight")
# What may stand before the layers of a language model.
_TEXT = re.compile(
    r"((_orig_mod|backbone|base_model|decoder|language_model|model|module|text_model|transformer)\.)*"
)


class Unchanged(Exception):
    """A weight that the adapter does not change has no values here."""


@dataclass(frozen=True)
class Change:
    """What an adapter adds to a module's matrix: scale * b @ a.

    a: [rank, inputs], b: [outputs, rank]; module: its name in the adapter.
    """

    module: str
    a: Weight
    b: Weight

    @property
    def rank(self) -> int:
        return self.a.shape[0] if self.a.shape else 0


class AdapterWeights(Weights):
    """The adapter in the place of the checkpoint, which the family asks for every weight.

    where: for messages. changes: by the name of the weight in the family's model. scale: of a
    change. A changed weight's values are a LowRank; those of others raise Unchanged. unused: the
    changes of which nobody has asked for values; asked: the one that was asked for last.
    """

    of_adapter = True

    def __init__(
        self,
        where: Path,
        family: Family,
        changes: dict[str, Change],
        scale: Callable[[Change], float],
    ):
        super().__init__({})
        self._where, self._family, self._changes, self._scale = where, family, changes, scale
        self.unused = set(changes)
        self.asked = ""

    def __contains__(self, name: str) -> bool:
        return name in self._changes

    def rows(self, name: str) -> int:
        return 0

    def take_parts(self, names: Sequence[str], n_rows: int, *row: int) -> list[Weight]:
        return [self.take(names[0], n_rows, *row)]  # no change has such a name

    def joined(self, name: str, parts: Sequence[Weight]) -> Output:
        """The sum of the parts' products, each with zeros in the rows of the others.

        A product counts divided by its rank, which is that of all parts together.
        """
        n_rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1]

        def rows(a: int, b: int) -> np.ndarray:
            lefts, rights, first = [], [], 0
            for part in parts:
                try:
                    product: LowRank = part.stored()  # type: ignore[assignment]
                except Unchanged:
                    pass
                else:
                    around = (first, n_rows - first - part.shape[0])
                    lefts.append(np.pad(product.left, (around, (0, 0))))
                    rights.append(product.right)
                first += part.shape[0]
            if not lefts:
                raise Unchanged
            rank = sum(map(len, rights))
            scaled = [left * np.float32(rank / left.shape[1]) for left in lefts]
            whole = LowRank(np.concatenate(scaled, axis=1), np.concatenate(rights))
            return whole[a:b]  # type: ignore[return-value]

        return Output(name, (n_rows, columns), rows)

    def count(self, prefix: str) -> int:
        return 0

    def drop(self, name: str) -> None:
        """Nothing: what is changed is needed."""

    def take_integers(self, name: str, n: int) -> list[int]:
        return [0] * n

    def take_bytes(self, name: str, *shape: int) -> Weight:
        return self.take(name, *shape)

    def take(self, name: str, *shape: int) -> Weight:
        change = self._changes.get(name)
        if change is None:
            return Weight(name, shape, False, _unchanged)
        turned = self._family.inputs_first and not name.startswith("lm_head.")
        sizes = shape[::-1] if turned else shape
        for factor, expected in (
            (change.a, (change.rank, *sizes[1:])),
            (change.b, (sizes[0], change.rank)),
        ):
            if len(sizes) != 2 or not change.rank or factor.shape != expected:
                raise ModelFormatError(
                    f"{self._where}: tensor {factor.name} has shape {list(factor.shape)}, which "
                    f"does not fit the base model's {name} {list(shape)}"
                )

        def stored() -> LowRank:
            self.unused.discard(name)
            self.asked = name
            a, b = (widen(w.stored(), w.bf16) for w in (change.a, change.b))
            scale = self._scale(change)
            product = LowRank(b if scale == 1 else (b * scale).astype(np.float32), a)
            return product.T if turned else product

        # A family does with it what it would do with an array.
        return Weight(name, shape, False, stored)  # type: ignore[arg-type]


def _unchanged() -> np.ndarray:
    raise Unchanged


def read_changes(folder: Path, family: Family) -> tuple[dict[str, Change], list[str]]:
    """The changes of an adapter by the name of the weight in the family's model, and the modules
    that are left out because they are in no file of the family (images, drafts).

    Raises what open_checkpoint raises, ModelFormatError for half a change, UnsupportedModelError
    for other tensors and for names of several models.
    """
    changes = _read_factors(folder)
    left_out = [name for name in changes if _is_left_out(family, name)]
    kept = {name: change for name, change in changes.items() if name not in left_out}
    prefix = _text_prefix(folder, family, kept)
    named: dict[str, Change] = {}
    for name, change in kept.items():
        ours = name_behind(prefix, family, name)
        if named.setdefault(ours, change) is not change:
            raise UnsupportedModelError(
                f"{folder}: {change.module} and {named[ours].module} change the same weight"
            )
    return named, sorted(changes[name].module for name in left_out)


def _is_left_out(family: Family, name: str) -> bool:
    pattern = family.left_out
    return family.is_draft(name) or bool(pattern and pattern.fullmatch(name))


def _text_prefix(folder: Path, family: Family, names: Collection[str]) -> str:
    """What stands before the layers of the language model, or its other parts."""
    layer = re.compile(rf"((?:[^.]+\.)*?){re.escape(family.layers)}\d+\.")
    found = {match[1]: name for name in names if (match := layer.match(name))}
    if len(found) > 1:
        first, second, *_ = found.values()
        raise UnsupportedModelError(
            f"{folder}: the adapter changes {first} and {second}, which are of two models"
        )
    for prefix, name in found.items():
        if not _TEXT.fullmatch(prefix):
            raise UnsupportedModelError(
                f"{folder}: the adapter changes {name}, which is of no language model"
            )
        return prefix
    others = [name for name in names if not name.endswith("lm_head.weight")]
    for name in [*others, *names]:
        prefix = _TEXT.match(name)[0]  # type: ignore[index] # it also matches nothing
        return prefix if others else prefix + family.root
    return family.root


def _read_factors(folder: Path) -> dict[str, Change]:
    """The changes by the name of the weight in the model that was trained."""
    sides: dict[str, dict[str, Weight]] = {"A": {}, "B": {}}
    adapters: set[str] = set()
    for name, weight in open_adapter(folder).items():
        if name.endswith(".base_layer.weight"):  # peft's copy of a weight of the base model
            continue
        match = _FACTOR.fullmatch(name)
        if match is None:
            raise UnsupportedModelError(
                f"{folder}: tensor {name} is no part of a low-rank term (lora_A or lora_B)"
            )
        adapters.add(match["adapter"] or "")
        sides[match["side"]][match["module"].removeprefix(_PREFIX)] = check_type(weight)
    if len(adapters) > 1:
        raise UnsupportedModelError(
            f"{folder}: the file holds several adapters ({', '.join(sorted(adapters))}), of which "
            "nobody says which one is wanted"
        )
    for side, other in (("A", "B"), ("B", "A")):
        if missing := sides[other].keys() - sides[side].keys():
            raise ModelFormatError(f"{folder}: lora_{side} of {min(missing)} is missing")
    both = {module: Change(module, a, sides["B"][module]) for module, a in sides["A"].items()}
    return {f"{module}.weight": change for module, change in both.items()}
