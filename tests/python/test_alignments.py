"""Files whose tensors are aligned as the format allows and nobody does: models, parts, adapters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from circles import pick
from families import golden, logits, quiet
from gguf import GGUFReader
from gguf_files import changed, raw
from powerinfer_cpp.bundle import bundle
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.embed import embed, from_array
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.quantize import quantize
from test_lora import LORA, OPTIONS, computed

from powerinfer_cpp import Llama

ALIGNMENTS = (8, 16, 64, 128, 4096)
TOKENS = [1, 5, 9, 20, 31, 7, 8, 2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dense.gguf, neurons.gguf and the adapter first.gguf as everybody aligns them; copies of them
    with other alignments in folders of those names."""
    folder = tmp_path_factory.mktemp("alignments")
    base = golden("llama-relu-gqa", folder / "base")
    convert(base, outfile=folder / "dense.gguf", outtype="f32", log=quiet)
    convert(folder / "dense.gguf", outfile=folder / "neurons.gguf", log=quiet)
    convert(LORA / "first", base=base, outfile=folder / "first.gguf", log=quiet)
    for alignment in ALIGNMENTS:
        (folder / str(alignment)).mkdir()
        for name in ("dense", "neurons", "first"):
            copy = folder / str(alignment) / f"{name}.gguf"
            changed(folder / f"{name}.gguf", copy, {"general.alignment": alignment})
    return folder


def is_aligned(path: Path, alignment: int) -> bool:
    reader = GGUFReader(path)
    offsets = [int(tensor.data_offset) for tensor in reader.tensors]
    return reader.alignment == alignment and not any(at % alignment for at in offsets)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_model_and_its_adapter(files: Path, alignment: int) -> None:
    folder = files / str(alignment)
    with Gguf(folder / "neurons.gguf") as opened:
        found = {
            tensor.name: (tensor.type_name, tensor.shape[::-1], opened.data(tensor).tobytes())
            for tensor in opened.tensors
        }
    assert found == raw(folder / "neurons.gguf") == raw(files / "neurons.gguf")
    with Llama(files / "neurons.gguf", lora_path=files / "first.gguf", **OPTIONS) as llm:
        expected = computed(llm, TOKENS)
    with Llama(folder / "neurons.gguf", lora_path=folder / "first.gguf", **OPTIONS) as llm:
        assert np.array_equal(computed(llm, TOKENS), expected)
        llm.set_adapters({})
        assert not np.array_equal(computed(llm, TOKENS), expected)


@pytest.mark.parametrize("alignment", pick((16, 64), ALIGNMENTS))
def test_what_is_made_of_a_model(files: Path, tmp_path: Path, alignment: int) -> None:
    """Converted, quantised and bundled it is aligned as usual; with a tensor more, as it was."""
    folder = files / str(alignment)
    convert(folder / "dense.gguf", outfile=tmp_path / "neurons.gguf", log=quiet)
    assert is_aligned(tmp_path / "neurons.gguf", 32)
    assert raw(tmp_path / "neurons.gguf") == raw(files / "neurons.gguf")
    for source in (files, folder):
        quantize(source / "neurons.gguf", tmp_path / f"{source.name}.gguf", "q8_0", log=quiet)
    assert is_aligned(tmp_path / f"{folder.name}.gguf", 32)
    assert raw(tmp_path / f"{folder.name}.gguf") == raw(tmp_path / f"{files.name}.gguf")
    for source in (files, folder):
        bundle(source / "neurons.gguf", tmp_path / f"{source.name}.bundled", verbose=False)
    assert is_aligned(tmp_path / f"{folder.name}.bundled", 4096)
    assert raw(tmp_path / f"{folder.name}.bundled") == raw(tmp_path / f"{files.name}.bundled")
    more = np.arange(5, dtype=np.float32)
    with Gguf(folder / "neurons.gguf") as origin:
        embed(origin, tmp_path / "more.gguf", [], [from_array("odd", more), from_array("o2", more)])
    assert is_aligned(tmp_path / "more.gguf", alignment)
    added = {name: ("F32", (5,), more.tobytes()) for name in ("odd", "o2")}
    assert raw(tmp_path / "more.gguf") == raw(files / "neurons.gguf") | added


def test_parts_with_alignments_of_their_own(files: Path, tmp_path: Path) -> None:
    names = list(raw(files / "dense.gguf"))
    parts = {}
    for i, alignment in enumerate(ALIGNMENTS):
        keys = {"split.no": i, "split.count": len(ALIGNMENTS), "split.tensors.count": len(names)}
        own = set(names[i :: len(ALIGNMENTS)])
        parts[i] = changed(
            files / "dense.gguf",
            tmp_path / f"m-{i + 1:05}-of-{len(ALIGNMENTS):05}.gguf",
            keys | {"general.alignment": alignment},
            lambda name, data, own=own: data if name in own else None,
        )
        assert is_aligned(parts[i], alignment)
    expected = logits(files / "dense.gguf", TOKENS)
    assert np.array_equal(logits(parts[0], TOKENS), expected)
    convert(parts[0], outfile=tmp_path / "joined.gguf", log=quiet)
    assert is_aligned(tmp_path / "joined.gguf", 32)
    assert raw(tmp_path / "joined.gguf") == raw(files / "neurons.gguf")
