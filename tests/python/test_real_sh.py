"""scripts/real.sh: from a checkpoint, or a GGUF, to its speed and quality beside other engines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import checkpoints
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "real"))
import engines
from engines import Case, Failed, How, Peer, Perplexity, others
from table import Measured, Page, ratio, spread

# A llama-bench that is as fast as its round is late, writes down how it is called, and fails for
# keys and values of a type that it does not have.
BENCH = """#!/usr/bin/env python3
import json, sys
from pathlib import Path
line = sys.argv[1:]
if "--help" in line:
    sys.exit(print({help!r}))
log = Path(__file__).with_suffix(".log")
log.open("a").write(" ".join(line) + "\\n")
value = dict(zip(line, line[1:]))
if value["-ctk"] not in ("f16",):
    sys.exit("there is no type " + value["-ctk"])
pair = value.get("-gp", "0,0").split(",")
row = {{"n_prompt": int(value["-p"]) or int(pair[0]), "n_gen": int(value["-n"]) or int(pair[1])}}
print("loading")
print(json.dumps([row | {{"avg_ts": len(log.read_text()), "build_commit": "abc"}}]))
"""
NEW = "-d, --n-depth <n>\n-fa, --flash-attn <0|1>"
OLD = "-gp <pp,tg>\n-fa, --flash-attn <0|1>\n-rtr, --run-time-repack <0|1>"
PERPLEXITY = """#!/bin/sh
[ "$1" = --help ] && exec echo "-fa, --flash-attn"
echo "$@" > "$0.log"
echo "perplexity: calculating perplexity over 3 chunks, n_ctx=32, batch_size=2048, n_seq=4" >&2
echo "Final estimate: PPL = 12.5000 +/- 0.25000"
"""
CLI = """#!/bin/sh
[ "$1" = --help ] && exec echo "--no-display-prompt, -no-cnv, -rtr, -fa"
echo "$@" > "$0.log"
echo token
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def bench(folder: Path, help: str) -> Path:
    return program(folder / "llama-bench", BENCH.format(help=help))


