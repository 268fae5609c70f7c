"""The memory of a model besides its neurons, and its assignment to the GPU."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..convert import source
from ..core.errors import ModelFormatError, OutOfMemoryError
from ..core.gguf import Gguf
from ..core.options import ALL_OLD
from ..core.plan import memory_plan
from ..core.tiers import GPU, RAM
from .statistics import is_of_neurons

# In the order in which they get VRAM. All of them are read for every token, so a byte of them saves
# more there than a byte of any neuron. The cache comes last, because it fills slowly.
GPU_ORDER = ("norms", "attention", "shared", "head", "predictor", "kv")
RAM_ONLY = ("embedding", "tables", "scratch")

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_PREDICTOR = re.compile(r"(?:fc[12]|sketch)(?:_exps)?\.(?:weight|bias)")
_MIXERS = ("attn_", "ssm_", "shortconv.")
# Matrices that every token reads beside its experts.
_SHARED = re.compile(r"ffn_(?:gate|up|down|down_t)_shexp\.weight|ffn_latent_(?:down|up)\.weight")
_STATISTICS = re.compile(r"ffn_(?:rate|tier)(?:_exps)?")


@dataclass(frozen=True)
class Part:
    """Bytes of a kind (GPU_ORDER, RAM_ONLY) that stay together. layer: -1 if it has none.
    looked_up: also stays in RAM, where single rows are read."""

    kind: str
    layer: int
    n_bytes: int
    looked_up: bool = False


@dataclass(frozen=True)
class Parts:
    """Places of everything except neurons, and bytes left for these (ram_left None: no limit)."""

    gpu: tuple[Part, ...]
    ram: tuple[Part, ...]
    vram_left: int
    ram_left: int | None

    def bytes_by_kind(self, tier: int) -> dict[str, int]:
        """Bytes of each kind in a tier; none in storage, which holds only neurons."""
        parts = {RAM: self.ram, GPU: self.gpu}.get(tier, ())
        kinds = {RAM: (*GPU_ORDER, *RAM_ONLY), GPU: (*GPU_ORDER, "scratch")}.get(tier, ())
        return {kind: sum(p.n_bytes for p in parts if p.kind == kind) for kind in kinds}


def read_parts(gguf: Gguf, n_ctx: int, n_ubatch: int, type_kv: int = 1) -> list[Part]:
    """The parts of a model with a context of n_ctx positions, from the header alone.

    n_ubatch: tokens computed at once, which determines the scratch memory. type_kv: GGUF type id of
    the cache. Raises the errors of opening the model.
    """
    sizes: dict[tuple[str, int], int] = {}
    layers, tensors = set(), source.tensors(gguf)
    n_layer = source.n_layer(gguf)  # those behind them guess tokens, and are not loaded
    tied = all(t.name != "output.weight" for t in tensors)  # the embedding is the head as well
    for tensor in tensors:
        kind, layer = _kind(tensor.name)
        if layer >= n_layer:
            continue
        if tied and tensor.name == "token_embd.weight":
            kind = "head"
        if layer >= 0:
            layers.add(layer)
        if kind:
            sizes[kind, layer] = sizes.get((kind, layer), 0) + tensor.n_bytes
        elif _STATISTICS.fullmatch(tensor.name.split(".", 2)[-1]) and "rate" in tensor.name:
            # The rates, and a byte per neuron for its tier.
            sizes["tables", -1] = sizes.get(("tables", -1), 0) + tensor.n_bytes + tensor.n_elements
    if not layers:
        raise ModelFormatError(f"{gguf.files[0]}: holds no layers")
    plan = memory_plan(
        gguf.files[0],
        # As if RAM had all neurons, whatever is free here; who runs the model judges its keys.
        {"ram_budget": 1 << 62, "allow_unknown": True},
        {
            "n_ctx": n_ctx,
            "n_batch": n_ubatch,
            "n_ubatch": n_ubatch,
            "n_logits": 1,
            "type_k": type_kv,
            "type_v": type_kv,
            "n_kv_old": ALL_OLD,  # as on a device
        },
    )["ram"]
    kv = plan["kv"] + plan.get("kv_old", 0)
    for i, layer in enumerate(sorted(layers)):  # evenly, to the byte
        sizes["kv", layer] = kv * (i + 1) // len(layers) - kv * i // len(layers)
    # States belong to no layer here: a device has none of theirs.
    sizes["scratch", -1] = plan["scratch"] + plan["results"] + plan.get("states", 0)
    return [
        Part(kind, layer, n, looked_up=tied and kind == "head")
        for (kind, layer), n in sorted(sizes.items())
        if n
    ]


def _kind(name: str) -> tuple[str, int]:
    """Kind and layer of a tensor; "" for statistics and neurons (which are placed separately)."""
    match = _LAYER.fullmatch(name)
    if not match:
        if name.startswith("output."):
            return "head", -1
        return ("norms" if "norm" in name or "rope" in name else "embedding"), -1
    layer, rest = int(match[1]), match[2]
    if is_of_neurons(rest) or _STATISTICS.fullmatch(rest):
        return "", layer
    if _PREDICTOR.fullmatch(rest):
        return "predictor", layer
    if rest.startswith(_MIXERS) and "norm" not in rest:
        return "attention", layer  # or what takes its place
    if _SHARED.fullmatch(rest):
        return "shared", layer
    return "norms", layer  # with routers and output biases, which are also small


def assign(parts: Sequence[Part], vram: int, ram: int | None) -> Parts:
    """Assigns VRAM in GPU_ORDER, layer by layer; parts that do not fit stay in RAM.

    vram, ram: bytes (ram None: no limit). Scratch is reserved in both. Raises OutOfMemoryError if
    RAM is too small for the parts that must be there.
    """
    scratch = [p for p in parts if p.kind == "scratch"]
    left = vram - sum(p.n_bytes for p in scratch)
    order = {kind: i for i, kind in enumerate(GPU_ORDER)}
    gpu = scratch if left > 0 else []
    host = [p for p in parts if p.kind not in order]
    wanted = [p for p in parts if p.kind in order]
    for part in sorted(wanted, key=lambda p: (order[p.kind], p.layer)):
        if part.n_bytes > left:
            host.append(part)
            continue
        gpu.append(part)
        left -= part.n_bytes
        if part.looked_up:
            host.append(Part("embedding", part.layer, part.n_bytes))
    taken = sum(p.n_bytes for p in host)
    if ram is not None and taken > ram:
        kinds = ", ".join(sorted({p.kind for p in host}))
        raise OutOfMemoryError(
            f"--ram-budget: {kinds} need {taken / (1 << 20):.1f} MiB of RAM before any neuron, "
            f"but only {ram / (1 << 20):.1f} MiB may be used"
        )
    ram_left = None if ram is None else ram - taken
    return Parts(tuple(gpu), tuple(host), max(0, left), ram_left)
