"""What nobody reads of a GGUF is said: what changes results is refused, other keys give a warning,
and what is known to be harmless gives none.

The keys and names of tensors are those of the gguf package, so a new version of it tries new ones.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import mamba_models
import numpy as np
import pytest
from circles import pick
from families import golden, ling, logits, quiet, smallthinker
from gguf_files import Spliced
from powerinfer_cpp.cli import main as command
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.errors import ModelFormatError, UnsupportedModelError
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.plan import memory_plan

from powerinfer_cpp import Llama

CASES = {
    "llama": "llama-silu-tied",
    "deepseek2": "deepseek-v3",
    "kimi-linear": "kimi-linear",
    "bailingmoe3": "bailing-hybrid",
    "arcee": "arcee",
    "bitnet": "bitnet",
    "jais2": "jais2",
    "nanochat": "nanochat",
    "nemotron": "nemotron",
    "falcon": "falcon-7b",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gpt2": "gpt2",
    "gpt-oss": "gpt-oss",
    "mistral4": "mistral4",
    "mixtral": "mixtral",
    "opt": "opt",
    "phi3": "phi3-window",
    "qwen2": "qwen2-window",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3-moe",
    "qwen2moe": "qwen2-moe",
    "olmoe": "olmoe",
    "qwen3next": "qwen3-next",
    "qwen35": "qwen3-5",
    "qwen35moe": "qwen3-5-moe",
    "olmo-hybrid": "olmo-hybrid",
    "qwen4exp": "qwen4-exp",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2-moe",
    "lfm3": "lfm3",
    "glm4moe": "glm4-moe",
    "laguna": "laguna",
    "hy_v3": "hy-v3",
    "bailingmoe2": None,
    "muse-glimmer": "muse-glimmer",
    "dots1": "dots1",
    "minimax-m2": "minimax-m2",
    "ernie4_5": "ernie",
    "ernie4_5-moe": "ernie-moe",
    "hunyuan-dense": "hunyuan",
    "hunyuan-moe": "hunyuan-moe",
    "granite": "granite",
    "granitemoe": "granite-moe",
    "phimoe": "phimoe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "smallthinker": None,
    "smollm3": "smollm3",
    "mistral3": "ministral3",
    "seed_oss": "seed-oss",
    "glm4": "glm4",
    "olmo2": "olmo3",
    "exaone4": "exaone4",
    "cohere2": "cohere2",
    "afmoe": "trinity",
    "exaone-moe": "exaone-moe",
    "mellum": "mellum",
    "step35": "step3",
    "mimo2": "mimo-v2",
    "cohere2moe": "cohere2-moe",
    "granite_swa": "granite-swa",
    "granite_swa mixture": "granite-moe-swa",
    "apertus": "apertus",
    "gemma4": "gemma4-embeddings",
    "gemma4 mixture": "gemma4-mixture",
    "nemotron_h": "nemotron",
    "nemotron_h_moe": "nemotron-moe",
    "granitehybrid": "granite",
    "granitehybrid mixture": "granite-moe",
    "falcon-h1": "falcon",
}
# Those of mamba_models; the others are of tests/golden.
MAMBA = ("nemotron_h", "nemotron_h_moe", "granitehybrid", "granitehybrid mixture", "falcon-h1")
# Keys that change nothing wherever they are not read.
HARMLESS = {
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.group_norm_epsilon",
    "attention.sliding_window_pattern",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_group_used_count",
    "tensor_data_layout",
    "pooling_type",
    "classifier.output_labels",
    "rope.scaling.finetuned",
    "rope.dimension_count",  # of a family that rotates nothing
    "rope.freq_base",
    "rope.dimension_sections",
    "n_deepstack_layers",
}


def _strings(owner: type) -> Iterator[str]:
    for value in vars(owner).values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, type):
            yield from _strings(value)


# Keys of all architectures, without it: "attention.scale".
KEYS = sorted(
    text.removeprefix("{arch}.").replace("{dense}", "dense_2")
    for text in set(_strings(gguf.constants.Keys))
    if text.startswith("{arch}.")
)
IMAGES_AND_SOUND = r"(v|a|mm|resampler)\."
TENSORS = sorted(
    name.format(bid=0, xid=0) + end
    for name in set(gguf.constants.TENSOR_NAMES.values())
    for end in (".weight", ".bias")
    if "rope_freqs" not in name and "attn_rot_embd" not in name
    if not re.match(IMAGES_AND_SOUND, name)
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Spliced]:
    """A file of each family, by the name in CASES."""
    made: dict[str, Spliced] = {}

    def get(name: str) -> Spliced:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            case = CASES[name]
            if case is None:
                (ling if name == "bailingmoe2" else smallthinker)(folder / "in")
            elif name in MAMBA:
                mamba_models.checkpoint(case, folder / "in")
            else:
                golden(case, folder / "in")
            out = convert(folder / "in", outfile=folder / "m.gguf", outtype="f32", log=quiet)
            made[name] = Spliced(out)
        return made[name]

    return get


@pytest.fixture(scope="module")
def llama(files: Callable[[str], Spliced]) -> Spliced:
    return files("llama")


def opened(path: Path, caplog: pytest.LogCaptureFixture, **fields: Any) -> list[str]:
    """The warnings of opening a file."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Model(str(path), **fields).close()
    return [record.getMessage() for record in caplog.records]


