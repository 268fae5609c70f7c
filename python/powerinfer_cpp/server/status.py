"""What a server tells about its work: tokenizer, adapters, slots and metrics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..core.tiers import NAMES
from ..core.work import Work
from ..run.engine import EngineDead
from ..run.requests import Snapshot
from .discovery import special_tokens
from .models import Models
from .served import ServedModel
from .texts import timings


def tokenizer_info(model: ServedModel) -> dict[str, Any]:
    """GET /tokenizer_info, as lm-evaluation-harness reads it."""
    named = special_tokens(model)
    return {
        **named,
        "eos_token_id": model.model.eos,
        "bos_token_id": model.model.bos,
        "pad_token": named["eos_token"],
        "vocab_size": model.model.n_vocab,
        "chat_template": model.runtime.metadata.get("tokenizer.chat_template"),
    }


def adapters(model: ServedModel) -> list[dict[str, Any]]:
    """GET /lora-adapters, with llama.cpp's names."""
    return [
        {"id": i, "path": Path(path).name, "scale": scale}  # not where it lies
        for i, (path, scale) in enumerate(model.runtime.adapters.listed())
    ]


def slots(model: ServedModel) -> list[dict[str, Any]]:
    """GET /slots: texts that are being computed, as of the last step. Nothing of what they say.
    Raises EngineDead."""
    if model.engine.error is not None:
        raise EngineDead(f"the engine has stopped: {model.engine.error}")
    texts = model.engine.snapshot.texts
    found = [
        {
            "id": i,
            "id_task": ticket.number,
            "is_processing": True,
            "n_ctx": model.n_ctx,
            "n_tokens": n,
            "n_computed": done,
            "timings": timings([ticket]),
        }
        for i, (ticket, _, n, done) in enumerate(texts)
    ]
    free = range(len(found), model.n_parallel)
    return found + [{"id": i, "is_processing": False, "n_ctx": model.n_ctx} for i in free]


