"""llama.cpp's mixes: a name such as Q4_K_M gives most matrices one format, and some more bits.

The rules are those of llama.cpp, so that a file has the size and quality that users of the name
expect. Other names stand for one format in all matrices.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..convert.formats import format_by_name

_LAYER = re.compile(r"blk\.(\d+)\.")
# Parts of names, the first that is found decides. Falcon has one matrix for attention's inputs.
_KINDS = {
    "attn_qkv.weight": "attn_v",
    "attn_v.weight": "attn_v",
    "attn_k.weight": "attn_k",
    "attn_output.weight": "attn_output",
    "ffn_down": "ffn_down",  # also of experts, and turned (ffn_down_t)
}

_EXPERTS = "_exps"  # in names of stacked experts


@dataclass(frozen=True)
class Mix:
    """base: the format of most matrices. file_type: general.file_type of GGUF files."""

    name: str
    base: str
    file_type: int


MIXES = {
    mix.name: mix
    for mix in (
        Mix("Q2_K", "Q2_K", 10),
        Mix("Q3_K_S", "Q3_K", 11),
        Mix("Q3_K_M", "Q3_K", 12),
        Mix("Q3_K_L", "Q3_K", 13),
        Mix("Q4_K_S", "Q4_K", 14),
        Mix("Q4_K_M", "Q4_K", 15),
        Mix("Q5_K_S", "Q5_K", 16),
        Mix("Q5_K_M", "Q5_K", 17),
        Mix("Q6_K", "Q6_K", 18),
        Mix("IQ4_NL", "IQ4_NL", 25),
        Mix("IQ4_XS", "IQ4_XS", 30),
        Mix("TQ1_0", "TQ1_0", 36),
        Mix("TQ2_0", "TQ2_0", 37),
        Mix("MXFP4_MOE", "Q8_0", 38),  # of experts MXFP4
    )
}


@dataclass(frozen=True)
class Shape:
    """What the rules ask of a model. has_imatrix: an importance matrix is used."""

    architecture: str
    n_layer: int
    n_expert: int
    n_head: int
    n_head_kv: int
    has_imatrix: bool = False

    @property
    def shares_heads(self) -> bool:
        """Whether at least four query heads share keys and values: small matrices."""
        return self.n_head >= 4 * max(1, self.n_head_kv)

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp takes it for a model of 70B weights."""
        shared = self.architecture == "llama" and self.n_head != self.n_head_kv
        return self.n_layer == 80 and (shared or self.architecture == "qwen2")


def chosen(mix: Mix, shape: Shape, rows: Mapping[str, int]) -> dict[str, str]:
    """Formats of the matrices with these names. rows: elements of a row of each; whether the format
    fits them is decided later."""
    if mix.name == "MXFP4_MOE":
        return {name: "MXFP4" if _EXPERTS in name else mix.base for name in rows}
    layers = sorted(_layer(name) for name in rows if _kind(name) == "attn_v")
    tied = "output.weight" not in rows
    found = {}
    for name, row in rows.items():
        if name == "output.weight" or (tied and name == "token_embd.weight"):
            found[name] = _output(mix, shape, row)
            continue
        if name == "token_embd.weight" and mix.base in ("TQ1_0", "TQ2_0"):
            found[name] = "Q4_K"
            continue
        kind, layer = _kind(name), _layer(name)
        wanted = None
        if kind == "attn_v":
            wanted = _attn_v(mix, shape, layers.index(layer), len(layers))
        elif kind == "attn_k":
            wanted = "Q8_0" if shape.n_expert == 8 else None
        elif kind == "attn_output":
            wanted = _attn_output(mix, shape)
        elif kind == "ffn_down":
            wanted = _ffn_down(mix, shape, layer)
        found[name] = wanted or mix.base
    return found


def _kind(name: str) -> str | None:
    return next((kind for part, kind in _KINDS.items() if part in name), None)


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else 0


def _more_bits(i: int, n: int) -> bool:
    """Whether layer i of n is among the first and last eighth, or every third of the others."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _output(mix: Mix, shape: Shape, row: int) -> str:
    fits = format_by_name(mix.base).fits(row)
    return "Q6_K" if fits and shape.architecture != "falcon" else "Q8_0"


def _attn_v(mix: Mix, shape: Shape, i: int, n: int) -> str:
    if shape.n_expert == 8:
        return "Q8_0"
    more = "Q6_K" if _more_bits(i, n) else None
    small = "Q5_K" if shape.shares_heads else None
    wanted = {
        "Q2_K": "Q4_K" if shape.shares_heads else "Q3_K",
        "Q3_K_M": "Q5_K" if i < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "Q4_K_S": "Q5_K" if i < 4 else None,
        "Q4_K_M": more,
        "Q5_K_M": more,
        "IQ4_NL": small,
        "IQ4_XS": small,
    }.get(mix.name)
    found = wanted or mix.base
    return "Q5_K" if shape.is_70b and found in ("Q3_K", "Q4_K") else found


def _attn_output(mix: Mix, shape: Shape) -> str | None:
    if shape.architecture == "falcon":
        wanted = {"Q3_K_L": "Q4_K"}
    elif shape.n_expert == 8:
        lower = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
        wanted = dict.fromkeys(lower, "Q5_K")
    else:
        wanted = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
    return wanted.get(mix.name)


def _ffn_down(mix: Mix, shape: Shape, i: int) -> str | None:
    n, falcon = shape.n_layer, shape.architecture == "falcon"
    first, more = i < n // 8, _more_bits(i, n)
    if falcon:
        wanted = {
            "Q2_K": "Q3_K",
            "Q3_K_M": "Q5_K" if i < n // 16 else "Q4_K" if more else None,
            "Q3_K_L": "Q4_K",
            "Q4_K_M": "Q6_K" if i < n // 16 else "Q5_K" if more else None,
            "Q5_K_M": "Q6_K" if more else None,
        }
    else:
        wanted = {
            "Q2_K": "Q3_K",
            "Q3_K_M": "Q5_K" if i < n // 16 else "Q4_K",
            "Q3_K_L": "Q5_K",
            "Q4_K_S": "Q5_K" if first else None,
            "Q4_K_M": "Q6_K" if more else None,
            "Q5_K_M": "Q6_K" if more else None,
        }
    if first and not shape.has_imatrix:
        wanted |= {"IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K"}
    return wanted.get(mix.name)
