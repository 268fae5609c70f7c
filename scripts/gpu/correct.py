"""The parts that check results."""

from __future__ import annotations

import re
from collections import Counter

from programs import Failed, Runner
from results import Results


def flags(run: Runner, to: Results) -> None:
    """Flag rounds between device and CPU, with every payload checked."""
    rounds = 400 if run.toy else 1_000_000
    said = run.run(run.test("flags"), rounds)
    found = re.search(r"^(\d+) rounds, ([\d.]+) us each", said, re.M)
    if not found:
        raise Failed(f"test_flags said {said!r}")
    done = int(found[1]) >= rounds
    to.add("flags", "payload of every round", done, rounds=int(found[1]), us=float(found[2]))


def digests(said: str) -> list[tuple[str, str]]:
    """File of the operator and digest of each result."""
    return re.findall(r"^(\w+) ([0-9a-f]{16})$", said, re.M)


def operators(run: Runner, to: Results) -> None:
    """Every operator against its CPU twin, and its bits against those of the shim."""
    here = digests(run.run(run.test("device_ops"), "digests"))
    to.add("operators", "against the CPU's", True, results=len(here))
    again = digests(run.run(run.test("device_ops"), "digests"))
    to.add("operators", "the same bits again", again == here and bool(here))
    there = digests(run.run("test_device_ops", "digests"))
    to.add("operators", "as many results as on the shim", len(there) == len(here))
    same, all_of = Counter(), Counter(name for name, _ in there)
    for (name, mine), (_, its) in zip(here, there, strict=False):
        same[name] += mine == its
    for name, n in all_of.items():
        # Tolerances have been checked above: other bits are news, not a failure of this part.
        to.add("operators", f"{name}.cu: bits of the shim", None, same=same[name], of=n)


def experts(run: Runner, to: Results) -> None:
    """Tiny mixtures at several budgets, over two and three tiers, while experts move: the CPU's
    bits."""
    run.run(run.test("mixture"), *(("only", "bits") if run.toy else ()))
    to.add("experts", "the bits of the CPU", True)


def states(run: Runner, to: Results) -> None:
    """Tiny models with layers that have a state: any cuts, drafts, checkpoints, saved states."""
    run.run(run.test("device_states"), *(("brief",) if run.toy else ()))
    to.add("states", "the bits of the CPU", True)


def split(run: Runner, to: Results) -> None:
    """Tiny models at six budgets, as one graph per row and step by step, three times; and with
    three placements, in exact mode."""
    groups = ("pages",) if run.toy else ("shapes", "pages", "refusals")
    for i in range(1 if run.toy else 3):
        for group in groups:
            run.run(run.test("split"), "only", group)
            to.add("split", f"{group}, time {i + 1}", True)
    if not run.toy:
        run.run(run.test("stream"))
        to.add("split", "prompts that stream the neurons of RAM", True)
    run.run(run.test("homes"))
    to.add("split", "no, random and the hottest neurons: the same logits", True)


def stop(run: Runner, to: Results) -> None:
    """Stopped at every check in mid-token, in both modes: an error, and then the same bits."""
    for i in range(1 if run.toy else 5):
        run.run(run.test("split"), "only", "stops", most=120)
        to.add("stop", f"at every check, time {i + 1}", True)
