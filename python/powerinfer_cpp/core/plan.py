"""The memory that a model and its sessions take, and what helps where it is too little."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from .._native import ffi, lib
from .errors import OutOfMemoryError, check, encoded
from .params import model_params, session_params
from .structs import sized
from .ways import Way


def memory_plan(path: str, model: dict[str, Any], session: dict[str, Any]) -> dict[str, Any]:
    """Bytes that a model and a session with these parameters need; reads only the header.

    Returns {tier: {part: bytes}, "total": bytes, "budget": bytes of RAM that may be used,
    "vram_budget": bytes on the device that may be used, 0 without one, "read_seconds": what reading
    from storage is expected to take for a generated token, "hits", "token_seconds" and "twice" of
    experts on the disk, "experts" and "device_experts" of mixtures, and what a device has:
    "layers", "device_layers", "device_head", "why_layer", "why_head" (answers.Plan)}. Tiers are
    "ram", "gpu" and "storage"; the total leaves out the last one, what only the disk has.
    """
    out = ffi.new("pi_plan **")
    params, kept = model_params(model)
    check(lib.pi_plan_new(encoded(path), params, session_params(**session), out), path)
    del kept  # C uses it until here
    return plan_dict(ffi.gc(out[0], lib.pi_plan_free))


@contextlib.contextmanager
def ways_out(path: str, model: dict[str, Any], session: dict[str, Any] | None) -> Iterator[None]:
    """An OutOfMemoryError that is raised here gets what would help; None: no session is known."""
    try:
        yield
    except OutOfMemoryError as error:
        if session is None:
            raise
        error.path, error.ways = path, ways_of(path, model, session)
        raise


def ways_of(path: str, model: dict[str, Any], session: dict[str, Any]) -> list[Way]:
    """What makes a model and a session fit that do not; nothing if they cannot be planned."""
    out, way = ffi.new("pi_plan **"), sized("pi_way")
    params, kept = model_params(model)
    if lib.pi_plan_new(encoded(path), params, session_params(**session), out) != lib.PI_OK:
        return []
    del kept  # C uses it until here
    plan, found = ffi.gc(out[0], lib.pi_plan_free), []
    for i in range(lib.pi_plan_n_ways(plan)):
        check(lib.pi_plan_way(plan, i, way))
        what = ffi.string(way.what).decode()
        suffices = what == "ram_budget" or way.n_bytes <= lib.pi_plan_budget(plan)
        found.append(Way(what, way.value, way.n_bytes, suffices))
    return found


def plan_dict(plan: Any) -> dict[str, Any]:
    """A pi_plan as a dict."""
    tiers: dict[str, Any] = {"ram": {}, "gpu": {}, "storage": {}}
    part, total = sized("pi_plan_part"), 0
    for i in range(lib.pi_plan_n_parts(plan)):
        check(lib.pi_plan_part_at(plan, i, part))
        parts = tiers[ffi.string(part.tier).decode()]
        name = ffi.string(part.name).decode()
        parts[name] = parts.get(name, 0) + part.n_bytes
        total += part.n_bytes
    storage = sized("pi_storage_plan")
    check(lib.pi_plan_storage(plan, storage))
    if storage.stored:
        tiers["storage"]["ffn"] = storage.stored
    budgets = {"budget": lib.pi_plan_budget(plan), "vram_budget": lib.pi_plan_vram_budget(plan)}
    names = ("read_seconds", "hits", "token_seconds", "twice")
    expected = {name: getattr(storage, name) for name in names}
    experts = sized("pi_expert_report")
    check(lib.pi_plan_experts(plan, experts))
    counts = {"experts": experts.experts, "device_experts": experts.device_room}
    return {**tiers, "total": total, **budgets, **expected, **counts, **_of_device(plan)}


def _of_device(plan: Any) -> dict[str, Any]:
    there = sized("pi_device_plan")
    check(lib.pi_plan_device(plan, there))
    return {
        "layers": there.n_layer,
        "device_layers": there.layers,
        "device_head": there.head,
        "why_layer": ffi.string(there.why_layer).decode(errors="replace"),
        "why_head": ffi.string(there.why_head).decode(errors="replace"),
    }


def on_device(plan: Mapping[str, Any], device: str) -> list[str]:
    """What a device has of a model and why not more, and how many experts of a mixture it has room
    for: a sentence each. None if no device was asked for."""
    layers, why, why_head = plan["device_layers"], plan["why_layer"], plan["why_head"]
    if not layers and not why:
        return []
    head = " and the head" if plan["device_head"] else ""
    said = [f"{layers} of {plan['layers']} layers{head} are on {device}" + (why and f": {why}")]
    if why_head:
        said.append(f"the head is not on {device}: {why_head}")
    room, experts = plan["device_experts"], plan["experts"]
    if experts and plan["vram_budget"]:
        words = f"{room} of {experts} experts have room on {device}"
        said.append(words if room == experts else words + "; the others are computed by the CPU")
    return said


def from_storage(plan: Mapping[str, Any]) -> str:
    """What to expect of a model that memory does not hold, as its plan says; "" for one that it
    does."""
    if not plan["storage"]:
        return ""
    words = "is read from the disk as it runs, since memory does not hold it"
    if plan["token_seconds"]:
        share, rate = 100 * plan["hits"], 1 / plan["token_seconds"]
        words += f": {share:.0f}% of the experts that tokens choose are expected in memory, and "
        words += f"{rate:.1f} tokens a second"
    elif plan["read_seconds"]:
        words += f": a token is expected to read for {1e3 * plan['read_seconds']:.3g} ms"
    return words
