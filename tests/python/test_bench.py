"""bench --ops and -npl, perplexity --compare, KV types, completion scripts, doctor's figures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import tiny
from builds import CPU
from families import quiet
from powerinfer_cpp.cli import COMMANDS, main
from powerinfer_cpp.convert import convert
from powerinfer_cpp.core.model import Model
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.measure import batched, bench
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


# ---- bench -npl ----


BATCHED = "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"


def test_several_texts(path: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(path), "-npp", "20,9", "-ntg", "6", "-npl", "1,3", "-r", "2", "-b", "16"]
    assert main([*line, "-o", "jsonl", "--ops"]) == 0
    rows = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    sizes = [(row["pp"], row["tg"], row["pl"], row["n_kv"]) for row in rows]
    assert sizes == [(20, 6, 1, 26), (20, 6, 3, 78), (9, 6, 1, 15), (9, 6, 3, 45)]
    for row in rows:
        assert {"model_filename", "load_s", "test_time", "bytes_per_token", "tiers"} <= set(row)
        n_texts, phases = row["pl"], {"_pp": row["pp"], "_tg": row["tg"], "": row["pp"] + row["tg"]}
        for name, n_each in phases.items():
            samples = row[f"samples{name}_ns"]
            speeds = [n_texts * n_each * 1e9 / ns for ns in samples]
            assert len(samples) == 2 and row[f"t{name}"] == pytest.approx(sum(samples) / 2e9)
            assert row[f"speed{name}"] == pytest.approx(sum(speeds) / 2)
            assert row[f"stddev_speed{name}"] == pytest.approx(np.std(speeds, ddof=1))
        both = zip(row["samples_pp_ns"], row["samples_tg_ns"], strict=True)
        assert row["samples_ns"] == [prompts + generated for prompts, generated in both]
        assert 0 < row["token_ms"]["p50"] <= row["token_ms"]["p99"]
        calls = {op["op"]: op["calls"] for op in row["ops_tg"] if op["part"] == "embedding"}
        assert calls["embed_rows"] == 6 and sum(op["share"] for op in row["ops_pp"]) > 0.999
    assert main([*line, "--ops"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == BATCHED and set(table[1]) == set("| -:")
    for text, row in zip(table[2:6], rows, strict=True):
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        assert cells[:4] == [str(row[name]) for name in ("pp", "tg", "pl", "n_kv")]
        assert all(float(cells[i]) >= 0 for i in (4, 6, 8))
        assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cells[i]) for i in (5, 7, 9))
    assert {"pp20 x 1:", "tg6 x 1:", "pp9 x 3:", "tg6 x 3:"} <= set(table)


def test_prompts_or_generated_tokens_alone(path: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(path), "-p", "0,7", "-n", "0,4", "-npl", "2", "-r", "1", "-o", "json"]
    assert main([*line, "--ops"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["pp"], row["tg"]) for row in rows] == [(0, 4), (7, 0), (7, 4)]
    assert rows[0]["speed_pp"] == rows[1]["speed_tg"] == 0 and "token_ms" not in rows[1]
    assert "ops_pp" not in rows[0] and "ops_tg" not in rows[1]
    assert all(row["bytes_per_token"]["ffn"] > 0 for row in rows)


class Calls:
    """What `Session.eval` gets, by text: ids of prompts, and of generated tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: dict[int, list[int]] = defaultdict(list)
        self.generated: dict[int, list[int]] = defaultdict(list)
        self.sizes: list[tuple[bool, int, int]] = []  # generated; rows, and those that are kept
        real = Session.eval

        def eval_(session: Session, tokens: np.ndarray, **more: np.ndarray) -> None:
            real(session, tokens, **more)
            generated = "generated" in more
            assert not generated or more["generated"].all()
            self.sizes.append((generated, len(tokens), int(more["keep"].sum())))
            into = self.generated if generated else self.prompts
            for text, token in zip(more["sequences"].tolist(), tokens.tolist(), strict=True):
                into[text].append(token)

        monkeypatch.setattr(Session, "eval", eval_)


