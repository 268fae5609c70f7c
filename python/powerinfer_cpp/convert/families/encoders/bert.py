"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa and Camembert: learned positions, LayerNorm behind both
parts, biases everywhere."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight
from .encoder import Encoder, Names

_BERT = Names(
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm="output.LayerNorm",
)
_DISTILBERT = Names(
    q="attention.q_lin",
    k="attention.k_lin",
    v="attention.v_lin",
    o="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    norm="output_layer_norm",
)

_MPNET = Names(
    q="attention.attn.q",
    k="attention.attn.k",
    v="attention.attn.v",
    o="attention.attn.o",
    attention_norm="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm="output.LayerNorm",
)


class Bert(Encoder):
    architecture = "bert"
    layers = "encoder.layer."
    has_pooler = True
    parts = _BERT
    activation_key = "hidden_act"
    skipped = 0  # rows of the positions before that of position 0

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = self.read_eps()
        self.activation = config.activation(self.activation_key, "gelu")
        self.n_ctx -= self.skipped
        if config.values.get("position_embedding_type") not in (None, "absolute"):
            raise self.refuse("position_embedding_type that is not absolute")
        if config.flag("is_decoder"):
            raise self.refuse("a BERT that is a decoder (is_decoder)")

    def read_eps(self) -> float:
        return self.config.number("layer_norm_eps", default=1e-12)

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield self.embedding(weights, "embeddings.word_embeddings")
        yield self.table(
            weights,
            "embeddings.position_embeddings.weight",
            "position_embd.weight",
            self.skipped,
        )
        if "embeddings.token_type_embeddings.weight" in weights:
            yield self.table(
                weights, "embeddings.token_type_embeddings.weight", "token_types.weight"
            )
        yield from self.norm(weights, "embeddings.LayerNorm", "token_embd_norm")
        for i in range(self.n_layer):
            yield from self.layer(weights, f"{self.layers}{i}", f"blk.{i}")
        yield from self.ranker(weights)

    def layer(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        square = (self.n_embd, self.n_embd)
        of = self.parts
        for name, ours in ((of.q, "attn_q"), (of.k, "attn_k"), (of.v, "attn_v")):
            yield from self.linear(weights, f"{theirs}.{name}", f"{block}.{ours}", square, True)
        yield from self.linear(weights, f"{theirs}.{of.o}", f"{block}.attn_output", square, True)
        yield from self.norm(weights, f"{theirs}.{of.attention_norm}", f"{block}.attn_output_norm")
        up, down = (self.n_ff, self.n_embd), (self.n_embd, self.n_ff)
        yield from self.linear(weights, f"{theirs}.{of.up}", f"{block}.ffn_up", up, True)
        yield from self.linear(weights, f"{theirs}.{of.down}", f"{block}.ffn_down", down, True)
        yield from self.norm(weights, f"{theirs}.{of.norm}", f"{block}.layer_output_norm")

    def ranker(self, weights: Weights) -> Iterator[Output]:
        """tanh(P x + p) of the first row, and the score of that."""
        if self.ranks:
            square = (self.n_embd, self.n_embd)
            yield from self.exact(weights, "pooler.dense", "cls", square)
            yield from self.exact(weights, "classifier", "cls.output", (1, self.n_embd))


class DistilBert(Bert):
    names = {
        "n_embd": ("dim",),
        "n_layer": ("n_layers",),
        "n_head": ("n_heads",),
        "n_ctx": ("max_position_embeddings",),
    }
    layers = "transformer.layer."
    parts = _DISTILBERT
    activation_key = "activation"

    def read_n_ff(self) -> int:
        return self.config.integer("hidden_dim")

    def read_eps(self) -> float:
        return 1e-12

    def ranker(self, weights: Weights) -> Iterator[Output]:
        if self.ranks:
            raise self.refuse("a DistilBERT that ranks")
        return iter(())


class Roberta(Bert):
    """Position 0 is behind the rows of padding: those up to the number of the token for it."""

    skipped = 2
    has_pooler = False

    def __init__(self, config: Config):
        super().__init__(config)
        if config.integer("pad_token_id", default=1, least=0) != self.skipped - 1:
            raise self.refuse("pad_token_id that is not 1")

    def ranker(self, weights: Weights) -> Iterator[Output]:
        if self.ranks:
            square = (self.n_embd, self.n_embd)
            yield from self.exact(weights, "classifier.dense", "cls", square)
            yield from self.exact(weights, "classifier.out_proj", "cls.output", (1, self.n_embd))


class MPNet(Roberta):
    """Biases of attention's scores by distance, one table for all layers; no token types."""

    architecture = "mpnet"
    parts = _MPNET

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        n = self.config.integer("relative_attention_num_buckets", default=32)
        bias = weights.take("encoder.relative_attention_bias.weight", n, self.n_head)
        yield from super().outputs(weights, transpose_down)
        yield from_weight("attn_rel_b.weight", bias, exact=True)

    def ranker(self, weights: Weights) -> Iterator[Output]:
        if self.ranks:
            raise self.refuse("MPNet that ranks")
        return iter(())
