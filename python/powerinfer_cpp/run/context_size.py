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
    session = {**given.session, **fields, "n_ctx": tried, "n_kv": tried}
    plan = memory_plan(given.model_path, given.model, session)
    kept = sum(size for name, size in plan["ram"].items() if name not in _LEAVES)
    kv = sum(plan[tier].get("kv", 0) for tier in ("ram", "gpu"))
    per_position = max(1, kv // tried)
    left = max(0, plan["budget"] - kept) // n_models // per_position
    held = left // SHARE
    n_ctx = max(min(trained, max(held, min(ENOUGH, left // 2))), tried)
    n_kv = max(n_ctx, min(held, n_ctx * n_parallel))
    return ContextSize(n_ctx, n_kv, n_kv * per_position)
