"""What the constructor of `Llama` takes, refuses, and says."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from gguf_files import changed
from powerinfer_cpp.core import options
from tiny import PROMPT

from powerinfer_cpp import Cancelled, DeviceError, Llama, OutOfMemoryError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("options"))


def test_keywords(path: Path) -> None:
    with pytest.warns(UserWarning, match="'max_new_tokens' has no effect"):
        Llama(path, verbose=False, max_new_tokens=5).close()
    with pytest.warns(UserWarning) as said:
        options = {"split_mode": 2, "tensor_split": [0.5, 0.5]}
        Llama(path, verbose=False, **options).close()
    assert len(said) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Llama(
            path,
            verbose=False,
            n_parts=-1,
            f16_kv=True,
            rope_freq_scale=1.0,
            rope_freq_base=10000.0,
            lora_path=None,
            lora_base=None,
            kv_overrides={},
            yarn_ext_factor=-1.0,
            yarn_attn_factor=1.0,
            yarn_beta_fast=32.0,
            yarn_beta_slow=1.0,
            yarn_orig_ctx=0,
            rope_scaling_type=-1,
            chat_handler=None,
            tokenizer=None,
            draft_model=None,
            split_mode=1,
            tensor_split=None,
            flash_attn=True,
            seed=-1,
            n_batch=8,
            vram_budget=0,
        ).close()
    for options, message in (
        ({"chat_handler": 3}, "chat_handler must be a function"),
        ({"tokenizer": object()}, "tokenizer is not supported by this version: the file's own"),
        ({"n_ctx": 64.5}, "n_ctx must be a whole number, not 64.5"),
        ({"n_batch": "8"}, "n_batch must be a whole number, not '8'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"sparse": "predictor"}, "no predictors"),
        ({"sparse": "maybe"}, "sparse must be one of auto, off, exact, predictor"),
        ({"pooling_type": 5}, "pooling_type"),
        ({"chat_format": "klingon"}, "chat_format 'klingon' is unknown; known are llama-2"),
        ({"record": "fired"}, "record"),
        ({"reset_gpu_index": True, "disable_gpu_index": True}, "gpu_index exclude each other"),
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_ctx": 1 << 40}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"n_threads": -1}, "n_threads"),
        ({"ram_budget": -1}, "ram_budget"),
        ({"type_k": 2}, "type"),
    ):
        with pytest.raises(ValueError, match=message):
            Llama(path, verbose=False, **options)
    with pytest.raises(DeviceError, match="cuda0"):
        Llama(path, verbose=False, device="cuda0")
    Llama(path, verbose=False, sparse="off", device="cpu").close()


def test_positions_of_a_context(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """512 unless asked, and no more than the model was trained on; beyond these it is said once."""
    found = {}
    for trained in (256, 4096):
        file = changed(path, tmp_path / "trained.gguf", {"llama.context_length": trained})
        with Llama(file, verbose=True) as llm:
            found[trained] = llm.n_ctx()
            llm(PROMPT, max_tokens=2)
    assert found == {256: 256, 4096: 512}
    assert "training" not in capfd.readouterr().err
    with Llama(path, n_ctx=300) as llm:
        assert llm.n_ctx() == 300
        llm(PROMPT, max_tokens=2)
    said = [line for line in capfd.readouterr().err.splitlines() if "training" in line]
    assert len(said) == 1 and "a context of 300 positions goes beyond the 256" in said[0]


def test_more_threads_than_processors_are_said(path: Path, capfd: pytest.CaptureFixture) -> None:
    with Llama(path, n_threads=512) as llm:
        used = llm.n_threads
        assert llm.n_threads_batch == used
        llm(PROMPT, max_tokens=2)
    said = [line for line in capfd.readouterr().err.splitlines() if "asked for" in line]
    assert len(said) == 1 and f"512 threads were asked for, {used} are used" in said[0]
    Llama(path, n_threads=used).close()
    assert "asked for" not in capfd.readouterr().err


def test_options_for_a_gpu_are_said_to_be_in_vain(path: Path, capfd: pytest.CaptureFixture) -> None:
    Llama(path, n_gpu_layers=-1, vram_budget=8).close()
    lines = [line for line in capfd.readouterr().err.splitlines() if "without effect" in line]
    assert len(lines) == 1 and lines[0].startswith("n_gpu_layers and vram_budget: ")
    Llama(path, n_gpu_layers=-1, vram_budget=8, verbose=False).close()
    Llama(path, vram_budget=0).close()
    assert "without effect" not in capfd.readouterr().err


def test_which_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU computes only if there is one and something asks for it."""

    def fields(device=None, n_gpu_layers=0, vram_budget=None) -> tuple | None:
        found = options.device_fields(device, n_gpu_layers, vram_budget)
        names = ("device", "n_gpu_layers", "vram_budget")
        return tuple(found[name] for name in names) if found else None

    for n_devices in (0, 1):
        monkeypatch.setattr(options, "lib", SimpleNamespace(pi_n_devices=lambda n=n_devices: n))
        assert fields() is None and fields(n_gpu_layers=None) is None
        for device in (None, "cpu", "cuda0"):
            assert fields(device, n_gpu_layers=-1, vram_budget=0) is None
        assert fields("cpu", n_gpu_layers=9, vram_budget=2) is None
        assert fields("cuda1") == fields("cuda1", -1) == ("cuda1", -1, 0)
        assert fields("cuda0", 3, 0.5) == ("cuda0", 3, 1 << 29)
        asked = [fields(n_gpu_layers=3), fields(n_gpu_layers=-1), fields(vram_budget=1e-12)]
        first = [("cuda0", 3, 0), ("cuda0", -1, 0), ("cuda0", -1, 1)]
        assert asked == (first if n_devices else [None] * 3)
    for budget in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="vram_budget must be a number of GiB"):
            fields(vram_budget=budget)
    with pytest.raises(DeviceError, match="by its name"):
        fields(device=0)


