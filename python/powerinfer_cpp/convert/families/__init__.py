"""The families that can be converted, by config.json's model_type."""

from collections.abc import Callable

from ...core.errors import UnsupportedModelError
from ..config import Config
from .dense.falcon import Falcon
from .dense.gemma import Gemma, Gemma2
from .dense.gpt2 import Gpt2
from .dense.muse_glimmer import MuseGlimmer
from .dense.near_llama import (
    Apertus,
    Cohere2,
    Exaone4,
    Glm4,
    Ministral3,
    Olmo2,
    Olmo3,
    SeedOss,
    SmolLm3,
)
from .dense.opt import Opt
from .dense.phi3 import Phi3
from .dense.relu import Arcee, BitNet, Jais2, LlamaSparseRelu, NanoChat, Nemotron
from .dense.stablelm import StableLm
from .dense.starcoder2 import StarCoder2
from .encoders.bert import DistilBert, MPNet, Roberta, bert
from .encoders.both_sides import EmbeddingGemma2, EuroBert, LlamaEmbed, gemma3
from .encoders.jina3 import Jina3, xlm_roberta
from .encoders.modern_bert import ModernBert
from .encoders.rotating import Gte, nomic_bert
from .family import Family
from .llama import Bamboo, Llama, Mistral, Mixtral, Qwen2, Qwen3, TurboSparseMixtral
from .mixtures.bailing import BailingMoe
from .mixtures.deepseek import DeepSeekV2, DeepSeekV3, Glm4MoeLite, Mistral4
from .mixtures.ernie import Ernie, ErnieMoe
from .mixtures.gemma4 import Gemma4
from .mixtures.gpt_oss import GptOss
from .mixtures.hunyuan import Hunyuan, HunyuanMoe
from .mixtures.hy_v3 import HyV3
from .mixtures.laguna import Laguna
from .mixtures.mixture import Dots1, Glm4Moe, MiniMaxM2, Olmoe, Qwen2Moe, Qwen3Moe, SolarOpen
from .mixtures.phimoe import PhiMoe
from .mixtures.smallthinker import SmallThinker
from .mixtures.step import Step
from .mixtures.windowed import Cohere2Moe, ExaoneMoe, Mellum, MiMoV2, Trinity
from .recurrent.delta_net import OlmoHybrid, Qwen3Next, Qwen35, Qwen35Moe
from .recurrent.granite import (
    Granite,
    GraniteMoe,
    GraniteMoeWithSinks,
    WithSinks,
    granite_hybrid,
)
from .recurrent.kimi_delta import BailingHybrid, KimiLinear
from .recurrent.lfm2 import Lfm2, Lfm2Moe, Lfm3
from .recurrent.mamba2 import FalconH1, nemotron_h
from .recurrent.qwen4exp import Qwen4Exp

