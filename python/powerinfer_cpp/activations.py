"""Activations: their names, and which one a file that names none has, after the engine's table
(src/families)."""

RELUS = ("relu", "drelu", "relu2")  # zero, unless the gate is positive
SMOOTH = ("silu", "gelu")  # never exactly zero
NAMES = RELUS + SMOOTH

# architecture -> activation of a GGUF, activation of a PWRI file
_DEFAULTS = {
    "llama": ("silu", "relu"),
    "bamboo": ("drelu", "drelu"),
    "qwen2": ("silu", "relu"),
    "qwen3": ("silu", "relu"),
    "falcon": ("gelu", "relu"),
    "opt": ("relu", "relu"),
    "smallthinker": ("relu", "relu"),
}


_UNKNOWN_TO_OTHERS = ("bamboo", "opt")  # llama.cpp refuses these architectures


def dense_note(architecture: str, activation: str) -> str | None:
    """What to know of a dense GGUF that other engines would open, and compute something else.

    The activation is a key of ours; they have one for each architecture.
    """
    theirs = default_activation(architecture)
    if theirs in (None, activation) or architecture in _UNKNOWN_TO_OTHERS:
        return None
    return (
        f"llama.cpp runs this file with {theirs} in the place of {activation}, which gives other "
        "text: it does not know the activation"
    )


def default_activation(architecture: str, pwri: bool = False) -> str | None:
    """The activation of a file without powerinfer.ffn.activation, None where it is not known."""
    found = _DEFAULTS.get(architecture)
    return None if found is None else found[pwri]
