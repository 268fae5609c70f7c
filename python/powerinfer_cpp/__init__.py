"""powerinfer_cpp: language models from GGUF files. `from powerinfer_cpp import Llama`.

The package's floors, the lowest first. A module imports from its own floor and from lower ones:

- core: the C library as Python objects: models, sessions, samplers, plans, errors.
- text: from texts to token ids and back: templates, tool calls, thoughts, grammars.
- run: from token ids to tokens: sequences, scheduling, drafts, saved prefixes; it has a glossary.
- this folder: `Llama`, and the modules that llama-cpp-python has beside it.
- convert, quantize, bundle: make files. profile, placement, predictor, relufy, measure, plot,
  perplexity: measure models, and decide where neurons lie.
- server: the HTTP server and its page.
- cli, ray: programs.
"""

from pathlib import Path as _Path

from . import constants as _constants
from ._native import ffi as _ffi
from ._native import lib as _lib
from .constants import *  # noqa: F403
from .core.errors import (
    Cancelled,
    ContextOverflowError,
    DeviceError,
    ModelFormatError,
    OutOfMemoryError,
    RequestError,
    StorageError,
    UnsupportedModelError,
)
from .core.logits import (
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from .core.state import BaseLlamaCache, LlamaCache, LlamaRAMCache, LlamaState
from .llama import Llama
from .llama_tokenizer import BaseLlamaTokenizer, LlamaTokenizer
from .replacing import replace_llama_cpp
from .run.disk_cache import LlamaDiskCache
from .text.grammar import LlamaGrammar


def main_path() -> str:
    """Path of the installed program `main`. Raises FileNotFoundError if it is missing."""
    path = _Path(__file__).parent / "bin" / "main"
    for found in (path, path.with_suffix(".exe")):
        if found.is_file():
            return str(found)
    raise FileNotFoundError(f"{path}: this installation has no program `main`")


__version__ = _ffi.string(_lib.pi_version()).decode()

__all__ = [
    "BaseLlamaCache",
    "BaseLlamaTokenizer",
    "Cancelled",
    "ContextOverflowError",
    "DeviceError",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "ModelFormatError",
    "OutOfMemoryError",
    "RequestError",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "StorageError",
    "UnsupportedModelError",
    "__version__",
    "main_path",
    "replace_llama_cpp",
]
__all__ += [name for name in vars(_constants) if name.isupper()]
