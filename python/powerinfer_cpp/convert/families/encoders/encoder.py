"""What encoders share: rows that see both sides, an embedding with a norm, heads that rank."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...config import Config
from ...tensors import Output, Weights, from_weight, some_rows
from ...writer import Entry, array, boolean, string, uint32
from ..family import Family

# Of pretraining, heads that nobody asks for, and indices that were saved with the weights.
_NOT_NEEDED = (
    r"cls\.(predictions|seq_relationship)\..+|lm_head\..+|vocab_(layer_norm|projector|transform)\..+"
    r"|(.+\.)?embeddings\.position_ids|(.+\.)?pooler\..+|head\..+|decoder\..+"
)
_TYPES = "embeddings.token_type_embeddings.weight"
# A matrix that is none of a GGUF's: the rows of both, gates behind. Where gates are first it is
# "ffn_up", as in llama.cpp.
UP_GATE = "ffn_up_gate"


class Form(NamedTuple):
    """A checkpoint's names of the tensors of layers.

    layers: what they begin with, before the layer's number. parts: by the GGUF's names. norm: that
    of the embedding.
    """

    layers: str
    parts: dict[str, str]
    norm: str = "embeddings.LayerNorm"


class Encoder(Family):
    """Also `ranks`: the checkpoint gives one score of a pair of texts."""

    both_sides = True
    root = ""
    first = "embeddings.word_embeddings.weight"
    forms: tuple[Form, ...]  # of its checkpoints
    biased: frozenset[str] = frozenset()  # matrices that have one
    norm_bias = True
    gates_in_up = False  # "ffn_up" has gates, too, before the others
    default_types = 0  # of tokens, if config.json does not say
    # The checkpoint's names of the matrices that a score is made by; None: models do not rank.
    rank_head: tuple[str, str] | None = None

    def __init__(self, config: Config):
        super().__init__(config)
        self.layers = self.forms[0].layers
        self.n_types = config.integer("type_vocab_size", default=self.default_types, least=0)
        self.ranks = self.read_ranks()
        kept = {name.partition(".")[0] for name in self.rank_head or () if self.ranks}
        self.left_out = re.compile(rf"(?!(.+\.)?({'|'.join(kept)})\.)({_NOT_NEEDED})")
        self.rank_activation = self.read_rank_activation()

    def read_ranks(self) -> bool:
        """Whether the checkpoint has a head that ranks. Raises UnsupportedModelError for one that
        classifies, and where the family has none."""
        kind = classifier_of(self.config)
        labels = self.config.values.get("id2label")
        self.config.known("id2label", "label2id")
        if not kind:
            return False
        if self.rank_head is None:
            raise self.refuse(f"{self.architecture} that ranks ({kind})")
        n_labels = len(labels) if isinstance(labels, dict) else 2  # transformers' default
        if n_labels != 1:
            raise self.refuse(f"{kind} with {n_labels} labels: models that rank have one, and this")
        return True

    def read_rank_activation(self) -> str:
        """What becomes of a score: sentence-transformers' setting, else its default."""
        settings = self.config.values.get("sentence_transformers")
        name = self.config.values.get("sbert_ce_default_activation_function")
        if isinstance(settings, dict):
            name = settings.get("activation_fn", name)
        self.config.known("sentence_transformers")
        found = str(name or "Sigmoid").rpartition(".")[2].lower()
        if self.ranks and found not in ("sigmoid", "identity"):
            raise self.refuse(f"scores with the activation {name}")
        return found

    def entries(self) -> Iterator[Entry]:
        arch = self.architecture
        yield from super().entries()
        yield boolean(f"{arch}.attention.causal", False)
        # llama.cpp wants to know how many there are, and has one where the model has none.
        yield uint32("tokenizer.ggml.token_type_count", max(1, self.n_types))
        if self.ranks:
            yield array(f"{arch}.classifier.output_labels", "STRING", ["LABEL_0"])
            yield string("powerinfer.rank.activation", self.rank_activation)

    # ---- Tensors ----

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        if transpose_down:
            raise self.refuse(f"a neuron-aware file of {self.architecture}")
        form = self.form(weights)
        yield self.embedding(weights, self.first.removesuffix(".weight"))
        if self.n_types:
            yield self.table(weights, _TYPES, "token_types.weight", self.n_types)
        yield from self.further_tables(weights)
        yield from self.norm(weights, form.norm, "token_embd_norm")
        for i in range(self.n_layer):
            for part, theirs in self.parts_of(form, i).items():
                name = f"{form.layers}{i}.{theirs}"
                yield from self.part(weights, name, f"blk.{i}.{part}", part)
        yield from self.last(weights)
        if self.ranks and self.rank_head is not None:
            yield from self.ranker(weights, *self.rank_head)

    def form(self, weights: Weights) -> Form:
        """That of a checkpoint, or of an adapter: which most of its names are of."""

        def fit(form: Form) -> int:
            names = [f"{form.layers}{{}}.{name}.weight" for name in form.parts.values()]
            return sum(name.format(i) in weights for name in names for i in range(self.n_layer))

        return max(self.forms, key=fit)

    def parts_of(self, form: Form, layer: int) -> dict[str, str]:
        """The checkpoint's names of what a layer has."""
        return form.parts

    def further_tables(self, weights: Weights) -> Iterator[Output]:
        """Beside those of tokens and their types."""
        return iter(())

    def last(self, weights: Weights) -> Iterator[Output]:
        """What is behind the layers."""
        return iter(())

    def part(self, weights: Weights, theirs: str, ours: str, part: str) -> Iterator[Output]:
        """A norm, or a matrix with its bias, of a layer; part: its name in the GGUF."""
        if "norm" in part:
            yield from self.norm(weights, theirs, ours)
        elif part == UP_GATE:
            n = self.n_ff
            both = from_weight("", weights.take(f"{theirs}.weight", 2 * n, self.n_embd))
            for i, name in enumerate(("ffn_up", "ffn_gate")):
                yield some_rows(f"{ours.replace(UP_GATE, name)}.weight", both, i * n, n)
        else:
            yield from self.linear(weights, theirs, ours, self.shape(part), part in self.biased)

    def shape(self, part: str) -> tuple[int, int]:
        """Of a matrix of a layer."""
        n, n_ff = self.n_embd, self.n_ff
        shapes = {"attn_qkv": (3 * n, n), "ffn_gate": (n_ff, n), "ffn_down": (n, n_ff)}
        shapes["ffn_up"] = (2 * n_ff if self.gates_in_up else n_ff, n)
        return shapes.get(part, (n, n))

    def ranker(self, weights: Weights, dense: str, score: str) -> Iterator[Output]:
        """A matrix whose activation the engine knows, and the score of what it gives."""
        yield from self.exact(weights, dense, "cls", (self.n_embd, self.n_embd))
        yield from self.exact(weights, score, "cls.output", (1, self.n_embd))

    def table(
        self, weights: Weights, theirs: str, ours: str, n_rows: int, skipped: int = 0
    ) -> Output:
        """A table [n_rows, n_embd] that stays F32, without the first rows."""
        output = from_weight(ours, weights.take(theirs, n_rows, self.n_embd), exact=True)
        return some_rows(ours, output, skipped, n_rows - skipped)

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
        for kind in ("weight", "bias") if bias and self.norm_bias else ("weight",):
            name = f"{theirs}.{names[kind]}"
            yield from_weight(f"{ours}.{kind}", weights.take(name, self.n_embd))


def classifier_of(config: Config) -> str:
    """The class of a checkpoint that classifies texts or ranks them; "" for others."""
    kinds = config.values.get("architectures")
    kind = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
    return kind if kind.endswith("ForSequenceClassification") else ""
