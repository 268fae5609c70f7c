"""Names of activations, and the defaults for files that name none, equal to the engine's table
(src/model/families)."""

RELUS = ("relu", "drelu", "relu2")  # zero unless the gate is positive
SMOOTH = ("silu", "gelu", "gelu_tanh", "swiglu_oai", "xielu")  # never exactly zero
PLAIN_ONLY = ("xielu",)  # which neuron-aware files cannot have: it has parameters
NAMES = RELUS + SMOOTH

# architecture -> activation of a GGUF, activation of a PWRI file
_DEFAULTS = {
    "llama": ("silu", "relu"),
    "bamboo": ("drelu", "drelu"),
    "qwen2": ("silu", "relu"),
    "qwen3": ("silu", "relu"),
    "qwen3moe": ("silu", "relu"),
    "qwen2moe": ("silu", "relu"),
    "qwen3next": ("silu", "relu"),
    "qwen35": ("silu", "relu"),
    "qwen35moe": ("silu", "relu"),
    "olmo-hybrid": ("silu", "relu"),
    "qwen4exp": ("silu", "relu"),
    "lfm2": ("silu", "silu"),
    "lfm2moe": ("silu", "silu"),
    "lfm3": ("silu", "silu"),
    "glm4moe": ("silu", "relu"),
    "olmoe": ("silu", "relu"),
    "ernie4_5": ("silu", "relu"),
    "ernie4_5-moe": ("silu", "relu"),
    "hunyuan-dense": ("silu", "relu"),
    "hunyuan-moe": ("silu", "relu"),
    "minimax-m2": ("silu", "relu"),
    "dots1": ("silu", "relu"),
    "laguna": ("silu", "relu"),
    "hy_v3": ("silu", "relu"),
    "bailingmoe2": ("silu", "relu"),
    "muse-glimmer": ("silu", "relu"),
    "afmoe": ("silu", "relu"),
    "exaone-moe": ("silu", "relu"),
    "granite_swa": ("silu", "relu"),
    "mellum": ("silu", "relu"),
    "step35": ("silu", "relu"),
    "mimo2": ("silu", "relu"),
    "cohere2moe": ("silu", "relu"),
    "granite": ("silu", "relu"),
    "granitemoe": ("silu", "relu"),
    "phimoe": ("silu", "relu"),
    "deepseek2": ("silu", "relu"),
    "kimi-linear": ("silu", "relu"),
    "bailingmoe3": ("silu", "relu"),
    "mistral4": ("silu", "relu"),
    "falcon": ("gelu", "relu"),
    "gemma": ("gelu_tanh", "relu"),
    "gemma2": ("gelu_tanh", "relu"),
    "gemma3": ("gelu_tanh", "relu"),
    "gemma4": ("gelu_tanh", "relu"),
    "gpt2": ("gelu_tanh", "relu"),
    "gpt-oss": ("swiglu_oai", "swiglu_oai"),
    "opt": ("relu", "relu"),
    "phi3": ("silu", "relu"),
    "stablelm": ("silu", "relu"),
    "starcoder2": ("gelu_tanh", "relu"),
    "smallthinker": ("relu", "relu"),
    "smollm3": ("silu", "relu"),
    "mistral3": ("silu", "relu"),
    "seed_oss": ("silu", "relu"),
    "glm4": ("silu", "relu"),
    "olmo2": ("silu", "relu"),
    "exaone4": ("silu", "relu"),
    "cohere2": ("silu", "relu"),
    "apertus": ("xielu", "relu"),
    "arcee": ("relu2", "relu2"),
    "bitnet": ("relu2", "relu2"),
    "jais2": ("relu2", "relu2"),
    "nanochat": ("relu2", "relu2"),
    "nemotron": ("relu2", "relu2"),
    "nemotron_h": ("relu2", "relu2"),
    "nemotron_h_moe": ("relu2", "relu2"),
    "granitehybrid": ("silu", "relu"),
    "falcon-h1": ("silu", "relu"),
    "bert": ("gelu", "relu"),
    "mpnet": ("gelu", "relu"),
    "nomic-bert": ("silu", "relu"),
    "nomic-bert-moe": ("gelu", "relu"),
    "jina-bert-v2": ("gelu", "relu"),
    "gte": ("gelu", "relu"),
    "jina-bert-v3": ("gelu", "relu"),
    "modern-bert": ("gelu", "relu"),
    "eurobert": ("silu", "relu"),
    "llama-embed": ("silu", "relu"),
    "gemma-embedding": ("gelu_tanh", "relu"),
    "gemma-embedding2": ("gelu_tanh", "relu"),
}
# What llama.cpp computes where that is not the default of such files.
_OF_LLAMA_CPP = {"bitnet": "silu"}

# llama.cpp refuses these architectures.
_UNKNOWN_TO_OTHERS = ("bamboo", "lfm3", "nanochat", "olmo-hybrid", "opt")


def dense_note(architecture: str, activation: str) -> str | None:
    """A note about a dense GGUF for which other engines would compute other results, or None.

    The activation is our own key; other engines have a fixed one for each architecture.
    """
    theirs = _OF_LLAMA_CPP.get(architecture, default_activation(architecture))
    if theirs in (None, activation) or architecture in _UNKNOWN_TO_OTHERS:
        return None
    return (
        f"llama.cpp runs this file with {theirs} in the place of {activation}, which gives other "
        "text: it does not know the activation"
    )


def default_activation(architecture: str, pwri: bool = False) -> str | None:
    """The activation of a file without powerinfer.ffn.activation; None if it is unknown."""
    found = _DEFAULTS.get(architecture)
    return None if found is None else found[pwri]
