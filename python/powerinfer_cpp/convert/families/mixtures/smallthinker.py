"""SmallThinker, PowerInfer's own models: ReLU experts that are chosen before attention."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights
from ...writer import Entry, uint32
from ..llama import Llama

PERIOD = 4  # with a window, every fourth layer has none
SOFTMAX, SIGMOID = 1, 2  # smallthinker.expert_gating_func


class SmallThinker(Llama):
    architecture = "smallthinker"
    pairs = False
    default_activation = "relu"
    has_rope_factors = False

    def __init__(self, config: Config):
        super().__init__(config)
        self.n_expert = config.integer("moe_num_primary_experts")
        self.n_expert_used = config.integer("moe_num_active_primary_experts")
        softmax = config.flag("moe_primary_router_apply_softmax")
        self.gating = SOFTMAX if softmax else SIGMOID
        if not config.flag("moe_enable_early_router", True):
            raise self.refuse("smallthinker that chooses experts after attention")
        if config.flag("moe_enable_secondary_experts"):
            raise self.refuse("smallthinker with secondary experts")
        if not all(config.layer_switches("moe_layer_layout", self.n_layer) or [1]):
            raise self.refuse("smallthinker with layers that have no experts")

    def read_n_ff(self) -> int:
        return self.config.integer("moe_ffn_hidden_size")

    def read_window(self) -> tuple[int, list[bool]]:
        """The window. GGUF supports two layouts: no window, or one in all but every fourth layer.

        In the second layout the layers without a window do not rotate. Raises UnsupportedModelError
        for other layouts.
        """
        config, n = self.config, self.n_layer
        slides = [bool(v) for v in config.layer_switches("sliding_window_layout", n) or [0] * n]
        turns = [bool(v) for v in config.layer_switches("rope_layout", n) or [1] * n]
        if not any(slides) and all(turns):
            config.known("sliding_window_size")
            return 0, []
        if slides != turns or slides != [i % PERIOD != 0 for i in range(n)]:
            raise self.refuse("this combination of sliding_window_layout and rope_layout")
        return config.integer("sliding_window_size"), []

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield uint32("smallthinker.expert_feed_forward_length", self.n_ff)
        yield uint32("smallthinker.expert_gating_func", self.gating)

    def ffn(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        moe = f"{theirs}.block_sparse_moe"
        expert = f"{moe}.experts.{{i}}.{{part}}.weight"
        yield from self.experts(weights, f"{moe}.primary_router", expert, block, transpose_down)
