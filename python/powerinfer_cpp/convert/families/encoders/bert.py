"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa, Camembert and MPNet: learned positions, LayerNorm behind
both parts, biases everywhere."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight
from .encoder import Encoder, Form

_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_DISTILBERT = {
    "attn_q": "attention.q_lin",
    "attn_k": "attention.k_lin",
    "attn_v": "attention.v_lin",
    "attn_output": "attention.out_lin",
    "attn_output_norm": "sa_layer_norm",
    "ffn_up": "ffn.lin1",
    "ffn_down": "ffn.lin2",
    "layer_output_norm": "output_layer_norm",
}
_MPNET = _BERT | {
    "attn_q": "attention.attn.q",
    "attn_k": "attention.attn.k",
    "attn_v": "attention.attn.v",
    "attn_output": "attention.attn.o",
    "attn_output_norm": "attention.LayerNorm",
}


class Bert(Encoder):
    architecture = "bert"
    forms = (Form("encoder.layer.", _BERT),)
    biased = frozenset(_BERT)
    default_types = 2
    rank_head: tuple[str, str] | None = ("pooler.dense", "classifier")
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

    def further_tables(self, weights: Weights) -> Iterator[Output]:
        name = "embeddings.position_embeddings.weight"
        n = self.n_ctx + self.skipped
        yield self.table(weights, name, "position_embd.weight", n, self.skipped)


class DistilBert(Bert):
    names = {
        "n_embd": ("dim",),
        "n_layer": ("n_layers",),
        "n_head": ("n_heads",),
        "n_ctx": ("max_position_embeddings",),
    }
    forms = (Form("transformer.layer.", _DISTILBERT),)
    default_types = 0
    rank_head = None
    activation_key = "activation"

    def __init__(self, config: Config):
        config.known("sinusoidal_pos_embds")  # the table has them, however they were made
        super().__init__(config)

    def read_n_ff(self) -> int:
        return self.config.integer("hidden_dim")

    def read_eps(self) -> float:
        return 1e-12


class Roberta(Bert):
    """Position 0 is behind the rows of padding: those up to the number of the token for it."""

    skipped = 2
    rank_head: tuple[str, str] | None = ("classifier.dense", "classifier.out_proj")

    def __init__(self, config: Config):
        super().__init__(config)
        if config.integer("pad_token_id", default=1, least=0) != self.skipped - 1:
            raise self.refuse("pad_token_id that is not 1")


class MPNet(Roberta):
    """Biases of attention's scores by distance, one table for all layers; no token types."""

    architecture = "mpnet"
    forms = (Form("encoder.layer.", _MPNET),)
    default_types = 0
    rank_head = None

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_buckets = config.integer("relative_attention_num_buckets", default=32)

    def further_tables(self, weights: Weights) -> Iterator[Output]:
        yield from super().further_tables(weights)
        name = "encoder.relative_attention_bias.weight"
        bias = weights.take(name, self.n_buckets, self.n_head)
        yield from_weight("attn_rel_b.weight", bias, exact=True)
