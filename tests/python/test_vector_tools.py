"""Tools with models that give vectors or ranks: bench --embed, quantize, and the program of
docs/embeddings.md."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from powerinfer_cpp.cli import main
from powerinfer_cpp.measure import embedded
from test_vectors import Converted, converted

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "embeddings.md"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(tmp_path_factory.mktemp("bert"), "bert")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converted(tmp_path_factory.mktemp("ranker"), "bert-rank")


# ---- bench ----


def test_lengths_of_texts() -> None:
    assert embedded.Test(27, 3).lengths == [27, 27, 27]
    mixed = embedded.Test(240, 8, mixed=True)
    assert (mixed.lengths[0], mixed.lengths[-1], len(mixed.lengths)) == (240, 30, 8)
    assert mixed.name == "embed 30-240 x 8" and embedded.Test(27, 1).name == "embed 27 x 1"
    assert embedded.Test(3, 2, mixed=True).lengths == [3, 1]


def test_bench(bert: Converted, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(bert.path), "--embed", "-p", "8,20", "-npl", "1,3", "-r", "2", "-t", "1"]
    assert main([*line, "-o", "json", "--ops"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["n_tokens"] for row in rows] == [8, 24, 20, 60]
    for row in rows:
        n = row["n_tokens"]
        speeds = [n * 1e9 / ns for ns in row["samples_ns"]]
        assert row["samples_ts"] == pytest.approx(speeds) and len(speeds) == 2
        assert row["ms_per_text"] * row["n_texts"] == pytest.approx(row["avg_ns"] / 1e6, abs=1e-6)
        assert {"attention", "ffn", "embedding"} <= {op["part"] for op in row["ops"]}
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "| ms/text | texts/s | t/s |" in shown and "| embed 20 x 3 |" in shown


def test_bench_of_a_ranker(ranker: Converted, capsys: pytest.CaptureFixture) -> None:
    line = ["bench", str(ranker.path), "--embed", "--mixed", "-p", "16", "-npl", "4", "-r", "1"]
    assert main([*line, "-o", "jsonl"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["mixed"] and row["n_tokens"] == sum((16, 11, 7, 2)) and row["n_texts"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "8", "-n", "8"], "this model gives no tokens: measure it with --embed"),
        (["--mixed"], "--mixed is for --embed"),
        (["--embed", "-p", "0"], "-p 0 leaves nothing to measure"),
        (["--embed", "-d", "8"], "-d is for generated tokens: leave it out, or --embed"),
    ],
)
def test_bench_refuses(
    options: list[str], message: str, bert: Converted, capsys: pytest.CaptureFixture
) -> None:
    assert main(["bench", str(bert.path), *options]) != 0
    assert message in capsys.readouterr().err


# ---- quantize ----


def test_quantize_tells_how_far_vectors_turn(
    bert: Converted, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    found = {}
    for kind in ("F16", "Q8_0", "Q2_K"):
        path = tmp_path / f"{kind}.gguf"
        assert main(["quantize", str(bert.path), str(path), kind]) == 0
        said = capsys.readouterr().err
        cosine = re.search(r"cosine ([\d.]+), the least ([\d.]+)", said)
        assert cosine, said
        found[kind] = float(cosine[1])
        assert float(cosine[2]) <= found[kind]
        with bert.open() as before, Converted(path, bert.checkpoint).open() as after:
            texts = ["the small bear", "a frog and a ball by the river"]
            pair = (np.array(llm.embed(texts, normalize=True)) for llm in (before, after))
            assert (np.multiply(*pair)).sum(-1).min() == pytest.approx(found[kind], abs=0.05)
    assert found["F16"] > 0.999 and found["F16"] >= found["Q8_0"] >= found["Q2_K"]


def test_quantize_keeps_what_is_small(
    ranker: Converted, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "q.gguf"
    assert main(["quantize", str(ranker.path), str(path), "F16"]) == 0
    assert "scores of pairs move by " in capsys.readouterr().err
    kinds = {t.name: t.tensor_type.name for t in GGUFReader(path).tensors}
    for name in ("token_types", "position_embd", "cls", "cls.output"):
        assert kinds[f"{name}.weight"] == "F32"
    assert kinds["blk.0.attn_q.weight"] == "F16"


def test_quantize_of_what_does_not_open(
    bert: Converted, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The file is written, and a sentence says that vectors were not compared."""
    broken = tmp_path / "broken.gguf"
    data = bert.path.read_bytes()
    assert data.count(b"bert.block_count") == 1
    broken.write_bytes(data.replace(b"bert.block_count", b"bert.block_coumt"))
    assert main(["quantize", str(broken), str(tmp_path / "out.gguf"), "F16"]) == 0
    assert "vectors were not compared: " in capsys.readouterr().err
    assert (tmp_path / "out.gguf").exists()


# ---- docs/embeddings.md ----


def test_the_search_of_the_page(
    bert: Converted,
    ranker: Converted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both parts run, and print five passages each."""
    shutil.copy(bert.path, tmp_path / "minilm.gguf")
    shutil.copy(ranker.path, tmp_path / "reranker.gguf")
    (tmp_path / "docs").mkdir()
    words = ["bear", "frog", "ball", "river", "small", "the"]
    for i in range(3):
        parts = [" ".join(words[k:] * 12) for k in range(3)]
        (tmp_path / "docs" / f"{i}.md").write_text("\n\n".join(parts))
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    program = "\n".join(block for block in blocks if ".gguf" in block)
    exec(compile(program, "embeddings.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    for part in (lines[:5], lines[5:]):
        scores = [float(line.split()[0]) for line in part]
        assert scores == sorted(scores, reverse=True)
    others = [block for block in blocks if ".gguf" not in block]
    assert len(others) == 3
    for block in others:  # scripts/clients.py runs programs of the same packages
        compile(block, "embeddings.md", "exec")
