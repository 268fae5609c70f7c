"""What encoders share: rows that see both sides, an embedding with a norm, heads that rank."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...config import Config
from ...tensors import Output, Weights, from_weight, some_rows
from ...writer import Entry, array, boolean, string
from ..family import Family

# Of pretraining, and indices that were saved with the weights.
PRETRAINING = (
    r"cls\.(predictions|seq_relationship)\..+|lm_head\..+|vocab_(layer_norm|projector|transform)\..+"
    r"|(.+\.)?embeddings\.position_ids|head\.(dense|norm)\..+|decoder\..+"
)


class Names(NamedTuple):
    """Of a layer's tensors: matrices, and the norms behind attention and feed-forward block."""

    q: str
    k: str
    v: str
    o: str
    attention_norm: str
    up: str
    down: str
    norm: str


class Encoder(Family):
    """Also `ranks`: the checkpoint gives one score of a pair of texts."""

    root = ""
    first = "embeddings.word_embeddings.weight"
    has_pooler = False  # the head that ranks reads the pooler

    def __init__(self, config: Config):
        super().__init__(config)
        kinds = config.values.get("architectures")
        kind = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
        self.ranks = kind.endswith("ForSequenceClassification")
        labels = config.values.get("id2label")
        n_labels = len(labels) if isinstance(labels, dict) else 2  # transformers' default
        if self.ranks and n_labels != 1:
            raise self.refuse(f"{kind} with {n_labels} labels: models that rank have one, and this")
        self.left_out = re.compile(self.not_needed())

    def not_needed(self) -> str:
        """A pattern of the tensors that no vector and no score depends on."""
        pooler = r"|(.+\.)?pooler\..+" if not (self.ranks and self.has_pooler) else ""
        return PRETRAINING + pooler

    def entries(self) -> Iterator[Entry]:
        arch = self.architecture
        yield from super().entries()
        yield boolean(f"{arch}.attention.causal", False)
        if self.ranks:
            yield array(f"{arch}.classifier.output_labels", "STRING", ["LABEL_0"])
            yield string("powerinfer.rank.activation", self.rank_activation())

    def rank_activation(self) -> str:
        """What becomes of a score: sentence-transformers' setting, else its default."""
        settings = self.config.values.get("sentence_transformers")
        name = self.config.values.get("sbert_ce_default_activation_function")
        if isinstance(settings, dict):
            name = settings.get("activation_fn", name)
        found = str(name or "Sigmoid").rpartition(".")[2].lower()
        if found not in ("sigmoid", "identity"):
            raise self.refuse(f"scores with the activation {name}")
        return found

    # ---- Tensors ----

    def table(self, weights: Weights, theirs: str, ours: str, skipped: int = 0) -> Output:
        """A table [rows, n_embd] that stays F32, without the first rows."""
        weight = weights.take(theirs, weights.rows(theirs), self.n_embd)
        output = from_weight(ours, weight, exact=True)
        return some_rows(ours, output, skipped, output.shape[0] - skipped)

    def exact(
        self, weights: Weights, theirs: str, ours: str, shape: tuple[int, int], bias: bool = True
    ) -> Iterator[Output]:
        """A matrix that stays F32, and its bias."""
        yield from_weight(f"{ours}.weight", weights.take(f"{theirs}.weight", *shape), exact=True)
        if bias:
            yield from_weight(f"{ours}.bias", weights.take(f"{theirs}.bias", shape[0]))

    def norm(self, weights: Weights, theirs: str, ours: str, bias: bool = True) -> Iterator[Output]:
        # Files of TensorFlow's time have other names.
        old = f"{theirs}.gamma" in weights
        names = {"weight": "gamma", "bias": "beta"} if old else {"weight": "weight", "bias": "bias"}
        for kind, name in names.items() if bias else [("weight", names["weight"])]:
            yield from_weight(f"{ours}.{kind}", weights.take(f"{theirs}.{name}", self.n_embd))
