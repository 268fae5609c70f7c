"""The base class of families: sizes, keys, and helpers that name tensors."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from ...core.errors import ModelFormatError, UnsupportedModelError
from ..config import Config
from ..rope import Rope, read_rope
from ..tensors import Output, Weights, from_weight, row_order, transposed
from ..unread import DRAFT_TENSORS, HARMLESS_TENSORS, WAY, first_names
from ..weight import Weight
from ..writer import Entry, array, float32, uint32

# Names of the predictors in Turbo Sparse checkpoints, one for each FFN or expert.
PREDICTOR = re.compile(r".+\.predictor\.fc[12]\.weight")
_LAYER = re.compile(r"(?:.+\.)?layers\.(\d{1,9})\.")
_MTP = re.compile(r"(.+\.)?mtp\.")
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d{1,9})\.")


class Family:
    """A model's sizes, and the keys and tensors of its GGUF.

    A subclass reads the other values of config.json in __init__, and returns every tensor of the
    file from outputs().
    """

    architecture: str  # GGUF's name
    norm_epsilon = "layer_norm_epsilon"  # suffix of its key
    # config.json's names of sizes, the usual one first
    names = {
        "n_embd": ("hidden_size",),
        "n_layer": ("num_hidden_layers",),
        "n_head": ("num_attention_heads",),
        "n_ctx": ("max_position_embeddings", "max_sequence_length"),
    }
    default_ctx: int | None = None
    may_hold_predictors = False  # in the checkpoint
    window_period = 0  # of the architecture's windows, see _periodic()
    lists_windows = False  # the GGUF has a flag for each layer, whatever the windows
    left_out: re.Pattern[str] | None = None  # names of tensors that are not needed
    root = "model."  # what the names of tensors begin with, except the head's
    first = "embed_tokens.weight"  # name of the embedding behind it
    layers = "layers."  # and that of the layers, before their number
    inputs_first = False  # layers have their matrices as [inputs, outputs]
    tied = False  # default if config.json has no value: is the head the embedding
    default_part = 1.0  # share of a head that rotates, likewise
    rotates_partly = False  # it may be less than 1
    guess_names: tuple[str, ...] = ()  # of the layer that predicts further tokens, those it needs
    guess_parts = 1  # it is so many layers of the checkpoint
    guesses = False  # is it converted?
    both_sides = False  # rows see those behind them, too, as in encoders
    ranks = False  # the checkpoint gives scores of pairs of texts, and no tokens
    projection = 0  # width of vectors behind a matrix of the model's own, dense_2; 0: it has none
    expert_parts: dict[str, str] = {}  # of the matrices of experts, by llama.cpp's names
    mlx_adds_one = False  # MLX's checkpoints hold 1 + weight for norms, where others hold weight
    has_rope_factors = False  # the GGUF has a place for factors of frequencies (llama3, longrope)

    def __init__(self, config: Config):
        self.config = config
        self.n_vocab = config.integer("vocab_size")
        self.n_embd = config.integer(*self.names["n_embd"])
        self.n_layer = config.integer(*self.names["n_layer"])
        self.n_head = config.integer(*self.names["n_head"])
        self.n_ctx = config.integer(*self.names["n_ctx"], default=self.default_ctx)
        self.head_dim = config.integer("head_dim", default=max(1, self.n_embd // self.n_head))
        self.n_head_kv = self.read_n_head_kv()
        self.n_ff = self.read_n_ff()
        self.n_ff_dense = self.n_ff  # of layers without experts, where a mixture has such
        self.n_nextn = config.integer("num_nextn_predict_layers", default=0, least=0)
        self.norm_eps = 1e-5
        self.activation = ""
        self.threshold = 0.0  # FATReLU: values up to it become 0
        self.keep_predictors = False  # convert the checkpoint's own predictors
        self.of_mlx = False  # the checkpoint says that MLX wrote it
        self.rope: Rope | None = None
        self.window = 0  # positions that a row sees; 0: all
        self.slides: list[bool] = []  # which layers have the window; empty: all
        self.n_expert = self.n_expert_used = 0
        self.said_tied = config.values.get("tie_word_embeddings") is not None
        self.tied = config.flag("tie_word_embeddings", self.tied)
        self.notes: list[str] = []  # notes for the user
        # By task and by the weight's name in the family's model: factors [rank, inputs] and
        # [outputs, rank] of what is added to it adapter_alpha / rank times.
        self.adapters: dict[str, dict[str, tuple[Weight, Weight]]] = {}
        self.adapter_alpha = 1.0
        self.prompts: dict[str, str] = {}  # that config.json has, by the task
        if self.n_head % self.n_head_kv:
            raise ModelFormatError(
                f"{config.path}: {self.n_head} heads are not a multiple of "
                f"{self.n_head_kv} key-value heads"
            )

    def read_n_head_kv(self) -> int:
        return self.config.integer("num_key_value_heads", default=self.n_head)

    def read_n_ff(self) -> int:
        return self.config.integer("intermediate_size")

    @property
    def vector_widths(self) -> list[int]:
        """Of a row, and behind a projection of the model's own."""
        return [self.n_embd, self.projection] if self.projection else [self.n_embd]

    @property
    def n_q(self) -> int:
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        return self.n_head_kv * self.head_dim

    def read_rope(self, default_theta: float = 10000.0) -> Rope:
        """Raises UnsupportedModelError also for what the family's model or GGUF does not have."""
        rope = read_rope(self.config, self.head_dim, self.n_ctx, default_theta, self.default_part)
        if rope.n_rot != self.head_dim and not self.rotates_partly:
            raise self.refuse(f"{self.architecture} with partial rotation (partial_rotary_factor)")
        if rope.has_factors and not self.has_rope_factors:
            kind = rope.kind if rope.kind == "longrope" else "llama3"
            raise self.refuse(f"{self.architecture} with {kind}'s rope scaling")
        return rope

    def refuse(self, what: str) -> UnsupportedModelError:
        """An error for an unsupported feature in config.json, to raise."""
        return UnsupportedModelError(f"{self.config.path}: {what} is not supported")

    # ---- Keys ----

    def entries(self) -> Iterator[Entry]:
        """The keys of the architecture."""
        arch = self.architecture
        yield uint32(f"{arch}.vocab_size", self.n_vocab)
        yield uint32(f"{arch}.context_length", self.n_ctx)
        yield uint32(f"{arch}.embedding_length", self.n_embd)
        yield uint32(f"{arch}.block_count", self.n_layer + self.guesses)
        if self.guesses:
            yield uint32(f"{arch}.nextn_predict_layers", 1)
        yield uint32(f"{arch}.feed_forward_length", self.n_ff_dense)
        if self.rope:
            yield uint32(f"{arch}.rope.dimension_count", self.rope.n_rot)
        yield uint32(f"{arch}.attention.head_count", self.n_head)
        yield uint32(f"{arch}.attention.head_count_kv", self.n_head_kv)
        yield from self.head_entries()
        yield float32(f"{arch}.attention.{self.norm_epsilon}", self.norm_eps)
        if self.window:
            yield uint32(f"{arch}.attention.sliding_window", self.window)
            yield from self.pattern_entries()
        if self.n_expert:
            yield uint32(f"{arch}.expert_count", self.n_expert)
            yield uint32(f"{arch}.expert_used_count", self.n_expert_used)
        if self.rope:
            yield from self.rope.entries(arch)

    def head_entries(self) -> Iterator[Entry]:
        """The widths of heads, unless they follow from other sizes."""
        if self.head_dim * self.n_head != self.n_embd:
            yield uint32(f"{self.architecture}.attention.key_length", self.head_dim)
            yield uint32(f"{self.architecture}.attention.value_length", self.head_dim)

    def pattern_entries(self) -> Iterator[Entry]:
        """Which layers have the window: nothing if as usual, a period, or a flag for each layer."""
        key, n = f"{self.architecture}.attention.sliding_window_pattern", len(self.slides)
        if not self.slides:
            return
        if not self.lists_windows:
            if self.slides == _periodic(self.window_period, n):
                return
            for period in range(n + 1):
                if self.slides == _periodic(period, n):
                    yield uint32(key, period)
                    return
        yield array(key, "BOOL", self.slides)

    # ---- Tensors ----

    def is_draft(self, name: str) -> bool:
        """Whether a tensor of the checkpoint belongs to layers that predict further tokens."""
        layer = _LAYER.match(name)
        behind = layer and 0 <= int(layer[1]) - self.n_layer < self.n_nextn
        return bool(behind or DRAFT_TENSORS.fullmatch(name))

    def take_adapters(self, checkpoint: dict[str, Weight]) -> dict[str, Weight]:
        """The weights without those of adapters, which are in `adapters` from then on.

        Raises ModelFormatError for broken ones.
        """
        return checkpoint

    def take_guesses(self, checkpoint: dict[str, Weight]) -> dict[str, Weight]:
        """The tensors of a layer that predicts further tokens, by their names without what stands
        before "mtp."; none if the family does not know such a layer. From here on it has one more.

        Of a single layer that stands behind the others the names begin with "mtp.layers.0.".
        """
        found = {_MTP.sub("mtp.", n): w for n, w in checkpoint.items() if _MTP.match(n)}
        for name, weight in checkpoint.items():
            layer = _LAYER.match(name) if self.n_nextn == 1 else None
            if layer and int(layer[1]) == self.n_layer:
                found[f"mtp.layers.0.{name[layer.end() :]}"] = weight
        if not self.guess_names or not all(name in found for name in self.guess_names):
            return {}
        numbers = {int(layer[1]) for layer in map(_MTP_LAYER.match, found) if layer}
        if numbers != set(range(self.guess_parts)) or not self.knows_guesses():
            return {}
        self.guesses = True
        return found

    def knows_guesses(self) -> bool:
        """Whether config.json says nothing of that layer that the GGUF has no place for."""
        return not self.config.values.get("mtp_use_dedicated_embeddings")

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        """The GGUF's tensors in file order.

        transpose_down: ffn_down_t [n_ff, n_embd], a row per neuron, instead of ffn_down. Raises
        ModelFormatError for missing weights and wrong shapes.
        """
        raise NotImplementedError

    def linear(
        self,
        weights: Weights,
        theirs: str,
        ours: str,
        shape: tuple[int, int],
        bias: bool = False,
        order: np.ndarray | None = None,
    ) -> Iterator[Output]:
        """A matrix and its bias; `order`: order of the rows."""
        weight = weights.take(f"{theirs}.weight", *shape)
        yield row_order(f"{ours}.weight", weight, order)
        if bias:
            yield row_order(f"{ours}.bias", weights.take(f"{theirs}.bias", shape[0]), order)

    def norm(
        self, weights: Weights, theirs: str, ours: str, bias: bool = False
    ) -> Iterator[Output]:
        """A norm over the width of the model."""
        for kind in ("weight", "bias") if bias else ("weight",):
            yield from_weight(f"{ours}.{kind}", weights.take(f"{theirs}.{kind}", self.n_embd))

    def down(
        self, weights: Weights, theirs: str, block: str, turn: bool, bias: bool
    ) -> Iterator[Output]:
        """ffn_down, or with `turn` ffn_down_t; the bias has the same name as the matrix."""
        name = f"{block}.ffn_down_t" if turn else f"{block}.ffn_down"
        weight = weights.take(f"{theirs}.weight", self.n_embd, self.n_ff_dense)
        yield (transposed if turn else from_weight)(f"{name}.weight", weight)
        if bias:
            yield from_weight(f"{name}.bias", weights.take(f"{theirs}.bias", self.n_embd))

    def own_predictor(self, weights: Weights, theirs: str, ours: str) -> Iterator[Output]:
        """The predictor that a checkpoint has under `theirs`; `ours` has {part} for fc1, fc2.

        It has the FFN's input. Raises ModelFormatError for missing weights and wrong shapes.
        """
        rank = weights.rows(f"{theirs}.fc1.weight")
        for part, shape in (("fc1", (rank, self.n_embd)), ("fc2", (self.n_ff, rank))):
            weight = weights.take(f"{theirs}.{part}.weight", *shape)
            yield from_weight(ours.format(part=part), weight, predictor=True)

    def embedding(self, weights: Weights, theirs: str) -> Output:
        weight = weights.take(f"{theirs}.weight", self.n_vocab, self.n_embd)
        return from_weight("token_embd.weight", weight)

    def head(self, weights: Weights) -> Iterator[Output]:
        """output.weight, unless the head is the embedding."""
        if "lm_head.weight" not in weights:
            if not (self.tied or self.said_tied):
                self.notes.append("the checkpoint has no head: the embedding is used as the head")
            if self.tied or not self.said_tied:
                return
        elif self.tied and self.said_tied:
            weights.drop("lm_head.weight")  # a copy of the embedding
            return
        yield from_weight(
            "output.weight", weights.take("lm_head.weight", self.n_vocab, self.n_embd)
        )


