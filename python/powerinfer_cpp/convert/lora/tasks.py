"""The adapters that a checkpoint holds beside the model's weights, one for each task."""

from pathlib import Path

from ..families.family import Family
from ..formats import format_by_name
from ..stored import Stored, encoded
from ..writer import FILE_TYPES, Entry, float32, refuse_inputs, string, uint32
from .adapter import changed_outputs
from .weights import AdapterWeights, Change


def task_adapters(
    folder: Path, family: Family, target: Path
) -> list[tuple[Path, list[Entry], list[Stored]]]:
    """Of each task the file beside the model's, and its keys and tensors, in F32: they are small.

    folder: the checkpoint; target: the model's file. Raises what convert_adapter raises.
    """
    found = []
    for task, factors in family.adapters.items():
        path = target.with_name(f"lora-{task}-{target.name}")
        refuse_inputs(path, [folder])
        changes = {name: Change(name, a, b) for name, (a, b) in factors.items()}
        weights = AdapterWeights(folder, family, changes, lambda _: 1.0)
        entries = [
            string("general.type", "adapter"),
            string("adapter.type", "lora"),
            string("general.name", f"{folder.name} {task}"),
            uint32("general.file_type", FILE_TYPES["F32"]),
            float32("adapter.lora.alpha", family.adapter_alpha),
            string("adapter.lora.task_name", task),
        ]
        if prompt := family.prompts.get(task):
            entries.append(string("adapter.lora.prompt_prefix", prompt))
        outputs = changed_outputs(folder, family, weights, {}, tables=True)
        tensors = [encoded(output, format_by_name("F32")) for output in outputs]
        found.append((path, entries, tensors))
    return found
