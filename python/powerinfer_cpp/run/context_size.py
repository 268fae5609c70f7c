"""How many positions the texts of a server have, where nobody says it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.gguf import Gguf
from ..core.plan import memory_plan
from .options import Options

SHARE = 8  # keys and values take this part of what is left
ENOUGH = 16384  # positions that a text has where they fit
_TRIED = 512  # positions with which a plan is made
_LEAVES = ("kv", "cache")  # parts of a plan that take what is left


@dataclass(frozen=True)
class ContextSize:
    """n_ctx: positions of a text. n_kv: of all texts and of known prompts together. n_bytes: of
    keys and values."""

    n_ctx: int
    n_kv: int
    n_bytes: int


def context_size(
    given: Options, fields: Mapping[str, Any], n_parallel: int, n_models: int = 1
) -> ContextSize:
    """The size for a model that nothing has been said of, with fields of a session.

    A text may have all positions that an eighth of the memory holds behind what the model keeps
    there; at least 16,384 where they fit, at most the model's own. All texts share them: a context
    must not take the memory of the experts or neurons that a model from the disk keeps. n_models:
    that share the memory.
    """
    with Gguf(given.model_path) as gguf:
        trained = gguf.n_ctx_train or ENOUGH
    tried = min(_TRIED, trained)
    session = {**given.session, **fields, "n_ctx": tried, "n_kv": tried, "n_kv_old": 0}
    plan = memory_plan(given.model_path, given.model, session)
    kept = sum(size for name, size in plan["ram"].items() if name not in _LEAVES)
    # Of layers with a window a sequence takes as much, however long it is.
    least, per_position = _kv_bytes(given, session, n_parallel, trained)
    kept += least
    left = int(max(0, plan["budget"] - kept) / n_models / per_position)
    held = left // SHARE
    n_ctx = max(min(trained, max(held, min(ENOUGH, left // 2))), tried)
    n_kv = max(n_ctx, min(held, n_ctx * n_parallel))
    return ContextSize(n_ctx, n_kv, least + round(n_kv * per_position))


def _kv_bytes(
    given: Options, session: Mapping[str, Any], n_parallel: int, trained: int
) -> tuple[int, float]:
    """Bytes of keys and values that so many texts take at any length, and those of a position."""
    sizes = max(1, trained // 2), max(2, trained)

    def planned(n: int) -> int:
        of = {**session, "n_seq": n_parallel, "n_active": 0, "n_ctx": n, "n_kv": n}
        plan = memory_plan(given.model_path, given.model, of)
        return sum(plan[tier].get("kv", 0) for tier in ("ram", "gpu"))

    short, long = map(planned, sizes)
    per_position = max(1.0, (long - short) / (sizes[1] - sizes[0]))
    return max(0, round(long - sizes[1] * per_position)), per_position
