"""bench --ops, perplexity --compare, KV types, completion scripts, doctor's figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import tiny
from builds import CPU
from families import quiet
from powerinfer_cpp.cli import COMMANDS, main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.measure.perplexity import Comparison, Estimate
from powerinfer_cpp.placement.energy import EnergyMeter

from powerinfer_cpp import Llama

TEXT = "the quick brown fox jumps over the lazy dog\na small model tells a story\n" * 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return path


# ---- bench ----


def test_ops(path: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(path), "-p", "16", "-n", "4", "-d", "0,8", "-r", "2", "--ops"]
    assert main([*line, "-o", "json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert {"attention", "ffn", "head"} <= {op["part"] for op in row["ops"]}
        assert sum(op["share"] for op in row["ops"]) == pytest.approx(1)
        assert all(op["ms"] >= 0 and op["calls"] > 0 for op in row["ops"])
        products = [op for op in row["ops"] if op["op"] == "matmul"]
        assert products and all(op["gb_per_s"] > 0 for op in products)
        measured = sum(op["ms"] for op in row["ops"])
        assert measured < 1.05 * row["avg_ns"] / 1e6
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "| part | op | calls | ms | share | GB/s |" in shown and "tg4 @ d8:" in shown
    assert main(line[:-1]) == 0
    assert "| part |" not in capsys.readouterr().out


def test_percentiles(path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", str(path), "-p", "0", "-n", "20", "-o", "jsonl"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    ms = json.loads(line)["token_ms"]
    assert 0 < ms["p50"] <= ms["p95"] <= ms["p99"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a head size of 32, one block of Q8_0."""
    folder = tmp_path_factory.mktemp("wide")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    return convert(checkpoints.model(folder / "m", **heads), outtype="f32", log=quiet)


def test_a_kv_cache_in_q8_0(wide: Path, capsys: pytest.CaptureFixture) -> None:
    ids = [1, *range(10, 60)]
    rows, sizes = {}, {}
    for kv in (0, 1, 8):
        with Llama(wide, n_ctx=64, type_k=kv, type_v=kv, verbose=False) as llm:
            llm.eval(ids)
            rows[kv], sizes[kv] = llm.scores[len(ids) - 1].copy(), llm.plan()["ram"]["kv"]
    values = 2 * 2 * 64 * 2 * 32  # layers, k and v, positions, heads; each page has its tokens, too
    assert sizes[0] - sizes[1] == values * 2 and sizes[1] - sizes[8] == values * (64 - 34) // 32
    error = np.linalg.norm(rows[8] - rows[0]) / np.linalg.norm(rows[0])
    assert 0 < error < 0.05
    line = ["bench", str(wide), "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl"]
    assert main([*line, "-ctk", "q8_0", "-ctv", "q8_0"]) == 0
    assert json.loads(capsys.readouterr().out)["type_k"] == "q8_0"
    assert main([*line, "-ctk", "q8_0"]) == 1
    assert "one type" in capsys.readouterr().err


# ---- perplexity --compare ----


def figures(capsys: pytest.CaptureFixture) -> dict[str, float]:
    """Figures by the words that scripts search in llama-perplexity's output."""
    shown = capsys.readouterr().out
    places = {
        "ppl": "Final estimate: PPL =",
        "q": r"Mean PPL\(Q\) +:",
        "reference": r"Mean PPL\(base\) +:",
        "ratio": r"Mean PPL\(Q\)/PPL\(base\) +:",
        "kl": "Mean    KLD:",
        "p99": "99.0%   KLD:",
        "same": "Same top p:",
    }
    return {name: float(re.search(rf"{at} +(\d+\.\d+)", shown)[1]) for name, at in places.items()}


