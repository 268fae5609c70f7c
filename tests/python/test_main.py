"""The command line of ./main: its output, and its exit status."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time

import pytest

from powerinfer_cpp import Llama


@pytest.fixture
def main(main_path, model_path):
    """main(args) runs the program with the default model; text goes in and comes out as bytes."""

    def run(*args: str | bytes, model=model_path, **options) -> subprocess.CompletedProcess:
        command = [main_path, "-m", model, *args]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, **options
        )

    return run


def refused(result: subprocess.CompletedProcess, status: int) -> str:
    """The single error line of a refusal."""
    assert result.returncode == status, result.stderr
    assert result.stdout == b""
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 1 and lines[0].startswith("main: error: "), lines
    return lines[0]


def cases(text: str) -> list[str]:
    """Command lines, separated by bars."""
    return " ".join(text.split()).split(" | ")


# ---- Text ----------------------------------------------------------------------------------------


def test_stdout_is_prompt_and_continuation(main, model_path):
    result = main("-p", "Once upon a time", "-n", "20", "--temp", "0")
    assert result.returncode == 0, result.stderr
    with Llama(str(model_path), n_ctx=64, verbose=False) as llm:
        text = llm("Once upon a time", max_tokens=20, temperature=0, echo=True)["choices"][0][
            "text"
        ]
    assert result.stdout.decode() == text + "\n"


def test_no_prompt_starts_at_bos(main):
    for args in ((), ("-p", "")):
        result = main("-n", "5", "--temp", "0", *args)
        assert result.returncode == 0 and result.stdout.startswith(b" Once upon a time"), result


def test_same_seed_same_text(main):
    a, b, c = (main("-n", "40", "-s", seed).stdout for seed in ("7", "7", "8"))
    assert a == b != c


def test_random_seed_is_told_and_repeats(main):
    first, second = main("-n", "30"), main("-n", "30", "-s", "-1")
    seed = re.search(rb"seed = (\d+)", first.stderr).group(1)
    assert seed != re.search(rb"seed = (\d+)", second.stderr).group(1)
    assert main("-n", "30", "-s", seed).stdout == first.stdout


def test_threads_and_batches_do_not_change_the_text(main):
    prompt = "Lily had a red ball. " * 8
    texts = {
        main("-p", prompt, "-n", "30", "--temp", "0", *args.split()).stdout
        for args in cases("-t 2 | -t 1 | -tb 2 -t 1 | -b 7 | -ub 3 | -b 1 | --no-mmap")
    }
    assert len(texts) == 1


def test_prompt_of_any_bytes(main):
    prompt = b"\xff\xfe caf\xc3"
    assert main("-p", prompt, "-n", "0").stdout == prompt + b"\n"
    assert main("-p", prompt, "-n", "3").stdout.startswith(prompt)


def test_prompt_file(main, tmp_path):
    file = tmp_path / "prompt"
    file.write_bytes(b"Once\0upon\n\n")
    assert main("-f", file, "-n", "0").stdout == b"Once\0upon\n"  # less one newline
    assert "No such file" in refused(main("-f", tmp_path / "none"), 1)
    assert "directory" in refused(main("-f", tmp_path), 1)
    assert main("-bf", file, "-n", "0").stdout == b"Once\0upon\n\n"
    assert main("-bf", file, "-f", file, "-n", "0").stdout == b"Once\0upon\n"


def test_prompt_on_stdin(main_path, model_path, tmp_path):
    """Without an option the prompt comes from a pipe or a file, not from a device or a socket."""

    def run(*args, **options):
        line = [main_path, "-m", model_path, "-n", "0", *args]
        done = subprocess.run(line, capture_output=True, timeout=60, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(input=b"Once\xff\0upon\n\n") == b"Once\xff\0upon\n"  # less one newline
    assert run("-p", "Lily", input=b"Once") == b"Lily\n" and run("-p", "", input=b"Once") == b""
    file = tmp_path / "prompt"
    file.write_bytes(b"first\nsecond")
    assert run("-f", file, input=b"Once") == b"first\nsecond\n"
    with file.open("rb", buffering=0) as opened:
        opened.seek(6)
        assert run(stdin=opened) == b"second\n"
    with file.open("rb", buffering=0) as opened:
        assert run("-f", "-", stdin=opened) == b"first\nsecond\n"
    assert run(stdin=subprocess.DEVNULL) == b""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert run(stdin=theirs.fileno()) == b""


def test_options_for_a_gpu_are_said_to_be_in_vain(main):
    for args, names in (
        ("-ngl 99 -ngl 9", "-ngl"),
        ("--gpu-layers all --vram-budget 2", "--gpu-layers and --vram-budget"),
    ):
        said = main(*args.split(), "-n", "1").stderr.decode()
        assert said.count("without effect") == 1
        assert said.startswith(f"main: warning: {names}: without effect here: ")
    for args in ("-ngl 0", "-ngl auto", "--vram-budget 0", "-ngl 99 -lv 1"):
        assert b"without effect" not in main(*args.split(), "-n", "1").stderr


def test_a_context_beyond_the_training_is_said(main):
    said = main("-c", "1100", "-n", "1").stderr
    assert said.count(b"a context of 1100 positions goes beyond the 1024 of its training") == 1
    assert b"training" not in main("-c", "1024", "-n", "1").stderr


def test_more_threads_than_processors_are_said(main):
    said = main("-t", "511", "-tb", "512", "-n", "1").stderr.decode()
    used = re.search("512 threads were asked for, ([0-9]+) are used", said).group(1)
    assert f"threads = {used}, threads for the prompt = {used}," in said
    assert "asked for" not in main("-t", used, "-n", "1").stderr.decode()


def test_escapes(main):
    text = r"a\n\t\"\'\\\x41\q\x4"
    assert main("-p", text, "-n", "0", "--no-escape").stdout == text.encode() + b"\n"
    for args in ((), ("-e",)):  # as in llama.cpp, without asking
        assert main("-p", text, "-n", "0", *args).stdout == b"a\n\t\"'\\A\\q\\x4\n"


def test_control_tokens_are_not_shown(main):
    assert main("-p", "<s>Once</s> upon", "-n", "0").stdout == b"Once upon\n"


def test_end_of_text_and_full_context(main):
    # 300 tokens are more than a story of this model takes at its likeliest.
    story = main("-n", "300", "--temp", "0")
    assert b"context is full" not in story.stderr
    full = main("-c", "40", "--ignore-eos", "--temp", "0")
    assert full.returncode == 0 and b"the context is full (40 positions" in full.stderr
    assert re.search(rb" 40 runs", full.stderr)  # of the sampler: BOS and 39 tokens, and one more
    longer = main("-n", "300", "--temp", "0", "--ignore-eos")
    assert longer.stdout.startswith(story.stdout.rstrip(b"\n")) and len(longer.stdout) > len(
        story.stdout
    )


def test_context_sizes(main, model_path):
    with Llama(str(model_path), vocab_only=True, verbose=False) as llm:
        trained_for = int(llm.metadata["llama.context_length"])
    assert f"context = {trained_for}".encode() in main("-c", "0", "-n", "1").stderr
    assert f"context = {min(trained_for, 4096)}".encode() in main("-n", "1").stderr
    assert b"context = 17" in main("-c", "17", "-n", "1").stderr


def test_prompt_longer_than_the_context(main):
    message = refused(main("-p", "Lily had a red ball.", "-c", "4"), 1)
    assert re.search(r"the prompt has \d+ tokens, the context 4 positions", message)


def test_timing_lines(main):
    log = main("-p", "Once upon a time", "-n", "10", "--ignore-eos").stderr.decode()
    rate = r"\( *[\d.]+ ms per token, *[\d.]+ tokens per second\)"
    assert re.search(r"prompt eval time = +[\d.]+ ms / +5 tokens " + rate, log)
    assert re.search(r"(?m)^ +eval time = +[\d.]+ ms / +9 runs +" + rate, log)
    for words in ("load time = ", "sampling time = ", "total time = ", " GB/s"):
        assert words in log


def test_default_model_beside_the_current_directory(main_path, model_path, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "stories-relu.Q8_0.gguf").symlink_to(model_path)
    result = subprocess.run([main_path, "-n", "3"], cwd=tmp_path, capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_what_is_shown(main, tmp_path):
    plain = main("-p", "Once upon a time", "-n", "9", "-s", "1")

    def shown(*args: str) -> subprocess.CompletedProcess:
        return main("-p", "Once upon a time", "-n", "9", "-s", "1", *args)

    answer = plain.stdout.removeprefix(b"Once upon a time")
    assert shown("--no-display-prompt").stdout == answer
    assert shown("--color", "off").stdout == shown("--color", "auto").stdout == plain.stdout
    for args in (("--color",), ("--color", "on")):
        assert shown(*args).stdout == b"\x1b[33mOnce upon a time\x1b[0m" + answer
    said = shown("--no-perf").stderr
    assert plain.stderr.startswith(said) and b"eval time" not in said and b"seed = 1" in said
    file = tmp_path / "log"
    silent = shown("--log-disable", "--log-file", str(file))
    assert (silent.stdout, silent.stderr) == (plain.stdout, b"")
    assert file.read_bytes().startswith(said) and b"eval time" in file.read_bytes()
    assert shown("--log-file", str(file)).stderr == file.read_bytes()
    said = shown("--context-shift").stderr.decode()
    assert said.startswith("main: warning: --context-shift: without effect here: ")


def test_the_log_spares_what_is_read(main, model_path, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("Once")
    for args in (["--log-file", model_path], ["-f", prompt, "--log-file", prompt]):
        assert "--log-file would overwrite what is read" in refused(main(*args), 1)
    assert prompt.read_text() == "Once"
    assert "directory" in refused(main("--log-file", tmp_path), 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_log_that_cannot_be_written(main):
    done = main("-n", "3", "--log-file", "/dev/full")
    assert done.returncode == 1 and b"/dev/full: the messages could not be written" in done.stderr


def interact(main_path, model, text: bytes, *args: str) -> subprocess.CompletedProcess:
    command = [main_path, "-m", model, "-p", "Once", "--temp", "0", "-lv", "4", *args]
    return subprocess.run(command, input=text, capture_output=True, timeout=60)


def test_interactive_turns(main_path, model_path):
    """Each turn reads the last token of the model's text, then the prefix, the line, the suffix."""
    lines = b"a\\tdog\n\nit\\\nwas\n"
    around = "--in-prefix", r" The\x20", "--in-suffix", "!"
    done = interact(main_path, model_path, lines, "-i", "-n", "4", *around)
    assert done.returncode == 0, done.stderr
    turns = [
        [int(i) for i in ids.split()] for ids in re.findall(rb"tokens read:([ \d]*)", done.stderr)
    ]
    with Llama(str(model_path), n_ctx=256, verbose=False) as llm:

        def ids(text: str) -> list[int]:
            return llm.tokenize(text.encode(), add_bos=False, special=True)

        steps = llm.generate([llm.token_bos(), *ids("Once")], temp=0.0)
        said = [next(steps) for _ in range(4)]
        want, text = [[llm.token_bos(), *ids("Once")]], b"Once" + llm.detokenize(said)
        for line in ("a\tdog", "", "it\nwas"):
            new = [*ids(" The "), *ids(line), *ids("!")] if line else []
            want.append([said[-1], *new])
            said = [steps.send(new), *(next(steps) for _ in range(3))]
            text += b" The " + (b"!" if line else b"") + llm.detokenize(said)
    assert turns == want
    assert done.stdout == text + b" The \n"


