"""The command `powerinfer`, and convert.py."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference
from disturbing import buffered
from families import quiet
from powerinfer_cpp.cli import COMMANDS, main
from powerinfer_cpp.convert import convert

CONFIG = checkpoints.config(hidden_act="relu", num_key_value_heads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "tiny"
    return checkpoints.save(folder, CONFIG, checkpoints.weights(CONFIG))


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return convert(folder, outtype="f32", log=quiet)


def command(*arguments: object, **options) -> subprocess.CompletedProcess:
    """Runs the command in a separate process."""
    line = [sys.executable, "-m", "powerinfer_cpp.cli", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, timeout=120, **options)


# ---- Command lines ----


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["benhc"], 2, "unknown command 'benhc'; did you mean bench?"),
        (["zzz"], 2, "commands: convert"),
        (["inspect"], 2, "FILE"),
        (["bench", "m", "--wrong", "1"], 2, "--wrong is unknown"),
        (["chat", "m", "--sytem", "x"], 2, "option --sytem is unknown; did you mean --system?"),
        (["complete", "--top_k=3"], 2, "option --top_k is unknown; did you mean --top-k?"),
        (["quantize", "--pre"], 2, "did you mean --predictor-type?"),
        (["serve", "--prot", "1"], 2, "did you mean --port?"),
        (["inspect", "m", "-J"], 2, "option -J is unknown; did you mean --json?"),
        (["bench"], 2, "name a model: MODEL or -m FILE"),
        (["bench", "a", "-m", "b"], 2, "name one model"),
        (["perplexity", "-m", "/nowhere.gguf", "--text", __file__], 1, "/nowhere.gguf"),
        (["serve", "/nowhere.gguf"], 1, "/nowhere.gguf"),
        (["bench", "m", "-p", "x"], 2, "-p"),
        (["bench", "m", "-t", "-2"], 2, "out of range"),
        (["bench", "m", "-t", "two"], 2, "two"),
        (["perplexity", "m", "--text", "t", "--ram-budget", "nan"], 2, "nan"),
        (["quantize", "a", "b", "Q9"], 2, "Q9"),
        (["convert", "a", "--outtype", "q2"], 2, "q2"),
        (["inspect", "no\nfile"], 1, "no file"),
        (["bench", "/"], 1, "directory"),
        (["convert", "/nowhere"], 1, "/nowhere: no such file or folder"),
        (["perplexity", "m", "--text", "/nowhere.txt"], 1, "/nowhere.txt"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("powerinfer: error: ") and words in err


def test_help_and_version(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert name in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


def test_convert_py_is_the_command(root: Path, folder: Path, tmp_path: Path) -> None:
    outputs = []
    for i, line in enumerate(([root / "convert.py"], ["-m", "powerinfer_cpp.cli", "convert"])):
        out = tmp_path / f"{i}.gguf"
        arguments = ["--outfile", out, "--outtype", "q8_0", folder]
        done = subprocess.run(
            [sys.executable, *map(str, [*line, *arguments])], capture_output=True, errors="replace"
        )
        assert (done.returncode, done.stdout) == (0, f"{out}\n")
        assert done.stderr.startswith("note: llama.cpp runs this file with silu")
        assert done.stderr.count("\n") == 1
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]


def test_a_file_name_that_is_not_utf8(model: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    Path(os.fsdecode(name)).write_bytes(model.read_bytes())
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "inspect"]
    assert subprocess.run([*line, name], capture_output=True).returncode == 0
    missing = subprocess.run([*line, b"/nowhere/caf\xe9"], capture_output=True)
    assert missing.returncode == 1 and missing.stderr.count(b"\n") == 1


def test_a_closed_stdout_ends_quietly(model: Path) -> None:
    line = f"'{sys.executable}' -m powerinfer_cpp.cli inspect --json '{model}' | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, errors="replace"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


@pytest.mark.parametrize("arguments", [["chat"], ["complete", "-f", "-"]])
def test_a_closed_stdin_is_an_empty_one(model: Path, arguments: list[str]) -> None:
    line = [sys.executable, "-m", "powerinfer_cpp.cli", *arguments, "-m", str(model)]
    line += ["-n", "2", "--temp", "0"]
    shut = "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])"
    closed = subprocess.run([sys.executable, "-c", shut, *line], capture_output=True, timeout=120)
    empty = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert (closed.returncode, closed.stdout) == (empty.returncode, empty.stdout)
    assert b"Traceback" not in closed.stderr


def test_ctrl_c(model: Path) -> None:
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "bench", model, "-r", "100000", "-n", "0"]
    process = subprocess.Popen(
        [*map(str, line), "-p", "250"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=buffered(),
    )
    process.stdout.readline()  # the table's head: measuring begins
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.count(b"\n") == 1


def test_results_and_progress_come_line_by_line(model: Path, tmp_path: Path) -> None:
    """Output also comes through pipes, before the command ends."""
    line = [sys.executable, "-m", "powerinfer_cpp.cli", "bench", model, "-r", "1", "-n", "0"]
    with subprocess.Popen(
        [*map(str, line), "-p", "1," + ",".join(["250"] * 5000)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        errors="replace",
        env=buffered(),
    ) as process:
        heads = [process.stdout.readline()[:7] for _ in range(3)]
        assert heads == ["| model", "| --- |", "| llama"]
        assert process.poll() is None
        process.kill()
    (tmp_path / "text").write_text(checkpoints.TEXT * 20)
    slow = "from powerinfer_cpp.core import progress; progress._SECONDS = 0.0; "
    slow += "from powerinfer_cpp.cli import main; raise SystemExit(main())"
    line = [sys.executable, "-c", slow, "perplexity", model, "--text", tmp_path / "text"]
    done = subprocess.run(
        [*map(str, line), "-c", "16", "-b", "16"],
        capture_output=True,
        errors="replace",
        env=buffered(),
    )
    assert done.returncode == 0
    shown = done.stderr.splitlines()
    assert len(shown) > 2 and shown[-1].startswith("perplexity: 100%") and "\r" not in done.stderr


# ---- What they do ----


def test_inspect(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "llama.block_count" in shown and f"[{CONFIG['vocab_size']}] <unk>, <s>" in shown
    assert "activation    relu" in shown and "neuron-aware  no" in shown
    assert main(["inspect", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["architecture"] == "llama" and found["formats"]["F32"]["tensors"] == 21
    n_params = sum(w.size for w in checkpoints.weights(CONFIG).values())
    assert found["n_params"] == n_params and found["n_bytes"] == 4 * n_params
    assert found["metadata"]["tokenizer.ggml.scores"]["length"] == CONFIG["vocab_size"]


def test_inspect_a_neuron_aware_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    checkpoints.predictors(tmp_path / "predictor", CONFIG)
    out = tmp_path / "out.gguf"
    convert(folder, tmp_path / "predictor", outfile=out, log=quiet)
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "neuron-aware  yes" in shown and "predictors    0: 32, 1: 24" in shown


def test_inspect_a_dense_file_with_statistics(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Neuron rows make a file neuron-aware, not the mark of our own keys."""
    (tmp_path / "t.txt").write_text(checkpoints.TEXT)
    line = ["--text", str(tmp_path / "t.txt"), "-c", "16", "--out", str(tmp_path / "o.gguf")]
    assert main(["profile", str(model), *line]) == 0
    assert main(["inspect", str(tmp_path / "o.gguf")]) == 0
    shown = capsys.readouterr().out
    assert "powerinfer.version" in shown and "neuron-aware  no" in shown