def real(root: Path, *line: str | Path | int, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "scripts" / "real.sh", *map(str, line)],
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def section(page: str, title: str) -> list[list[str]]:
    """The cells of a section's table, without the rule."""
    part = page.split(f"## {title}\n")[1].split("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in part.splitlines() if line[:1] == "|"]
    assert len({len(row) for row in found}) == 1
    assert all(re.fullmatch("---:?", cell) for cell in found[1])
    return [found[0], *found[2:]]


def test_refusals(root: Path, tmp_path: Path) -> None:
    slow = program(tmp_path / "bin" / "llama-bench", "#!/bin/sh\necho x\n")
    for line, why in (
        ((), "the following arguments are required: MODEL"),
        (("--txt", "x", "m"), "unrecognized arguments: --txt"),
        (("m", "--rounds", "0"), "invalid positive integer value: '0'"),
        (("m", "--text", "none.txt"), "none.txt: cannot be read"),
        ((tmp_path / "none", "--work", tmp_path), "none: no such file or folder"),
        ((tmp_path, "--work", tmp_path), "neither config.json nor one GGUF"),
        (("m", "--work", tmp_path, "--peers", "none"), "none is no program"),
        (("m", "--work", tmp_path, "--peers", slow, slow), "two engines are called llama.cpp"),
    ):
        done = real(root, *line)
        assert done.returncode and why in done.stderr, done.stderr
    assert "scripts/real.sh" in real(root, "--help").stdout


def test_how_peers_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depths, fast attention and repacking as each engine's --help has them."""
    new, old = bench(tmp_path / "new", NEW), bench(tmp_path / "old", OLD)
    for folder in ("new", "old"):
        program(tmp_path / folder / "llama-perplexity", PERPLEXITY)
    cli = program(tmp_path / "old" / "llama-cli", CLI)
    ours, theirs = others([str(new), f"ik={old} -ger 1 -rtr 0"])
    assert (ours.name, theirs.name) == ("llama.cpp", "ik")
    how, model = How(2, tmp_path), Path("m.gguf")
    fixed = "-m m.gguf -r 1 -o json -t 2 -ctk f16 -ctv f16"
    for peer in (ours, theirs):
        peer.speed(how, model, Case(512, 0, 0), "f16")
        peer.speed(how, model, Case(0, 8, 2048), "f16")
    assert new.with_suffix(".log").read_text().splitlines() == [
        f"{fixed} -p 512 -n 0 -fa 1",
        f"{fixed} -p 0 -n 8 -d 2048 -fa 1",
    ]
    assert old.with_suffix(".log").read_text().splitlines() == [
        f"{fixed} -p 512 -n 0 -ger 1 -rtr 0 -fa 1",
        f"{fixed} -p 0 -n 0 -gp 2048,8 -ger 1 -rtr 0 -fa 1",
    ]
    with pytest.raises(Failed, match="ended with 1: there is no type q8_0"):
        ours.speed(how, model, Case(512, 0, 0), "q8_0")
    (repacks,) = others([f"ik={old}"])
    assert repacks.first(how, model) > 0
    assert cli.with_suffix(".log").read_text() == (
        "-m m.gguf -p Once upon a time -n 2 -c 512 --no-display-prompt -t 2 -no-cnv -fa on -rtr\n"
    )
    with pytest.raises(Failed, match="no llama-completion or llama-cli beside"):
        ours.first(how, model)
    found = ours.perplexity(how, model, Path("t.txt"), 32, "q8_0", "")
    assert found == Perplexity(12.5, 0.25, 3, 32) and found.n_tokens == 3 * 15
    monkeypatch.setenv("PATH", "")
    assert others(None) == []
    monkeypatch.setenv("PATH", f"{tmp_path / 'new'}:/usr/bin:/bin")
    assert [peer.bench for peer in others(None)] == [new]


def test_peers_that_answer_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test, how, model = Case(4, 0, 0), How(1, tmp_path), Path("m.gguf")
    for says, why in (
        ("echo hello", "printed no JSON"),
        ("echo [", "printed no JSON"),
        ("echo []", "another test"),
        ('echo \'[{"n_prompt": 4, "n_gen": 4, "avg_ts": 1}]\'', "another test"),
        ("exit 3", "ended with 3$"),
        ("sleep 5", "took more than 0.2 seconds"),
    ):
        monkeypatch.setattr(engines, "LIMIT", 0.2 if "sleep" in says else 60)
        text = f'#!/bin/sh\n[ "$1" = --help ] && exit\n{says}\n'
        peer = Peer("x", [str(program(tmp_path / "bin" / "llama-bench", text))])
        with pytest.raises(Failed, match=why):
            peer.speed(how, model, test, "f16")


def test_the_page() -> None:
    """Medians of the rounds that both have, and a sentence for what is missing."""
    assert ratio({1: 10.0, 2: 30.0, 3: 20.0}, {2: 10.0, 3: 10.0}) == 2.5
    assert ratio({1: 1.0}, {2: 1.0}) is None and ratio(None, {1: 1.0}) is None
    assert spread({1: 1234.5}) == "1,234" and spread({1: 9.0, 2: 12.0}) == "10.5 (9.00 to 12.0)"
    prompt, decode = Case(512, 0, 0), Case(0, 64, 2048)
    found = Measured(
        speeds={
            ("a", "f16", prompt): {1: 100.0, 2: 110.0},
            ("b", "f16", prompt): {2: 55.0},
            ("a", "f16", decode): {1: 10.0, 2: 12.0},
            ("b", "f16", decode): {1: 5.0, 2: 6.0},
        },
        n_bytes={("a", "f16", decode): 2_000_000_000},
        neurons={("a", "f16", decode): 1.0},
        reads={1: 40e9, 2: 48e9},
        copies={1: 0.5, 2: 0.5},
        firsts={"a": {1: 1.0, 2: 1.5}},
        quality={("a", "m.gguf", "f16"): Perplexity(3.5, 0.1, 2, 512)},
    )
    found.skip("b, the first token: no.")
    found.skip("b, the first token: no.")
    page = Page(found, ["a", "b"], [("a", "b")], "a").text("m.gguf", ["model: m"])
    assert "- plain read: 44.0 (40.0 to 48.0) GB/s, once in each round" in page
    assert section(page, "Speed") == [
        ["KV", "test", "a", "b", "a / b"],
        ["f16", "prompt of 512", "105 (100 to 110)", "55.0", "2.00"],
        ["f16", "decode at 2,048", "11.0 (10.0 to 12.0)", "5.50 (5.00 to 6.00)", "2.00"],
    ]
    assert [row[2:] for row in section(page, "Reading")[1:]] == [
        ["a", "2,000", "22.0 (20.0 to 24.0)", "50%", "100.0%"],
        ["b", "2,000", "11.0 (10.0 to 12.0)", "25%", "-"],
    ]
    assert section(page, "Start")[1:] == [["a", "1.25 (1.00 to 1.50)", "2.50"]]
    assert section(page, "Quality")[1] == ["m.gguf", "f16", "a", "3.5000", "0.1000", "510"]
    assert page.endswith("## Left out\n\n- b, the first token: no.\n")


@pytest.mark.slow
def test_a_dense_model_beside_others(root: Path, tmp_path: Path) -> None:
    """A peer that fails at one type, one without other programs, and a context that is too short
    for some lengths: the rest is measured, and sentences say what is not."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    cfg = checkpoints.config(max_position_embeddings=64, **heads)
    checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    (tmp_path / "t.txt").write_text(checkpoints.TEXT * 4)
    new, old = bench(tmp_path / "new", NEW), bench(tmp_path / "old", OLD)
    program(tmp_path / "new" / "llama-perplexity", PERPLEXITY)
    line = [tmp_path / "model", "--work", tmp_path, "--peers", new, f"old={old}"]
    line += ["--depths", "0,64,128", "--prompts", "16,256", "-n", 4, "--rounds", 2]
    line += ["--text", tmp_path / "t.txt", "-c", 32, "--threads", 1]
    line += ["--out", tmp_path / "page.md", "--json", tmp_path / "all.json"]
    done = real(root, *line)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    assert page in done.stdout
    speed = section(page, "Speed")
    assert speed[0][2:] == [
        *("powerinfer", "llama.cpp", "old", "powerinfer / llama.cpp", "powerinfer / old")
    ]
    tests = ["prompt of 16", "decode at 0", "decode at 60"]
    assert [row[:2] for row in speed[1:]] == [[kv, t] for kv in ("f16", "q8_0") for t in tests]
    for row in speed[1:]:
        assert re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", row[2])
        measured = re.fullmatch(r"[\d.,]+ \(.*\)", row[3]) and float(row[5]) > 0
        assert measured if row[0] == "f16" else row[3:] == ["-"] * 4
    # Keys and values of 8 bits are fewer bytes than of 16, and all weights are read.
    read = {tuple(row[:3]): float(row[3]) for row in section(page, "Reading")[1:]}
    assert read["f16", "decode at 60", "powerinfer"] > read["q8_0", "decode at 60", "powerinfer"]
    assert read["f16", "decode at 60", "old"] == read["f16", "decode at 60", "powerinfer"]
    assert [row[0] for row in section(page, "Start")[1:]] == ["powerinfer"]
    ours = [row for row in section(page, "Quality")[1:] if row[2] == "powerinfer"]
    assert [row[1] for row in ours] == ["f16", "q8_0"]
    for sentence in (
        "A prompt of 256: the model's context has 64 tokens.",
        "Decoding at 64 is measured at 60: the model's context has 64 tokens.",
        "Decoding at 128: the model's context has 64 tokens.",
        "llama.cpp, prompt of 16, q8_0: ended with 1: there is no type q8_0.",
        "old, perplexity, f16: there is no llama-perplexity beside its llama-bench.",
        "old, the first token: there is no llama-completion or llama-cli beside its llama-bench.",
    ):
        assert page.count(f"- {sentence}\n") == 1, page
    scored = re.search(r"llama.cpp, perplexity, f16: it scored 3 windows and ours (\d+), ", page)
    samples = json.loads((tmp_path / "all.json").read_text())
    windows = samples["perplexities"][0]["windows"]
    assert scored and int(scored[1]) == windows != 3
    assert len(samples["speeds"]) == 2 * (6 + 3 + 3) and len(samples["read_bytes_per_s"]) == 2
    assert len(new.with_suffix(".log").read_text().splitlines()) == 2 * 3 + 3  # no second failure


@pytest.mark.slow
def test_a_checkpoint_with_predictors(root: Path, tmp_path: Path) -> None:
    """All modes are measured beside the weights as plain matrices, which other engines read."""
    cfg = checkpoints.config(hidden_act="relu")
    checkpoints.save(tmp_path / "model", cfg, checkpoints.weights(cfg))
    checkpoints.predictors(tmp_path / "predictors", cfg)
    (tmp_path / "t.txt").write_text(checkpoints.TEXT * 4)
    peer = bench(tmp_path / "bin", NEW)
    program(tmp_path / "bin" / "llama-perplexity", PERPLEXITY)
    line = [tmp_path / "model", "--predictors", tmp_path / "predictors", "-n", 4, "-c", 32]
    line += ["--rounds", 1, "--kv", "f16", "--depths", "0", "--prompts", "8"]
    line += ["--original", tmp_path / "model", "--text", tmp_path / "t.txt"]
    line += ["--work", tmp_path / "work", "--no-start"]
    done = real(root, *line, path=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    modes = [f"powerinfer {name}" for name in ("off", "exact", "predictor", "auto")]
    speed = section(done.stdout, "Speed")
    assert speed[0][2:8] == [*modes, "powerinfer dense", "llama.cpp"]
    assert speed[0][8:] == [
        "powerinfer auto / powerinfer dense",
        "powerinfer auto / llama.cpp",
        "powerinfer dense / llama.cpp",
    ]
    assert all(cell != "-" for row in speed for cell in row)
    neurons = {row[2]: row[6] for row in section(done.stdout, "Reading")[1:]}
    assert neurons["powerinfer dense"] == "100.0%" != neurons["powerinfer exact"]
    quality = section(done.stdout, "Quality")
    assert [(row[0], row[2]) for row in quality[1:]] == [
        *(("model.gguf", mode) for mode in modes),
        ("original.gguf", "powerinfer"),
    ]
    assert quality[2][-1] == "100.00%"  # exact
    work = tmp_path / "work"
    called = peer.with_suffix(".log").read_text().splitlines()
    assert len(called) == 2 and all(text.startswith(f"-m {work}/dense.gguf") for text in called)
    asked = (tmp_path / "bin" / "llama-perplexity.log").read_text()
    assert f"-m {work}/original.gguf -f {tmp_path}/t.txt -c 32" in asked
