"""The session of a model that writes several texts and may keep their prompts on disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._native import lib
from ..core.errors import OutOfMemoryError
from ..core.gguf import Gguf
from ..core.model import SPARSE_MODES
from ..core.options import ALL_OLD
from ..core.plan import memory_plan
from ..core.sequences.embedding import MEAN, POOLINGS, embedding_fields
from ..core.session import Session
from ..core.ways import PARALLEL, Way
from . import sequences
from .options import Options
from .prefix_files import PrefixFiles
from .prefixes import N_PINS, N_PINS_WITH_STATES, Prefixes, room_for
from .runtime import Runtime

# What saves less than this share is not worth mentioning, as in the engine's list.
_HELPS = 0.97
# Fields of a session that change no result.
_SPEED = {
    *("n_ctx", "n_batch", "n_ubatch", "n_logits", "n_threads", "n_threads_batch"),
    *("n_checkpoints", "n_active", "n_kv_old"),
}


def session_fields(
    given: Options, n_parallel: int, n_kv: int | None, keeps_prefixes: bool
) -> tuple[dict[str, Any], int]:
    """Fields of the session of a server's model, and how many of its sequences are for prefixes on
    their way to and from the disk."""
    with Gguf(given.model_path) as gguf:
        n_ctx, has_states = given.session["n_ctx"] or gguf.n_ctx_train, gguf.has_states
    n_pins = (N_PINS_WITH_STATES if has_states else N_PINS) if keeps_prefixes else 0
    shared = sequences.fields(n_parallel, n_ctx, n_kv, given.session["n_batch"], n_pins, has_states)
    fields = {**given.session, "n_ctx": n_ctx, **shared}
    if "device" not in given.model:  # what `watch` sees takes memory from the beginning
        fields["record"] = lib.PI_RECORD_BITS
    return fields, n_pins


def vector_fields(given: Options, n_ctx: int | None) -> dict[str, Any]:
    """Fields of the session of a server's model that gives no text, by its file.

    n_ctx: tokens of a text at most; None, or 0: as many as its authors take, or where the file does
    not say that as many as a text of other models has. The options keep it.
    """
    with Gguf(given.model_path) as gguf:
        n_asked = n_ctx or gguf.n_ctx_text or given.session["n_ctx"]
        given.session["n_ctx"] = min(n_asked or gguf.n_ctx_train, gguf.n_ctx_train or n_asked)
        found = gguf.value(f"{gguf.value('general.architecture')}.pooling_type")
    pooling = given.pooling_type
    if pooling < 0:
        pooling = found if found in POOLINGS else MEAN
    return embedding_fields(given.session, pooling)


def gives_no_text(path: str | Path) -> bool:
    """`Gguf.gives_no_text` of a file."""
    with Gguf(path) as gguf:
        return gguf.gives_no_text


def knows_its_texts(path: str | Path) -> bool:
    """Does a file whose model gives no text say how long its texts may be?"""
    with Gguf(path) as gguf:
        return gguf.gives_no_text and gguf.n_ctx_text > 0


@contextmanager
def naming_fewer_texts(
    given: Options, n_parallel: int, n_kv: int | None, keeps_prefixes: bool
) -> Iterator[None]:
    """Names fewer texts at the same time among the ways out of an OutOfMemoryError raised here."""
    try:
        yield
    except OutOfMemoryError as error:
        error.ways = with_fewer_texts(error.ways, given, n_parallel, n_kv, keeps_prefixes)
        raise


def with_fewer_texts(
    ways: Sequence[Way],
    given: Options,
    n_parallel: int,
    n_kv: int | None,
    keeps_prefixes: bool,
) -> list[Way]:
    """The ways out, and half of the texts at the same time, a quarter and so on: the first with
    which the model fits, or one text. Where that suffices, what does not is left out."""

    def planned(n: int) -> tuple[int, int]:
        fields, _ = session_fields(given, n, n_kv, keeps_prefixes)
        plan = memory_plan(given.model_path, given.model, fields)
        return sum(plan["ram"].values()), plan["budget"]

    needed, budget = planned(n_parallel)
    n, n_bytes = n_parallel, needed
    while n > 1 and n_bytes > budget:
        n //= 2
        n_bytes, _ = planned(n)
    if needed <= budget or n_bytes > _HELPS * needed:
        return list(ways)
    suffices = n_bytes <= budget
    rest = [way for way in ways if way.suffices or not suffices]
    return [Way(PARALLEL, n, n_bytes, suffices), *rest]


def rows_for_prefixes(given: Options, session: dict[str, Any]) -> int:
    """The room for prefixes on their way, in rows of logits: so much a model that runs from
    storage leaves free."""
    plan = memory_plan(given.model_path, given.model, {**session, "n_kv_old": ALL_OLD})
    with Gguf(given.model_path) as gguf:
        tokens = gguf.value("tokenizer.ggml.tokens")
    row = 4 * max(1, len(tokens) if isinstance(tokens, list) else 1)
    return -(-room_for(**_prefix_bytes(plan, session)) // row)


def _prefix_bytes(plan: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of a position in the cache, and of a sequence's states, of which there are two.

    plan: of a session whose windows keep all positions."""
    kv = sum(plan[tier].get(part, 0) for tier in ("ram", "gpu") for part in ("kv", "kv_old"))
    states = plan["ram"].get("states", 0) // (2 * session["n_seq"])
    return {"position_bytes": kv // session["n_kv"], "state_bytes": states}


def open_prefixes(
    files: PrefixFiles,
    owner_key: Callable[[str], bytes],
    runtime: Runtime,
    session: Session,
    fields: Mapping[str, Any],
    pins: Sequence[int],
) -> Prefixes | None:
    """What keeps prefixes of a session's texts on disk. fields: of the session. pins: sequences for
    prefixes on their way. None, with a warning, where there is no memory for it."""
    given, model = runtime.options, runtime.model
    # A state names model, numerics and types by its header; what else changes results is here.
    options = {name: given.session[name] for name in given.session.keys() - _SPEED}
    placed = ("device", "n_gpu_layers", "vram_budget", "overrides")
    options |= {name: given.model.get(name) for name in placed}
    adapters = [(Path(path).name, scale) for path, scale in runtime.adapters.listed()]
    about = repr((sorted(options.items()), adapters)).encode("utf-8", "surrogateescape")
    try:
        return Prefixes(
            files,
            model,
            session,
            session.save() + about,
            owner_key,
            masked=model.has_predictors and SPARSE_MODES[fields["sparse"]] == "auto",
            pins=pins,
            n_kv=fields["n_kv"],
            **_prefix_bytes(model.plan(**{**fields, "n_kv_old": ALL_OLD}), fields),
        )
    except OutOfMemoryError as error:
        files.warn(f"prompts are not kept on disk: {error}")
        return None