def test_interactive_first_and_reverse_prompts(main_path, model_path):
    first = interact(main_path, model_path, b" upon a time\n", "-if", "-n", "5")
    plain = interact(main_path, model_path, b"", "-n", "5", "-p", "Once")
    assert first.returncode == 0 and first.stdout.startswith(b"Once")
    assert not first.stdout.startswith(plain.stdout)
    # A text that the model ends gets the first reverse prompt, which is shown.
    ended = interact(main_path, model_path, b" yes\n", "-i", "-r", "\\nUser:", "-n", "400")
    assert ended.returncode == 0 and b"\n\nUser:" in ended.stdout
    asked = interact(main_path, model_path, b"x\n" * 3, "-i", "-r", " a", "-n", "40", "-c", "60")
    assert asked.stdout.count(b" a") >= 3 and asked.returncode == 0
    long = interact(main_path, model_path, b"dog " * 60, "-if", "-c", "40")
    assert long.returncode == 1 and b"the context has" in long.stderr


def test_a_terminal_shows_colours(main_path, model_path):
    """By default the prompt is yellow there, and what the user types green."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [main_path, "-m", model_path, "-p", "Once", "-n", "3", "-i", "--in-prefix", "."]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while b"\x1b[32m" not in shown:
        shown += os.read(ours, 4096)
    assert shown.startswith(b"\x1b[33mOnce\x1b[0m")
    assert shown.endswith(b".\x1b[1m\x1b[32m")
    os.write(ours, b"\x04")  # Ctrl-D
    assert process.wait(timeout=60) == 0
    assert os.read(ours, 4096).endswith(b"\x1b[0m\r\n")
    os.close(ours)


def test_options_of_python_commands(main):
    """Whoever types one of llama.cpp's options is told which program has it."""
    for option, program in (
        ("--grammar", "complete"),
        ("-jf", "complete"),
        ("-md", "chat"),
        ("-hf", "serve"),
        ("--jinja", "chat"),
        ("--port", "serve"),
    ):
        assert f"`powerinfer {program}`" in refused(main(option, "x"), 2)


