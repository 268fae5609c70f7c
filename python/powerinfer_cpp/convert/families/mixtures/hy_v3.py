"""Hy3: a mixture with the router of DeepSeek V3, without groups."""

from ...config import Config
from .mixture import SIGMOID, GuessesBehind


class HyV3(GuessesBehind):
    architecture = "hy_v3"
    pairs = False
    default_theta = 11158840.0
    default_eps = 1e-5
    has_rope_factors = False
    width_keys = ("moe_intermediate_size", "expert_hidden_dim")
    router = "router.gate"
    choice_bias = "expert_bias"
    choice_bias_name = "exp_probs_b"
    shared = "mlp.shared_mlp"
    gating = SIGMOID

    def __init__(self, config: Config):
        super().__init__(config.completed(head_dim=128))
        self.head_norms = True
        self.expert_scale = config.number("router_scaling_factor", default=2.826)
        self.share(config.integer("num_shared_experts", default=1, least=0))
        if not self.n_shared:  # transformers builds one as wide as a dense block
            self.n_ff_shared = self.n_ff_dense
        for key in ("qk_norm", "route_norm", "moe_router_use_sigmoid"):
            if not config.flag(key, True):
                raise self.refuse(f"hy_v3 without {key}")
        # Of sums in a lower precision; the bias is a tensor, which may be 0.
        config.known("enable_moe_fp32_combine", "moe_router_enable_expert_bias")

    def dense_layers(self) -> list[bool]:
        kinds = self.config.layer_switches("mlp_layer_types", self.n_layer)
        first = self.config.integer("first_k_dense_replace", default=1, least=0)
        if kinds is None:
            return [i < first for i in range(self.n_layer)]
        return [kind != "sparse" for kind in kinds]
