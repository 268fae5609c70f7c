"""llama.cpp's /infill: what belongs between a prefix and a suffix."""

from dataclasses import replace
from typing import Any

import msgspec

from ...core.logits import StoppingCriteriaList
from ...core.sampling import Sampling
from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job
from .asked import Indentation
from .bodies import Count
from .native import NativeBody, NativeForm, native_options, native_request

NO_FIM = "this model has no FIM tokens: it cannot write between two texts"


class File(msgspec.Struct, kw_only=True):
    """An entry of `input_extra`: another file, or a part of one."""

    text: str = ""
    filename: str = "file"


class InfillBody(NativeBody, kw_only=True):
    """POST /infill. prompt: the end of the prefix; editors send there what stands in the line.
    input_extra: others of the repository, of which the last ones count where room is short."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    input_extra: list[File] | None = None
    n_indent: Count | None = None
    t_max_prompt_ms: float | None = None  # editors send it, and llama.cpp does nothing with it

    def sampling(self, **defaults: Any) -> Sampling:
        """Without llama.cpp's sampler `infill`, which editors name: it chooses among likely tokens
        as the others do, and ends early where none is likely."""
        found = super().sampling(**defaults)
        if found.samplers is None or "infill" not in found.samplers:
            return found
        return replace(found, samplers=[name for name in found.samplers if name != "infill"])


def infill_job(
    model: ServedModel, name: str, body: InfillBody, settings: Settings, owner: str
) -> Job:
    """The job of a text in the middle. Raises Refusal and ValueError."""
    options = native_options(model, body, settings, owner)
    if not model.prompts.fim_tokens:
        raise Refusal(400, NO_FIM)
    files = [(file.filename, file.text) for file in body.input_extra or ()]
    indentation = Indentation(model.prompts.name_bytes, body.n_indent or 0)
    request = native_request(
        model,
        body,
        body.input_prefix + body.prompt,
        {**options, "suffix": body.input_suffix, "files": files},
        StoppingCriteriaList([indentation]) if body.n_indent else None,
    )
    indentation.n_prompt = len(request.ids)
    form = NativeForm(model, name, body, settings, [request], body.n_each > 1)
    return Job(model, [request], form)


def check_suffix(model: ServedModel, body: Any) -> None:
    """Refuses a completion's suffix that the model cannot take. Raises Refusal."""
    if body.suffix and not model.prompts.fim_tokens:
        raise Refusal(400, NO_FIM, "suffix")
    if body.suffix and body.echo and body.logprobs is not None:
        raise Refusal(400, "a suffix with echo has no logprobs of the prompt", "logprobs")