def test_inspect_shows_no_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoints.model(tmp_path / "model")
    out = tmp_path / "out.gguf"
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text("\x1b[2J{{ x }}\n")
    assert main(["convert", str(tmp_path / "model"), "--outfile", str(out), "--vocab-only"]) == 0
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"\x1b[2J{{ x }}\n" in shown


def test_quantize(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "q.gguf"
    assert main(["quantize", str(model), str(out), "q4_0"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert main(["inspect", "--json", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["formats"]) == {"F32", "Q4_0"}
    bits, mib = 8 * found["n_bytes"] / found["n_params"], found["n_bytes"] / (1 << 20)
    assert shown.err.splitlines()[-1] == f"{mib:.2f} MiB of weights, {bits:.2f} bits each"
    again = tmp_path / "again.gguf"
    assert main(["quantize", str(out), str(again), "Q8_0"]) == 1
    assert "already Q4_0" in capsys.readouterr().err and not again.exists()
    assert main(["quantize", "--allow-requantize", str(out), str(again), "Q8_0"]) == 0


def expected_perplexity(ids: list[int], n_ctx: int, first: int) -> tuple[float, int]:
    """Perplexity in float64, from windows whose first token is BOS, scored from `first` on."""
    nll = []
    for start in range(0, len(ids) - n_ctx + 1, n_ctx):
        window = [1, *ids[start + 1 : start + n_ctx]]
        x = reference.logits(CONFIG, checkpoints.weights(CONFIG), window, "relu")
        x -= x.max(1, keepdims=True)
        x -= np.log(np.exp(x).sum(1, keepdims=True))
        nll += [-x[i - 1, window[i]] for i in range(first, n_ctx)]
    return math.exp(np.mean(nll)), len(nll)


@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize("n_batch", [2048, 5])
def test_perplexity(
    separated: bool, n_batch: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=checkpoints.tokenizer())
    documents = ["the quick brown fox", "a small model\ntells a story", "", "over the dog"] * 3
    text = tmp_path / "text"
    text.write_text("\n<|end|>\n".join(documents))
    if separated:
        ids = [i for d in documents if d for i in (1, *processor.encode(d), 2)]
        want, n = expected_perplexity(ids, 16, 8)
        extra = ["--separator", "<|end|>"]
    else:
        ids = [1, *processor.encode(text.read_text())]
        want, n = expected_perplexity(ids, 16, 9)
        extra = []
    line = ["perplexity", str(model), "--text", str(text), "-c", "16", "-b", str(n_batch), *extra]
    assert main(line) == 0
    counts, estimate, neurons = capsys.readouterr().out.splitlines()
    assert "computed 100.00%" in neurons
    assert counts == f"{len(ids) // 16} windows of 16, {n} tokens scored"
    assert estimate.startswith("Final estimate: PPL = ") and " +/- " in estimate
    # Keys and values are F16: about 1e-4 of a logit.
    assert float(estimate.split()[4]) == pytest.approx(want, rel=1e-3)


@pytest.mark.slow  # 33,024 tokens
@pytest.mark.shared
def test_perplexity_of_the_default_model_is_transformers(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """transformers gives 8.532 over 258 windows, 33,024 tokens."""
    path = convert(shared / "models" / "stories-relu", outfile=tmp_path / "m.gguf")
    text = shared / "text" / "stories-valid.txt"
    line = ["perplexity", str(path), "--text", str(text), "-c", "256"]
    assert main([*line, "--separator", "<|endoftext|>"]) == 0
    counts, estimate, _neurons = capsys.readouterr().out.splitlines()
    assert counts == "258 windows of 256, 33024 tokens scored"
    assert float(estimate.split()[4]) == pytest.approx(8.532, rel=1e-3)


def test_perplexity_of_too_short_a_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "text").write_text("short")
    assert main(["perplexity", str(model), "--text", str(tmp_path / "text")]) == 1
    assert "fewer than one window of 512" in capsys.readouterr().err


def test_bench(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(model), "-p", "20,30", "-n", "6", "-d", "0,9", "-r", "2", "-b", "16"]
    assert main([*line, "-o", "jsonl"]) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    tests = [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows]
    assert tests == [(20, 0, 0), (20, 0, 9), (30, 0, 0), (30, 0, 9), (0, 6, 0), (0, 6, 9)]
    for row in rows:
        assert {"build_commit", "cpu_info", "model_filename", "model_type", "test_time"} <= set(row)
        assert row["n_batch"] == 16 and row["n_threads"] >= 1
        assert row["model_n_params"] * 4 == row["model_size"]
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2
        n = row["n_prompt"] + row["n_gen"]
        assert row["samples_ts"] == [n * 1e9 / ns for ns in row["samples_ns"]]
        assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 2)
        assert row["avg_ns"] == pytest.approx(sum(row["samples_ns"]) / 2, abs=1)
    last = rows[-1]["token_ms"]
    assert 0 < last["p50"] <= last["p95"] <= last["p99"] and rows[-1]["gb_per_s"] > 0
    assert all(row["neurons_computed"] == 1 and row["share_fired"] == [1, 1] for row in rows)
    (tmp_path / "ids").write_text("5 6 7\n8")
    assert main([*line, "--tokens-file", str(tmp_path / "ids"), "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 6
    assert main([*line, "-p", "0"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert "| test | t/s |" in table[0] and "| tg6 |" in table[2] and "| tg6 @ d9 |" in table[3]
    assert len(table) == 4


def test_bench_refusals(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", str(model), "-p", "0", "-n", "0"]) == 1
    assert "nothing to measure" in capsys.readouterr().err
    for text in ("1 x", "", "999999", "99999999999999"):
        (tmp_path / "ids").write_text(text)
        assert main(["bench", str(model), "--tokens-file", str(tmp_path / "ids")]) == 1
        assert str(tmp_path / "ids") in capsys.readouterr().err
    for options in (["--sparse", "predictor"], ["--device", "cuda0"], ["--ram-budget", "1e-5"]):
        assert main(["bench", str(model), *options]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_options_for_a_gpu_are_said_to_be_in_vain(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "text").write_text(checkpoints.TEXT * 4)
    line = ["perplexity", str(model), "--text", str(tmp_path / "text"), "-c", "16"]
    assert main([*line, "--compare", str(model), "-ngl", "all", "--vram-budget", "2"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("-ngl and --vram-budget: without effect here: ")
    assert err.count("without effect") == 1
    assert main([*line, "-ngl", "0"]) == 0
    assert "without effect" not in capsys.readouterr().err


def test_a_forced_isa_that_is_not_there() -> None:
    done = command("doctor", "--no-bandwidth", env={**os.environ, "GGML_ISA": "z80"})
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"z80" in done.stderr
