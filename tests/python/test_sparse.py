"""Sparse modes on a real model: computation, cost and reports."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import checkpoints
import gguf
import numpy as np
import pytest
from families import golden, quiet
from powerinfer_cpp.cli import main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import SPARSE_MODES, Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.measure.perplexity import text_tokens, windows

from powerinfer_cpp import Llama

TEXT = """Once upon a time, there was a little girl named Lily. She had a small brown dog. The dog's
name was Max. Every day, Lily and Max went to the park to play. They liked to run and jump in the
grass. One day, Lily saw a big red ball under a tree. She wanted to play with it, but the ball was
not hers. "Look, Max! A ball!" she said. Max ran to the tree and barked. A boy came to them and
said, "That is my ball. Do you want to play with me?" Lily was very happy. She said, "Yes, please!"
They threw the ball up in the air and Max ran after it. The boy's name was Tom. Tom and Lily played
all day, and they became good friends. When the sun went down, Lily's mom called her. "It is time to
go home, Lily," she said. Lily was sad because she did not want to go. But Tom smiled and said, "We
can play again tomorrow." Lily gave him a hug. Then she and Max walked home with her mom. At home,
she told her dad about the ball and her new friend. Her dad said, "It is good to share and to be
kind." Lily went to bed with a big smile. She had a dream about the park, the red ball and Tom.
"""
LAYERS, N_FF, N_EMBD = 4, 1024, 256
ROW = N_EMBD // 32 * 34  # bytes of a Q8_0 row


def predictors(model: Path, folder: Path, noise: bool) -> Path:
    """A folder of predictors for a ReLU model, either correct or noise.

    A ReLU neuron fires where gate . (norm * x) > 0, whatever the scale of x: with fc1 = (I, -I) and
    fc2 = (G, -G), where G = gate * norm, the score fc2 . relu(fc1 . x) is G . x.
    """
    tensors = {t.name: t for t in gguf.GGUFReader(model).tensors}

    def weights(name: str) -> np.ndarray:
        tensor = tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    folder.mkdir()
    identity, rng = np.eye(N_EMBD, dtype=np.float16), np.random.default_rng(1)
    for i in range(LAYERS):
        g = weights(f"blk.{i}.ffn_gate.weight") * weights(f"blk.{i}.ffn_norm.weight")
        if noise:
            g = rng.standard_normal(g.shape) * g.std()
        parts = {"fc1.weight": (identity, -identity), "fc2.weight": (g.T, -g.T)}
        stacked = {name: np.concatenate(pair) for name, pair in parts.items()}
        stacked["fc2.weight"] = np.ascontiguousarray(stacked["fc2.weight"].T.astype(np.float16))
        checkpoints.save_torch(folder / f"model_{i}.pt", stacked)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sparse")


@pytest.fixture(scope="module")
def text(folder: Path) -> Path:
    (folder / "text").write_text(TEXT.replace("\n", " "))
    return folder / "text"


@pytest.fixture(scope="module")
def plain(model_path: Path, folder: Path) -> Path:
    """The default model in dense form: without neuron rows and predictors."""
    return convert(model_path, outfile=folder / "plain.gguf", dense=True, log=quiet)


@pytest.fixture(scope="module")
def aware(model_path: Path, folder: Path) -> Path:
    """The default model with correct predictors."""
    right = predictors(model_path, folder / "right", noise=False)
    return convert(model_path, right, outfile=folder / "right.gguf", log=quiet)


@pytest.fixture(scope="module")
def misled(model_path: Path, folder: Path) -> Path:
    """The default model with random predictors."""
    wrong = predictors(model_path, folder / "wrong", noise=True)
    return convert(model_path, wrong, outfile=folder / "wrong.gguf", log=quiet)


def perplexity(capsys: pytest.CaptureFixture, model: Path, text: Path, *extra: str) -> dict:
    """Figures that the command prints; shares as numbers from 0 to 1."""
    capsys.readouterr()
    assert main(["perplexity", str(model), "--text", str(text), *extra]) == 0
    shown = capsys.readouterr().out
    found = {"ppl": re.search(r"PPL = (\d+\.\d{4})", shown)[1]}
    for name in ("computed", "predicted", "fired"):
        found[name] = float(re.search(rf"{name} (\d+\.\d\d)%", shown)[1]) / 100
    kl = re.search(r"Mean    KLD: +(\d\.\d+)", shown)
    return found | ({"kl": float(kl[1])} if kl else {})


# ---- who is computed ----


def test_perplexity_of_right_predictors(
    aware: Path, text: Path, capsys: pytest.CaptureFixture
) -> None:
    found = {
        mode: perplexity(capsys, aware, text, "-c", "64", "--sparse", mode, "--compare", "off")
        for mode in ("off", "exact", "predictor", "auto")
    }
    assert found["off"]["ppl"] == found["exact"]["ppl"] and found["exact"]["kl"] < 1e-6
    assert found["exact"]["predicted"] == 1 and 0.1 < found["exact"]["computed"] < 0.2
    for mode in ("predictor", "auto"):
        # Scores in 8 bits miss what hardly fires.
        assert float(found[mode]["ppl"]) == pytest.approx(float(found["off"]["ppl"]), rel=5e-3)
        assert found[mode]["kl"] < 2e-3
        assert found[mode]["fired"] == pytest.approx(found["exact"]["fired"], abs=2e-3)
        assert found[mode]["predicted"] == pytest.approx(found[mode]["fired"], abs=0.03)


@pytest.mark.parametrize("mode", ["predictor", "auto"])
def test_noise_in_a_predictor_raises_perplexity(
    aware: Path, misled: Path, text: Path, mode: str, capsys: pytest.CaptureFixture
) -> None:
    right = perplexity(capsys, aware, text, "-c", "64", "--sparse", mode)
    wrong = perplexity(capsys, misled, text, "-c", "64", "--sparse", mode)
    assert float(wrong["ppl"]) > 1.5 * float(right["ppl"])
    assert 0.4 < wrong["predicted"] < 0.6 and wrong["fired"] < 0.8 * right["fired"]
    for without in ("off", "exact"):
        line = ("-c", "64", "--sparse", without)
        assert perplexity(capsys, misled, text, *line) == perplexity(capsys, aware, text, *line)


def test_scored_tokens_go_as_generated_ones(
    aware: Path, text: Path, capsys: pytest.CaptureFixture
) -> None:
    """Scored rows in one call give the same as token by token."""
    n_ctx, first, nll = 64, 33, []
    # A threshold that costs something.
    with Llama(aware, n_ctx=n_ctx, verbose=False, sparse_threshold=0.05) as llm:
        ids = llm.tokenize(text.read_bytes())
        for start in range(0, len(ids) - n_ctx + 1, n_ctx):
            window = [llm.token_bos(), *ids[start + 1 : start + n_ctx]]
            llm.reset()
            llm.eval(window[: first - 1])
            for i in range(first - 1, n_ctx - 1):
                llm.eval(window[i : i + 1], generated=True)
                x = llm.scores[i].astype(np.float64)
                nll.append(x.max() + np.log(np.exp(x - x.max()).sum()) - x[window[i + 1]])
    want = f"{np.exp(np.mean(nll)):.4f}"
    assert len(nll) > 100
    line = ("-c", "64", "--sparse-threshold", "0.05")
    for n_batch in ("2048", "7"):
        found = perplexity(capsys, aware, text, *line, "-b", n_batch, "--compare", "off")
        assert found["ppl"] == want and found["kl"] > 0.05


def test_greedy_text_of_exact_mode(aware: Path) -> None:
    texts = []
    for mode in ("off", "exact"):
        with Llama(aware, n_ctx=256, verbose=False, sparse=mode) as llm:
            done = llm("Once upon a time", max_tokens=200, temperature=0, logit_bias={2: -1000})
            assert done["usage"]["completion_tokens"] == 200
            texts.append(done["choices"][0]["text"])
    assert texts[0] == texts[1] and len(texts[0]) > 400


@pytest.mark.slow  # 33,024 tokens, twice
@pytest.mark.shared
def test_exact_mode_on_the_checkpoint(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """transformers: perplexity 8.532; shares of neurons that fire 0.255, 0.073, 0.075, 0.135."""
    dense = convert(shared / "models" / "stories-relu", outfile=tmp_path / "dense.gguf", log=quiet)
    path = convert(dense, outfile=tmp_path / "neurons.gguf", log=quiet)
    text = shared / "text" / "stories-valid.txt"
    line = ("-c", "256", "--separator", "<|endoftext|>", "--sparse")
    exact = perplexity(capsys, path, text, *line, "exact")
    off = perplexity(capsys, path, text, *line, "off")
    assert exact["ppl"] == off["ppl"]
    assert float(exact["ppl"]) == pytest.approx(8.532, rel=1e-3)
    model, separator = Model(str(path)), b"<|endoftext|>"
    session = Session(model, n_ctx=256, n_batch=256, n_logits=1, sparse=SPARSE_MODES.index("exact"))
    ids = text_tokens(model, text.read_bytes(), separator)
    for window, _first in list(windows(ids, 256, model.bos, True))[:80]:
        session.truncate(0)
        session.eval(window)
    shares = session.work().shares()
    # But for neurons whose up is exactly zero.
    assert shares["computed"] == pytest.approx(shares["fired"], abs=1e-6)
    assert shares["fired"] == pytest.approx([0.255, 0.073, 0.075, 0.135], abs=4e-3)


# ---- figures ----

STEPS = ("Once upon a time, there was a", 40)


def generated(path: Path, **options: object) -> dict:
    with Llama(path, n_ctx=128, verbose=False, **options) as llm:
        llm(STEPS[0], max_tokens=STEPS[1], temperature=0, logit_bias={2: -1000})
        return llm.stats()


@pytest.mark.parametrize("mode", ["off", "exact", "predictor", "auto"])
def test_stats_are_what_was_read(aware: Path, mode: str) -> None:
    found = generated(aware, sparse=mode)
    predicted, computed, fired = (
        np.array(found[f"share_{name}"]) for name in ("predicted", "computed", "fired")
    )
    assert len(fired) == LAYERS and (fired > 0).all() and (fired <= computed).all()
    assert (computed <= predicted).all() and (computed < 0.5).all()
    masked = mode in ("predictor", "auto")
    assert (predicted < 0.5).all() if masked else (predicted == 1).all()
    parts = found["bytes_per_token"]
    # Gates of the predicted, up and down of the computed.
    assert parts["ffn"] == pytest.approx(N_FF * ROW * (predicted + 2 * computed).sum(), abs=1)
    sizes = {t.name: t.n_bytes for t in gguf.GGUFReader(aware).tensors}
    of_predictors = sum(n for name, n in sizes.items() if ".fc" in name)
    assert of_predictors > 0 and parts["predictor"] == of_predictors * masked
    assert parts["head"] == sizes["token_embd.weight"]
    norms_and_attention = sum(n for name, n in sizes.items() if "attn" in name or "norm" in name)
    assert parts["attention"] == norms_and_attention


def test_stats_do_not_depend_on_threads(aware: Path, main_path: Path, tmp_path: Path) -> None:
    keys = ("share_predicted", "share_computed", "share_fired", "bytes_per_token")
    for mode in ("exact", "auto"):
        figures = [generated(aware, sparse=mode, n_threads=n) for n in (1, 2, 5)]
        for n in (1, 3):
            out = tmp_path / "stats.json"
            line = ["-m", aware, "-p", STEPS[0], "-n", STEPS[1], "-c", 128, "-t", n, "--temp", 0]
            line += ["--ignore-eos", "--sparse", mode, "--json-stats", out]
            done = subprocess.run([main_path, *map(str, line)], capture_output=True, timeout=60)
            assert done.returncode == 0, done.stderr
            figures.append(json.loads(out.read_text()))
        for key in keys[:3]:
            want = pytest.approx(figures[0][key], rel=1e-8)  # main writes nine digits
            assert all(f[key] == want for f in figures)
        assert all(f["bytes_per_token"] == figures[0]["bytes_per_token"] for f in figures)


def test_closing_lines_of_main(aware: Path, main_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    line = ["-m", aware, "-p", STEPS[0], "-n", 20, "--temp", 0, "--ignore-eos", "--json-stats", out]
    done = subprocess.run(
        [main_path, *map(str, line)], capture_output=True, errors="replace", timeout=60
    )
    rows = done.stderr.splitlines()
    found = json.loads(out.read_text())
    at = next(i for i, row in enumerate(rows) if row.lstrip().startswith("total time"))
    read, neurons, *audit, tiers = rows[at + 1 :]
    per_token = sum(found["bytes_per_token"].values())
    rate = re.fullmatch(r" +data read = +([\d.]+) GB/s \(([\d.]+) MB per token: .*\)", read)
    assert float(rate[1]) == pytest.approx(per_token * found["gen_ts"] / 1e9, abs=0.011)
    assert float(rate[2]) == pytest.approx(per_token / 1e6, abs=0.011)
    share = re.fullmatch(r"neurons computed = +([\d.]+) % \(predicted .* %, fired .* %\)", neurons)
    assert float(share[1]) == pytest.approx(100 * np.mean(found["share_computed"]), abs=0.006)
    assert tiers.split(" = ")[1] == "gpu 0.00 %, ram 100.00 %, storage 0.00 %"


def test_bench_reads_what_fires(aware: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(aware), "-p", "8", "-n", "8", "-r", "2", "-o", "jsonl", "--sparse"]
    rows = {}
    for mode in ("exact", "auto"):
        assert main([*line, mode]) == 0
        rows[mode] = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
        prompt, decode = rows[mode]
        assert prompt["share_predicted"] == [1.0] * LAYERS  # auto leaves prompts alone
        per_token = sum(decode["bytes_per_token"].values())
        assert decode["gb_per_s"] == pytest.approx(decode["avg_ts"] * per_token / 1e9)
        assert decode["neurons_computed"] == pytest.approx(np.mean(decode["share_computed"]))
        assert decode["tiers"]["ram"]["neurons"] == LAYERS * N_FF
    exact, auto = (rows[mode][1]["bytes_per_token"] for mode in ("exact", "auto"))
    assert auto["ffn"] < 0.7 * exact["ffn"] and exact["predictor"] == 0 < auto["predictor"]


@pytest.mark.parametrize("name", ["llama-relu-gqa", "bamboo", "opt", "mixtral"])
def test_shares_of_families(name: str, tmp_path: Path) -> None:
    """dReLU, no gate, experts: held against what the session records neuron by neuron."""
    path = convert(golden(name, tmp_path / name), outfile=tmp_path / "dense.gguf", log=quiet)
    path = convert(path, activation=None if name != "mixtral" else "relu", log=quiet)
    with Llama(path, n_ctx=64, verbose=False, sparse="exact", record="fired") as llm:
        llm.generate([1, 5, 9, 11, 13, 17], temp=0.0).send(None)
        fired, found = llm.activations(), llm.stats()
        used = int(llm.metadata.get("llama.expert_used_count", 1))
    per_layer = fired.sum(axis=tuple(range(1, fired.ndim))) / (6 * used * fired.shape[-1])
    assert found["share_fired"] == pytest.approx(per_layer) and (per_layer > 0).all()
    assert found["share_predicted"] == [1.0] * len(per_layer)
    both = np.array(found["share_computed"]), np.array(found["share_fired"])
    # Only where up has an activation of its own does something computed not fire.
    assert (both[0] > both[1]).all() if name == "bamboo" else np.array_equal(*both)


# ---- what a mode cannot do ----


def test_exact_mode_of_a_dense_file_says_so_once(
    plain: Path, main_path: Path, capfd: pytest.CaptureFixture
) -> None:
    line = [main_path, "-m", plain, "-p", "Once", "-n", "2", "--sparse"]
    for mode, times in (("exact", 1), ("auto", 0)):
        done = subprocess.run(
            [*map(str, line), mode], capture_output=True, errors="replace", timeout=60
        )
        assert done.returncode == 0
        assert done.stderr.count("exact mode computes every neuron") == times
        assert done.stderr.count("no neuron rows (ffn_down_t)") == times
    for verbose in (True, False):
        with Llama(plain, n_ctx=32, sparse="exact", verbose=verbose) as llm:
            llm("Once", max_tokens=2)
            llm("Twice", max_tokens=2)
        shown = capfd.readouterr().err
        assert shown.count("exact mode computes every neuron") == verbose


def test_exact_mode_without_zeros(plain: Path, folder: Path, capfd: pytest.CaptureFixture) -> None:
    path = convert(plain, activation="silu", outfile=folder / "silu.gguf", log=quiet)
    with Llama(path, n_ctx=32, sparse="exact") as llm:
        llm("Once", max_tokens=4)
        assert llm.stats()["share_computed"] == [1.0] * LAYERS
    assert capfd.readouterr().err.count("powerinfer.ffn.threshold") == 1


@pytest.mark.parametrize("threshold", ["nan", "inf", "-inf", "1e999", "x"])
def test_thresholds_that_are_none(aware: Path, main_path: Path, threshold: str) -> None:
    line = [main_path, "-m", aware, "-n", "1", f"--sparse-threshold={threshold}"]
    done = subprocess.run(list(map(str, line)), capture_output=True, errors="replace", timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--sparse-threshold" in done.stderr
    if threshold != "x":
        with pytest.raises(ValueError, match="sparse_threshold must be a finite number"):
            Llama(aware, verbose=False, sparse_threshold=float(threshold))


def test_predictor_mode_without_predictors(
    plain: Path, main_path: Path, text: Path, capsys: pytest.CaptureFixture
) -> None:
    line = [main_path, "-m", plain, "-n", "1", "--sparse", "predictor"]
    done = subprocess.run(list(map(str, line)), capture_output=True, errors="replace", timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("the file has no predictors")
    for command in (["perplexity", "--text", str(text)], ["bench", "-n", "1", "-p", "0"]):
        assert main([command[0], str(plain), *command[1:], "--sparse", "predictor"]) == 1
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1 and "the file has no predictors" in shown
    with pytest.raises(ValueError, match="the file has no predictors"):
        Llama(plain, verbose=False, sparse="predictor")


def test_a_threshold_that_lets_nothing_pass(aware: Path) -> None:
    found = generated(aware, sparse="predictor", sparse_threshold=1e30)
    assert found["share_predicted"] == found["share_fired"] == [0.0] * LAYERS
    assert found["bytes_per_token"]["ffn"] == 0
