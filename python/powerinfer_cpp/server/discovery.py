"""What clients ask before they use a server: models and their states, capabilities, defaults.

Names and shapes are llama.cpp's (/props, /v1/models, /models/sse), as editors and agents read them.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.gguf import Gguf
from ..core.sampling import Sampling
from ..text.abilities import abilities
from .errors import Refusal
from .models import Models
from .served import ServedModel
from .settings import Settings
from .texts import event

WATCH_SECONDS = 0.25  # between two looks at the states of models
PING_SECONDS = 30.0  # a proxy gives up after twice that
_TEXT_ONLY = {"input_modalities": ["text"], "output_modalities": ["text"]}
# llama.cpp's numbers, by tokenizer.ggml.model.
_VOCABULARIES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5}


def models(of: Models, began: int) -> dict[str, Any]:
    """GET /v1/models: OpenAI's list, and llama.cpp's `models` beside it."""
    entries = [model_entry(of, name, began) for name in of.names]
    return {
        "object": "list",
        "data": entries,
        "models": [_as_llama_cpp(of, entry) for entry in entries],
    }


def model_entry(of: Models, name: str, began: int) -> dict[str, Any]:
    """GET /v1/models/{name}. Raises Refusal for a name that no model has: here a single model does
    not answer to others."""
    if name not in of.names:
        known = ", ".join(of.names)
        words = f"there is no model {name!r}: known are {known}"
        raise Refusal(404, words, "model", "model_not_found")
    entry = {
        "id": name,
        "aliases": [],
        "tags": [],
        "object": "model",
        "created": began,
        "owned_by": "powerinfer_cpp",
        "status": {"value": of.state(name)},
        "architecture": _TEXT_ONLY,
        "chat_format": of.chat_formats[name],
    }
    model = of.all().get(name)
    if model is None:
        return entry
    of_vectors = vectors(model)
    if not model.writes:
        entry["architecture"] = {**_TEXT_ONLY, "output_modalities": of_vectors["capabilities"]}
    return {**entry, **of_vectors, "meta": meta(model)}


def vectors(model: ServedModel) -> dict[str, Any]:
    """What a model gives, and what it makes of texts: capabilities in Ollama's words."""
    of = model.vectors
    chats = ["tools"] if model.prompts.chats_with is not None else []
    kind = ["rerank"] if of.ranks else ["embedding"]
    return {
        "capabilities": ["completion", *chats] if model.writes else kind,
        "pooling": of.pooling,
        "dimensions": None if of.ranks else of.width,
        "max_tokens": of.inputs.max_tokens,
        "prompts": list(of.inputs.prompts),
    }


def meta(model: ServedModel) -> dict[str, Any]:
    """Sizes and formats of a model, with llama.cpp's names."""
    gguf = model.model.gguf
    vocabulary = _VOCABULARIES.get(str(gguf.value("tokenizer.ggml.model")), 0)
    return {**model.facts(), "vocab_type": vocabulary, "ftype": file_type(gguf)}


def file_type(gguf: Gguf) -> str:
    """The name of a file's format, such as Q4_K_M; "" where it does not say."""
    number = gguf.value("general.file_type")
    return _file_types().get(number, "") if isinstance(number, int) else ""


@functools.cache
def _file_types() -> Mapping[int, str]:
    from gguf import LlamaFileType  # takes long to import

    return {int(of): of.name.removeprefix("MOSTLY_").removeprefix("ALL_") for of in LlamaFileType}


def _as_llama_cpp(of: Models, entry: Mapping[str, Any]) -> dict[str, Any]:
    name, about = entry["id"], entry.get("meta", {})
    model = of.all().get(name)
    family = "" if model is None else str(model.model.gguf.value("general.architecture"))
    n_params = about.get("n_params", 0)
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.0f}M",
        "quantization_level": about.get("ftype", ""),
    }
    return {
        "name": name,
        "model": name,
        "modified_at": "",
        "size": str(about.get("size", "")),
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [],
        "capabilities": entry.get("capabilities", []),
        "parameters": "",
        "details": details,
    }


def props(model: ServedModel, name: str, settings: Settings) -> dict[str, Any]:
    """GET /props."""
    source = model.runtime.metadata.get("tokenizer.chat_template", "")
    special = model.runtime.metadata.get("tokenizer.chat_template.tool_use")
    return {
        "model_alias": name,
        "model_path": Path(model.model.path).name,  # not where it lies
        "model_ftype": file_type(model.model.gguf),
        "total_slots": model.n_parallel,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": source,
        **({} if special is None else {"chat_template_tool_use": special}),
        "chat_template_caps": abilities(model.prompts.format(None)),
        "chat_format": model.prompts.chats_with if model.writes else None,
        "enable_thinking": model.thinks,
        **vectors(model),
        **special_tokens(model),
        "build_info": f"powerinfer_cpp {__version__}",
        "is_sleeping": False,
        "default_generation_settings": {
            "n_ctx": model.n_ctx,
            "params": _defaults(model, settings),
        },
        "plan": model.runtime.plan(),
    }


def special_tokens(model: ServedModel) -> dict[str, str | None]:
    """The texts of BOS and EOS; None: there is none."""
    ids = {"bos_token": model.model.bos, "eos_token": model.model.eos}
    return {
        name: model.prompts.any_bytes(id_).decode("utf-8", "replace") if id_ >= 0 else None
        for name, id_ in ids.items()
    }


def _defaults(model: ServedModel, settings: Settings) -> dict[str, Any]:
    """What a text is written with whose request says nothing."""
    given = settings.defaults
    params = Sampling(**given.sampling).keywords()
    params["mirostat"] = params.pop("mirostat_mode")
    most = -1 if given.max_tokens is None else given.max_tokens
    return {
        **params,
        "samplers": list(params["samplers"] or ()),
        "repeat_last_n": model.runtime.samplers.last_n,
        "seed": -1,
        "n_predict": most,
        "max_tokens": most,
        "ignore_eos": given.ignore_eos,
        "stream": False,
        "n_probs": 0,
        "min_keep": 0,
        "grammar": "",
        "stop": [],
    }


async def model_events(of: Models) -> AsyncIterator[bytes]:
    """GET /models/sse: the state of each model, at first and whenever it changes, until the models
    are closed."""
    told: dict[str, str] = {}
    silent = 0.0
    while not of.closing:
        found = {name: of.state(name) for name in of.names}
        data = b"".join(
            event({"model": name, "event": "status_change", "data": {"status": state}})
            for name, state in found.items()
            if told.get(name) != state
        )
        told = found
        silent = 0.0 if data else silent + WATCH_SECONDS
        if silent >= PING_SECONDS:
            data, silent = b": ping\n\n", 0.0
        if data:
            yield data
        await asyncio.sleep(WATCH_SECONDS)