def embeds_predictors(family: Family, checkpoint: dict[str, Weight]) -> bool:
    """Whether the checkpoint has its own predictors."""
    return family.may_hold_predictors and any(PREDICTOR.fullmatch(name) for name in checkpoint)


def all_outputs(
    family: Family,
    checkpoint: dict[str, Weight],
    transpose_down: bool,
    allow_unknown: bool = False,
) -> Iterable[Output]:
    """Every tensor of the file; adds to the family's notes.

    Raises ModelFormatError also for weights that nobody uses; with allow_unknown they are a note.
    """
    # transformers saves matrices without rows for a shared expert that no layer has.
    checkpoint = {name: w for name, w in checkpoint.items() if 0 not in w.shape}
    needed = {name: w for name, w in checkpoint.items() if not family.is_draft(name)}
    guesses = family.take_guesses(checkpoint)
    if len(needed) + len(guesses) < len(checkpoint):
        family.notes.append("layers that predict further tokens (mtp) are left out")
    left_out = [HARMLESS_TENSORS]
    if family.may_hold_predictors and not family.keep_predictors:
        left_out.append(PREDICTOR)
    if family.left_out is not None:
        left_out.append(family.left_out)
    kept = {n: w for n, w in needed.items() if not any(p.fullmatch(n) for p in left_out)}
    weights = Weights(_renamed(family, kept) | guesses)
    found = list(family.outputs(weights, transpose_down))
    if rest := weights.rest():
        what = f"tensors that its config.json does not explain: {first_names(rest)}"
        if not allow_unknown:
            raise ModelFormatError(f"the checkpoint holds {what}; {WAY}")
        family.notes.append(f"converted without {what}")
    return found