FAMILIES: dict[str, Callable[[Config], Family]] = {
    "llama": Llama,
    "sparsellama": Llama,  # ProSparse: SparseLlamaForCausalLM
    "bamboo": Bamboo,
    "mistral": Mistral,
    "mixtral": Mixtral,
    "turbosparsemixtral": TurboSparseMixtral,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
    "qwen2_moe": Qwen2Moe,
    "qwen3_next": Qwen3Next,
    "qwen3_5": Qwen35,  # with images; the text part is converted
    "qwen3_5_text": Qwen35,
    "qwen3_5_moe": Qwen35Moe,  # with images; the text part is converted
    "qwen3_5_moe_text": Qwen35Moe,
    "olmo_hybrid": OlmoHybrid,
    "qwen4_exp": Qwen4Exp,  # with images; the text part is converted
    "qwen4_exp_text": Qwen4Exp,
    "lfm2": Lfm2,
    "lfm2_moe": Lfm2Moe,
    "lfm3": Lfm3,
    "glm4_moe": Glm4Moe,
    "solar_open": SolarOpen,
    "olmoe": Olmoe,
    "ernie4_5": Ernie,
    "ernie4_5_moe": ErnieMoe,
    "hunyuan_v1_dense": Hunyuan,
    "hunyuan_v1_moe": HunyuanMoe,
    "minimax_m2": MiniMaxM2,
    "afmoe": Trinity,
    "exaone_moe": ExaoneMoe,
    "mellum": Mellum,
    "step3p7": Step,  # with images; the text part is converted
    "step3p5": Step,
    "mimo_v2_flash": MiMoV2,
    "cohere2_moe": Cohere2Moe,
    "dots1": Dots1,
    "laguna": Laguna,
    "hy_v3": HyV3,
    "bailing_moe": BailingMoe,
    "granite": Granite,
    "granitemoe": GraniteMoe,
    "granitemoeshared": GraniteMoe,
    "granitemoehybrid": granite_hybrid,
    "granite_swa": WithSinks,
    "granitemoe_swa": GraniteMoeWithSinks,
    "phimoe": PhiMoe,
    "deepseek_v2": DeepSeekV2,
    "deepseek_v3": DeepSeekV3,
    "kimi_k2": DeepSeekV3,
    "kimi_linear": KimiLinear,
    "bailing_hybrid": BailingHybrid,
    "glm4_moe_lite": Glm4MoeLite,
    "mistral4": Mistral4,
    "falcon": Falcon,
    "falcon_h1": FalconH1,
    "RefinedWeb": Falcon,  # Falcon 40B and 7B before transformers supported them
    "RefinedWebModel": Falcon,
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3": gemma3,  # with images; the text part is converted
    "gemma3_text": gemma3,
    "gemma4": Gemma4,  # with images and sound; the text part is converted
    "gemma4_text": Gemma4,
    "muse_glimmer": MuseGlimmer,  # with images; the text part is converted
    "muse_glimmer_text": MuseGlimmer,
    "gpt2": Gpt2,
    "gpt_oss": GptOss,
    "opt": Opt,
    "phi3": Phi3,
    "smallthinker": SmallThinker,
    "stablelm": StableLm,
    "starcoder2": StarCoder2,
    "smollm3": SmolLm3,
    "olmo2": Olmo2,
    "olmo3": Olmo3,
    "exaone4": Exaone4,
    "ministral3": Ministral3,
    "mistral3": Ministral3,  # with images; the text part is converted
    "seed_oss": SeedOss,
    "glm4": Glm4,
    "cohere2": Cohere2,
    "apertus": Apertus,
    "llama_sparse_relu": LlamaSparseRelu,  # SparseLM
    "arcee": Arcee,
    "bitnet": BitNet,
    "jais2": Jais2,
    "nanochat": NanoChat,
    "nemotron": Nemotron,
    "nemotron_h": nemotron_h,
    "bert": bert,
    "distilbert": DistilBert,
    "roberta": Roberta,
    "camembert": Roberta,
    "jina_embeddings_v3": Jina3,
    "xlm-roberta": xlm_roberta,
    "mpnet": MPNet,
    "nomic_bert": nomic_bert,
    "new": Gte,
    "gte": Gte,
    "modernbert": ModernBert,
    "eurobert": EuroBert,
    "llama_bidirec": LlamaEmbed,
    "embedding_gemma2": EmbeddingGemma2,  # with images and sound; the text part is converted
    "embedding_gemma2_text": EmbeddingGemma2,
}


def read_family(config: Config, activation: str | None = None) -> Family:
    """The family of a config.json, with its sizes; `activation` overrides the file's.

    Raises ModelFormatError for contradictions, UnsupportedModelError for unknown families and
    features.
    """
    family = FAMILIES.get(config.model_type())
    if family is None and _is_sparse_llama(config):
        # Several projects use this name with different code.
        if activation is None:
            raise UnsupportedModelError(
                f"{config.path}: SparseLlamaForCausalLM of model_type {config.model_type()!r} is "
                "not known; --activation reads it as a Llama with that activation"
            )
        family = Llama
    if family is None:
        raise UnsupportedModelError(
            f"{config.path}: model_type {config.model_type()!r} is not supported "
            f"(supported: {', '.join(FAMILIES)})"
        )
    found = family(config)
    if activation:
        found.activation, found.threshold = activation, 0.0
    return found


def _is_sparse_llama(config: Config) -> bool:
    names = config.values.get("architectures")
    return isinstance(names, list) and names[:1] == ["SparseLlamaForCausalLM"]
