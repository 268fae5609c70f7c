"""scripts/make_mixture.py --plain for mixtures with states: published sizes, stated firings, and
the same text from experts as matrices and as rows of neurons."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from circles import pick
from families import logits
from test_delta_nets import with_least_memory

from powerinfer_cpp import Llama

ROOT = Path(__file__).resolve().parents[2]
N, EXPERTS = 48, 9  # tokens of the sequence; experts of a layer
FIELDS = {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16}

Make = Callable[..., tuple[Path, str]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a small file of a shape, and says what is printed of it."""
    folder = tmp_path_factory.mktemp("shapes")

    def made(shape: str, *options: object) -> tuple[Path, str]:
        path = folder / ("-".join(map(str, (shape, *options))) + ".gguf")
        line = [ROOT / "scripts" / "make_mixture.py", path, "--plain", shape, "--n", N]
        line += ["--vocab", 100, "--experts", EXPERTS, *options]
        done = subprocess.run(
            [sys.executable, *map(str, line)], check=True, capture_output=True, text=True
        )
        return path, done.stdout

    return made


def continued(path: Path) -> tuple[str, dict]:
    """What follows the sequence's first token, and figures of that."""
    with Llama(path, verbose=False, **FIELDS) as llm:
        text = llm.create_completion("<0>", max_tokens=20, temperature=0)["choices"][0]["text"]
        return text, llm.stats()


SEQUENCE = "".join(f"<{i}>" for i in range(1, 21))


def test_nemotron(make: Make) -> None:
    options = ("--layers", pick(2, 6), "--down", "Q8_0")
    plain, said = make("nemotron-3-nano", *options)
    rows, _ = make("nemotron-3-nano", *options, "--rows")
    zero = float(said.split("% are all zero")[0].split()[-1])
    assert 25 < zero < 35
    text, dense = continued(plain)
    assert text == SEQUENCE
    text, sparse = continued(rows)
    assert text == SEQUENCE
    assert 0.07 < sparse["share_fired"][1] / dense["share_fired"][1] < 0.13
    shapes = {t.name: tuple(t.shape) for t in gguf.GGUFReader(rows).tensors}
    assert shapes["blk.0.ssm_in.weight"] == (2688, 10304)
    assert shapes["blk.1.ffn_up_exps.weight"] == (2688, 1856, EXPERTS)
    assert shapes["blk.1.ffn_down_t_exps.weight"] == (2688, 1856, EXPERTS)
    assert shapes["blk.1.ffn_down_t_shexp.weight"] == (2688, 3712)


def test_qwen(make: Make) -> None:
    path, _ = make("qwen3.6-35b-a3b", "--layers", 4)
    assert continued(path)[0] == SEQUENCE
    shapes = {t.name: tuple(t.shape) for t in gguf.GGUFReader(path).tensors}
    assert shapes["blk.0.attn_qkv.weight"] == (2048, 8192)
    assert shapes["blk.3.attn_q.weight"] == (2048, 8192)
    assert shapes["blk.3.ffn_gate_exps.weight"] == (2048, 512, EXPERTS)


def test_flash(make: Make) -> None:
    """Also with its experts on the disk, beside the table, in the least memory."""
    path, _ = make("flash-small", "--grams", 1, "--vocab", 300, "--experts", 32)
    assert continued(path)[0] == SEQUENCE
    with_least_memory(path, logits(path), "experts", n_batch=16, n_checkpoints=1)
    shapes = {t.name: tuple(t.shape) for t in gguf.GGUFReader(path).tensors}
    assert shapes["blk.0.hc_attn_down.weight"] == (4 * 256, 320)
    assert shapes["per_layer_token_embd.weight"] == (16, 16 * 1000)


def test_rows_are_for_neurons_that_can_be_left_out(make: Make) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        make("qwen3.6-35b-a3b", "--rows")
    assert "--rows is for --plain nemotron-3-nano" in error.value.stderr
