"""What is said of trained predictors: of each layer, and of the model with them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """layer: its number. Shares are of neurons; bytes are of one token. rank 0: no predictor; a
    sketch's is 1."""

    layer: int
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
    """The result of training: the layers that have neurons, and the perplexity with predictors and
    in exact mode, both measured on held-out text. n_tokens: tokens that were recorded. notes:
    sentences for the user. error: standard error of the rise of perplexity, as a share. n_tested:
    tokens of the held-out text.
    """

    layers: list[LayerReport]
    perplexity: float
    reference: float
    n_tokens: int
    notes: list[str]
    kind: str = "mlp"
    error: float = 0.0
    n_tested: int = 0
