"""What is said of trained predictors: of each layer, and of the model with them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """Shares are of neurons; bytes are of one token. rank 0: no predictor; a sketch's is 1."""

    rank: int
    threshold: float
    recall: float
    precision: float
    predicted: float
    fired: float
    predictor_bytes: int
    n_bytes: float
    exact_bytes: float
    overfit: float  # held-out loss over the loss of what was learnt from


@dataclass(frozen=True)
class Report:
    layers: list[LayerReport]
    perplexity: float  # with predictors, on the windows that decide about sizes
    reference: float  # of exact mode, on the same
    n_tokens: int
    notes: list[str]
    kind: str = "mlp"
