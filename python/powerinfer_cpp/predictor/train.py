"""Trains one predictor: score = fc2 . relu(fc1 . x); a neuron is computed if its score is high.

A predictor is for a layer, or for one of its experts, which learns from the tokens that chose it.

Loss, optimiser and early stopping follow Deja Vu's training code: binary cross entropy in which a
firing has weight 1 and a zero about the share of firings, AdamW with a decay of 0.01.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .pairs import LayerPairs

BATCH = 1024
RATE = 5e-3  # initial learning rate, falls to a twentieth; 2e-3 was worse after four epochs
PATIENCE = 3  # epochs without improvement
JUDGED_ROWS = 4096  # maximum held-out pairs for a curve


def require_torch() -> None:
    """Raises ValueError, with a one-sentence message, if torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ValueError(
            "training predictors needs torch: pip install 'powerinfer_cpp[train]'"
        ) from None


def default_device() -> str:
    """A GPU where torch sees one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Trained:
    """A trained predictor. fc1: float32 [rank, n_embd], fc2: float32 [n_ff, rank]. Losses: on
    training pairs and on held-out pairs, at the best epoch."""

    fc1: np.ndarray
    fc2: np.ndarray
    loss: float
    held_out_loss: float
    epochs: int


def density(pairs: LayerPairs, rows: np.ndarray) -> float:
    """Share of firing neurons in the chosen experts.

    All experts of a layer use the same value, so that scores are comparable: their predictors share
    one threshold.
    """
    rows, fired, count = rows[:BATCH], 0, 0
    for expert in range(pairs.n_expert):
        found = pairs.fired(pairs.chose(rows, expert), expert)
        fired, count = fired + int(found.sum()), count + found.size
    return fired / max(count, 1)


def train(
    pairs: LayerPairs,
    expert: int,
    rows: np.ndarray,
    held_out: np.ndarray,
    rank: int,
    *,
    density: float,
    batch_size: int,
    seed: int,
    epochs: int,
    device: str,
) -> Trained:
    """Trains on rows of a layer's pairs, all of which chose the expert, and stops when the held-out
    loss does not improve."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    inputs, n_embd, n_ff = pairs.inputs, pairs.width, pairs.n_ff
    sample = inputs[held_out[:BATCH]].astype(np.float32)
    scale = (
        float(np.sqrt(np.mean(sample**2))) or 1.0
    )  # makes training independent of the input's scale
    silence = density + 0.005

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator) / shape[1] ** 0.5
        return torch.nn.Parameter(values.to(device))

    fc1, fc2 = normal(rank, n_embd), normal(n_ff, rank)
    optimizer = torch.optim.AdamW([fc1, fc2], lr=RATE, weight_decay=0.01)
    steps = max(1, epochs * -(-len(rows) // batch_size))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 20)

    def batch(part: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs, firings, and the weight of each neuron in the loss."""
        part = np.sort(part)  # order does not matter within a batch, but reads faster from disk
        x = torch.from_numpy(inputs[part].astype(np.float32) / scale).to(device)
        y = torch.from_numpy(pairs.fired(part, expert)).to(device, torch.float32)
        return x, y, y * (1 - silence) + silence

    def step(part: np.ndarray) -> None:
        # Manual gradients: that of the loss is sigmoid(score) - y, and only the product with n_ff
        # columns takes time.
        x, y, weight = batch(part)
        hidden = torch.relu(x @ fc1.T)
        slope = torch.sigmoid_(hidden @ fc2.T).sub_(y).mul_(weight).div_(y.numel())
        fc2.grad = slope.T @ hidden
        fc1.grad = ((slope @ fc2) * (hidden > 0)).T @ x
        optimizer.step()
        schedule.step()

    def mean_loss(chosen: np.ndarray) -> float:
        total = 0.0
        for a in range(0, len(chosen), BATCH):
            x, y, weight = batch(chosen[a : a + BATCH])
            score = torch.relu(x @ fc1.T) @ fc2.T
            found = torch.nn.functional.binary_cross_entropy_with_logits(score, y, weight)
            total += found.item() * len(x)
        return total / len(chosen)

    learnt = rows[:: -(-len(rows) // len(held_out))]  # to compare with the held-out rows
    best = (float("inf"), float("inf"), fc1.detach(), fc2.detach())
    since, epoch = 0, 0
    with torch.no_grad():
        while epoch < epochs and since < PATIENCE:
            epoch, since = epoch + 1, since + 1
            order = rows[torch.randperm(len(rows), generator=generator).numpy()]
            for first in range(0, len(rows), batch_size):
                step(order[first : first + batch_size])
            outside = mean_loss(held_out)
            if outside < best[0]:
                best, since = (outside, mean_loss(learnt), fc1.clone(), fc2.clone()), 0
    outside, inside, fc1, fc2 = best
    return Trained(fc1.cpu().numpy() / scale, fc2.cpu().numpy(), inside, outside, epoch)


@dataclass(frozen=True)
class Curve:
    """Quality of a predictor at several thresholds, on held-out pairs.

    Each float64 [n]: recall, share of firings that are predicted; threshold, of the score;
    predicted, share of neurons; hit, share of neurons that are predicted and fire. fired: share of
    neurons that fire.
    """

    recall: np.ndarray
    threshold: np.ndarray
    predicted: np.ndarray
    hit: np.ndarray
    fired: float


def curve(
    pairs: LayerPairs,
    rows: np.ndarray,
    scores: Callable[[int, np.ndarray], np.ndarray],
    recalls: Sequence[float],
) -> Curve:
    """The curve of a layer's predictors at those of these recalls that can be reached.

    scores(expert, x): [t, n_ff] for inputs float32 [t, n_embd]. Every expert is measured on the
    tokens that chose it.
    """
    rows = rows[:: -(-len(rows) // JUDGED_ROWS)]
    found, fired = [], []
    for expert in range(pairs.n_expert):
        own = pairs.chose(rows, expert)
        x = pairs.inputs[own].astype(np.float32)
        found.append(scores(expert, x).reshape(-1))
        fired.append(pairs.fired(own, expert).reshape(-1))
    return curve_of(np.concatenate(found), np.concatenate(fired), recalls)


def curve_of(score: np.ndarray, fired: np.ndarray, recalls: Sequence[float]) -> Curve:
    """The curve from scores and firings, arrays of the same shape."""
    of_fired, all_scores = np.sort(score[fired]), np.sort(score.reshape(-1))
    if not len(of_fired):
        of_fired = all_scores[-1:]
    # A score equal to the threshold is predicted; this many of the lowest firings are below it.
    missed = np.floor((1 - np.asarray(recalls)) * len(of_fired)).astype(int)
    threshold = of_fired[np.minimum(missed, len(of_fired) - 1)]
    n_hit = len(of_fired) - np.searchsorted(of_fired, threshold)
    n_predicted = len(all_scores) - np.searchsorted(all_scores, threshold)
    return Curve(
        n_hit / len(of_fired),
        threshold.astype(np.float64),
        n_predicted / score.size,
        n_hit / score.size,
        float(fired.mean()),
    )
