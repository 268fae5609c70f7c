"""Decoders' layers with rows that see both sides: EuroBERT, NVIDIA's Llama for vectors,
EmbeddingGemma and EmbeddingGemma 2."""

from collections.abc import Iterator

from ...config import Config
from ...tensors import Output, Weights, from_weight
from ...writer import Entry, boolean
from ..dense.gemma import Gemma3
from ..family import Family
from ..llama import Llama
from ..mixtures.gemma4 import Gemma4
from .encoder import classifier_of


class LlamaEmbed(Llama):
    both_sides = True
    architecture = "llama-embed"
    tied = True  # there is no head

    def __init__(self, config: Config):
        config.known("is_causal", "pooling", "clf_pooling", "classifier_pooling")
        super().__init__(config)
        self.tied = True

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield boolean(f"{self.architecture}.attention.causal", False)


class EuroBert(LlamaEmbed):
    architecture = "eurobert"
    pairs = False
    default_theta = 250000.0

    def __init__(self, config: Config):
        super().__init__(config)
        pooling = config.values.get("classifier_pooling") or config.values.get("clf_pooling")
        if kind := classifier_of(config):
            raise self.refuse(f"EuroBERT that ranks ({kind}, clf_pooling {pooling or 'late'})")


class EmbeddingGemma(Gemma3):
    architecture = "gemma-embedding"
    both_sides = True

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        yield boolean(f"{self.architecture}.attention.causal", False)


class EmbeddingGemma2(Gemma4):
    """Gemma 4's layers, whose embeddings of layers are made of the token's alone, and a projection
    of each row behind the last norm."""

    architecture = "gemma-embedding2"
    both_sides = True
    defaults = {
        "vocab_size": 262144,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "max_position_embeddings": 262144,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 512,
    }
    default_turns = {"rope_type": "default"}
    has_table = False
    of_model, of_layer = "ple.", "ple_block."

    def __init__(self, config: Config):
        super().__init__(config)
        self.tied = True  # there is no head
        self.window *= 2  # a GGUF has the window of both sides together, config.json that of one
        self.projection = self.config.integer("embedding_dim", default=768)

    def global_key_heads(self) -> int:
        return self.config.integer("num_global_key_value_heads")

    def outputs(self, weights: Weights, transpose_down: bool) -> Iterator[Output]:
        yield from super().outputs(weights, transpose_down)
        name = "model.embedding_projection.weight"
        weight = weights.take(name, self.projection, self.n_embd)
        # The mean of projected rows is the projected mean.
        yield from_weight("dense_2.weight", weight, exact=True)


def gemma3(config: Config) -> Family:
    """Gemma 3, or the embedding model made of it."""
    text = config.section("text_config")
    both = text.values.peek("use_bidirectional_attention")
    return EmbeddingGemma(config) if both else Gemma3(config)
