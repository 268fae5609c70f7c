"""Mixtures of experts on the device "simt", which holds some of the experts, beside the CPU.

test_device.py runs these tests, because only a test build has this device.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHARED
from families import quiet
from on_simt import ALL, MIB, converted, last_logits, opened, written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from powerinfer_cpp.plot import plot
from small_mixtures import Mixture
from test_golden import error

from powerinfer_cpp import OutOfMemoryError, main_path

SAME_BITS = False  # True: every operator of the device has the CPU's bits
# How far logits may be from the CPU's otherwise: of files in F32 or F16, and of quantised ones,
# where a difference in the last bit now and then is one of a step of an activation.
CLOSE, STEPS = 2e-5, 2e-2
EVERY_LAYER = 2**31 - 1  # n_cpu_moe
PROMPTS = ("Once upon a time", "b", "There was a little")

SMALL = Mixture(type="F32", down="F32", width=64, n_ff=64, n_layer=3, n_expert=16, n_used=3)
MADE = {
    "small": SMALL,
    "q8": Mixture(**{**vars(SMALL), "type": "Q8_0", "down": "Q8_0"}),
    # The first layer has no experts, and those of the others differ in number and size.
    "uneven": Mixture(
        **{
            **vars(SMALL),
            "uneven": True,
            "experts": "fused",
            "type": "Q4_0",
            "down": "Q8_0",
            "seed": 2,
        }
    ),
    "single": Mixture(**{**vars(SMALL), "family": "llama", "experts": "single", "seed": 3}),
}
GOLDEN = ("mixtral", "dots1", "glm4-moe", "qwen3-moe")
OF_OTHERS = ("gguf2/mixtral.gguf", "gguf2/dots1.gguf", "gguf2/glm4_moe.gguf", "hf2/qwen3_moe")
FILES = [
    *MADE,
    *GOLDEN,
    *(pytest.param(name, marks=pytest.mark.shared) for name in OF_OTHERS),
]


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a mixture: made here, of a golden checkpoint, or what others wrote."""
    name = getattr(request, "param", "small")
    if name in MADE:
        return MADE[name].write(tmp_path / "m.gguf")
    if name in GOLDEN:
        return converted(name, tmp_path)
    found = SHARED / "fixtures" / name
    return found if found.is_file() else convert(found, outfile=tmp_path / "m.gguf", log=quiet)


def same(path: Path, got: np.ndarray, want: np.ndarray) -> bool:
    """Are these the same logits?"""
    if SAME_BITS:
        return np.array_equal(got, want)
    with Gguf(path) as gguf:
        floats = all(tensor.type_name in ("F32", "F16") for tensor in gguf.tensors)
    return error(got, want) <= (CLOSE if floats else STEPS) and got.argmax() == want.argmax()


def bytes_with(path: Path, **options: Any) -> int:
    """What a model takes of a device that has room for everything."""
    with opened(path, ALL, **options) as llm:
        return sum(llm.plan()["gpu"].values())


def budgets(path: Path) -> dict[str, float]:
    """In MiB: what a refusal says that it takes at least; room for half of the experts, with all
    that is no expert; and everything."""
    with pytest.raises(OutOfMemoryError) as refused:
        opened(path, 0.01)
    least = float(re.search(r"would take (\d+\.\d+) MiB of VRAM", str(refused.value))[1])
    none, everything = bytes_with(path, n_cpu_moe=EVERY_LAYER), bytes_with(path)
    # The message rounds to a tenth.
    half = (none + everything) / 2 / (1 << 20)
    return {"least": least + 0.05, "half": half, "all": everything / (1 << 20)}


@pytest.mark.parametrize("path", FILES, indirect=True)
def test_texts_and_logits_are_those_of_the_cpu(path: Path) -> None:
    """Whatever the device has, and whatever was written before."""
    with opened(path) as cpu:
        ids = cpu.tokenize(PROMPTS[0].encode())
        want = last_logits(cpu, ids)
        texts = {prompt: written(cpu, 8, prompt) for prompt in PROMPTS}
    on_device: np.ndarray | None = None
    for name, budget in budgets(path).items():
        with opened(path, budget) as llm:
            plan, has = llm.plan(), llm._model.experts()
            assert sum(plan["gpu"].values()) <= plan["vram_budget"]
            assert has.device_has <= has.device_room == plan["device_experts"]
            if name != "least":
                assert "attention" not in plan["ram"] and "head" in plan["gpu"]
                assert (has.device_room == has.experts) == (name == "all")
                assert has.device_room > 0
            for prompt in (*PROMPTS, *PROMPTS[::-1]):
                got = last_logits(llm, ids)
                assert same(path, got, want), (name, prompt)
                assert written(llm, 8, prompt) == texts[prompt], (name, prompt)
                # Who computes an expert changes nothing; which layers are there does, so far.
                if name != "least":
                    on_device = got if on_device is None else on_device
                    assert np.array_equal(got, on_device), (name, prompt)