# ---- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, meant",
    [
        ("--tempp", "--temp"),
        ("--topk", "--top-k"),
        ("-temp", "--temp"),
        ("--prom", "--prompt"),
        ("--vram_budgt", "--vram-budget"),
        ("--Threads", "--threads"),
        ("--ignoreeos", "--ignore-eos"),
    ],
)
def test_suggestions(main, wrong, meant):
    assert f"did you mean {meant}?" in refused(main(wrong, "1"), 2)


@pytest.mark.parametrize(
    "args",
    cases("""
    -x | --nonsense | hello | -n | -n x | -n 1x | -n -3 | -n 99999999999 | -n 1e3 | -c -1 | -c
    3000000000 | -t 1.5 | -t -2 | -b 0 | -ub 0 | -s -2 | -s 18446744073709551616 | --temp nan |
    --temp inf | --temp 1e99 | --temp 0x1 | --temp | --top-p 1.1 | --min-p -1 | --typical 2 |
    --repeat-penalty 0 | --repeat-last-n -2 | --ram-budget 0 | --ram-budget nan | --vram-budget
    -1 | --vram-budget x | -ngl x | -ctk q4_7 | --sparse maybe | --device tpu | --no-mmap=1 |
    --top-k= | --sparse-threshold inf | -f | -fa maybe | -fa= | --color blue | --color=1 | -lm dio |
    --prio 4 | --poll 101 | --log-file | --in-prefix x | -cnv -i --in-suffix x | -sysf x |
    --chat-template chatml | --chat-template-file x | --in-prefix x -p y
"""),
)
def test_malformed_options(main, args):
    refused(main(*args.split()), 2)


