"""RoPE: what a checkpoint's config says of it, what a file keeps, and the logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from families import TOKENS, golden, logits, quiet, tensors_of
from gguf_files import changed
from powerinfer_cpp.convert import convert
from powerinfer_cpp.convert.config import Config
from powerinfer_cpp.convert.rope import read_rope

from powerinfer_cpp import Llama, ModelFormatError


def rope(tmp_path: Path, **values: Any):
    (tmp_path / "config.json").write_text(json.dumps(values))
    return read_rope(Config(tmp_path), 16, 4096)


def test_rope_of_transformers_4_and_5_is_the_same(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16}
    new = rope(tmp_path, rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **yarn})
    assert new == rope(tmp_path, rope_theta=5e5, rope_scaling={"type": "yarn", **yarn})
    assert (new.theta, new.kind, new.factor, new.original_ctx) == (5e5, "yarn", 4.0, 1024)
    assert (new.beta_fast, new.beta_slow, new.attention_factor) == (16.0, 1.0, 1.0)
    assert rope(tmp_path).theta == 10000.0
    # Where both name a base, transformers 5 takes the one inside.
    assert rope(tmp_path, rope_theta=1e4, rope_parameters={"rope_theta": 7e4}).theta == 7e4


def test_factors_of_yarn(tmp_path: Path) -> None:
    own = 0.1 * np.log(4) + 1
    base = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    given = rope(tmp_path, rope_scaling={**base, "attention_factor": 1.5})
    assert given.attention_factor * own == pytest.approx(1.5)
    ratio = rope(tmp_path, rope_scaling={**base, "mscale": 1.0, "mscale_all_dim": 1.0})
    assert ratio.attention_factor * own == pytest.approx(1)
    derived = rope(tmp_path, rope_scaling={**base, "factor": None})
    assert derived.factor == 4.0  # of the context to the original one
    keys = {e.key: e.value for e in given.entries("llama")}
    assert keys["llama.rope.scaling.attn_factor"] == given.attention_factor


def test_attention_factor_reaches_the_logits(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    own = 0.1 * np.log(4) + 1
    found = []
    for i, factor in enumerate((None, float(own), 1.0)):
        values = {**scaling, "attention_factor": factor}
        folder = golden("qwen2-yarn", tmp_path / str(i), rope_parameters=values)
        found.append(logits(convert(folder, outtype="f32", outfile=tmp_path / "a.gguf", log=quiet)))
    assert reference.relative_error(found[1], found[0]) < 1e-5
    assert reference.relative_error(found[2], found[0]) > 1e-3


def test_divisors_of_llama3(tmp_path: Path) -> None:
    path = convert(
        golden("llama-llama3", tmp_path / "m"),
        outtype="f32",
        outfile=tmp_path / "a.gguf",
        log=quiet,
    )
    found = tensors_of(path)["rope_freqs.weight"]
    assert found.shape == (4,) and found[-1] == 8 and (np.diff(found) >= 0).all()
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1, "high_freq_factor": 4}
    scaling["original_max_position_embeddings"] = 8192
    wide = rope(tmp_path, rope_theta=500000.0, rope_scaling=scaling).divisors
    assert wide[0] == 1 and wide[-1] == 32 and (np.diff(wide) >= 0).all()


def test_factors_of_phi3(tmp_path: Path) -> None:
    scaling = {"short_factor": [1.0] * 8, "long_factor": [2] * 8}
    for kind in ("su", "longrope"):  # in older checkpoints and in newer ones
        found = rope(
            tmp_path,
            original_max_position_embeddings=1024,
            rope_scaling={"type": kind, **scaling},
        )
        assert (found.kind, found.n_rot, found.original_ctx) == ("longrope", 16, 1024)
        assert found.attention_factor == pytest.approx(np.sqrt(1 + np.log(4) / np.log(1024)))
        assert found.short.tolist() == [1] * 8 and found.long.tolist() == [2] * 8
    # config.json's own value wins over the one inside; a context that is not longer needs nothing.
    found = rope(
        tmp_path,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "original_max_position_embeddings": 1024, **scaling},
    )
    assert (found.original_ctx, found.attention_factor) == (4096, 1.0)
    scaling |= {"attention_factor": 1.25, "original_max_position_embeddings": 64}
    found = rope(tmp_path, rope_scaling={"type": "longrope", **scaling})
    assert (found.original_ctx, found.attention_factor) == (64, 1.25)


@pytest.mark.parametrize(("name", "most"), [("phi3-short", 128), ("llama-dynamic", 16)])
def test_rotation_depends_on_the_context(name: str, most: int, tmp_path: Path) -> None:
    """On n_ctx, not on how long a text has become; a saved state of another rotation is refused."""
    path = convert(golden(name, tmp_path / "m"), outtype="f32", outfile=tmp_path / "a", log=quiet)
    options = {"logits_all": True, "verbose": False, "type_k": 0, "type_v": 0}

    def found(n_ctx: int, path: Path = path) -> tuple[np.ndarray, Any]:
        with Llama(path, n_ctx=n_ctx, **options) as llm:
            llm.eval(TOKENS)
            return llm.scores[: len(TOKENS)].copy(), llm.save_state()

    short, state = found(most - 1)
    assert np.array_equal(short, found(most)[0])
    long, other = found(most + 1)
    assert reference.relative_error(long, short) > 1e-2
    longer = found(most + 2)[0]
    if name == "phi3-short":
        assert np.array_equal(long, longer)
    else:  # its base grows with n_ctx, and is the plain one up to the trained context
        assert reference.relative_error(longer, long) > 1e-3
        plain = changed(path, tmp_path / "plain", {"powerinfer.rope.dynamic_factor": None})
        assert np.array_equal(short, found(most, plain)[0])
    with Llama(path, n_ctx=most, **options) as llm:
        llm.load_state(state)
        with pytest.raises(ModelFormatError, match="another n_ctx"):
            llm.load_state(other)
