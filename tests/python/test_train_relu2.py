"""The recipe of stories-relu2: its Mamba-2 scan, its checkpoints, what training changes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from families import quiet
from powerinfer_cpp.convert import convert
from reference import relative_error

from powerinfer_cpp import Llama

pytestmark = [pytest.mark.slow, pytest.mark.peer("torch"), pytest.mark.peer("transformers")]
MODELS = Path(__file__).resolve().parents[2] / "models"
SHAPE = {
    "pattern": "MEM*E",
    "n_embd": 64,
    "n_head": 4,
    "n_head_kv": 2,
    "head_dim": 16,
    "mamba_heads": 4,
    "mamba_head_dim": 16,
    "mamba_groups": 2,
    "mamba_state": 24,
    "n_expert": 6,
    "n_ff": 32,
    "n_ff_shared": 64,
}
TOKENS = [1, *(int(t) for t in np.random.default_rng(0).integers(3, 2048, 149))]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_relu2", MODELS / "train_relu2.py")
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def trained(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The checkpoint of a short training on four words in random order; what it printed."""
    import torch

    folder = tmp_path_factory.mktemp("recipe")
    rng = np.random.default_rng(1)
    for name, n in (("train", 60), ("valid", 10)):
        words = [[1, *rng.choice([300, 500, 700, 900], 150), 2] for _ in range(n)]
        np.concatenate(words).astype(np.uint16).tofile(folder / f"{name}.bin")
    options: dict[str, Any] = {**SHAPE, "epochs": 6, "ctx": 80, "batch": 8, "held_out": 5}
    options |= {"text": folder / "train.bin", "valid": folder / "valid.bin", "out": folder / "out"}
    options |= {"device": "cpu", "lr": 0.01, "report": 10}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    torch.set_num_threads(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        recipe.main([*arguments, "--no-bf16"])
    return folder / "out", printed.getvalue()


def test_learns_and_becomes_sparse(trained: tuple[Path, str]) -> None:
    """Four words are as good as any, which is the best there is; fewer and fewer neurons fire."""
    _, printed = trained
    perplexity = float(re.search(r"valid: perplexity (\S+)", printed)[1])
    assert 3.9 < perplexity < 4.6
    shares = [[float(x) for x in found] for found in re.findall(r"firing (\S+) (\S+)", printed)]
    assert min(shares[1]) > 0.3
    assert max(shares[-1]) < 0.2


def test_scan_is_the_recurrence(recipe: ModuleType) -> None:
    """In float64, for lengths below, at and above a chunk."""
    import torch

    torch.manual_seed(0)
    n_head, width, n_group, n_state = 6, 8, 2, 5
    for n in (1, 5, 64, 65, 200):
        kind: dict[str, Any] = {"dtype": torch.float64}
        x, dt = torch.randn(2, n, n_head, width, **kind), torch.rand(2, n, n_head, **kind)
        b, c = (torch.randn(2, n, n_group, n_state, **kind) for _ in range(2))
        rate = -4 * torch.rand(n_head, **kind)
        state, expected = torch.zeros(2, n_head, width, n_state, **kind), []
        for t in range(n):
            of_head = [part[:, t].repeat_interleave(n_head // n_group, 1) for part in (b, c)]
            added = torch.einsum("bh,bhw,bhs->bhws", dt[:, t], x[:, t], of_head[0])
            state = (dt[:, t] * rate).exp()[..., None, None] * state + added
            expected.append(torch.einsum("bhws,bhs->bhw", state, of_head[1]))
        found = recipe.scan(x, dt, rate, b, c)
        torch.testing.assert_close(found, torch.stack(expected, 1), rtol=0, atol=1e-12)


def test_checkpoint_is_what_others_compute(
    recipe: ModuleType, trained: tuple[Path, str], tmp_path: Path
) -> None:
    """The script's own logits, transformers' and the engine's, of a prompt that is longer than
    transformers' chunks."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    folder, _ = trained
    ours = recipe.Model(recipe.Shape(**SHAPE)).eval()
    stored = load_file(folder / "model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        for name, values in ours.tensors():
            values.copy_(stored.pop(name))
        logits, expected = (found.numpy()[0] for found in (ours(tokens), theirs(tokens).logits))
    assert not stored
    assert relative_error(logits, expected) < 1e-5
    out = convert(folder, outfile=tmp_path / "model.gguf", outtype="f32", log=quiet)
    with Llama(out, n_ctx=256, verbose=False, logits_all=True, type_k=0, type_v=0) as llm:
        llm.eval(TOKENS)
        assert relative_error(llm.scores[: len(TOKENS)], expected) < 2e-5