def test_empty_names(main):
    for option in ("-m", "-f", "-bf", "-sysf", "--log-file", "--chat-template-file"):
        refused(main(option, ""), 2)


@pytest.mark.parametrize(
    "args",
    cases("""
    -ngl 99 | -ngl all | -ngl auto | -fa | -fa on | -fa auto | -fa off --top-k 3 | -lm mmap+mlock |
    --warmup --no-warmup --simple-io --no-context-shift --offline --no-jinja --prio 2 --poll 50 |
    --vram-budget 0 | --vram-budget 2.5 | --disable-gpu-index | --device cpu | --reset-gpu-index |
    --sparse auto | --sparse off |
    --sparse exact | --sparse-threshold 0.5 | -ctk f16 -ctv f16 | -ctk f32 -ctv f32 | --top_k 3 |
    --top-k=3 | --mlock | --no-mmap |
    --check-tensors | -v | -lv 4 | -t 0 | -t -1 | -no-cnv | --typical 0.9 --repeat-penalty 1.1
    --frequency-penalty 0.1 --presence-penalty 0.1 | --ram-budget 1
"""),
)
def test_accepted_options(main, args):
    result = main(*args.split(), "-n", "3", "-s", "1")
    assert result.returncode == 0 and result.stdout, result.stderr


def test_model_files(main, tmp_path):
    empty, text = tmp_path / "empty.gguf", tmp_path / "text.gguf"
    empty.write_bytes(b"")
    text.write_bytes(b"Once upon a time, there was no model here.")
    for file in (tmp_path / "missing.gguf", tmp_path, empty, text):
        assert str(file) in refused(main(model=file), 1)
        assert str(file) in refused(main("--plan", model=file), 1)
    # A name must not control the terminal.
    assert "\x1b" not in refused(main(model=tmp_path / "\x1b[31m\n"), 1)


def test_truncated_model(main, model_path, tmp_path):
    file = tmp_path / "short.gguf"
    file.write_bytes(model_path.read_bytes()[:-1000])
    assert str(file) in refused(main(model=file), 1)


