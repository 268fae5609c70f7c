"""llama.cpp's /infill: what belongs between a prefix and a suffix."""

from typing import Any

from ..errors import Refusal
from ..served import ServedModel
from ..settings import Settings
from ..texts import Job
from .native import NativeBody, NativeForm, native_options, native_request

NO_FIM = "this model has no FIM tokens: it cannot write between two texts"


class InfillBody(NativeBody, kw_only=True):
    """POST /infill. prompt: how the middle begins."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""


def infill_job(
    model: ServedModel, name: str, body: InfillBody, settings: Settings, owner: str
) -> Job:
    """The job of a text in the middle. Raises Refusal and ValueError."""
    options = native_options(model, body, settings, owner)
    if not model.prompts.fim_tokens:
        raise Refusal(400, NO_FIM)
    request = native_request(
        model,
        body,
        body.input_prefix,
        {**options, "suffix": body.input_suffix, "begin": body.prompt},
    )
    form = NativeForm(model, name, body, settings, [request], body.n_texts > 1)
    return Job(model, [request], form)


def check_suffix(model: ServedModel, body: Any) -> None:
    """Refuses a completion's suffix that the model cannot take. Raises Refusal."""
    if body.suffix and not model.prompts.fim_tokens:
        raise Refusal(400, NO_FIM, "suffix")
    if body.suffix and body.echo and body.logprobs is not None:
        raise Refusal(400, "a suffix with echo has no logprobs of the prompt", "logprobs")
