"""./main's options of llama.cpp that reach the engine: samplers, biases, keys, prompt caches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from powerinfer_cpp import Llama

PROMPT = "Once upon a time there was a cat. The cat sat. The cat"
Main = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def main(main_path: Path, model_path: Path) -> Main:
    def run(*args: str, prompt: str = PROMPT) -> subprocess.CompletedProcess:
        command = [main_path, "-m", model_path, "-n", "24", "-s", "3", "-p", prompt, *args]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, encoding="utf-8"
        )

    return run


def text(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout.removesuffix("\n")


def refused(result: subprocess.CompletedProcess, status: int) -> str:
    lines = result.stderr.splitlines()
    assert result.returncode == status and len(lines) == 1, result
    return lines[0]


def by_python(model_path: Path, **options) -> str:
    with Llama(model_path, n_ctx=256, verbose=False) as llm:
        options = {"max_tokens": 24, "seed": 3, "echo": True, **options}
        return llm(PROMPT, **options)["choices"][0]["text"]


def test_samplers(main: Main, model_path: Path) -> None:
    plain = text(main())
    assert text(main("--samplers", "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temp"))
    assert text(main("--sampler-seq", "edskypmxt")) == plain == by_python(model_path)
    other = text(main("--samplers", "temperature;nucleus", "--temp", "1.5"))
    assert other == text(main("--sampler-seq", "tp", "--temp", "1.5")) != plain
    assert other == by_python(model_path, samplers=["temperature", "top_p"], temperature=1.5)
    options = ["--dry-multiplier", "3", "--dry-allowed-length", "1", "--dry-base", "2"]
    dry = text(main(*options))
    params = {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_base": 2.0}
    assert dry == by_python(model_path, **params) != plain
    nowhere = text(main(*options, "--dry-sequence-breaker", "none"))
    assert nowhere == by_python(model_path, dry_sequence_breakers=[], **params)
    given = ["--dry-sequence-breaker", ".", "--dry-sequence-breaker", "\\x20cat"]
    cat = text(main(*options, *given))
    assert cat == by_python(model_path, dry_sequence_breakers=[".", " cat"], **params)
    assert len({dry, nowhere, cat}) > 1
    assert "samplers: 'top_q' is unknown: known" in refused(main("--samplers", "top_q"), 1)
    assert "'q' is not made of the letters" in refused(main("--sampler-seq", "q"), 2)


def test_logit_bias(main: Main, model_path: Path) -> None:
    cold = text(main("--temp", "0"))
    with Llama(model_path, n_ctx=256, verbose=False) as llm:
        token = llm.tokenize(cold.encode())[len(llm.tokenize(PROMPT.encode()))]
    for bias in ("-100", "-inf"):
        other = text(main("--temp", "0", "--logit-bias", f"{token}{bias}"))
        assert other != cold
        assert other == by_python(model_path, temperature=0, logit_bias={token: float(bias)})
    assert text(main("--temp", "0", "-l", f"{token}+100", "-n", "2")).count("") > len(PROMPT)
    assert "there is no token 5000, the vocabulary has 2048" in refused(main("-l", "5000+1"), 1)
    for bad in ("5", "+1", "x+1", "5+", "5+nan", "99999999999+1", "5+1e99"):
        assert "is not a token and its bias, such as 15+1.5" in refused(main("-l", bad), 2)


def test_keep_is_accepted(main: Main) -> None:
    result = main("--keep", "4", "--keep", "5")
    assert text(result) == text(main("--keep", "0"))
    assert result.stderr.count("--keep: without effect here: a text ends where the context") == 1


def test_override(main: Main, model_path: Path) -> None:
    key = "llama.rope.freq_base"
    base = text(main("--temp", "0", "--override-kv", f"{key}=float:500"))
    assert base == text(main("--temp", "0", "--rope-freq-base", "500"))
    assert base != text(main("--temp", "0"))
    with Llama(model_path, n_ctx=256, verbose=False, kv_overrides={key: 500.0}) as llm:
        assert base == PROMPT + llm(PROMPT, max_tokens=24, temperature=0)["choices"][0]["text"]
    yarn = main("--temp", "0", "--rope-scaling", "yarn", "--rope-scale", "4")
    assert text(yarn) == text(
        main("--temp", "0", "--rope-scaling", "yarn", "--rope-freq-scale", "0.25")
    )
    no_bos = text(main("--temp", "0", "--override-kv", "tokenizer.ggml.add_bos_token=bool:false"))
    assert no_bos != text(main("--temp", "0"))
    key = "llama.context_length"
    for bad, status, message in (
        (f"{key}s=int:100", 1, f"override of {key}s: the file has no such key"),
        (f"{key}=float:1", 1, "the file's value has type u32, not a number"),
        (f"{key}=int:1.5", 2, "'1.5' is not a whole number"),
        (f"{key}=bool:1", 2, "'1' is not true or false"),
        (f"{key}=u32:1", 2, "'u32' is not a type: int, float, bool or str"),
        (key, 2, "is not KEY=TYPE:VALUE"),
        ("tokenizer.chat_template=str:x", 2, "--chat-template gives another template"),
    ):
        assert message in refused(main("--override-kv", bad), status)
    assert "'long' is not a scaling" in refused(main("--rope-scaling", "long"), 2)
    assert "yarn_ext_factor must be" in refused(main("--yarn-ext-factor", "9"), 1)


def n_prompt(result: subprocess.CompletedProcess) -> int:
    line = next(line for line in result.stderr.splitlines() if "prompt eval time" in line)
    return int(line.split("/")[1].split()[0])


def test_prompt_cache(main: Main, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    use = "--prompt-cache", str(cache)
    longer = PROMPT + " went to the park and saw"
    plain, plain_longer = text(main()), text(main(prompt=longer))
    first = main(*use)
    assert text(first) == plain and cache.exists()
    size = cache.stat().st_size
    again = main(*use)
    assert text(again) == plain and n_prompt(again) == 1 < n_prompt(first)
    assert cache.stat().st_size == size
    # A common beginning is taken, and read-only leaves the file as it is.
    for prompt, expected in (
        (longer, plain_longer),
        (PROMPT[:-20], text(main(prompt=PROMPT[:-20]))),
    ):
        result = main(*use, "--prompt-cache-ro", prompt=prompt)
        assert text(result) == expected and n_prompt(result) < 10
        assert cache.stat().st_size == size
    assert text(main(*use, prompt="A dog")) == text(main(prompt="A dog"))
    assert text(main(*use, "--prompt-cache-all", prompt=longer)) == plain_longer
    # What was generated is in the cache, and stays what it is if it is a prompt now.
    whole = main(*use, "--prompt-cache-ro", "--sparse", "exact", prompt=plain_longer)
    assert "computed in another mode" in whole.stderr.splitlines()[-1] and whole.returncode == 1
    whole = main(*use, "--prompt-cache-ro", prompt=plain_longer)
    assert text(whole) == text(main(prompt=plain_longer))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


def test_bad_prompt_caches(main: Main, tmp_path: Path, model_path: Path) -> None:
    cache = tmp_path / "cache"
    text(main("--prompt-cache", str(cache)))
    good = cache.read_bytes()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    for data, message in (
        (bytes(changed), "the state is damaged: it does not fit its checksum"),
        (good[:-5], "the state is damaged"),
        (good[:20], "not a saved state"),
        (
            b"some notes of mine that are long enough to be looked at, but are no state at all\n"
            * 2,
            "not a saved state",
        ),
        (b"", "is empty"),
    ):
        cache.write_bytes(data)
        result = main("--prompt-cache", str(cache))
        assert result.returncode == 1
        assert f"{cache}: " in result.stderr and message in result.stderr.splitlines()[-1]
        assert cache.read_bytes() == data  # not overwritten
    result = main("--prompt-cache", str(tmp_path / "no" / "cache"))
    assert result.returncode == 1 and str(tmp_path / "no") in result.stderr.splitlines()[-1]
    cache.write_bytes(good)
    other = main("--prompt-cache", str(cache), "--rope-freq-base", "500")
    assert other.returncode == 1 and "other overrides of its keys or RoPE" in other.stderr
    other = main("--prompt-cache", str(cache), "-ctk", "f32", "-ctv", "f32")
    assert other.returncode == 1 and "the state has another KV type" in other.stderr
    assert "would overwrite what is read" in refused(main("--prompt-cache", str(model_path)), 1)
    assert "needs --prompt-cache" in refused(main("--prompt-cache-all"), 2)