class Collector:
    """Figures of all models for Prometheus; llama.cpp's names where these exist."""

    def __init__(self, of: Models):
        self._models = of

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of the last step."""
        found: dict[str, Metric] = {}

        def add(kind: Any, name: str, text: str, value: float, **labels: str) -> None:
            if name not in found:
                found[name] = kind(name, text, labels=list(labels))
            found[name].add_metric(list(labels.values()), value)

        for name, model in self._models.all().items():
            if model.engine.error is not None:
                continue
            at = model.engine.snapshot
            for metric, text, value in _counts(model, at):
                add(CounterMetricFamily, metric, text, value, model=name)
            for metric, text, value in _states(model, at):
                add(GaugeMetricFamily, metric, text, value, model=name)
            read = zip(NAMES, at.work.read_by_tier(), strict=True)
            for tier, n in read:
                text = "Bytes of weights and cache that were read, each row counted alone."
                n_bytes = n * at.work.rows
                add(CounterMetricFamily, "powerinfer:bytes", text, n_bytes, model=name, tier=tier)
            if model.model.has_experts:
                chosen = zip(NAMES, at.work.chosen_by_tier(), strict=True)
                for tier, n in chosen:
                    text = "Experts that tokens chose, by who computed or brought them."
                    metric = "powerinfer:experts_chosen"
                    add(CounterMetricFamily, metric, text, n, model=name, tier=tier)
        yield from found.values()


def _counts(model: ServedModel, at: Snapshot) -> list[tuple[str, str, float]]:
    """Counters: name, description and value."""
    done, work = at.done, at.work
    computed, possible = work.computed_of_all()
    found = [
        ("llamacpp:prompt_tokens", "Prompt tokens that were computed.", done.n_prompt),
        ("llamacpp:prompt_seconds", "Seconds for prompts.", done.prompt_s),
        ("llamacpp:tokens_predicted", "Tokens that were written.", done.n_written),
        ("llamacpp:tokens_predicted_seconds", "Seconds for writing.", done.written_s),
        ("llamacpp:n_decode", "Passes of the engine.", at.n_steps),
        ("llamacpp:n_tokens_max", "Tokens of the longest text.", done.n_most),
        ("llamacpp:spec_decode_num_draft_tokens", "Tokens that were guessed.", done.n_drafted),
        ("llamacpp:spec_decode_num_accepted_tokens", "Of these, right ones.", done.n_accepted),
        ("powerinfer:prompt_tokens_reused", "Prompt tokens that were known.", done.n_reused),
        ("powerinfer:requests", "Requests that ended.", done.n_requests),
        ("powerinfer:neurons_computed", "Neurons that tokens computed.", computed),
        ("powerinfer:neurons_possible", "The same without sparsity.", possible),
    ]
    vectors = model.vectors.counts
    found += [
        (
            "powerinfer:vectors",
            "Texts, or pairs of them, of which vectors or scores were computed.",
            vectors.n_texts,
        ),
        ("powerinfer:vectors_tokens", "Tokens of these.", vectors.n_tokens),
        ("powerinfer:vectors_seconds", "Seconds for them.", vectors.seconds),
    ]
    if model.prefixes is not None:
        counts = model.prefixes.counts
        to_disk, from_disk = "Prompt tokens that were written", "Prompt tokens that were read"
        found += [
            ("powerinfer:prompt_tokens_to_disk", f"{to_disk} to disk.", counts.n_written),
            ("powerinfer:prompt_tokens_from_disk", f"{from_disk} from disk.", counts.n_read),
        ]
    if (experts := model.model.experts()) and experts.device_room:
        found += [
            ("powerinfer:experts_copied", "Experts that were copied to the GPU.", experts.copies),
            ("powerinfer:experts_copied_bytes", "Their bytes.", experts.copied_bytes),
        ]
    return found + _stored_counts(model, work)


def _stored_counts(model: ServedModel, work: Work) -> list[tuple[str, str, float]]:
    """Those of a model's storage: experts or parts of neurons, which are 0 without a disk."""
    waited = "Seconds in which tokens waited for the disk with nothing left to compute."
    found = [("powerinfer:storage_waited_seconds", waited, work.waits()[0])]
    if model.reads_experts:
        counts = (
            ("needed", "Experts that tokens needed in RAM.", "first_needed"),
            ("missed", "Experts that tokens missed in RAM.", "first_missed"),
            ("guessed", "Experts whose reading began early.", "storage_guessed"),
            ("guessed_right", "Of these, experts that were chosen.", "storage_guessed_right"),
        )
        return found + [
            (f"powerinfer:storage_experts_{name}", text, work.sum(count))
            for name, text, count in counts
        ]
    for part in ("first", "rest"):
        for what in ("needed", "missed"):
            name = f"{part}_{what}"
            text = f"Parts of neurons ({part}) that tokens {what} in RAM."
            found.append((f"powerinfer:storage_{name}", text, work.sum(name)))
    return found


def _states(model: ServedModel, at: Snapshot) -> list[tuple[str, str, float]]:
    """Gauges: name, description and value."""
    done, work = at.done, at.work
    computed, possible = work.computed_of_all()
    needed = work.sum("first_needed") + work.sum("rest_needed")
    missed = work.sum("first_missed") + work.sum("rest_missed")

    def ratio(a: float, b: float) -> float:
        return a / b if b else 0.0

    prompt, written = ratio(done.n_prompt, done.prompt_s), ratio(done.n_written, done.written_s)
    found = [
        ("llamacpp:prompt_tokens_seconds", "Prompt tokens a second.", prompt),
        ("llamacpp:predicted_tokens_seconds", "Written tokens a second, of a text.", written),
        (
            "llamacpp:n_busy_slots_per_decode",
            "Texts of a pass, on average.",
            ratio(done.n_in_steps, at.n_steps),
        ),
        ("llamacpp:requests_processing", "Texts that are computed.", len(at.texts)),
        ("llamacpp:requests_deferred", "Texts that wait.", at.n_waiting),
        ("powerinfer:active_share", "Computed share of the neurons.", ratio(computed, possible)),
        ("powerinfer:prefixes_kept", "Prefixes that are kept.", at.n_kept),
    ]
    if (experts := model.model.experts()) and experts.device_room:
        found += [
            ("powerinfer:experts_gpu", "Experts that the GPU has.", experts.device_has),
            ("powerinfer:experts_gpu_room", "Experts that it has room for.", experts.device_room),
        ]
    if needed:
        text = "Share of the needed parts of neurons, or experts, that RAM had."
        found.append(("powerinfer:hit_rate", text, 1 - missed / needed))
    return found


def metrics(of: Models) -> bytes:
    """GET /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(of))  # type: ignore[arg-type]
    return generate_latest(registry)