def is_read(path: Path, key: str) -> bool:
    """Does the model ask for a key that its file lacks? An override of another is refused."""
    for value in (1, 0.5, True, "none"):
        try:
            memory_plan(str(path), {"overrides": {key: value}}, {})
        except ModelFormatError:
            return True  # it was read, and has the wrong type or value
        except ValueError as error:
            return "the model reads none" not in str(error)
    return True


@pytest.mark.parametrize("name", CASES)
def test_strange_keys_are_refused_or_told(
    files: Callable[[str], Spliced],
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, each = files(name), pick(4, 1)  # in the quick circle, other keys for each family
    for key in KEYS[list(CASES).index(name) % each :: each]:
        whole = f"{file.architecture}.{key}"
        if whole in file.keys:
            continue
        path = file.write(tmp_path / "m.gguf", {whole: 77})
        try:
            told = opened(path, caplog)
        except UnsupportedModelError as error:
            assert whole in str(error) and str(path) in str(error)
            continue
        except ModelFormatError:  # a size that other keys or tensors contradict
            continue
        if told:
            assert len(told) == 1 and whole in told[0]
        else:
            assert key in HARMLESS or is_read(file.path, whole), key


@pytest.mark.parametrize("name", CASES)
def test_invented_tensors_are_refused(
    files: Callable[[str], Spliced], name: str, tmp_path: Path
) -> None:
    file, found = files(name), 0
    names = TENSORS[::3] if name == "llama" else TENSORS[len(name) :: 17]
    for tensor in [*names, "blk.0.new_thing", "thing.weight", "blk.0.attn_q.scale"]:
        if tensor in file.tensors:
            continue
        path = file.write(tmp_path / "m.gguf", tensors={tensor: np.full(7, 0.5)})
        with pytest.raises(ModelFormatError) as error:
            memory_plan(str(path), {}, {})
        assert f'"{tensor}"' in str(error.value) and str(path) in str(error.value)
        found += isinstance(error.value, UnsupportedModelError)  # others: a bias of another shape
    assert found > 10


def renamed(file: Spliced, architecture: str, **more: Any) -> dict[str, Any]:
    """The keys of a file's architecture under another name."""
    fields = gguf.GGUFReader(file.path).fields
    keys: dict[str, Any] = {"general.architecture": architecture}
    for name in file.keys:
        if name.startswith(f"{file.architecture}."):
            keys[name] = None
            keys[f"{architecture}.{name.split('.', 1)[1]}"] = fields[name].contents()
    return {**keys, **{f"{architecture}.{name}": value for name, value in more.items()}}


def test_an_unknown_family_is_compared_with_those_known(
    files: Callable[[str], Spliced], tmp_path: Path
) -> None:
    file, path = files("qwen3"), tmp_path / "m.gguf"
    file.write(path, renamed(file, "qwen9", flux=2), {"blk.1.attn_flux": np.ones(3)})
    with pytest.raises(UnsupportedModelError) as error:
        memory_plan(str(path), {}, {})
    said = str(error.value)
    assert said.startswith(f'{path}: architecture "qwen9" is not supported; nearest is qwen3, ')
    assert 'nearest is qwen3, which lacks "blk.*.attn_flux"; then ' in said
    assert 'no family knows tensors "blk.*.attn_flux"; no family knows keys "qwen9.flux"' in said
    assert "; known: llama, " in said


def test_a_family_that_nothing_is_like(llama: Spliced, tmp_path: Path) -> None:
    """Without the sizes that every family has, no comparison is made."""
    path = llama.write(tmp_path / "m.gguf", {"general.architecture": "strange"})
    with pytest.raises(UnsupportedModelError, match='architecture "strange" is not supported; kno'):
        memory_plan(str(path), {}, {})


@pytest.mark.parametrize("tokenizer", ["plamo2", "rwkv"])
def test_an_unknown_family_matters_more_than_its_tokenizer(
    tokenizer: str, llama: Spliced, tmp_path: Path
) -> None:
    keys = {**renamed(llama, "bert9"), "tokenizer.ggml.model": tokenizer}
    path = llama.write(tmp_path / "m.gguf", keys)
    with pytest.raises(UnsupportedModelError, match='architecture "bert9" is not supported'):
        memory_plan(str(path), {}, {})
    path = llama.write(tmp_path / "m.gguf", {"tokenizer.ggml.model": tokenizer})
    with pytest.raises(UnsupportedModelError, match=f"the tokenizer '{tokenizer}'"):
        memory_plan(str(path), {}, {})


def test_what_is_written_opens_without_a_word(
    files: Callable[[str], Spliced], caplog: pytest.LogCaptureFixture
) -> None:
    for name in CASES:
        assert opened(files(name).path, caplog) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True),
        ("attention.clamp_kqv", 0.0),
        ("attention.scale", 8**-0.5),  # heads of 8 values
        ("attention.temperature_scale", 0.0),
        ("attention.sliding_window", 1 << 20),
        ("logit_scale", 1.0),
        ("residual_scale", [1.0, 1.0]),
        ("embedding_length_out", 32),
        ("expert_weights_norm", True),
        ("expert_group_count", 1),
        ("hidden_activation", "silu"),
        ("use_parallel_residual", False),
        ("rope.freq_base_swa", 10000.0),
        ("swiglu_clamp_exp", [0.0, 0.0]),
        ("swin_norm", False),
        ("vision.block_count", 27),
    ],
)
def test_neutral_values(
    llama: Spliced, key: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = llama.write(tmp_path / "m.gguf", {f"llama.{key}": value})
    assert opened(path, caplog) == []
    if key in ("attention.sliding_window", "vision.block_count"):  # read; without effect
        return
    wrong = {bool: not value, str: "gelu"}.get(type(value), 3.5)
    path = llama.write(tmp_path / "m.gguf", {f"llama.{key}": wrong})
    with pytest.raises(UnsupportedModelError, match=re.escape(f"llama.{key}")):
        memory_plan(str(path), {}, {})


def test_other_keys_and_allow_unknown(
    llama: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = {
        "general.new": 1,
        "tokenizer.ggml.new": "x",
        "powerinfer.new.key": 1.5,
        "quantize.imatrix.entries_count": 3,
        "qwen2.logit_scale": 2.0,
    }
    path = llama.write(tmp_path / "m.gguf", others)
    assert opened(path, caplog) == []
    path = llama.write(tmp_path / "m.gguf", {f"llama.new_{i}": i for i in range(7)})
    (told,) = opened(path, caplog)
    assert str(path) in told and told.count("llama.new_") == 5 and told.endswith("and 2 more")
    strange = {f"llama.{key}": 0.5 for key in ("logit_scale", "residual_scale")}
    tensors = {f"blk.{i}.attn_sinks.weight": np.ones(4) for i in range(2)}
    path = llama.write(tmp_path / "m.gguf", strange, tensors)
    with pytest.raises(UnsupportedModelError, match=r"logit_scale.* is 0.5.*allow_unknown.*resid"):
        opened(path, caplog)
    keys, names = opened(path, caplog, allow_unknown=True)
    assert "llama.logit_scale" in keys and "llama.residual_scale" in keys
    assert "blk.0.attn_sinks.weight" in names and str(path) in names
    with Llama(path, allow_unknown=True, n_ctx=8, verbose=False) as llm:
        assert llm._model.fields["allow_unknown"] is True
    assert (logits(llama.path) == logits(path, allow_unknown=True)).all()
    # An override may say that a value is none.
    path = llama.write(tmp_path / "m.gguf", {"llama.attention.causal": False})
    with pytest.raises(UnsupportedModelError, match="see only those before them"):
        opened(path, caplog)
    assert opened(path, caplog, overrides={"llama.attention.causal": True}) == []


def test_programs(
    llama: Spliced, main_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    path = llama.write(tmp_path / "m.gguf", tensors={"output.bias": np.ones(300)})
    main = [main_path, "-m", path, "-p", "a", "-n", "2"]
    ours = ["complete", str(path), "-p", "a", "-n", "2"]
    refused = subprocess.run(main, capture_output=True, errors="replace")
    assert refused.returncode == 1 and '"output.bias"' in refused.stderr
    assert command(ours) == 1 and '"output.bias"' in capfd.readouterr().err
    run = subprocess.run([*main, "--allow-unknown"], capture_output=True, errors="replace")
    assert run.returncode == 0 and '"output.bias"' in run.stderr
    assert command([*ours, "--allow-unknown"]) == 0


def test_harmless_tensors(llama: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = np.ones(1), np.full(1, 2.0)
    harmless = {
        "v.patch_embd.weight": np.ones((3, 4)),
        "mm.0.weight": np.ones((3, 4)),
        "rope_freqs.scale": one,
        "blk.0.attn_q.input_scale": two,
        "blk.1.ffn_rate": np.ones(5),
    }
    # Statistics must be there for all layers or none.
    rates = {f"blk.{i}.ffn_rate": np.ones(5) for i in range(Model(str(llama.path)).n_layer)}
    path = llama.write(tmp_path / "m.gguf", tensors={**harmless, **rates})
    assert opened(path, caplog) == []
    with caplog.at_level(logging.INFO):
        opened(path, caplog)
    path = llama.write(tmp_path / "m.gguf", tensors={"rope_freqs.scale": two})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.scale"):
        opened(path, caplog)


def test_strange_values(llama: Spliced, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Values of a wrong type, long arrays and unprintable names are refused by name, not read."""
    values: list[Any] = ["true", [1.0] * 100_000 + [2.0], ["a", "b"], 2]
    for value in values:
        path = llama.write(tmp_path / "m.gguf", {"llama.logit_scale": value})
        with pytest.raises(UnsupportedModelError, match="logit_scale"):
            memory_plan(str(path), {}, {})
    path = llama.write(tmp_path / "m.gguf", {"llama.\x07" + "x" * 500: 1})
    (told,) = opened(path, caplog)
    assert "\x07" not in told and len(told) < 300 + len(str(path))


def test_a_scale_of_yarn_and_an_old_key_are_read(llama: Spliced, tmp_path: Path) -> None:
    def of(keys: dict[str, Any], **options: Any) -> np.ndarray:
        path = llama.write(tmp_path / "m.gguf", {f"llama.rope.{k}": v for k, v in keys.items()})
        with Llama(path, n_ctx=64, verbose=False, **options) as llm:
            llm.eval(list(range(1, 40)))
            return llm.scores[38].copy()

    linear = of({"scaling.type": "linear", "scaling.factor": 4.0})
    assert (of({"scale_linear": 4.0}) == linear).all() and (of({}) != linear).any()
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    wanted = of(yarn, yarn_ext_factor=0.25)
    assert (of({**yarn, "scaling.yarn_ext_factor": 0.25}) == wanted).all()
    assert (of({**yarn, "scaling.yarn_ext_factor": -1.0}) == of(yarn)).all()
    assert (of(yarn) != wanted).any()
