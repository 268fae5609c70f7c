"""Sequences of tokens for synthetic mixtures, and what can be said of the experts they choose.

A token's vector is a sum of independent normal vectors: one that all tokens share, which makes some
experts of a layer more popular than others; one for each topic; one that changes slowly from token
to token; and one of its own. A router whose rows are normal vectors gives them logits of the same
law, other ones in each layer, so a few weights decide how often experts are used again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from powerinfer_cpp.measure.trace import Trace
from powerinfer_cpp.placement.simulate import POLICIES, Slots, simulate

N_TOPICS = 24
SHARES = (0.06, 0.12, 0.25, 0.4, 0.6, 0.8)  # of the experts that are resident
TOPIC_TOKENS = (100, 500)


@dataclass(frozen=True)
class Kind:
    """The weights of the vectors, and how much of the slow one is that of the token before."""

    shared: float
    topic: float
    slow: float
    own: float
    keeps: float = 0.88


KINDS = {
    # Measured by others on Qwen3-30B: 45% of a token's experts are the next token's, 80% return
    # within 8 tokens, 19% resident find 74% of the uses, 38% find 89%.
    "qwen3": Kind(0.6, 0.65, 0.85, 0.62),
    "uniform": Kind(0.2, 0.2, 1.0, 0.6),  # nearly equal popularity, with memory
    "forgetful": Kind(0.6, 0.0, 0.0, 1.0),  # only popularity: the lower limit
}


def tokens(kind: Kind, n: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """[n, width]: the vectors of a sequence of tokens."""
    normal = lambda *shape: rng.standard_normal((*shape, width), np.float32)  # noqa: E731
    topics: list[int] = []
    while len(topics) < n:
        topics += [int(rng.integers(N_TOPICS))] * int(rng.integers(*TOPIC_TOKENS))
    x = kind.shared * normal(1) + kind.topic * normal(N_TOPICS)[topics[:n]]
    slow = normal()
    for k in range(n):
        x[k] += kind.slow * slow + kind.own * normal()
        slow = kind.keeps * slow + np.sqrt(1 - kind.keeps**2) * normal()
    return x.astype(np.float32)


@dataclass(frozen=True)
class Uses:
    """What is true of a sequence of chosen experts, over all layers."""

    gini: float  # of the experts' numbers of uses in a layer
    again: dict[int, float]  # share of a token's experts that the token so many later chooses, too
    within_8: float  # share that one of the next 8 tokens chooses
    union_512: float  # share of all experts that a chunk of 512 tokens chooses
    # By resident share and policy; static: those chosen most before hits are counted.
    hits: dict[float, dict[str, float]]


def describe(chosen: np.ndarray, n_expert: int, warm: int) -> Uses:
    """chosen: [tokens, layers, used]. warm: tokens before hits are counted."""
    n, layers, used = chosen.shape
    on = np.zeros((n, layers, n_expert), bool)
    np.put_along_axis(on, chosen.astype(np.int64), True, 2)
    counts = np.sort(on.sum(0) / (n * used), 1)
    gini = 1 + 1 / n_expert - 2 * np.cumsum(counts, 1).sum(1) / n_expert
    again = {
        d: float((on[d:] & on[:-d]).sum() / ((n - d) * layers * used))
        for d in (1, 2, 4, 8, 16, 32, 64)
    }
    soon = [(on[k] & on[k + 1 : k + 9].any(0)).sum() / (layers * used) for k in range(0, n - 9, 5)]
    union = [on[a : a + 512].any(0).mean() for a in range(0, n - 511, 512)]
    # To the simulation an expert is a neuron of which only one part is ever needed.
    bits = np.packbits(on, axis=-1, bitorder="little")
    trace = Trace(n_expert, np.zeros_like(bits), bits, None, 0, 0)
    rates = on[:warm].mean(0, dtype=np.float32)
    hits = {}
    for share in SHARES:
        slots = Slots(0, int(share * layers * n_expert))
        hits[share] = {
            policy: simulate(
                replace(trace, rates=rates) if policy == "static" else trace,
                slots,
                policy,
                warm,
                experts=True,
            ).hits
            for policy in POLICIES
        }
    return Uses(
        float(gini.mean()), again, float(np.mean(soon)), float(np.mean(union or [np.nan])), hits
    )


def table(uses: Uses, guessed: float) -> str:
    """Lines that state these figures."""
    again = ", ".join(f"{d}: {share:.0%}" for d, share in uses.again.items())
    return (
        f"Gini of uses {uses.gini:.2f}; chosen again by the token so many later {again}\n"
        f"chosen again within 8 tokens {uses.within_8:.0%}; "
        f"a chunk of 512 chooses {uses.union_512:.0%} of the experts\n"
        f"the next layer's router chooses {guessed:.0%} of its experts from this layer's input\n"
        f"hits by the share that is resident: {', '.join(POLICIES)}\n"
        + "\n".join(
            f"{share:.0%}: " + ", ".join(f"{of[policy]:.1%}" for policy in POLICIES)
            for share, of in uses.hits.items()
        )
    )
