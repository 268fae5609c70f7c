"""Hunyuan: Llama with norms of heads behind RoPE, dense or with experts."""

from ...config import Config
from ...rope import Rope
from ...tensors import Output, Weights, from_weight
from ..llama import Llama
from .mixture import Mixture

_NORMS = {"q": "query_layernorm", "k": "key_layernorm"}


class Hunyuan(Llama):
    architecture = "hunyuan-dense"
    pairs = False
    default_eps = 1e-5

    def __init__(self, config: Config):
        super().__init__(config.completed(head_dim=config.values.get("attention_head_dim")))
        self.head_norms = config.flag("use_qk_norm", True)
        if config.flag("use_cla"):
            raise self.refuse("hunyuan whose layers share keys (use_cla)")

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        """With `alpha` the base is stretched for good; a dynamic one would follow the context."""
        key = "rope_parameters" if self.config.values.get("rope_parameters") else "rope_scaling"
        scaling = self.config.section(key)
        if scaling is self.config or not scaling.values.get("alpha"):
            return super().read_rope(default_theta)
        if scaling.values.get("rope_type", scaling.values.get("type")) != "dynamic":
            raise self.refuse("hunyuan with alpha of a rope scaling other than dynamic")
        theta = self.config.number("rope_theta", default=default_theta)
        if scaling.values.get("rope_theta") is not None:
            theta = scaling.number("rope_theta")
        scaling.values.know_all()
        stretch = scaling.number("alpha") ** (self.head_dim / (self.head_dim - 2))
        return Rope(theta * stretch, self.head_dim)

    def head_norm(self, weights: Weights, theirs: str, heads: int, ours: str) -> Output:
        attention, _, part = theirs.rpartition(".")
        name = f"{attention}.{_NORMS[part]}.weight"
        return from_weight(ours, weights.take(name, self.head_dim))


class HunyuanMoe(Mixture, Hunyuan):
    architecture = "hunyuan-moe"
    used_keys = ("moe_topk", "num_experts_per_tok")
    width_keys = ("moe_intermediate_size", "intermediate_size")
    router = "gate.wg"
    shared = "mlp.shared_mlp"

    def __init__(self, config: Config):
        super().__init__(config)
        # They are as wide as intermediate_size says, the others may be not.
        self.n_shared = config.integer_of_layers("num_shared_expert", default=1)
        self.n_ff_shared = self.n_shared * self.n_ff_dense
        if not config.flag("use_mixed_mlp_moe", True):
            self.n_shared = self.n_ff_shared = 0
        if config.integer("moe_layer_num_skipped", default=0, least=0):
            raise self.refuse("hunyuan with layers that have no experts (moe_layer_num_skipped)")
