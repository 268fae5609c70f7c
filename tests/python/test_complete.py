"""powerinfer complete, and the options that powerinfer chat shares with it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tiny
from powerinfer_cpp.cli import main
from powerinfer_cpp.hub import gguf_files

from powerinfer_cpp import Llama

PROMPT = "Once upon a time"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("complete"))


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture):
    """run(command, model, *arguments) is stdout; status and stderr must be those expected."""

    def command(*arguments: object, status: int = 0, said: str = "") -> bytes:
        got = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        assert got == status and said in err.decode(), err
        assert status == 0 or err.count(b"\n") == 1
        return out

    return command


def typed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


# ---- Texts ----


def test_the_text_of_main(run, main_path: Path, model_path: Path) -> None:
    for line in (["--temp", "0"], ["-s", "7", "--temp", "0.9"], ["-s", "7", "--ignore-eos"]):
        line = ["-p", PROMPT + r"\nTom", "-n", "40", *line]
        want = subprocess.run([main_path, "-m", model_path, *line], capture_output=True)
        assert run("complete", model_path, *line) == want.stdout and want.returncode == 0


def test_prompts(run, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"caf\xc3\xa9\\tx\\x41\\q\xff\n\n")
    line = ["complete", tiny_path, "-f", file, "-n", "0"]
    assert run(*line) == b"caf\xc3\xa9\txA\\q\xff\n"
    assert run(*line, "--no-escape") == file.read_bytes()[:-1]
    assert run(*line, "--no-display-prompt") == b""
    typed(monkeypatch, b"a\\tb\n")
    assert run(*line[:2], "-n", "0", "-f", "-") == b"a\tb\n"
    done = subprocess.run(
        [sys.executable, "-m", "powerinfer_cpp.cli", "complete", tiny_path, "-n", "0"],
        input=b"from a pipe\n",
        capture_output=True,
    )
    assert done.stdout == b"from a pipe\n", done.stderr
    run("complete", tiny_path, "-p", "x" * 600, "-c", "64", status=1, said="no room")
    run(*line[:2], "-p", "x", "-c", "8", said="the context is full (8 positions, -c)")


def test_reverse_prompts(run, model_path: Path) -> None:
    line = ["complete", model_path, "-p", PROMPT, "-n", "60", "--temp", "0"]
    whole = run(*line).decode().removesuffix("\n")
    for stop in (".", " was", "e", whole[40:55], "not in it"):
        at = whole.find(stop, len(PROMPT))
        expected = whole if at < 0 else whole[: at + len(stop)]
        assert run(*line, "-r", "nowhere", "-r", stop).decode() == expected + "\n"
    assert run(*line, "-r", r"\x77as") == run(*line, "-r", "was")


def test_drafts_do_not_change_the_text(run, model_path: Path) -> None:
    line = ["complete", model_path, "-p", "red blue red blue red", "-n", "60", "-s", "3"]
    plain = run(*line)
    assert run(*line, "--lookup", "--draft-max", "4") == plain
    assert run(*line, "-md", model_path, "--draft", "4", "--draft-p-min", "0.1") == plain


def test_a_draft_model_with_another_vocabulary(run, tiny_path: Path, model_path: Path) -> None:
    line = ["complete", tiny_path, "-p", "x", "-n", "1"]
    run(*line, "-md", model_path, status=1, said="another vocabulary")


def test_biases(run, tiny_path: Path) -> None:
    say_a = f"{tiny.BYTE + ord('A')}+100"
    assert run("complete", tiny_path, "-p", "x", "-n", "3", "-l", say_a) == b"xAAA\n"
    with Llama(tiny_path, vocab_only=True, verbose=False) as llm:
        end = llm.token_eos()
    line = ["complete", tiny_path, "-p", "x", "-n", "3", "-l", say_a, "-l", f"{end}+200"]
    assert run(*line) == b"x\n"
    assert run(*line, "--ignore-eos") == b"xAAA\n"
    for wrong in ("5", "5*1", "x+1", "5+nan"):
        run(*line, "-l", wrong, status=2, said="is not an id with a bias")
    run(*line, "-l", "999999+1", status=1, said="ids must be from 0")


def test_constraints(run, model_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    line = ["complete", model_path, "-p", "The answer: ", "-s", "1", "--no-display-prompt"]
    grammar, schema = (
        'root ::= "yes" | "no"',
        '{"type": "array", "maxItems": 3, "items": {"enum": [1, 2]}}',
    )
    assert run(*line, "--grammar", grammar) in (b"yes\n", b"no\n")
    found = json.loads(run(*line, "-j", schema, "-n", "200"))
    assert isinstance(found, list) and set(found) <= {1, 2}
    for option, text, wanted in (
        ("--grammar-file", grammar, run(*line, "--grammar", grammar)),
        ("-jf", schema, run(*line, "-j", schema, "-n", "200")),
    ):
        (tmp_path / "file").write_text(text)
        assert run(*line, option, tmp_path / "file", "-n", "200") == wanted
    run(*line, "--grammar", "root ::= x", status=1)
    run(*line, "-jf", tmp_path / "none", status=1, said="none: No such file")
    run(*line, "--grammar", grammar, "-j", schema, status=2, said="not allowed with")


def test_command_lines(run, tiny_path: Path) -> None:
    for words in ([], [tiny_path, "-m", tiny_path], ["-m", tiny_path, "-hf", "a/b"]):
        for command in ("complete", "chat"):
            run(command, *words, status=2, said="name one model")
    run("complete", tiny_path, "--hf-file", "x", status=2, said="needs -hf")
    run("complete", tiny_path, "-p", "x", "-r", "", status=2, said="-r needs a text")
    run("complete", tiny_path, "-md", "x", "--lookup", status=2, said="not allowed with")
    accepted = "-fa on --simple-io --no-warmup --no-perf --log-disable -tb 1 --no-mmap -no-cnv"
    assert (
        run("complete", "-m", tiny_path, "-p", "x", "-n", "0", *accepted.split(), "-fa") == b"x\n"
    )


# ---- Chats ----


def test_chats(run, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates, system messages and first messages, against Llama."""
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi\nyou"}]
    system, template = tmp_path / "system", tmp_path / "template"
    system.write_text("Be kind.\n")
    template.write_text(CHATML)
    ask = ["chat", tiny_path, "-p", r"Hi\nyou", "-st", "-n", "8", "--temp", "0"]
    typed(monkeypatch, b"never read\n")
    with Llama(tiny_path, n_ctx=256, verbose=False) as llm:

        def answer() -> bytes:
            done = llm.create_chat_completion(talk, max_tokens=8, temperature=0)
            return done["choices"][0]["message"]["content"].encode() + b"\n"

        default = answer()
        llm.set_chat_template(CHATML)
        want = answer()
    assert default != want
    for given in (["-sys", "Be kind."], ["-sysf", system]):
        assert run(*ask, *given, "--chat-template", CHATML, "--jinja") == want
        assert run(*ask, *given, "--chat-template-file", template) == want
        named = run(*ask, *given, "--chat-format", "llama-2")
        assert named == default == run(*ask, *given, "--chat-template", "llama2-sys-bos")
        assert not run(*ask, *given, status=1, said="has no chat template")
    run(*ask, "--chat-template", "phi9", status=1, said="known are")
    run(*ask, "--chat-template", "{% for %}", status=1, said="template")
    say = ["-l", f"{tiny.BYTE + ord('A')}+100"]
    assert run(*ask, *say, "-r", "AA") == b"AA\n"
    assert run(*ask, *say, "--lookup") == b"A" * 8 + b"\n"


