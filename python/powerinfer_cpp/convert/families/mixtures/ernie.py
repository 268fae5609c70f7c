"""ERNIE 4.5: Llama whose checkpoint rotates neighbours, dense or with experts."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Weights
from ...weight import Weight
from ...writer import Entry, uint32
from ..llama import Llama
from .mixture import Mixture

_OF_TRAINING = (
    "moe_all_to_all_dropout",
    "moe_aux_loss_lambda",
    "moe_capacity",
    "moe_dropout_prob",
    "moe_orthogonal_loss_lambda",
    "moe_z_loss_lambda",
)


class Ernie(Llama):
    architecture = "ernie4_5"
    pairs = False  # the checkpoint has neighbours already
    tied = True
    default_eps = 1e-5
    default_theta = 500000.0

    def __init__(self, config: Config):
        super().__init__(config.completed(head_dim=128))
        self.qkv_bias = self.o_bias = self.mlp_bias = config.flag("use_bias")


class ErnieMoe(Mixture):
    architecture = "ernie4_5-moe"
    pairs = False
    tied = True
    default_eps = 1e-5
    default_theta = 500000.0
    expert_keys = ("moe_num_experts", "num_experts")
    used_keys = ("moe_k", "num_experts_per_tok")
    choice_bias = "moe_statics.e_score_correction_bias"
    shared = "mlp.shared_experts"

    def __init__(self, config: Config):
        super().__init__(config)
        bias = config.flag("use_bias")
        self.qkv_bias = self.o_bias = self.mlp_bias = self.head_bias = bias
        self.share(config.integer("moe_num_shared_experts", default=2, least=0))
        if config.values.get("moe_gate") not in (None, "topk"):
            raise self.refuse("ernie4_5_moe that chooses in another way (moe_gate)")
        config.known("moe_use_aux_free", "moe_norm_min", *_OF_TRAINING)

    def dense_layers(self) -> list[bool]:
        config, n = self.config, self.n_layer
        first = config.integer("moe_layer_start_index", default=1, least=0)
        last = config.integer("moe_layer_end_index", default=-1, least=-1)
        step = self.step = config.integer("moe_layer_interval", default=1)
        end = n if last == -1 else last + 1
        return [(i + 1) % step != 0 or not first <= i < end for i in range(n)]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield uint32(f"{self.architecture}.interleave_moe_layer_step", self.step)

    def take_choice_bias(self, weights: Weights, theirs: str) -> Weight:
        return weights.take(theirs, 1, self.n_expert).of(0)
