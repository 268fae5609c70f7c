"""Decoders' layers with rows that see both sides: EuroBERT, NVIDIA's Llama for vectors, and
EmbeddingGemma."""

from collections.abc import Iterator

from ...config import Config
from ...writer import Entry, boolean
from ..dense.gemma import Gemma3
from ..family import Family
from ..llama import Llama
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


def gemma3(config: Config) -> Family:
    """Gemma 3, or the embedding model made of it."""
    text = config.section("text_config")
    both = text.values.peek("use_bidirectional_attention")
    return EmbeddingGemma(config) if both else Gemma3(config)
