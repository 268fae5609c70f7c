"""ModernBERT: LayerNorm without biases before both parts, gates, windows on both sides."""

from collections.abc import Iterator

from ...config import Config, section_number
from ...rope import Rope, by_layer_type
from ...tensors import Output, Weights
from ...writer import Entry, array, float32, string, uint32
from .encoder import Encoder, Form

_POOLINGS = {"mean": 1, "cls": 2}
_PARTS = {
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
    "ffn_norm": "mlp_norm",
}


class ModernBert(Encoder):
    architecture = "modern-bert"
    first = "embeddings.tok_embeddings.weight"
    forms = (Form("layers.", _PARTS, "embeddings.norm"),)
    gates_in_up = True
    rank_head = ("head.dense", "classifier")

    def __init__(self, config: Config):
        local = config.number("local_rope_theta", default=10000.0)
        text, windowed = by_layer_type(config)
        if windowed is not None:
            of_windows = windowed.values.get("rope_parameters") or {}
            where = f"{config.path}: sliding_attention"
            local = section_number(where, of_windows, "rope_theta", local)
        super().__init__(text)
        self.local_theta = local
        self.norm_eps = config.number("norm_eps", "layer_norm_eps", default=1e-5)
        config.known("layer_norm_eps")
        self.activation = config.activation("hidden_activation", "gelu")
        if self.activation not in ("gelu", "silu"):
            raise self.refuse(f"modernbert with hidden_activation {self.activation}")
        rope = self.read_rope(160000.0)
        theta = config.number("global_rope_theta", default=rope.theta)
        self.rope = Rope(theta, self.head_dim)
        self.period = config.integer("global_attn_every_n_layers", default=3)
        kinds = config.layer_switches("layer_types", self.n_layer)
        self.globals = (
            [i % self.period == 0 for i in range(self.n_layer)]
            if kinds is None
            else [kind == "full_attention" for kind in kinds]
        )
        self.local = config.integer("local_attention", "sliding_window", default=128)
        pooling = config.values.get("classifier_pooling", "cls")
        if pooling not in _POOLINGS:
            raise self.refuse(f"modernbert with classifier_pooling {pooling!r}")
        self.rank_pooling = _POOLINGS[pooling]
        self.norm_bias = config.flag("norm_bias")
        for name in ("attention_bias", "mlp_bias"):
            if config.flag(name):
                raise self.refuse(f"modernbert with {name}")
        if config.values.get("classifier_activation", "gelu") != "gelu" and self.ranks:
            raise self.refuse("modernbert with a classifier_activation that is not gelu")
        self.classifier_bias = config.flag("classifier_bias")
        config.known("position_embedding_type")
        # Of the head that fills masks.
        config.known("decoder_bias", "sparse_prediction", "sparse_pred_ignore_index")
        config.known("deterministic_flash_attn")  # the order of sums in training

    def entries(self) -> Iterator[Entry]:
        arch = self.architecture
        yield from super().entries()
        yield float32(f"{arch}.rope.freq_base_swa", self.local_theta)
        yield uint32(f"{arch}.attention.sliding_window", self.local)
        if self.globals == [i % self.period == 0 for i in range(self.n_layer)]:
            yield uint32(f"{arch}.attention.sliding_window_pattern", self.period)
        else:
            key = f"{arch}.attention.sliding_window_pattern"
            yield array(key, "BOOL", [not whole for whole in self.globals])
        yield string(f"{arch}.hidden_activation", self.activation)
        if self.ranks:
            yield uint32(f"{arch}.classifier.pooling_type", self.rank_pooling)

    def part(self, weights: Weights, theirs: str, ours: str, part: str) -> Iterator[Output]:
        if ours == "blk.0.attn_norm" and f"{theirs}.weight" not in weights:
            return  # the embedding has a norm of its own
        yield from super().part(weights, theirs, ours, part)

    def last(self, weights: Weights) -> Iterator[Output]:
        yield from self.norm(weights, "final_norm", "output_norm")

    def ranker(self, weights: Weights, dense: str, score: str) -> Iterator[Output]:
        yield from self.exact(weights, dense, "cls", self.shape("cls"), self.classifier_bias)
        yield from self.norm(weights, "head.norm", "cls.norm")
        yield from self.exact(weights, score, "cls.output", (1, self.n_embd))
