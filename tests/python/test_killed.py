"""Commands that are killed and started again write the same bytes as without the kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import disturbing
import pytest
from disturbing import COMMANDS, SOME_COMMANDS, Command, contents, distinct, growing

OLD = b"what was there before"


def final_name(command: Command) -> str:
    """The output file of the command."""
    (name,) = (name for name in command.undisturbed[0] if name.startswith(("out.", "o.")))
    return name


def died(command: Command, out: Path, harm: str, step: int) -> None:
    """Runs until the kill; the final name has the old file or the new one."""
    name, whole = final_name(command), command.undisturbed[0]
    before = (out / name).read_bytes() if (out / name).exists() else None
    done, _ = command.run(out, harm, step)
    want = signal.SIGKILL if harm == "kill" else signal.SIGXFSZ
    assert done.returncode == -want, done.stderr
    after = (out / name).read_bytes() if (out / name).exists() else None
    assert after in (before, whole[name])


def finishes(command: Command, out: Path) -> None:
    """A new run of the command writes its usual output, and leaves nothing else."""
    done, _ = command.run(out)
    assert done.returncode == 0, done.stderr
    found, whole = contents(out), command.undisturbed[0]
    assert sorted(found) == sorted(whole)
    assert [name for name in whole if found[name] != whole[name]] == []


@COMMANDS
def test_twice(command: Command) -> None:
    """Files do not depend on the time, and an old file is replaced."""
    out = command.new_folder()
    (out / final_name(command)).write_bytes(OLD)
    finishes(command, out)


@COMMANDS
def test_killed_again_and_again(command: Command) -> None:
    """Each kill is a little later, in the remains of the last one."""
    out, steps = command.new_folder(), command.undisturbed[1]
    at = [step for step in (1, 3, 6, 8) if step < len(steps)]
    for step in at:
        died(command, out, "kill", step)
    finishes(command, out)


@pytest.mark.slow
@SOME_COMMANDS
def test_killed_at_every_step(command: Command) -> None:
    """Before each kind of step, and in the middle of writing each kind of file."""
    steps = command.undisturbed[1]
    most = 10 if command.name == "mlp" else 40  # torch takes seconds to start
    cuts = growing(steps)
    for step in distinct(steps, most):
        for harm in ("kill", "cut") if step in cuts else ("kill",):
            out = command.new_folder()
            (out / final_name(command)).write_bytes(OLD)
            died(command, out, harm, step)
            finishes(command, out)


@pytest.mark.slow
@pytest.mark.peer("torch")
@pytest.mark.parametrize("command", ["mlp"], indirect=True)
@pytest.mark.parametrize("line", ["layer 0, rank", "layer 0 alone", "perplexity"])
def test_killed_from_outside(command: Command, line: str) -> None:
    """A kill at an output line; finished work is not repeated."""
    out = command.new_folder()
    arguments = [a.replace("OUT/", f"{out}/") for a in command.line]
    process = subprocess.Popen(
        [sys.executable, "-m", "powerinfer_cpp.cli", *arguments],
        env=disturbing.ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        errors="replace",
    )
    with process:
        assert any(text.startswith(line) for text in process.stderr)
        process.kill()
    assert process.returncode == -signal.SIGKILL and not (out / "out.gguf").exists()
    learnt = {path.stem for path in (out / "out.gguf.train").glob("*.npz")}
    assert learnt
    done, steps = command.run(out)
    assert done.returncode == 0, done.stderr
    assert not learnt & {Path(step).stem for step in steps if step.startswith("open ")}
    assert contents(out) == command.undisturbed[0]