def test_a_chat_goes_on_after_its_first_message(
    run, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, b"and\n")
    assert run("chat", tiny_path, "-p", "Hi", "-n", "4").count(b"\n") >= 2


# ---- Hugging Face ----

FILES = [
    "README.md",
    "imatrix.gguf",
    "m-IQ4_K_M.gguf",
    "m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0-00002-of-00002.gguf",
    "mmproj-m-Q4_K_M.gguf",
    "sub/m-f16.gguf",
]


@pytest.mark.parametrize(
    ("names", "quant", "want"),
    [
        (FILES, "q8_0", ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        (FILES, "F16", ["sub/m-f16.gguf"]),
        (FILES, None, ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        (["m-BF16.gguf", "m-f16.gguf", "m-f32.gguf", "m-q5_k_s.gguf"], None, ["m-q5_k_s.gguf"]),
        (["a/m-Q8_0.gguf", "a/m-Q6_K.gguf", "a/m-IQ2_M.gguf"], None, ["a/m-Q6_K.gguf"]),
        (["m-Q5_K_M.gguf", "m-Q4_0.gguf", "m-Q4_0_4_4.gguf"], None, ["m-Q4_0.gguf"]),
        (["m-bf16.gguf", "m.gguf"], None, ["m.gguf"]),
        (["m-IQ1_S.gguf", "m-f32.gguf", "m-bf16.gguf"], None, ["m-bf16.gguf"]),
        (["m-IQ1_S.gguf"], None, ["m-IQ1_S.gguf"]),
        # A part is missing.
        (["m-Q4_0-00001-of-00002.gguf", "n-Q4_0.gguf"], "Q4_0", ["n-Q4_0.gguf"]),
        ([*FILES, "x.Q4_K_M.gguf"], None, ["x.Q4_K_M.gguf"]),
        (["UD-Q4_K_XL/x.gguf", "Q4_K_M/x.gguf"], None, ["Q4_K_M/x.gguf"]),
        (["m-mxfp4.gguf", "m-Q8_0.gguf", "m-NVFP4.gguf"], None, ["m-mxfp4.gguf"]),
    ],
)
def test_files_of_a_repository(names: list[str], quant: str | None, want: list[str]) -> None:
    assert gguf_files(names, quant, "a/b") == want


@pytest.mark.parametrize(
    ("names", "quant"),
    [
        (FILES, "Q4_K_M"),
        (FILES, "Q8"),
        (["README.md"], None),
        (["m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf"], None),
    ],
)
def test_no_such_file_in_a_repository(names: list[str], quant: str | None) -> None:
    with pytest.raises(ValueError, match="^a/b: there is no model"):
        gguf_files(names, quant, "a/b")


def test_models_from_the_hub(
    run, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple] = []

    class Api:
        def list_repo_files(self, repo_id: str, **given: str) -> list[str]:
            asked.append((repo_id, given))
            return FILES

    def fetch(repo_id: str, name: str, **given: str) -> str:
        asked.append((repo_id, name, given))
        if name == "broken":
            raise RuntimeError("no\nnetwork")
        return str(tiny_path)

    stand_in = types.ModuleType("huggingface_hub")
    stand_in.HfApi, stand_in.hf_hub_download = Api, fetch
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    line = ["complete", "-p", "x", "-n", "0"]
    assert run(*line, "-hf", "a/b:q8_0") == b"x\n"
    assert asked[0] == ("a/b", {}) and asked[2] == ("a/b", "m-Q8_0-00002-of-00002.gguf", {})
    asked.clear()
    said = "every user of this machine can read it"
    assert run(*line, "-hfr", "a/b", "-hff", "sub/m-f16.gguf", "-hft", "t", said=said) == b"x\n"
    assert asked == [("a/b", "sub/m-f16.gguf", {"token": "t"})]
    asked.clear()
    secret = tmp_path / "token"
    secret.write_text("t2\n")
    at = {"revision": "refs/pr/1", "token": "t2"}
    for words in (["a/b:q8_0@refs/pr/1"], ["a/b:q8_0", "--hf-revision", "refs/pr/1"]):
        assert run(*line, "-hf", *words, "--hf-token-file", secret) == b"x\n"
        assert asked[0] == ("a/b", at) and asked[1] == ("a/b", "m-Q8_0-00001-of-00002.gguf", at)
        asked.clear()
    run(*line, "-hf", "a/b@x", "--hf-revision", "y", status=1, said="--hf-revision says y")
    run(*line, "-hf", "a/b", "-hff", "broken", status=1, said="a/b: no network")
    run(*line, "-hf", "a/b:Q2_K", status=1, said="candidates: m-IQ4_K_M.gguf, ")
    run(*line, "-hf", "b", status=1, said="needs OWNER/NAME")


def cached(folder: Path, model: Path) -> None:
    """A cache of huggingface_hub's with a repository a/b: two commits, which main and old name."""
    repository = folder / "hub" / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    for name, commit, files in (
        ("main", "1" * 40, ["m-bf16.gguf", "sub/m-Q5_0.gguf", "m-Q4_0-00001-of-00002.gguf"]),
        ("old", "2" * 40, ["m-Q2_K.gguf"]),
    ):
        (repository / "refs" / name).write_text(commit)
        for file in files:
            path = repository / "snapshots" / commit / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(model)
    (repository / "snapshots" / ("1" * 40) / "m-Q4_K_M.gguf").symlink_to(folder / "gone")


NO_NETWORK = """
import os, socket, sys
if "network" in sys.argv[1]:
    def refused(*_, **__):
        raise OSError("no network here")
    socket.socket.connect = socket.getaddrinfo = refused
else:
    os.environ["HF_HUB_OFFLINE"] = "1"
from powerinfer_cpp import Llama
from powerinfer_cpp.hub import fetch
for repo, more in (("a/b", {}), ("a/b:BF16", {}), ("a/b@old", {}), ("a/b", {"file": "m-bf16.gguf"}),
                   ("a/b", {"revision": "2" * 40}), ("a/b", {"offline": True})):
    print(fetch(repo, **more).split("/snapshots/")[1])
print(Llama.from_pretrained("a/b", "*Q5_0*", vocab_only=True, verbose=False).model_path[-16:])
for repo in ("a/b:Q4_K_M", "a/b:Q4_0", "a/c", "a/b@new"):
    try:  # without a copy the package tries for half a minute
        fetch(repo, offline=repo in ("a/c", "a/b@new"))
    except (ValueError, OSError) as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("why", ["no network", "offline"])
def test_what_was_downloaded_needs_no_network(tiny_path: Path, tmp_path: Path, why: str) -> None:
    """With the real package, and a cache as it makes one."""
    pytest.importorskip("huggingface_hub")
    cached(tmp_path, tiny_path)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", NO_NETWORK, why]
    done = subprocess.run(
        command, env=environment, capture_output=True, errors="replace", timeout=120
    )
    one, two = "1" * 40, "2" * 40
    assert done.stdout.split("\n") == [
        f"{one}/sub/m-Q5_0.gguf",
        f"{one}/m-bf16.gguf",
        f"{two}/m-Q2_K.gguf",
        f"{one}/m-bf16.gguf",
        f"{two}/m-Q2_K.gguf",
        f"{one}/sub/m-Q5_0.gguf",
        "/sub/m-Q5_0.gguf",
        "ValueError",
        "ValueError",
        "OSError",
        "OSError",
        "",
    ], done.stderr
    assert "a/b: what the cache has is used" in done.stderr


@pytest.mark.parametrize(
    "command",
    ["complete", "chat", pytest.param("serve", marks=pytest.mark.peer("starlette"))],
)
def test_without_the_hubs_package(run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """serve first tells of the packages of its own: without them it would download in vain."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    run(command, "-hf", "a/b", status=1, said="-hf needs the package huggingface_hub")
