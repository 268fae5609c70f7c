"""Jina's embeddings 3: XLM-RoBERTa with RoPE in place of learned positions. The checkpoint holds an
adapter for each task beside the model's weights."""

import re
from typing import Any

from ....core.errors import ModelFormatError
from ...config import Config
from ...weight import Weight
from ..family import Family
from .bert import Roberta
from .encoder import Encoder, Form
from .rotating import FIVE

_PARTS = {
    "attn_qkv": "mixer.Wqkv",
    "attn_output": "mixer.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
_FIVE_PARTS = FIVE.parts | {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
del _FIVE_PARTS["ffn_gate"]
_PARAMETRIZED = re.compile(
    r"(?P<module>.+)\.parametrizations\.weight\.(original|0\.lora_(?P<side>[AB]))"
)
_TASK = re.compile(r"\w[\w.-]*")  # names a file


class Jina3(Encoder):
    architecture = "jina-bert-v3"
    forms = (Form("encoder.layers.", _PARTS, "emb_ln"), Form(FIVE.layers, _FIVE_PARTS))
    biased = frozenset((*_PARTS, *_FIVE_PARTS))
    default_types = 1
    rank_head = ("classifier.dense", "classifier.out_proj")

    def __init__(self, config: Config):
        super().__init__(config)
        self.norm_eps = config.number("layer_norm_eps", default=1e-5)
        self.activation = config.activation("hidden_act", "gelu")
        self.n_ctx -= Roberta.skipped  # what XLM-RoBERTa's positions begin with
        config.known("position_embedding_type")
        # Published files, and those that transformers 5 writes.
        theta = 20000.0 if config.model_type() == "jina_embeddings_v3" else 10000.0
        self.rope = self.read_rope(config.number("rotary_emb_base", default=theta))
        self.tasks = self.read_tasks(config.values.get("lora_adaptations") or [])
        self.adapter_alpha = config.number("lora_alpha", default=1.0)
        self.rank = config.integer("lora_rank", default=4)
        # Of training, and of what is computed behind the model.
        config.known("lora_dropout_p", "lora_main_params_trainable", "load_trained_adapters")
        config.known("emb_pooler", "truncate_dim", "matryoshka_dimensions", "use_reentrant")
        prompts = config.values.get("task_instructions") or {}
        if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
            raise ModelFormatError(f"{config.path}: task_instructions are not texts by task")
        config.known("task_instructions")
        self.prompts = dict(prompts)

    def read_tasks(self, names: Any) -> list[str]:
        path = self.config.path
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ModelFormatError(f"{path}: lora_adaptations is not a list of names")
        for name in names:
            if not _TASK.fullmatch(name) or names.count(name) > 1:
                raise ModelFormatError(
                    f"{path}: lora_adaptations: {name!r} is no name for an adapter's file, or "
                    "stands there twice"
                )
        return names

    def take_adapters(self, checkpoint: dict[str, Weight]) -> dict[str, Weight]:
        """Tensors of adapters have a slice for each task: A [rank, inputs] and B [outputs, rank];
        of tables A [rows, rank] and B [rank, columns]."""
        prefix = next((n for n in checkpoint if n.endswith(".emb_ln.weight")), "emb_ln.weight")
        prefix = prefix.removesuffix("emb_ln.weight")
        kept: dict[str, Weight] = {}
        factors: dict[str, dict[str, Weight]] = {}
        for name, weight in checkpoint.items():
            name = name.removeprefix(prefix)
            if (found := _PARAMETRIZED.fullmatch(name)) is None:
                kept[name] = weight
            elif found["side"] is None:
                kept[f"{found['module']}.weight"] = weight
            else:
                factors.setdefault(f"{found['module']}.weight", {})[found["side"]] = weight
        self.adapters = {task: {} for task in self.tasks} if factors else {}
        for name, sides in factors.items():
            for side in "AB":
                self.check_factor(name, side, sides.get(side))
            a, b = ("B", "A") if name.startswith("embeddings.") else ("A", "B")
            for i, task in enumerate(self.tasks):
                self.adapters[task][name] = (sides[a].of(i), sides[b].of(i))
        return kept

    def check_factor(self, name: str, side: str, weight: Weight | None) -> None:
        """Raises ModelFormatError for a factor without a slice for each task."""
        if weight is None:
            raise ModelFormatError(f"{self.config.path.parent}: lora_{side} of {name} is missing")
        if len(weight.shape) != 3 or weight.shape[0] != len(self.tasks):
            raise ModelFormatError(
                f"{self.config.path}: tensor {weight.name} has shape {list(weight.shape)}, which "
                f"is not a matrix for each of {len(self.tasks)} tasks (lora_adaptations)"
            )
        if self.rank not in weight.shape[1:]:
            raise ModelFormatError(
                f"{self.config.path}: tensor {weight.name} has shape {list(weight.shape)}, but "
                f"lora_rank is {self.rank}"
            )


def xlm_roberta(config: Config) -> Family:
    """XLM-RoBERTa, or Jina's model with RoPE, which has its name."""
    rotates = config.values.peek("position_embedding_type") == "rotary"
    return Jina3(config) if rotates else Roberta(config)
