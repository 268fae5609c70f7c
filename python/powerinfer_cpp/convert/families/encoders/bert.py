"""BERT, DistilBERT, RoBERTa, XLM-RoBERTa, Camembert and MPNet: learned positions, LayerNorm behind
both parts, biases everywhere. Jina's second models: scores biased by distance, and gates."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight
from ..family import Family
from .encoder import UP_GATE, Encoder, Form

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
_JINA = {name: _BERT[name] for name in list(_BERT)[:5]} | {
    "ffn_up": "mlp.gated_layers",
    "ffn_down": "mlp.wo",
    "layer_output_norm": "mlp.layernorm",
}
_JINA_CODE = _JINA | {
    "attn_q_norm": "attention.self.layer_norm_q",
    "attn_k_norm": "attention.self.layer_norm_k",
    "attn_norm_2": "layer_norm_1",
    UP_GATE: "mlp.up_gated_layer",
    "ffn_down": "mlp.down_layer",
    "layer_output_norm": "layer_norm_2",
}
del _JINA_CODE["ffn_up"]


class Bert(Encoder):
    architecture = "bert"
    forms: tuple[Form, ...] = (Form("encoder.layer.", _BERT),)
    biased = frozenset(_BERT)
    default_types = 2
    rank_head: tuple[str, str] | None = ("pooler.dense", "classifier")
    activation_key = "hidden_act"
    skipped = 0  # rows of the positions before that of position 0
    positions = "absolute"  # position_embedding_type

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = self.read_eps()
        self.activation = config.activation(self.activation_key, "gelu")
        self.n_ctx -= self.skipped
        positions = config.values.get("position_embedding_type") or "absolute"
        if positions != self.positions:
            raise self.refuse(f"position_embedding_type {positions!r}")
        if config.flag("is_decoder"):
            raise self.refuse("a BERT that is a decoder (is_decoder)")

    def read_eps(self) -> float:
        return self.config.number("layer_norm_eps", default=1e-12)

    def further_tables(self, weights: Weights) -> Iterator[Output]:
        name = "embeddings.position_embeddings.weight"
        n = self.n_ctx + self.skipped
        yield self.table(weights, name, "position_embd.weight", n, self.skipped)


class JinaBert(Bert):
    """Scores biased by distance (ALiBi) in the place of positions, and gates. The model of code has
    further norms."""

    architecture = "jina-bert-v2"
    forms = (Form("encoder.layer.", _JINA), Form("encoder.layer.", _JINA_CODE))
    biased = frozenset(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"))
    gates_in_up = True
    positions = "alibi"

    def __init__(self, config: Config):
        super().__init__(config)
        kind = config.values.get("feed_forward_type", "original")
        if kind != "geglu" or self.activation != "gelu":
            raise self.refuse(f"jina_bert_v2 with feed_forward_type {kind!r} and {self.activation}")
        config.known("emb_pooler", "attn_implementation")

    def further_tables(self, weights: Weights) -> Iterator[Output]:
        return iter(())


def bert(config: Config) -> Family:
    """BERT, or Jina's models, which have its model_type."""
    alibi = config.values.peek("position_embedding_type") == "alibi"
    return JinaBert(config) if alibi else Bert(config)


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