def begun(main_path, file, *args: str) -> subprocess.Popen:
    """A process that has started to write 400 tokens."""
    process = subprocess.Popen(
        [main_path, "-m", file, "-n", "400", "-c", "512", "-s", "1", "--ignore-eos", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.read(1)
    return process


def test_model_that_shrinks_while_it_runs(main_path, model_path, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(model_path.read_bytes())
    process = begun(main_path, file)
    os.truncate(file, 0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert b"a page of a mapped file is gone" in errors.splitlines()[-1]

    # Without a mapping it does not matter.
    file.write_bytes(model_path.read_bytes())
    process = begun(main_path, file, "--no-mmap")
    os.truncate(file, 0)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and len(text) > 400, errors


def test_budget_too_small(main):
    result = main("--ram-budget", "0.001")
    assert result.returncode == 1 and result.stdout == b""
    error, head, *ways = result.stderr.decode().splitlines()
    assert error.startswith("main: error: ") and head == "These help, but not alone:"
    assert ways and all(way.startswith("  -") for way in ways)


# ---- What prints and stops ----------------------------------------------------------------------


def test_plan(main):
    result = main("--plan", "-c", "100")
    assert result.returncode == 0 and result.stderr == b""
    rows = [line.split() for line in result.stdout.decode().splitlines()]
    assert rows[0] == ["tier", "part", "MiB"]
    parts = {row[1]: float(row[2]) for row in rows if row[0] == "ram"}
    values = {row[0]: float(row[1]) for row in rows if row[0] in ("total", "budget")}
    assert {"ffn", "attention", "kv"} <= parts.keys() and values["budget"] > values["total"] > 0
    assert abs(sum(parts.values()) - values["total"]) < 0.1
    assert b"100 positions" in result.stdout


def test_help_version_devices(main_path):
    for option, words in (
        ("--help", "--top-k"),
        ("-h", "usage"),
        ("--version", "powerinfer_cpp"),
        ("--list-devices", "cpu"),
    ):
        result = subprocess.run([main_path, option], capture_output=True, text=True, timeout=60)
        assert result.returncode == 0 and words in result.stdout and not result.stderr
    text = subprocess.run([main_path, "--help"], capture_output=True, text=True, timeout=60).stdout
    assert "-cnv" in text and "--sparse-threshold" in text


def test_help_tells_the_real_defaults(main, main_path):
    text = subprocess.run([main_path, "--help"], capture_output=True, text=True, timeout=60).stdout
    log = main("-n", "1").stderr.decode()
    for name in [
        "temp",
        "top-k",
        "top-p",
        "min-p",
        "typical",
        "repeat-penalty",
        "repeat-last-n",
        "frequency-penalty",
        "presence-penalty",
    ]:
        said = re.search(rf"(?m)^  --{name}\b.*\(default: ([\d.]+)\)", text).group(1)
        used = re.search(rf"[ ,]{name} = ([\d.]+)", log).group(1)
        assert float(said) == float(used), name


# ---- Ends ----------------------------------------------------------------------------------------


def test_reader_that_leaves(main_path, model_path):
    command = [main_path, "-m", model_path, "-c", "1024", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(process.stdout.read(4)) == 4
    process.stdout.close()
    log = process.stderr.read()
    assert process.wait(timeout=60) == 0 and b"error" not in log


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_device(main_path, model_path):
    for args in (
        ["-m", model_path, "-p", "Once", "-n", "3"],
        ["--help"],
        ["--version"],
        ["-m", model_path, "--plan"],
    ):
        with open("/dev/full", "wb") as full:
            result = subprocess.run(
                [main_path, *args], stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        assert result.returncode == 1 and b"main: error: cannot write to stdout" in result.stderr


def test_stdout_that_was_never_open(main_path, model_path):
    command = [main_path, "-m", model_path, "-p", "Once", "-n", "3"]
    result = subprocess.run(
        command, preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, timeout=60
    )
    assert result.returncode == 1 and b"cannot write to stdout" in result.stderr


def interrupt(process: subprocess.Popen) -> float:
    """Seconds from Ctrl-C to the end."""
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    return time.monotonic() - start


@pytest.mark.xdist_group("timed")
def test_interrupt_while_generating(main_path, model_path):
    # The pipe is not emptied: main gets stuck in a write, which Ctrl-C must end as well.
    command = [main_path, "-m", model_path, "-c", "200000", "-n", "-1", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    time.sleep(0.2)
    assert interrupt(process) < 2
    assert process.returncode == 130
    log = process.stderr.read()
    assert b" eval time = " in log and b"error" not in log


@pytest.mark.xdist_group("timed")
def test_interrupt_while_reading_the_prompt(main_path, model_path, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_text("Lily saw a big dog. " * 15_000)
    command = [main_path, "-m", model_path, "-c", "120000", "-f", prompt, "-n", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not process.stderr.readline().startswith(b"sampler: "):  # the last line before the prompt
        assert process.poll() is None
    assert interrupt(process) < 5
    assert process.returncode == 130


@pytest.mark.xdist_group("timed")
def test_interrupt_while_waiting_for_a_prompt_file(main_path, model_path, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen([main_path, "-m", model_path, "-f", pipe], stderr=subprocess.PIPE)
    time.sleep(0.3)
    assert interrupt(process) < 2
    assert process.returncode == 130
