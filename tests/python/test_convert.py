"""convert: against a float64 reference, the gguf package's reader and PowerInfer's own files."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import checkpoints
import gguf
import numpy as np
import pytest
import reference
from families import logits, quiet
from powerinfer_cpp.convert import convert, stored, writer
from powerinfer_cpp.convert.torch_zip import read_torch_zip
from powerinfer_cpp.core.gguf import Gguf

from powerinfer_cpp import Llama, ModelFormatError

TOKENS = [1, 5, 77, 300, 4, 5, 5, 261, 299, 12, 270, 9, 40]


VARIANTS = {
    "silu": {},
    "relu": {"hidden_act": "relu"},
    "bamboo": {"model_type": "bamboo", "hidden_act": "relu"},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "head_dim": {"head_dim": 24, "num_key_value_heads": 2},
    "narrow": {"head_dim": 8},
    "transformers 4": {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": None},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_against_the_reference(name: str, tmp_path: Path) -> None:
    cfg = checkpoints.config(**VARIANTS[name])
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    activation = "drelu" if cfg["model_type"] == "bamboo" else cfg["hidden_act"]
    want = reference.logits(cfg, weights, TOKENS, activation)
    # float32 sums over 64 to 96 products, two layers: about 1e-6 each.
    assert reference.relative_error(logits(path, TOKENS), want) < 2e-5


@pytest.mark.parametrize(
    ("dtype", "shards"), [("F32", 3), ("F16", 1), ("BF16", 1), ("BF16", 2), ("F64", 1)]
)
def test_element_types_and_shards(dtype: str, shards: int, tmp_path: Path) -> None:
    cfg = checkpoints.config()
    weights = checkpoints.weights(cfg)
    if dtype == "BF16":
        weights = {
            n: (checkpoints.to_bf16(w).astype(np.uint32) << 16).view(np.float32)
            for n, w in weights.items()
        }
    elif dtype == "F16":
        weights = {n: w.astype(np.float16).astype(np.float32) for n, w in weights.items()}
    folder = checkpoints.save(tmp_path / "model", cfg, weights, dtype, shards)
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    with Gguf(path) as file:
        tensors = {t.name: file.data(t).view(np.float32).reshape(t.shape) for t in file.tensors}
    assert np.array_equal(
        tensors["blk.1.ffn_up.weight"], weights["model.layers.1.mlp.up_proj.weight"]
    )
    assert np.array_equal(tensors["output.weight"], weights["lm_head.weight"])


def test_rows_of_query_and_key_are_interleaved(tmp_path: Path) -> None:
    cfg = checkpoints.config(num_key_value_heads=2, attention_bias=True)
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    with Gguf(path) as file:
        tensors = {t.name: file.data(t).view(np.float32).reshape(t.shape) for t in file.tensors}
    for part, heads in (("q", 4), ("k", 2)):
        for kind in ("weight", "bias"):
            theirs = weights[f"model.layers.0.self_attn.{part}_proj.{kind}"]
            ours = tensors[f"blk.0.attn_{part}.{kind}"]
            for head in range(heads):
                for i in range(8):  # elements i and i + 8 of a head become 2i and 2i + 1
                    assert np.array_equal(ours[16 * head + 2 * i], theirs[16 * head + i])
                    assert np.array_equal(ours[16 * head + 2 * i + 1], theirs[16 * head + i + 8])
    assert np.array_equal(
        tensors["blk.0.attn_v.weight"], weights["model.layers.0.self_attn.v_proj.weight"]
    )


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0", "q4_0"])
def test_formats_as_the_gguf_package_encodes_them(outtype: str, tmp_path: Path) -> None:
    cfg = checkpoints.config()
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "tiny", cfg, weights)
    path = convert(folder, outtype=outtype, log=quiet)
    assert path == tmp_path / f"tiny-{outtype}.gguf"
    reader = gguf.GGUFReader(path)
    assert (
        reader.fields["general.file_type"].contents()
        == {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}[outtype]
    )
    kind = gguf.GGMLQuantizationType[outtype.upper()]
    for tensor in reader.tensors:
        one_dimensional = len(tensor.shape) == 1
        assert tensor.tensor_type == (gguf.GGMLQuantizationType.F32 if one_dimensional else kind), (
            tensor.name
        )
    theirs = gguf.quants.quantize(weights["model.layers.0.mlp.down_proj.weight"], kind)
    ours = next(t for t in reader.tensors if t.name == "blk.0.ffn_down.weight")
    assert np.array_equal(ours.data.view(np.uint8).reshape(-1), theirs.view(np.uint8).reshape(-1))


def test_rows_that_blocks_do_not_divide_become_f16(tmp_path: Path) -> None:
    folder = checkpoints.model(tmp_path / "model", intermediate_size=80)
    lines: list[str] = []
    path = convert(folder, outtype="q4_0", outfile=tmp_path / "out.gguf", log=lines.append)
    types = {t.name: t.type_name for t in Gguf(path).tensors}
    assert types["blk.0.ffn_down.weight"] == "F16" and types["blk.0.ffn_up.weight"] == "Q4_0"
    assert any("blk.0.ffn_down.weight" in line and "F16" in line for line in lines)


def test_neuron_aware_file(tmp_path: Path) -> None:
    cfg = checkpoints.config(hidden_act="relu", mlp_bias=True)
    weights = checkpoints.weights(cfg)
    folder = checkpoints.save(tmp_path / "model", cfg, weights)
    predictor = checkpoints.predictors(tmp_path / "predictor", cfg)
    path = convert(folder, tmp_path / "predictor", outfile=tmp_path / "out.gguf", log=quiet)
    reader = gguf.GGUFReader(path)
    assert reader.fields["powerinfer.version"].contents() == 1
    assert reader.fields["powerinfer.ffn.activation"].contents() == "relu"
    assert reader.fields["powerinfer.sparse_threshold"].contents() == 0.25
    tensors = {t.name: t for t in reader.tensors}
    down = tensors["blk.1.ffn_down_t.weight"]
    assert down.shape.tolist() == [64, 96]
    theirs = weights["model.layers.1.mlp.down_proj.weight"].T.astype(np.float16)
    assert np.array_equal(down.data, theirs)
    assert "blk.1.ffn_down.weight" not in tensors and tensors[
        "blk.1.ffn_down_t.bias"
    ].shape.tolist() == [64]
    for name, values in predictor.items():
        assert tensors[name].tensor_type == gguf.GGMLQuantizationType.F16
        assert np.array_equal(tensors[name].data, values), name


@pytest.mark.shared
@pytest.mark.parametrize("name", ["llama-relu", "bamboo"])
def test_tensors_equal_powerinfers_own(name: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures" / "hf" / name
    predictor = folder.with_name(f"{name}-predictor")
    ours = Gguf(convert(folder, predictor, outfile=tmp_path / "out.gguf", log=quiet))
    theirs = Gguf(shared / "fixtures" / "pwri" / f"{name}.powerinfer.gguf")
    assert theirs.is_pwri and not ours.is_pwri
    mine = {t.name: t for t in ours.tensors}
    assert set(mine) == {t.name for t in theirs.tensors}
    for t in theirs.tensors:
        assert mine[t.name].shape == t.shape and mine[t.name].type == t.type, t.name
        assert np.array_equal(ours.data(mine[t.name]), theirs.data(t)), t.name
    for key, value in theirs.metadata.items():
        if key != "general.name":
            assert ours.metadata[key] == value, key


def test_activation_key_only_where_it_differs(tmp_path: Path) -> None:
    def key(activation: str | None = None, **changes: str) -> object:
        folder = checkpoints.model(tmp_path / "model", **changes)
        path = convert(folder, activation=activation, outfile=tmp_path / "out.gguf", log=quiet)
        return Gguf(path).value("powerinfer.ffn.activation")

    assert key() is None
    assert key(hidden_act="relu") == "relu"
    assert key(activation="drelu") == "drelu"
    assert key(model_type="bamboo", hidden_act="relu") is None
    assert key(model_type="bamboo", hidden_act="silu") == "silu"


def test_vocabulary(tmp_path: Path) -> None:
    import sentencepiece

    folder = checkpoints.model(tmp_path / "model")
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": 300}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "add_bos_token": False,
                "eos_token": "<end>",
                "chat_template": "{{ messages }}",
                "added_tokens_decoder": {"301": {"content": "<end>", "special": True}},
            }
        )
    )
    path = convert(folder, vocab_only=True, outfile=tmp_path / "vocab.gguf", log=quiet)
    with Gguf(path) as file:
        found, tensors = file.metadata, file.tensors
    processor = sentencepiece.SentencePieceProcessor(model_proto=checkpoints.tokenizer())
    assert tensors == []
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == len(found["tokenizer.ggml.scores"]) == checkpoints.N_VOCAB
    assert tokens[:300] == [processor.id_to_piece(i) for i in range(300)]
    assert found["tokenizer.ggml.scores"][:300] == [processor.get_score(i) for i in range(300)]
    assert types[:3] == [2, 3, 3] and types[tokens.index("<name>")] == 4
    assert types[processor.piece_to_id("<0x41>")] == 6 and types[299] == 1
    assert tokens[300:303] == ["<extra>", "<end>", "[PAD302]"] and types[300:303] == [4, 3, 5]
    assert found["tokenizer.ggml.eos_token_id"] == 301 and found["tokenizer.ggml.bos_token_id"] == 1
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    with Llama(path, vocab_only=True, verbose=False) as llm:
        text = "the quick fox\u00e9\U0001f600 tells"
        assert llm.tokenize(text.encode(), add_bos=False) == processor.encode(text)


# ---- What must be refused ----


def break_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    cfg = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in cfg.items() if v != "absent"}))


def rewrite(folder: Path, **changes: np.ndarray | None) -> None:
    cfg = json.loads((folder / "config.json").read_text())
    tensors = {**checkpoints.weights(cfg), **changes}
    tensors = {name: values for name, values in tensors.items() if values is not None}
    checkpoints.save_safetensors(folder / "model.safetensors", tensors, "F32")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def of_characters(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(checkpoints.tokenizer("char"))


REFUSED = {
    "truncated": (truncate, "damaged safetensors"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no weights"),
    "garbage": (lambda d: (d / "model.safetensors").write_bytes(b"x" * 64), "damaged safetensors"),
    "missing": (
        lambda d: rewrite(d, **{"model.norm.weight": None}),
        "lacks tensor model.norm.weight",
    ),
    "unknown": (lambda d: rewrite(d, **{"model.extra.weight": np.ones(3)}), "model.extra.weight"),
    "bias": (
        lambda d: rewrite(d, **{"model.layers.0.mlp.up_proj.bias": np.ones(96)}),
        "up_proj.bias",
    ),
    "shape": (
        lambda d: rewrite(d, **{"model.layers.1.mlp.up_proj.weight": np.ones((96, 60))}),
        r"model.layers.1.mlp.up_proj.weight has shape \[96, 60\], expected \[96, 64\]",
    ),
    "infinite": (lambda d: rewrite(d, **{"model.norm.weight": np.full(64, np.inf)}), "not finite"),
    "too large": (
        lambda d: rewrite(d, **{"lm_head.weight": np.full((320, 64), 1e6)}),
        "output.weight: a value of 1e.06 is beyond the range of F16",
    ),
    "no config": (lambda d: (d / "config.json").unlink(), "config.json"),
    "config": (lambda d: (d / "config.json").write_text("{"), "not JSON"),
    "list": (lambda d: (d / "config.json").write_text("[]"), "not a JSON object"),
    "no size": (lambda d: break_config(d, hidden_size="absent"), "no hidden_size"),
    "size": (lambda d: break_config(d, hidden_size=-4), "hidden_size must be"),
    "heads": (lambda d: break_config(d, num_key_value_heads=3), "not a multiple"),
    "family": (lambda d: break_config(d, model_type="gpt9"), "'gpt9' is not supported"),
    "activation": (lambda d: break_config(d, hidden_act="tanh"), "'tanh' is not supported"),
    "vocabulary": (lambda d: break_config(d, vocab_size=200), "the tokenizer has 300"),
    "tokenizer": (
        lambda d: (d / "tokenizer.model").write_bytes(b"no"),
        "not a SentencePiece model",
    ),
    "characters": (of_characters, "neither a unigram nor a BPE model"),
    "no tokenizer": (lambda d: (d / "tokenizer.model").unlink(), "tokenizer.model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_reason_and_leave_nothing(name: str, tmp_path: Path) -> None:
    damage, message = REFUSED[name]
    folder = checkpoints.model(tmp_path / "model")
    damage(folder)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises((OSError, ValueError), match=message) as caught:
        convert(folder, outfile=out / "out.gguf", log=quiet)
    assert "\n" not in str(caught.value) and list(out.iterdir()) == []


def test_parts_of_the_index(tmp_path: Path) -> None:
    cfg = checkpoints.config()
    folder = checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg), shards=2)
    part = folder / "model-00002-of-00002.safetensors"
    part.rename(folder / "elsewhere")
    with pytest.raises(ModelFormatError, match=part.name):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(part.name, "../../etc/passwd"))
    with pytest.raises(ModelFormatError, match="not in the folder"):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)


def test_what_is_no_model_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        convert(tmp_path / "nothing", log=quiet)
    (tmp_path / "m.gguf").write_bytes(b"GGUF....")
    with pytest.raises(ModelFormatError, match=r"m\.gguf: "):
        convert(tmp_path / "m.gguf", log=quiet)
    (tmp_path / "m.txt").write_bytes(b"text")
    with pytest.raises(ModelFormatError, match="neither a model folder nor a GGUF"):
        convert(tmp_path / "m.txt", log=quiet)
    with pytest.raises(ValueError, match="predictors"):
        convert(checkpoints.model(tmp_path / "model"), tmp_path, dense=True, log=quiet)


# ---- Predictors ----


def test_predictor_folders_that_do_not_fit(tmp_path: Path) -> None:
    cfg = checkpoints.config(hidden_act="relu")
    folder = checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    pred, out = tmp_path / "predictor", tmp_path / "out.gguf"
    pred.mkdir()
    with pytest.raises(FileNotFoundError, match="no predictors"):
        convert(folder, pred, outfile=out, log=quiet)
    checkpoints.predictors(pred, cfg, ranks=(32, 24, 16))
    with pytest.raises(ModelFormatError, match=r"model_2\.pt: the model has only 2 layers"):
        convert(folder, pred, outfile=out, log=quiet)
    (pred / "model_2.pt").unlink()
    (pred / "config.json").write_text('{"sparse_threshold": NaN}')
    with pytest.raises(ModelFormatError, match="sparse_threshold"):
        convert(folder, pred, outfile=out, log=quiet)
    (pred / "config.json").unlink()
    checkpoints.save_torch(pred / "model_1.pt", {"fc1.weight": np.ones((8, 64), np.float16)})
    with pytest.raises(ModelFormatError, match="expected fc1.weight and fc2.weight"):
        convert(folder, pred, outfile=out, log=quiet)
    shapes = {
        "fc1.weight": np.ones((8, 60), np.float16),
        "fc2.weight": np.ones((96, 8), np.float16),
    }
    checkpoints.save_torch(pred / "model_1.pt", shapes)
    with pytest.raises(
        ModelFormatError, match=r"fc1.weight has shape \[8, 60\], expected \[8, 64\]"
    ):
        convert(folder, pred, outfile=out, log=quiet)
    checkpoints.predictors(pred, cfg, ranks=(32, 65537), threshold=None)
    with pytest.raises(ModelFormatError, match=r"model_1\.pt: fc1.weight has rank 65537, beyond"):
        convert(folder, pred, outfile=out, log=quiet)
    (pred / "model_1.pt").unlink()
    lines: list[str] = []
    convert(folder, pred, outfile=out, log=lines.append)
    assert any("no predictor for layers 1" in line for line in lines)
    assert "powerinfer.sparse_threshold" not in Gguf(out).metadata


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "owned"),)

    path = tmp_path / "model_0.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model_0/data.pkl", pickle.dumps({"fc1.weight": Evil()}, protocol=2))
    with pytest.raises(ModelFormatError):
        read_torch_zip(path)
    assert not (tmp_path / "owned").exists()


def test_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    path = tmp_path / "model_0.pt"
    checkpoints.save_torch(path, {"fc1.weight": np.ones((4, 8), np.float32)})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    # torch's stride (8, 1) becomes (9, 1): the last element would lie behind the storage.
    parts["model_0/data.pkl"] = parts["model_0/data.pkl"].replace(
        b"K\x08K\x01\x86", b"K\x09K\x01\x86"
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    with pytest.raises(ModelFormatError, match="exceeds its storage"):
        read_torch_zip(path)


def test_a_vocabulary_of_a_size_that_is_only_claimed(tmp_path: Path) -> None:
    folder, out = checkpoints.model(tmp_path / "model"), tmp_path / "out.gguf"
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 1 << 23}))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFormatError, match=r"embed_tokens.weight has shape \[320, 64\]"):
        convert(folder, outfile=out, log=quiet)
    with pytest.raises(ModelFormatError, match="leaves 8388308 ids of 8388608 without a token"):
        convert(folder, outfile=out, vocab_only=True, log=quiet)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10
    assert not out.exists()


# ---- Disk and interruptions ----


def test_too_little_disk_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.model(tmp_path / "model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _p: usage._replace(free=1000))
    with pytest.raises(OSError, match="needed, only 0.0 MiB free"):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    folder = checkpoints.model(tmp_path / "model")
    out = tmp_path / "out.gguf"
    out.write_bytes(b"the old file")
    done = subprocess.run(
        [sys.executable, "-m", "powerinfer_cpp.cli", "convert", "--dense"]
        + [str(folder), "--outfile", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000)),
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "no space left" in done.stderr
    assert out.read_bytes() == b"the old file" and not out.with_name("out.gguf.part").exists()


def test_interruption_removes_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoints.model(tmp_path / "model")
    real = stored.encode

    def interrupted(fmt, values):
        if values.shape[-1] == 96:  # in the midst of the file
            os.kill(os.getpid(), signal.SIGINT)
        return real(fmt, values)

    monkeypatch.setattr(stored, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, outfile=tmp_path / "out.gguf", log=quiet)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    folder = checkpoints.model(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        convert(folder, outfile=tmp_path / "no" / "out.gguf", log=quiet)
    with pytest.raises(OSError, match="not a regular file"):
        convert(folder, outfile=tmp_path, log=quiet)


@pytest.mark.peer("transformers")
@pytest.mark.parametrize("name", ["silu", "relu", "biases", "head_dim", "tied"])
def test_logits_against_transformers(name: str, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    folder = checkpoints.model(tmp_path / "model", **VARIANTS[name])
    path = convert(folder, outtype="f32", outfile=tmp_path / "out.gguf", log=quiet)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].double().numpy()
    assert reference.relative_error(logits(path, TOKENS), want) < 2e-5
