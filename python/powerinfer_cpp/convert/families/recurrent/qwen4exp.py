"""Qwen3.8 Flash Next: Qwen3.5's mixtures with several residual streams in the place of norms,
n-grams of tokens, and an indexer that chooses what attention sees."""

from collections.abc import Iterator

from ....core.errors import ModelFormatError
from ...config import Config
from ...tensors import Output, Weights, from_weight, joined_rows, plus_one
from ...writer import Entry, array, string, uint32
from .delta_net import Qwen35Moe
from .states import convolution

_HASHES = {  # the GGUF's keys, and the checkpoint's tensors of integers
    "layer_multipliers": "layer_multipliers",
    "head_offsets": "ngram_heads_offsets",
    "head_vocab_sizes": "ngram_heads_vocab_sizes",
}
_INDEXER = ("indexer_n_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


class Qwen4Exp(Qwen35Moe):
    architecture = "qwen4exp"
    guess_names = ()
    kinds = ("linear_attention", "full_attention", "indexed_attention")
    output_gates = ("sigmoid", "silu")
    defaults = {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}

    def __init__(self, config: Config):
        given = config.values.get("image_token_id")
        super().__init__(config)
        config = self.config
        own = config.values.get("image_token_id")
        self.image_token = own if given is None else given
        self.n_streams = config.integer("hc_count", default=4, least=2)
        self.rank = config.integer("hc_lowrank", default=320)
        self.gate = config.values.get("output_gate_type") or config.values.get("hidden_act", "silu")
        if self.gate not in self.output_gates:
            raise self.refuse(f"output_gate_type {self.gate!r}")
        if self.n_expert_used > self.n_expert:
            raise ModelFormatError(
                f"{config.path}: num_experts_per_tok {self.n_expert_used} is more than there are"
            )
        self.read_indexer()
        self.read_grams()

    def read_indexer(self) -> None:
        config = self.config
        self.indexer = [0, 0, 0, 0]
        if not all(self.recurrent):
            self.indexer = [config.integer(key) for key in _INDEXER]
        if config.integer("indexer_kv_heads", default=1) != 1:
            raise self.refuse("an indexer with several heads of keys (indexer_kv_heads)")
        config.known("number_of_conv_states")  # follows from the others

    def read_grams(self) -> None:
        config = self.config
        layers = config.values.get("ple_layer_ids") or []
        if not isinstance(layers, list) or not all(type(i) is int for i in layers):
            raise ModelFormatError(f"{config.path}: ple_layer_ids must be a list of integers")
        self.gram_layers = [i - 1 for i in sorted(set(layers))]
        self.order = config.integer("ngram_size", default=3, least=2)
        self.gram_heads = config.integer("heads_per_ngram", default=8)
        self.gram_taps = config.integer("ple_conv_kernel_size", default=4)
        self.gram_width = config.integer("ple_embed_dim", default=self.n_embd)
        # Where hashes come from, which the checkpoint holds; and how it cuts their table.
        config.known("ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by")
        config.known("seed", "split_ngram_parts")
        self.hashes: dict[str, list[int]] = {}
        if not self.gram_layers:
            return
        if len(self.gram_layers) > 1:
            raise self.refuse("n-grams in more than one layer (ple_layer_ids)")
        if not 0 <= self.gram_layers[0] < self.n_layer:
            raise ModelFormatError(
                f"{config.path}: ple_layer_ids: there is no layer {self.gram_layers[0] + 1}"
            )
        if self.gram_width % self.n_gram_heads:
            raise ModelFormatError(
                f"{config.path}: ple_embed_dim {self.gram_width} is not a multiple of "
                f"{self.n_gram_heads} heads of n-grams"
            )
        end = config.values.get("eos_token_id")
        end = end[0] if isinstance(end, list) and end else end
        if type(end) is not int or not 0 <= end < self.n_vocab:
            raise ModelFormatError(f"{config.path}: n-grams need an eos_token_id, not {end!r}")
        self.end = end

    @property
    def n_gram_heads(self) -> int:
        return (self.order - 1) * self.gram_heads

    @property
    def width(self) -> int:
        """Values of all streams of a row."""
        return self.n_streams * self.n_embd

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        arch = self.architecture
        yield uint32(f"{arch}.hyper_connection.count", self.n_streams)
        yield uint32(f"{arch}.hyper_connection.low_rank", self.rank)
        if self.gate != "sigmoid":
            yield string("powerinfer.delta_net.gate", self.gate)
        heads, head_dim, budget, ratio = self.indexer
        if budget:
            key = f"{arch}.attention"
            yield uint32(f"{key}.indexer.head_count", heads)
            yield uint32(f"{key}.indexer.key_length", head_dim)
            yield uint32(f"{key}.indexer.top_k", budget)
            ratios = [0 if recurrent else ratio for recurrent in self.recurrent]
            yield array(f"{key}.compress_ratios", "INT32", ratios)
        if not self.gram_layers:
            return
        yield uint32(
            f"{arch}.embedding_length_per_layer_input", self.gram_width // self.n_gram_heads
        )
        key = f"{arch}.ple"
        yield array(f"{key}.layers", "INT32", self.gram_layers)
        yield uint32(f"{key}.ngram_size", self.order)
        yield uint32(f"{key}.heads_per_ngram", self.gram_heads)
        yield uint32(f"{key}.conv_kernel", self.gram_taps)
        yield uint32(f"{key}.eos_token_id", self.end)
        if type(self.image_token) is int:
            yield uint32(f"{key}.image_token_id", self.image_token)
        for name, values in self.hashes.items():
            # llama.cpp reads no others.
            yield array(f"{key}.{name}", "UINT64" if min(values) >= 0 else "INT64", values)

    def layer(
        self, weights: Weights, theirs: str, block: str, transpose_down: bool
    ) -> Iterator[Output]:
        if int(block.removeprefix("blk.")) in self.gram_layers:
            yield from self.grams(weights, f"{theirs}.ple", block)
        yield from self.mix(weights, f"{theirs}.attn_hyper_connection", f"{block}.hc_attn")
        yield from self.attention(weights, f"{theirs}.self_attn", block)
        yield from self.mix(weights, f"{theirs}.mlp_hyper_connection", f"{block}.hc_ffn")
        yield from self.ffn(weights, theirs, block, transpose_down)

    def last(self, weights: Weights) -> Iterator[Output]:
        name = f"{self.prefix}.hyper_connection_mixer"
        yield from self.mix(weights, name, "output_hc", injects=False)

    def mix(
        self, weights: Weights, theirs: str, ours: str, injects: bool = True
    ) -> Iterator[Output]:
        """How the streams are read, and what is added to them."""
        yield plus_one(f"{ours}_norm.weight", weights.take(f"{theirs}.hc_norm.weight", self.width))
        for name, part, shape in (
            ("input_mix_weight_down", "down", (self.rank, self.width)),
            ("input_mix_weight_up", "up", (self.width, self.rank)),
            ("block_inject_weight", "inject", (self.n_streams, self.width)),
        ):
            if injects or part != "inject":
                yield from self.linear(weights, f"{theirs}.{name}", f"{ours}_{part}", shape)

    def attention(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        yield from super().attention(weights, theirs, block)
        if self.recurrent[int(block.removeprefix("blk."))]:
            return
        theirs, ours = f"{theirs}.indexer", f"{block}.indexer"
        heads, head_dim = self.indexer[:2]
        n = heads * head_dim
        both = weights.take(f"{theirs}.index_qk_proj.weight", n + head_dim, self.n_embd)
        yield from_weight(f"{ours}.q_proj.weight", both.between(0, n))
        yield from_weight(f"{ours}.k_proj.weight", both.between(n, n + head_dim))
        for part in ("q", "k"):
            weight = weights.take(f"{theirs}.{part}_layernorm.weight", head_dim)
            yield plus_one(f"{ours}.{part}_norm.weight", weight)

    def grams(self, weights: Weights, theirs: str, block: str) -> Iterator[Output]:
        """N-grams of tokens: hashes, which become keys, their table, what is made of its rows."""
        embedding = f"{theirs}.ple_embedding"
        for name, stored in _HASHES.items():
            n = self.order if name == "layer_multipliers" else self.n_gram_heads
            self.hashes[name] = weights.take_integers(f"{embedding}.{stored}", n)
        yield self.gram_table(weights, f"{embedding}.ngram_embedding")
        n, width = self.gram_width, self.width
        yield from self.linear(weights, f"{theirs}.key_proj", f"{block}.ple_key", (width, n))
        name = f"{block}.ple_value"
        yield from self.linear(weights, f"{theirs}.value_proj", name, (self.n_embd, n))
        name = f"{block}.ple_conv1d"
        yield convolution(weights, f"{theirs}.conv1d", name, width, self.gram_taps)
        for part in ("key", "query", "conv"):
            weight = weights.take(f"{theirs}.norm_{part}.weight", width)
            yield plus_one(f"{block}.ple_norm_{part}.weight", weight)

    def gram_table(self, weights: Weights, theirs: str) -> Output:
        """The table, which checkpoints have in parts: it may be larger than all other weights."""
        n = self.gram_width // self.n_gram_heads
        names = [f"{theirs}.weight"]
        if names[0] not in weights:
            names = [f"{theirs}.shard_{i}.weight" for i in range(weights.count(f"{theirs}.shard_"))]
        parts = [weights.take(name, weights.rows(name), n) for name in names]
        table = joined_rows("per_layer_token_embd.weight", parts, n)
        rows = zip(self.hashes["head_offsets"], self.hashes["head_vocab_sizes"], strict=True)
        for offset, size in rows if not weights.of_adapter else ():
            if offset < 0 or size < 1 or offset + size > table.n_rows:
                raise ModelFormatError(
                    f"{size} rows from {offset} on are not in {theirs}, which has {table.n_rows}"
                )
        return table
