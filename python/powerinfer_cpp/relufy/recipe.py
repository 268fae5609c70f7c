"""What a recipe makes of a model, and how its penalty and its learning rate change with time."""

import math
from dataclasses import dataclass

# ProSparse's training of a 7B (arXiv 2402.13516): where each stage ends, as a share of all steps,
# and the penalty's factor there, as a share of the last one. The first stage, without a penalty,
# lets the model get used to ReLU.
_STAGES = ((0.30, 0.0), (0.36, 0.025), (0.60, 0.25), (0.72, 0.25), (0.97, 1.0), (1.0, 1.0))
_WARMUP = 0.02  # share of the steps in which the learning rate rises
_LAST_RATE = 0.1  # of the learning rate; it falls along a cosine


@dataclass(frozen=True)
class Recipe:
    """activation: of the result; None: the model's own. l1: default of the penalty's last factor.
    threshold: default of FATReLU's threshold; None: the activation takes none."""

    activation: str | None
    l1: float
    threshold: float | None


RECIPES = {
    "prosparse": Recipe("relu", 0.2, 0.01),
    "turbosparse": Recipe("drelu", 0.0, None),  # arXiv 2406.05955: two ReLUs, no penalty
    "control": Recipe(None, 0.0, None),
}


def penalty_factor(done: float) -> float:
    """The penalty's factor, 0 to 1, after a share of the steps. It rises along a cosine's half
    wave from the end of each stage to that of the next."""
    start, before = 0.0, 0.0
    for end, factor in _STAGES:
        if done < end:
            rise = (1 - math.cos(math.pi * (done - start) / (end - start))) / 2
            return before + (factor - before) * rise
        start, before = end, factor
    return before


def rate_factor(step: int, n_steps: int) -> float:
    """The share of the learning rate that step `step` of 0 .. n_steps - 1 takes."""
    warmup = max(1, round(_WARMUP * n_steps))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, n_steps - warmup)
    return _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * done)) / 2
