"""lm-evaluation-harness against the server: what it computes is what `Llama` gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import serving

from powerinfer_cpp import Llama

TASK = """task: stories
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
QUESTIONS = [
    ("Once upon a time, there was a little girl named", [" Lily", " elephant", " seven"], 0),
    ("The dog was very happy. He wagged his", [" banana", " tail", " sky"], 1),
    ("The sun was bright and the sky was", [" loud", " blue", " angry"], 1),
    ("They went to the park to", [" eaten", " car", " play"], 2),
    ("The dog sat on the", [" mat", " rug", " sofa"], 2),
    ("Her favourite colour was", [" blue", " green", " brown"], 2),
]


@pytest.mark.nightly
@pytest.mark.peer("lm_eval")
def test_log_likelihoods_are_those_of_llama(model_path: Path, tmp_path: Path) -> None:
    rows = [{"context": c, "choices": given, "answer": i} for c, given, i in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "stories.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    with serving.in_thread(model_path) as running:
        arguments = f"model=any,base_url={running.url}v1/completions,tokenizer_backend=remote"
        line = ["--model", "local-completions", "--tasks", "stories"]
        line += ["--include_path", str(tmp_path), "--model_args", f"{arguments},num_concurrent=4"]
        line += ["--log_samples", "--output_path", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", *line],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    (results,) = (tmp_path / "out").rglob("results*.json")
    (samples,) = (tmp_path / "out").rglob("samples*.jsonl")
    found = {row["doc"]["context"]: row for row in map(json.loads, samples.open())}
    right = 0
    with Llama(model_path, n_ctx=256, logits_all=True, verbose=False) as llm:
        for context, choices, answer in QUESTIONS:
            n = len(llm.tokenize(context.encode(), add_bos=False))
            want = []
            for text in choices:
                ids = llm.tokenize((context + text).encode(), add_bos=False)
                given = llm(ids, max_tokens=1, echo=True, logprobs=1)["choices"][0]["logprobs"]
                want.append(sum(given["token_logprobs"][n : len(ids)]))
            got = [float(value) for value, _ in found[context]["filtered_resps"]]
            assert got == pytest.approx(want, rel=1e-12)  # the sums may have another order
            right += want.index(max(want)) == answer
    accuracy = json.loads(results.read_text())["results"]["stories"]["acc,none"]
    assert accuracy == pytest.approx(right / len(QUESTIONS))