def test_each_text_has_tokens_of_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, test = Model(str(path)), batched.Test(20, 6, 4)
    calls = Calls(monkeypatch)
    found = batched.measure(model, test, 1, 5, None, n_batch=32, n_ubatch=8)
    # A warm-up, and one repetition: prompts in calls of n_batch, then steps of one row for each.
    once = [(False, 32, 1), (False, 32, 2), (False, 16, 1), *[(True, 4, 4)] * 6]
    assert calls.sizes == once * 2
    ids = batched.text_ids(test, bench.ordinary_ids(model), 5, None)
    assert ids.shape == (4, 26) and len({tuple(each) for each in ids.tolist()}) == 4
    assert all(len(set(step)) > 1 for step in ids.T.tolist())
    for text, each in enumerate(ids.tolist()):
        assert calls.prompts[text] == each[:20] * 2 and calls.generated[text] == each[20:] * 2
    assert found.prompts.n_tokens == found.prompts.work.rows == 80
    assert found.generated.n_tokens == found.generated.work.rows == 24
    assert len(found.token_ns) == 6 and not found.prompts.ops
    other = batched.text_ids(test, bench.ordinary_ids(model), 6, None)
    assert (other != ids).mean() > 0.9
    dealt = batched.text_ids(batched.Test(2, 1, 3), ids, 0, np.arange(5, dtype=np.int32))
    assert dealt.tolist() == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_experts_of_several_texts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Of a mixture that is made up, whose rows of the vocabulary mean something for some ids."""
    mixture = tmp_path / "small.gguf"
    script = Path(__file__).resolve().parents[2] / "scripts" / "make_mixture.py"
    line = [sys.executable, script, mixture, "--plain", "small", "--layers", "1", "--n", "64"]
    subprocess.run(line, check=True, capture_output=True)
    line = ["bench", str(mixture), "-npp", "8", "-ntg", "4", "-npl", "3", "-r", "1", "-o", "json"]
    assert main([*line, "--ids", "8,71"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["n_kv"] == 36 and row["neurons_computed"] == 1
    ids = bench.ordinary_ids(Model(str(mixture)), (0, 71))
    assert ids.tolist() == list(range(8, 72)) and ids.dtype == np.int32


def test_a_step_of_one_text_is_that_of_bench(path: Path) -> None:
    """The same rows have the same cost."""
    model = Model(str(path))
    one = bench.measure(model, bench.Test(0, 5, 0), 2, 0, None)
    found = batched.measure(model, batched.Test(0, 5, 1), 2, 0, None)
    assert found.generated.work.rows == one.work.rows == 10
    assert found.generated.work.sums.tolist() == one.work.sums.tolist()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("-npl 0", 2, "-npl/--n-parallel: 0 is out of range: at least 1"),
        ("-npl x", 2, "-npl/--n-parallel: invalid list of integers value: 'x'"),
        ("-npl 1,,2", 2, "invalid list of integers value: '1,,2'"),
        ("-npl 257", 1, "at most 256 texts"),
        ("-npl 4 -b 3", 1, "-b must be at least 4"),
        ("-npl 2,3 -npp 100 -ntg 20 -c 359", 1, "-c 359: the tests need 360 positions"),
        ("-npl 2 -d 0,5", 1, "-d is for one text"),
        ("-npl 2 -npp 0 -ntg 0", 1, "nothing to measure"),
        ("-npl 2 -p 90000000", 1, "would take"),
        ("--ids 9", 2, "invalid pair FIRST,LAST value: '9'"),
        ("--ids 9,8", 2, "the last id is below the first"),
        ("--ids 0,2 -npl 2", 1, "no id from 0 to 2 is an ordinary token"),
        ("--ids 8,9 --tokens-file f", 2, "not allowed with"),
    ],
)
def test_refusals_of_several_texts(
    path: Path, options: str, status: int, said: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["bench", str(path), *options.split()]) == status
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and "--kv-size" not in told


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
