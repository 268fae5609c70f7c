"""LoRA adapters: logits against peft's and llama.cpp's, on dense and sparse layers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import gguf
import gguf_files
import numpy as np
import pytest
import tiny
from families import GOLDEN, ROOT, golden, quiet
from lora_files import written
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.sequences.adapters import LoraAdapter
from reference import relative_error
from safetensors.numpy import load_file, save_file

from powerinfer_cpp import Llama, ModelFormatError, OutOfMemoryError, UnsupportedModelError

LORA = GOLDEN / "lora"
MIXES = {"first": (1.0, 0.0), "second": (0.0, 1.0), "both": (0.75, -0.5)}  # of make_lora.py
ROUNDING = 2e-5  # as in test_golden.py, with an F32 cache
OPTIONS: dict[str, Any] = {
    "n_ctx": 64,
    "logits_all": True,
    "verbose": False,
    "type_k": 0,
    "type_v": 0,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dense.gguf, neurons.gguf, quantised.gguf; the adapters first.gguf, second.gguf."""
    folder = tmp_path_factory.mktemp("lora")
    base = golden("llama-relu-gqa", folder / "base")
    convert(base, outfile=folder / "dense.gguf", outtype="f32", log=quiet)
    convert(folder / "dense.gguf", outfile=folder / "neurons.gguf", log=quiet)
    convert(folder / "dense.gguf", outfile=folder / "quantised.gguf", outtype="q8_0", log=quiet)
    for name in ("first", "second"):
        convert(LORA / name, base=base, outfile=folder / f"{name}.gguf", log=quiet)
    return folder


def computed(llm: Llama, tokens: Any, at_once: int = 64) -> np.ndarray:
    llm.reset()
    for start in range(0, len(tokens), at_once):
        llm.eval([int(t) for t in tokens[start : start + at_once]])
    return llm.scores[: len(tokens)].copy()


def mixed(folder: Path, scales: tuple[float, float]) -> dict[Any, float]:
    return {folder / "first.gguf": scales[0], folder / "second.gguf": scales[1]}


@pytest.mark.parametrize("sparse", ["off", "exact", "auto"])
@pytest.mark.parametrize("form", ["dense", "neurons"])
def test_logits_are_those_of_peft(made: Path, form: str, sparse: str) -> None:
    """Also token by token and with two threads, with the same bits; changed between calls."""
    expected = np.load(LORA / "logits.npz")
    tokens = expected["tokens"]
    with Llama(made / f"{form}.gguf", sparse=sparse, n_threads=1, **OPTIONS) as llm:
        plain = computed(llm, tokens)
        for mix, scales in MIXES.items():
            llm.set_adapters(mixed(made, scales))
            assert llm.n_tokens == 0
            got = computed(llm, tokens)
            assert relative_error(got, expected[mix].astype(np.float64)) < ROUNDING
            for at_once in (1, 5):
                assert np.array_equal(computed(llm, tokens, at_once), got)
        llm.set_adapters({})
        assert np.array_equal(computed(llm, tokens), plain)
    two = {"sparse": sparse, "n_threads": 2, "lora_path": mixed(made, MIXES["both"])}
    with Llama(made / f"{form}.gguf", **two, **OPTIONS) as llm:
        assert np.array_equal(computed(llm, tokens), got)


def test_adapters_of_a_quantised_model(made: Path) -> None:
    """Its products round their inputs to 8 bits, the adapter's do not: as far from the F32 model
    as without an adapter."""
    expected = np.load(LORA / "logits.npz")
    tokens, errors = expected["tokens"], []
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        base = computed(llm, tokens)
    for adapters, wanted in (({}, base), (mixed(made, MIXES["both"]), expected["both"])):
        results = []
        for sparse in ("off", "exact"):
            with Llama(made / "quantised.gguf", sparse=sparse, **OPTIONS) as llm:
                llm.set_adapters(adapters)
                results.append(computed(llm, tokens))
                assert np.array_equal(computed(llm, tokens, 1), results[-1])
        assert np.array_equal(*results)
        errors.append(relative_error(results[0], wanted.astype(np.float64)))
    assert errors[1] < max(1.5 * errors[0], 0.02), errors


def test_a_scale_of_0_is_no_adapter(made: Path) -> None:
    tokens = np.load(LORA / "logits.npz")["tokens"]
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        plain = computed(llm, tokens)
        llm.set_adapters(mixed(made, (0, 0)))
        assert llm.n_tokens == len(tokens)  # nothing has changed, so nothing is dropped
        assert np.array_equal(computed(llm, tokens), plain)