def _renamed(family: Family, checkpoint: dict[str, Weight]) -> dict[str, Weight]:
    """The weights by their names in a model with a head.

    Base models have no prefix, old ones another one, and models that also see images have theirs in
    front of the text part's.
    """
    ends = f".{family.first}"
    found = [name for name in checkpoint if name == family.first or name.endswith(ends)]
    if len(found) != 1 or found[0] == family.root + family.first:
        return checkpoint
    prefix = found[0].removesuffix(family.first)
    renamed = {name_behind(prefix, family, name): weight for name, weight in checkpoint.items()}
    # Two names that would become one: nobody knows which to take.
    return renamed if len(renamed) == len(checkpoint) else checkpoint


def name_behind(prefix: str, family: Family, name: str) -> str:
    """A weight's name in the family's model. prefix: what stands there in the place of its root."""
    if name in ("lm_head.weight", f"{prefix.removesuffix(family.root)}lm_head.weight"):
        return "lm_head.weight"
    return family.root + name.removeprefix(prefix) if name.startswith(prefix) else name


def _periodic(period: int, n_layer: int) -> list[bool]:
    """Windows in all layers but the last of each period; 0: in all."""
    return [period == 0 or i % period != period - 1 for i in range(n_layer)]


def read_window(
    config: Config, n_layer: int, n_ctx: int, first: int = 0, missing: int | None = None
) -> tuple[int, list[bool]]:
    """Size of the sliding window in positions, 0 for none, and which layers have it.

    first: the first layer with a window, if layer_types is missing. missing: the size if the key is
    missing; null always means none.
    """
    if "sliding_window" not in config.values:
        config = config.completed(sliding_window=missing)
    if config.values.get("sliding_window") is None:
        return 0, []
    width = config.integer("sliding_window")
    kinds = config.layer_switches("layer_types", n_layer)
    slides = (
        [layer >= first for layer in range(n_layer)]
        if kinds is None
        else [kind == "sliding_attention" for kind in kinds]
    )
    if width >= n_ctx or not any(slides):
        return 0, []
    return width, slides