def test_compare_with_itself(path: Path, text: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["perplexity", str(path), "--text", str(text), "-c", "16", "--compare", "off"]
    assert main(line) == 0
    found = figures(capsys)
    assert found["kl"] == found["p99"] == 0 and found["same"] == 100
    assert found["ratio"] == 1 and found["q"] == found["reference"]
    assert found["ppl"] == pytest.approx(found["q"], abs=5.1e-5)


def log_probabilities(path: Path) -> np.ndarray:
    """float64 [n, n_vocab] before each token that windows of 16 score, by eval and scores."""
    rows = []
    with Llama(path, n_ctx=16, logits_all=True, verbose=False) as llm:
        ids = llm.tokenize(TEXT.encode())
        for start in range(0, len(ids) - 15, 16):
            llm.reset()
            llm.eval([1, *ids[start + 1 : start + 16]])
            rows.append(llm.scores[8:15].astype(np.float64))
    x = np.concatenate(rows)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def test_compare_with_another_file(
    path: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = tmp_path / "q8.gguf"
    assert main(["quantize", str(path), str(other), "Q8_0"]) == 0
    capsys.readouterr()
    line = ["--text", str(text), "-c", "16"]
    assert main(["perplexity", str(other), *line, "--compare", str(path), "-b", "5"]) == 0
    found = figures(capsys)
    q, p = (log_probabilities(file) for file in (other, path))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    assert found["kl"] == pytest.approx(kl.mean(), abs=2e-6)
    assert found["p99"] == pytest.approx(np.percentile(kl, 99), abs=2e-6)
    assert found["same"] == pytest.approx(100 * (q.argmax(1) == p.argmax(1)).mean(), abs=1e-3)
    assert main(["perplexity", str(path), *line]) == 0
    alone = float(capsys.readouterr().out.splitlines()[1].split()[4])
    assert alone == pytest.approx(found["reference"], rel=1e-4)
    assert found["ratio"] == pytest.approx(found["q"] / found["reference"], rel=1e-5)


def test_compare_with_another_vocabulary(
    path: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = convert(checkpoints.model(tmp_path / "m", vocab_size=340), outtype="f32", log=quiet)
    line = ["perplexity", str(path), "--text", str(text), "-c", "16", "--compare", str(other)]
    assert main(line) == 1
    assert "another vocabulary" in capsys.readouterr().err


def test_figures_of_a_comparison() -> None:
    one = Estimate(2.0, 0.1, 1, 100)
    found = Comparison(one, one, np.arange(101) / 100, np.zeros(101), 0.5)
    assert found.mean == pytest.approx(0.5) and found.p99 == pytest.approx(0.99)


# ---- completion and doctor ----


def completed(script: str, words: list[str], function: str = "_powerinfer") -> list[str]:
    """Bash's completions for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    line = (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; {function}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_in_bash(capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert set(COMMANDS) <= set(completed(script, ["powerinfer", ""]))
    assert completed(script, ["powerinfer", "ben"]) == ["bench"]
    assert {"--ops", "--output"} <= set(completed(script, ["powerinfer", "bench", "m", "--o"]))
    assert completed(script, ["powerinfer", "bench", "m", "-o", "js"]) == ["json", "jsonl"]
    assert completed(script, ["powerinfer", "completion", "z"]) == ["zsh"]
    assert completed(script, ["powerinfer", "train-predictor", "m", "--ki"]) == ["--kind"]
    kinds = completed(script, ["powerinfer", "perplexity", "m", "-ctk", ""])
    assert {"f16", "q8_0", "f32"} <= set(kinds)


def test_completion_in_zsh(capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("autoload -Uz bashcompinit")
    assert main(["completion", "fish"]) == 2


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no tool to read the script: zsh")
def test_zsh_reads_the_completion(capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "zsh"]) == 0
    subprocess.run(["zsh", "-n", "-c", capsys.readouterr().out], check=True)


def test_doctor_measures(capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("CPU", "threads", "kernels", "GPU", "memory", "numpy"):
        assert word in shown
    # CMake's choice; on x86-64 nothing that has AVX2 needs the kernels of AVX.
    built = re.search(r"^PI_ISA:\w+=(.*)$", (CPU / "CMakeCache.txt").read_text(), re.M)[1]
    left_out = re.search(r"built for one processor: without (.*)\)", shown)
    assert not (left_out and built == "all")
    if built == "native" and "avx2" in Path("/proc/cpuinfo").read_text():
        assert "avx" in left_out[1].split(", ")
    lines = shown.splitlines()
    for name, unit in (("read bandwidth", "GB/s ("), ("products", "multiply-adds/s (")):
        rates = [line.split() for line in lines if line.startswith(name)]
        assert rates and all(unit in " ".join(words) for words in rates)
        assert all(float(words[len(name.split())]) > 0 for words in rates)


# ---- main's figures and options ----


def run_main(main_path: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [main_path, *map(str, arguments)], capture_output=True, errors="replace", timeout=60
    )


def shape(value: object) -> object:
    """A value without its figures. JSON has one kind of number: 0 may be a time, too."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return float if type(value) is int else type(value)


def test_json_stats(path: Path, main_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    line = ("-m", path, "-p", tiny.PROMPT, "-n", 10, "--temp", 0, "--ignore-eos", "-c", 128)
    done = run_main(main_path, *line, "--json-stats", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    with Llama(path, n_ctx=128, verbose=False) as llm:
        llm(tiny.PROMPT, max_tokens=10, temperature=0, logit_bias={2: -1000})
        want = llm.stats()
        assert found["bytes_per_token"] == want["bytes_per_token"]
        assert found["tiers"] == want["tiers"]
    assert set(found) == set(want) and found["n_gen"] == want["n_gen"] == 9
    assert found["n_prompt"] == want["n_prompt"]
    assert shape(found["token_ms"]) == shape(want["token_ms"])
    assert found["share_computed"] == want["share_computed"]
    assert 0 < found["token_ms"]["p50"] <= found["token_ms"]["p95"] <= found["token_ms"]["p99"]
    assert found["gen_ts"] == pytest.approx(9 / found["gen_s"], rel=1e-6)
    assert 0 < found["prompt_s"] <= found["ttft_s"] and found["rss_peak"] > 1 << 20
    shown = next(row for row in done.stderr.splitlines() if row.lstrip().startswith("eval time"))
    assert float(shown.split()[3]) == pytest.approx(found["gen_s"] * 1e3, abs=0.006)


def test_json_stats_that_cannot_be_written(path: Path, main_path: Path) -> None:
    done = run_main(main_path, "-m", path, "-p", "x", "-n", 1, "--json-stats", "/nowhere/x")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "main: error: /nowhere/x: No such file or directory"
    assert run_main(main_path, "--json-stats", "").returncode == 2


def test_main_completes_in_bash(main_path: Path) -> None:
    script = run_main(main_path, "--completion-bash").stdout
    assert "--json-stats" in completed(script, ["main", "--js"], "_powerinfer_main")
    listed = set(completed(script, ["main", "-"], "_powerinfer_main"))
    help_text = run_main(main_path, "--help").stdout
    names = {
        word.strip(",")
        for line in help_text.splitlines()
        if line.startswith("  -")
        for word in line.split()
        if word.startswith("-") and word[1:2].isalpha() or word.startswith("--")
    }
    assert listed <= names and {"-m", "--model", "--temp"} <= listed


def test_main_with_a_kv_cache_in_q8_0(wide: Path, main_path: Path) -> None:
    line = ("-m", wide, "-p", tiny.PROMPT, "-n", 4, "--temp", 0)
    assert run_main(main_path, *line, "-ctk", "q8_0", "-ctv", "q8_0").returncode == 0
    assert run_main(main_path, *line, "-ctk", "q8_0").returncode == 1


def test_energy_of_all_packages(tmp_path: Path) -> None:
    """Counters wrap at the end of their range; zones inside a package are not counted twice."""
    for zone, name, before in (("0", "package-0", 990), ("1", "package-1", 5), ("0:0", "core", 7)):
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(name + "\n")
        (folder / "max_energy_range_uj").write_text("999\n")
        (folder / "energy_uj").write_text(f"{before}\n")
    meter = EnergyMeter(tmp_path)
    assert meter.joules() is None
    meter.start()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("15\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("105\n")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("500\n")
    assert meter.joules() == (25 + 100) / 1e6
    empty = EnergyMeter(tmp_path / "nowhere")
    empty.start()
    assert empty.joules() is None