def test_repr(path: Path) -> None:
    llm = Llama(path, n_ctx=64, verbose=False, sparse="off")
    head = f"<Llama '{path}': llama with silu, 2 layers, "
    assert repr(llm) == f"{head}0.1 million weights, 64 positions, sparse='off'>"
    llm.close()
    assert repr(llm) == f"<Llama '{path}', closed>"
    with Llama(path, vocab_only=True, verbose=False) as vocabulary:
        assert repr(vocabulary).endswith("the vocabulary only>")
    with Llama(path, embedding=True, n_ctx=64, verbose=False) as embedder:
        assert "embeddings, 64 positions" in repr(embedder)


def test_numbers_of_numpy(path: Path) -> None:
    """Where an int is taken, one of numpy is."""
    plain = {"n_ctx": 64, "n_batch": 16, "n_ubatch": 16, "n_threads": 1, "seed": 5}
    plain |= {"last_n_tokens_size": 32, "type_k": 0, "type_v": 0}
    calls = {"max_tokens": 5, "seed": 7, "top_k": 20, "logprobs": 2}
    with (
        Llama(path, verbose=False, **plain) as a,
        Llama(path, verbose=False, **{k: np.int64(v) for k, v in plain.items()}) as b,
    ):
        for llm, kind in ((a, int), (b, np.int64)):
            options = {name: kind(value) for name, value in calls.items()}
            ids = [kind(token) for token in llm.tokenize(PROMPT.encode())]
            llm.set_seed(kind(3))
            options["logit_bias"] = {kind(9): 1.0}
            llm.found = (
                llm(ids, **options)["choices"],
                llm(PROMPT, max_tokens=kind(0))["choices"],
                llm.create_chat_completion(
                    [{"role": "user", "content": "x"}],
                    max_tokens=kind(3),
                    seed=kind(1),
                    logprobs=True,
                    top_logprobs=kind(2),
                )["choices"],
                llm.detokenize(ids),
            )
            llm.eval(ids)
        assert a.found == b.found
        for options, name in (
            ({"max_tokens": 1.5}, "max_tokens"),
            ({"max_tokens": np.float32(2)}, "max_tokens"),
            ({"max_tokens": "5"}, "max_tokens"),
            ({"seed": 1.5}, "seed"),
            ({"top_k": 1.5}, "top_k"),
            ({"logprobs": 1.5}, "logprobs"),
            ({"logit_bias": {1.5: 1.0}}, "logit_bias"),
        ):
            with pytest.raises(ValueError, match=f"{name} must be a whole number"):
                a(PROMPT, **options)
        with pytest.raises(ValueError, match="a token id must be a whole number, not 1.5"):
            a.detokenize([1.5])


def test_a_budget_that_is_too_small(path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="MiB"):
        Llama(path, verbose=False, ram_budget=1e-4)
    with pytest.raises(OutOfMemoryError):
        Llama(path, verbose=False, ram_budget=0.001, n_ctx=100000)


def test_progress(path: Path) -> None:
    seen: list[float] = []
    Llama(path, verbose=False, progress_callback=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0
    with pytest.raises(Cancelled):
        Llama(path, verbose=False, progress_callback=lambda share: False)

    def broken(_share: float) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Llama(path, verbose=False, progress_callback=broken)


def test_verbose(path: Path, capfd: pytest.CaptureFixture) -> None:
    Llama(path, verbose=False).close()
    assert capfd.readouterr() == ("", "")
    Llama(path, verbose=True).close()
    out, err = capfd.readouterr()
    assert out == "" and 0 < err.count("\n") < 20