def test_positions_of_other_adapters_are_not_reused(made: Path) -> None:
    first, second = ({made / f"{name}.gguf": 1.0} for name in ("first", "second"))
    with Llama(made / "neurons.gguf", lora_path=made / "second.gguf", **OPTIONS) as llm:
        wanted = llm("the cat", max_tokens=12, temperature=0)["choices"][0]["text"]
    with Llama(made / "neurons.gguf", lora_path=first, lora_scale=3.0, **OPTIONS) as llm:
        other = llm("the cat", max_tokens=12, temperature=0)["choices"][0]["text"]
        assert other != wanted
        state = llm.save_state()
        llm.set_adapters(second)
        assert llm("the cat", max_tokens=12, temperature=0)["choices"][0]["text"] == wanted
        with pytest.raises(ModelFormatError, match="in another mode"):
            llm.load_state(state)
        llm.set_adapters(first)
        llm.load_state(state)
        assert llm.n_tokens == state.n_tokens


def test_an_adapter_is_opened_once_and_used_often(made: Path) -> None:
    tokens = np.load(LORA / "logits.npz")["tokens"]
    with Llama(made / "dense.gguf", **OPTIONS) as llm, Llama(made / "dense.gguf") as other:
        adapter = llm.open_adapter(made / "first.gguf")
        assert isinstance(adapter, LoraAdapter)
        results = []
        for scale in (1.0, 0.5, 1.0):
            llm.set_adapters({adapter: scale})
            results.append(computed(llm, tokens))
        assert np.array_equal(results[0], results[2])
        assert not np.array_equal(results[0], results[1])
        with pytest.raises(ValueError, match=r"first\.gguf: the adapter was opened for another"):
            other.set_adapters({adapter: 1.0})
        for scale, match in ((np.inf, "not finite"), ("1", "must be a number")):
            with pytest.raises(ValueError, match=match):
                llm.set_adapters({adapter: scale})
        with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
            llm.set_adapters({made / "none.gguf": 1.0})
        assert np.array_equal(computed(llm, tokens), results[0])  # they have changed nothing


def test_embeddings_use_adapters(made: Path) -> None:
    with Llama(made / "dense.gguf", embedding=True, verbose=False) as llm:
        plain = llm.embed("the cat")
        llm.set_adapters({made / "first.gguf": 1.0})
        assert llm.embed("the cat") != plain
        llm.set_adapters({})
        assert llm.embed("the cat") == plain