def test_several_texts_at_once(path: Path) -> None:
    """Rows of three texts in one pass, of prompts and then generated ones."""
    fields = {"n_ctx": 64, "n_batch": 8, "n_ubatch": 8, "n_threads": 2}
    ids = np.arange(3, 43, dtype=np.int32)
    at = np.arange(40, dtype=np.int32) % 3

    def logits(**device: Any) -> list[np.ndarray]:
        model = Model(str(path), session={"n_seq": 3, **fields}, **device)
        many, found = Session(model, n_seq=3, **fields), []
        for i in range(0, 40, 8):
            keep, generated = np.ones(8, bool), np.full(8, i >= 16)
            many.eval(ids[i : i + 8], keep, at[i : i + 8], generated)
            found += [many.logits(row).copy() for row in range(8)]
        many.close(), model.close()
        return found

    want = logits()
    for budget in budgets(path).values():
        got = logits(device="simt", vram_budget=int(budget * (1 << 20)))
        assert all(same(path, a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_drafts(path: Path, draft: str) -> None:
    prompt = PROMPTS[0] * 2  # so that there is something to look up
    guesses: LlamaDraftModel | str = LlamaPromptLookupDecoding() if draft == "lookup" else str(path)
    with opened(path) as cpu, opened(path, budgets(path)["half"], draft_model=guesses) as llm:
        assert written(llm, 12, prompt) == written(cpu, 12, prompt)
        assert written(llm, 12, "b") == written(cpu, 12, "b")


def test_a_state_goes_on_elsewhere(path: Path) -> None:
    """What the CPU has computed is continued on the device, and back."""
    with opened(path) as cpu, opened(path, budgets(path)["half"]) as device:
        ids = cpu.tokenize(PROMPTS[0].encode())
        want = last_logits(cpu, ids, 1)
        for first, second in ((cpu, device), (device, cpu)):
            first.reset()
            first.eval(ids[:-1])
            second.load_state(first.save_state())
            second.eval(ids[-1:], generated=True)
            assert same(path, second.scores[len(ids) - 1], want)


def test_experts_of_the_first_layers_stay_with_the_cpu(path: Path) -> None:
    """As many as n_cpu_moe says, and the text is the same."""
    with opened(path) as cpu:
        text = written(cpu, 8)
    for n in (1, 2, 3, EVERY_LAYER):
        with opened(path, ALL, n_cpu_moe=n) as llm:
            plan = llm.plan()
            assert "attention" not in plan["ram"] and plan["experts"] == 48
            there = [16 * (layer >= n) for layer in range(3)]
            assert plan["device_experts"] == sum(there)
            assert written(llm, 8) == text
            tiers = [llm._model.tiers(layer) for layer in range(3)]
            assert [int((t == 2).all(axis=1).sum()) for t in tiers] == there
            stats = llm.stats()
            assert stats["tiers"]["gpu"]["experts"] == sum(there)
            chosen = stats["experts"]["chosen"]
            assert (chosen["gpu"] > 0) == (sum(there) > 0) and chosen["ram"] > 0
    with pytest.raises(ValueError, match="n_cpu_moe must be a number of layers, not -1"):
        opened(path, ALL, n_cpu_moe=-1)


def command(path: Path, *words: object) -> subprocess.CompletedProcess:
    """./main on the device with room for everything."""
    line = [main_path(), "-m", path, "-p", "b", "-n", 8, "--temp", 0, "-c", 64, "-t", 2, "-ub", 8]
    line += ["--device", "simt", "--ignore-eos", *words]
    return subprocess.run([*map(str, line)], capture_output=True, text=True, errors="replace")


@pytest.mark.parametrize(
    ("pattern", "said", "has"),
    [
        ("exps=CPU", "as --cpu-moe: the experts of all layers stay with the CPU", 0),
        (r"\.ffn_.*_exps\.=CPU", "as --cpu-moe: the experts of all layers", 0),
        (r"blk\.[01]\.ffn_.*_exps.*=CPU", "as --n-cpu-moe 2: the experts of the first 2", 16),
        (r"blk\.0\..*_exps=CPU,blk\.1\..*exps=CPU", "as --n-cpu-moe 2: ", 16),
        (r"blk\.9\..*_exps=CPU", "no experts of this model have such a name", 48),
        (r"blk\.1\..*_exps=CPU", "the experts of layer 1, but not those of layer 0", None),
        ("ffn_up_exps=CPU", "only some matrices of the experts of layer 0", None),
        ("ffn=CPU", "moves blk.0.ffn_norm.weight, which is no expert", None),
        ("exps=CUDA0", "only experts can be left to the CPU", None),
        ("exps", "a pattern and what it is for", None),
        ("(=CPU", "a regular expression", None),
    ],
)
def test_patterns_of_tensors(path: Path, pattern: str, said: str, has: int | None) -> None:
    """What ./main and `powerinfer` make of -ot."""
    done = command(path, "-ot", pattern, "--plan")
    assert said in done.stderr, done.stderr
    line = [sys.executable, "-m", "powerinfer_cpp", "serve", "--plan", "-c", "64", "-ub", "8"]
    line += ["--device", "simt", "-ot", pattern, str(path)]
    served = subprocess.run(line, capture_output=True, text=True)
    if has is None:
        assert done.returncode == 2 and served.returncode != 0 and not served.stdout
        assert f"-ot {pattern}" in served.stderr
        return
    assert done.returncode == served.returncode == 0, served.stderr
    room = f"{has} of 48 experts have room on simt"
    room += "" if has == 48 else "; the others are computed by the CPU"
    assert f"{room}\n" in done.stdout and f"  {room}\n" in served.stdout


def test_the_options_of_main_and_of_the_package(path: Path) -> None:
    """Figures of a run: the last lines of ./main, its statistics, and those of `Llama`."""
    file, budget = path.with_name("run.json"), budgets(path)["half"]
    with opened(path, budget) as llm:
        llm("b", max_tokens=8, temperature=0, logit_bias={llm.token_eos(): -1000})
        stats, plan = llm.stats(), llm.plan()
    done = command(path, "--vram-budget", budget * MIB, "--json-stats", file)
    assert done.returncode == 0, done.stderr
    of_main = json.loads(file.read_text())
    figures = of_main["experts"]
    assert set(figures) == set(stats["experts"]) and figures["experts"] == 48
    assert figures["gpu_room"] == stats["experts"]["gpu_room"] == plan["device_experts"] > 0
    assert 0 < figures["gpu_has"] <= figures["gpu_room"] < 48
    for found in (of_main, stats):
        chosen, tiers = found["experts"]["chosen"], found["tiers"]
        assert sum(chosen.values()) == 7 * 3 * 3 and chosen["storage"] == 0
        assert min(chosen["gpu"], chosen["ram"]) > 0
        assert (found["experts"]["copies"] == 0) == (found["experts"]["copied_bytes"] == 0)
        assert [tiers[name]["experts"] for name in ("gpu", "ram", "storage")] == [
            found["experts"]["gpu_has"],
            48 - found["experts"]["gpu_has"],
            0,
        ]
        assert tiers["gpu"]["neurons"] == 64 * tiers["gpu"]["experts"]
        assert tiers["gpu"]["bytes"] == plan["gpu"].get("ffn", 0) + plan["gpu"]["experts"]
        assert tiers["gpu"]["hits"] == pytest.approx(chosen["gpu"] * 64 / 7, abs=1)
    said = re.search(
        r"  chosen experts = gpu (\S+) %, ram (\S+) %, storage 0.00 %; the GPU has (\d+) of 48 and "
        r"room for (\d+), (\d+) were copied there \(\d+\.\d\d MB\)\n",
        done.stderr,
    )
    assert said, done.stderr
    assert float(said[1]) == pytest.approx(100 * figures["chosen"]["gpu"] / 63, abs=0.01)
    assert [int(n) for n in said.groups()[2:]] == [
        figures[name] for name in ("gpu_has", "gpu_room", "copies")
    ]
    share = 100 * figures["gpu_has"] / 48
    assert f"tiers = gpu {share:.2f} %" in done.stderr
    assert plot([file], "placement", path.with_name("x.png")).startswith(
        f"GPU: {share:.1f} % of the experts, "
    )


def test_from_storage(path: Path) -> None:
    """Experts on the device, in RAM and on the disk: the text of the CPU, and each counts once."""
    with opened(path) as cpu:
        want = {prompt: written(cpu, 8, prompt) for prompt in PROMPTS}
    budget = budgets(path)["half"]
    few = {"n_batch": 8}
    with pytest.raises(OutOfMemoryError) as refused:
        opened(path, budget, ram_budget=1e-6, **few)
    least = int(re.search(r"on the disk it needs at least (\d+) bytes", str(refused.value))[1])
    with opened(path, budget, ram_budget=1.1 * least / (1 << 30), **few) as llm:
        assert llm.plan()["storage"]["ffn"] > 0
        assert {prompt: written(llm, 8, prompt) for prompt in PROMPTS} == want
        stats = llm.stats()
        tiers = stats["tiers"]
        assert sum(tier["experts"] for tier in tiers.values()) == 48
        assert tiers["gpu"]["experts"] == stats["experts"]["gpu_has"]
        assert min(stats["experts"]["chosen"].values()) >= 0