# ---- Predictors ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model whose predictors know nothing, an adapter of its layers, and one of its head."""
    folder = tmp_path_factory.mktemp("predicted")
    model = tiny.noisy(folder)
    rng = np.random.default_rng(3)

    def term(name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        return {
            f"{name}.weight.lora_a": rng.standard_normal((4, inputs)) / 8,
            f"{name}.weight.lora_b": rng.standard_normal((outputs, 4)) / 2,
        }

    layers = written(folder / "layers.gguf", term("blk.0.ffn_up", 64, 96))
    head = written(folder / "head.gguf", term("output", 64, 320))
    return model, layers, head


def generated(llm: Llama, prompt: list[int], n: int) -> np.ndarray:
    """Logits of n tokens that count as generated, after a prompt."""
    llm.reset()
    llm.eval(prompt)
    for token in range(n):
        llm.eval([30 + token], generated=True)
    return llm.scores[: len(prompt) + n].copy()


def test_predictors_are_not_used_with_adapters_of_layers(
    predicted: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    model, layers, head = predicted
    results = {}
    for name, options in {
        "exact": {"sparse": "exact"},
        "auto": {"sparse": "auto", "verbose": True},
        "allowed": {"sparse": "auto", "lora_allow_predictor": True},
    }.items():
        with Llama(model, lora_path=layers, **{**OPTIONS, **options}) as llm:
            results[name] = generated(llm, [1, 5, 9], 4)
            if name == "auto":  # the warning comes once
                llm.set_adapters({layers: 0.5})
    assert np.array_equal(results["auto"], results["exact"])
    assert not np.array_equal(results["allowed"], results["exact"])
    assert capfd.readouterr().err.count("predictors are not used with adapters") == 1
    for options in ({"sparse": "auto"}, {"sparse": "predictor"}):
        with Llama(model, lora_path=head, **{**OPTIONS, **options}) as llm:
            adapted = generated(llm, [1, 5, 9], 4)
        with Llama(model, **{**OPTIONS, **options}) as llm:
            plain = generated(llm, [1, 5, 9], 4)
            head_a, head_b = (gguf_files.values(head)[f"output.weight.lora_{x}"] for x in "ab")
        # The predictors' rows are the same, so the logits differ by the head's term only.
        assert np.linalg.matrix_rank(adapted - plain, tol=1e-3) <= len(head_a)
        assert not np.array_equal(adapted, plain)
        assert head_b.shape == (320, 4)
    with pytest.raises(ValueError, match="sparse predictor: the predictors were made for"):
        Llama(model, sparse="predictor", lora_path=layers, verbose=False)


# ---- Where adapters cannot be used ---------------------------------------------------------------


def test_storage_and_devices_are_refused(made: Path, tmp_path: Path) -> None:
    big = checkpoints.model(tmp_path / "big", hidden_act="relu", intermediate_size=4096)
    model = convert(big, outfile=tmp_path / "big.gguf", outtype="f32", bundle=True, log=quiet)
    rng = np.random.default_rng(0)
    tensors = {
        "blk.0.attn_q.weight.lora_a": rng.standard_normal((2, 64)),
        "blk.0.attn_q.weight.lora_b": rng.standard_normal((64, 2)),
    }
    adapter = written(tmp_path / "a.gguf", tensors)
    with Llama(model, n_ctx=64, n_batch=16, ram_budget=0.005, verbose=False) as llm:
        assert llm.stats()["storage"] is not None
        with pytest.raises(UnsupportedModelError, match="runs from storage"):
            llm.set_adapters({adapter: 1.0})
        llm.set_adapters({adapter: 0.0})


# ---- Files ---------------------------------------------------------------------------------------

Q = {
    "blk.0.attn_q.weight.lora_a": np.ones((4, 32)),
    "blk.0.attn_q.weight.lora_b": np.ones((32, 4)),
}


@pytest.mark.parametrize(
    ("tensors", "keys", "match"),
    [
        (Q, {"general__type": "model"}, 'key "general.type" is "model", not "adapter"'),
        (Q, {"adapter__type": "lokr"}, 'key "adapter.type" is "lokr", not "lora"'),
        (Q, {"architecture": "qwen2"}, 'is "qwen2", not "llama": .*another model'),
        (Q, {"alpha": np.inf}, "adapter.lora.alpha"),
        ({"blk.0.attn_q.weight": np.ones((4, 32))}, {}, "no part of a low-rank term"),
        ({"blk.0.attn_q.weight.lora_a": Q["blk.0.attn_q.weight.lora_a"]}, {}, "lora_b.* missing"),
        ({"blk.0.attn_q.weight.lora_b": Q["blk.0.attn_q.weight.lora_b"]}, {}, "lora_a.* missing"),
        ({**Q, "blk.0.attn_q.weight.lora_b": np.ones((32, 3))}, {}, r"\[3, 32\], expected"),
        ({**Q, "blk.0.attn_q.weight.lora_a": np.ones((4, 31))}, {}, r"\[31, 4\], expected"),
        ({**Q, "blk.0.attn_q.weight.lora_b": np.full((32, 4), np.nan)}, {}, "not finite in row 0"),
        ({k.replace("blk.0", "blk.2"): v for k, v in Q.items()}, {}, "does not have"),
        ({k.replace("attn_q", "ffn_up_exps"): v for k, v in Q.items()}, {}, "changes experts"),
        ({k.replace("blk.0.attn_q", "token_embd"): v for k, v in Q.items()}, {}, "the embedding"),
    ],
)
def test_bad_files_are_refused(
    made: Path, tmp_path: Path, tensors: dict[str, np.ndarray], keys: dict[str, Any], match: str
) -> None:
    bad = written(tmp_path / "bad.gguf", tensors, **keys)
    with Llama(made / "neurons.gguf", verbose=False) as llm:
        with pytest.raises((ModelFormatError, UnsupportedModelError), match=match) as error:
            llm.open_adapter(bad)
        assert "bad.gguf: " in str(error.value)


def test_without_alpha_terms_are_added_as_they_are(made: Path, tmp_path: Path) -> None:
    """As in llama.cpp."""
    tokens = np.load(LORA / "logits.npz")["tokens"]
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        results = []
        for alpha in (None, 4.0, 8.0):
            llm.set_adapters({written(tmp_path / f"{alpha}.gguf", Q, alpha): 1.0})
            results.append(computed(llm, tokens))
        assert np.array_equal(results[0], results[1])
        assert not np.array_equal(results[0], results[2])


def test_the_budget_counts_adapters(made: Path) -> None:
    tokens = np.load(LORA / "logits.npz")["tokens"]
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        free = llm._model.unreserved()
        adapter = llm.open_adapter(made / "first.gguf")
        size = free - llm._model.unreserved()
        assert size >= sum(t.n_bytes for t in gguf.GGUFReader(made / "first.gguf").tensors)
        plain = computed(llm, tokens)
        held = llm._model.reserve("the test's", llm._model.unreserved() - 1000)
        with pytest.raises(OutOfMemoryError, match=r"first\.gguf: an adapter would take"):
            llm.open_adapter(made / "first.gguf")
        with pytest.raises(OutOfMemoryError, match="the session's adapters would take"):
            llm.set_adapters({adapter: 1.0})
        assert np.array_equal(computed(llm, tokens), plain)
        del held, adapter
        assert llm._model.unreserved() > free - (1 << 20)


def test_damaged_files_are_refused(made: Path, tmp_path: Path) -> None:
    """Cut short, and with changed bytes in the header; what is still valid computes."""
    data = (made / "first.gguf").read_bytes()
    rng = np.random.default_rng(5)
    header = data.index(b"blk.1") + 400
    damaged = [data[:n] for n in (3, 20, 400, header, len(data) - 1)]
    for _ in range(60):
        at = int(rng.integers(0, header))
        damaged.append(data[:at] + bytes([rng.integers(0, 256)]) + data[at + 1 :])
    refused = 0
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        for i, content in enumerate(damaged):
            path = tmp_path / f"{i}.gguf"
            path.write_bytes(content)
            try:
                llm.set_adapters({path: 1.0})
            except (ModelFormatError, UnsupportedModelError) as error:
                assert path.name in str(error)
                refused += 1
    assert refused > 30


def test_quantised_adapters(made: Path, tmp_path: Path) -> None:
    """Q8_0 stays as it is, Q4_0 becomes F32: the result of the values as gguf decodes them."""
    tokens = np.load(LORA / "logits.npz")["tokens"]
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((32, 32)) / 4, rng.standard_normal((80, 32)) / 4
    with Llama(made / "neurons.gguf", **OPTIONS) as llm:
        for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
            results = []
            for decoded in (False, True):
                path = tmp_path / f"{kind.name}-{decoded}.gguf"
                writer = gguf.GGUFWriter(path, "llama")
                writer.add_string("general.type", "adapter")
                writer.add_string("adapter.type", "lora")
                for name, values in (("a", a), ("b", b)):
                    data = gguf.quants.quantize(values.astype(np.float32), kind)
                    full = f"blk.1.ffn_gate.weight.lora_{name}"
                    if decoded:
                        writer.add_tensor(full, gguf.quants.dequantize(data, kind))
                    else:
                        writer.add_tensor(full, data, raw_dtype=kind)
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.write_tensors_to_file()
                writer.close()
                llm.set_adapters({path: 1.0})
                results.append(computed(llm, tokens))
            assert relative_error(results[0], results[1].astype(np.float64)) < ROUNDING


# ---- Conversion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"use_dora": True}, "use_dora: DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "bias 'lora_only'"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed base model"),
        ({"alpha_pattern": {"q.*": 3}}, "regular expressions"),
        ({"lora_alpha": 0}, "lora_alpha must be positive"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number"),
        ({"use_rslora": 1}, "use_rslora must be true or false"),
    ],
)
def test_what_cannot_be_converted(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    folder = tmp_path / "peft"
    shutil.copytree(LORA / "first", folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises((ModelFormatError, UnsupportedModelError), match=match):
        convert(folder, base=GOLDEN / "llama-relu-gqa", outfile=tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda w: w | {"base_model.model.lm_head.weight": np.ones(3)}, "no part of a low-rank"),
        (lambda w: dict(list(w.items())[1:]), "lora_[AB] of .* is missing"),
        (lambda w: {k.replace("q_proj", "qq"): v for k, v in w.items()}, "qq.*no matrix of a"),
        (lambda w: {k: v[:, :-1] for k, v in w.items()}, "does not fit the base model"),
        (lambda w: {k: v * np.nan for k, v in w.items()}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, change: Any, match: str) -> None:
    folder = tmp_path / "peft"
    shutil.copytree(LORA / "first", folder)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(change(weights), folder / "adapter_model.safetensors")
    with pytest.raises((ModelFormatError, UnsupportedModelError, ValueError), match=match):
        convert(folder, base=GOLDEN / "llama-relu-gqa", outfile=tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


# ---- Programs ------------------------------------------------------------------------------------


def test_main_uses_adapters(made: Path) -> None:
    from powerinfer_cpp import main_path

    def said(*options: str) -> subprocess.CompletedProcess[bytes]:
        command = [main_path(), "-m", str(made / "neurons.gguf"), "-p", "the cat", "-n", "8"]
        return subprocess.run([*command, "--temp", "0", *options], capture_output=True, timeout=60)

    with Llama(made / "neurons.gguf", verbose=False) as llm:
        wanted = []
        for scales in ((2.0, 0.0), (2.0, 1.0)):
            llm.set_adapters(mixed(made, scales))
            ids = llm.tokenize(b"the cat")
            found = tiny.take(llm.generate(ids, temp=0), 8)
            wanted.append(b"the cat" + llm.detokenize(found, prev_tokens=ids) + b"\n")
    first, second = str(made / "first.gguf"), str(made / "second.gguf")
    assert said("--lora-scaled", f"{first}:2").stdout == wanted[0]
    assert said("--lora-scaled", first, "2").stdout == wanted[0]
    assert said("--lora-scaled", f"{first}:2", "--lora", second).stdout == wanted[1]
    assert wanted[0] != said().stdout != wanted[1]
    for options, match in (
        (("--lora", "none.gguf"), "none.gguf"),
        (("--lora-scaled", f"{first}:x"), "option --lora-scaled"),
        (("--lora", str(made / "dense.gguf")), "general.type"),
    ):
        failed = said(*options)
        assert failed.returncode and re.search(match, failed.stderr.decode()), failed.stderr


def test_commands_convert_and_chat(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "first.gguf"
    command = [sys.executable, str(ROOT / "convert.py"), "--base", str(made / "base")]
    done = subprocess.run(
        [*command, "--outtype", "q8_0", "--outfile", str(out), str(LORA / "first")],
        capture_output=True,
        errors="replace",
    )
    assert done.returncode == 0 and "are f16" in done.stderr, done.stderr
    assert {t.tensor_type.name for t in gguf.GGUFReader(out).tensors} == {"Q8_0", "F16"}
    chat = [sys.executable, "-m", "powerinfer_cpp.cli", "chat", str(made / "neurons.gguf")]
    chat += ["--temp", "0", "-n", "8", "--lora-scaled", f"{out}:2", "--chat-format", "llama-2"]
    done = subprocess.run(chat, input="hello\n", capture_output=True, errors="replace", timeout=60)
    with Llama(made / "neurons.gguf", lora_path=out, lora_scale=2.0, verbose=False) as llm:
        answer = llm.create_chat_completion(
            [{"role": "user", "content": "hello"}], max_tokens=8, temperature=0
        )
    assert done.stdout.rstrip("\n") == answer["choices"][0]["message"]["content"].rstrip("\n")


@pytest.mark.peer("llama_cpp")
def test_logits_are_those_of_llama_cpp(made: Path, tmp_path: Path) -> None:
    """With SiLU, which both have. llama-cpp-python applies one adapter, with a scale."""
    import llama_cpp

    base = golden("llama-silu-tied", tmp_path / "base")
    model = convert(base, outfile=tmp_path / "silu.gguf", outtype="f32", log=quiet)
    rng = np.random.default_rng(4)
    tensors: dict[str, np.ndarray] = {}
    sizes = {"ffn_gate": (32, 80), "ffn_up": (32, 80), "ffn_down": (80, 32)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", *sizes):
        inputs, outputs = sizes.get(name, (32, 32))
        tensors[f"blk.0.{name}.weight.lora_a"] = rng.standard_normal((4, inputs)) / 6
        tensors[f"blk.0.{name}.weight.lora_b"] = rng.standard_normal((outputs, 4)) / 3
    adapter = written(tmp_path / "adapter.gguf", tensors, alpha=6.0)
    ids = np.load(GOLDEN / "llama-silu-tied" / "expected.npz")["tokens"][:16].tolist()
    peer = llama_cpp.Llama(
        str(model),
        lora_path=str(adapter),
        lora_scale=0.7,
        n_ctx=64,
        logits_all=True,
        verbose=False,
        type_k=0,
        type_v=0,
    )
    peer.eval(ids)
    theirs = np.array(peer.scores[: len(ids)], dtype=np.float64)
    with Llama(model, **OPTIONS) as llm:
        plain = computed(llm, ids)
        llm.set_adapters({adapter: 0.7})
        ours = computed(llm, ids)
    assert relative_error(ours, theirs) < ROUNDING < relative_error(plain, theirs)
