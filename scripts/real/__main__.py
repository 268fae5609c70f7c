"""Measures a model beside other engines that read GGUF, and a sparse model beside the same weights
computed in full: speed, GB/s beside a plain read, the start, and perplexity, in one page.

MODEL is a GGUF, a folder with one, or a Hugging Face checkpoint, which is converted into the work
folder. It is sparse if it has rows of neurons, or an activation that is 0 for most of them; then
its modes are measured, and the same weights as plain matrices. The engines take turns, test by
test, in each round.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from engines import ROOT, Case, Failed, How, Ours, Peer, Perplexity, others, powerinfer
from table import Measured, Page

try:
    from powerinfer_cpp._native import lib
    from powerinfer_cpp.cli.common import count_text, size_text
    from powerinfer_cpp.cli.doctor import cpu_name, isa
    from powerinfer_cpp.convert import activations
except ImportError as error:
    sys.exit(f"real.sh: error: {error}: ./run builds and installs the package")

DEPTHS, PROMPTS = (0, 2048, 8192), (512, 4096)
# A length that the model's context cuts to less than this share of itself is left out.
WORTH_IT = 0.75


def numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",") if part]
    if any(n < 0 for n in found):
        raise ValueError(text)
    return found


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


numbers.__name__, positive.__name__ = "list of integers", "positive integer"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/real.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL")
    add("--text", type=Path, metavar="F", help="measure perplexity on this text")
    add("--separator", default="", metavar="S", help="of its documents; other engines have none")
    add("-c", type=positive, default=512, metavar="N", dest="ctx", help="window of perplexity")
    add("--predictors", metavar="FOLDER", help="of PowerInfer, for a checkpoint")
    add("--original", metavar="MODEL", help="dense model that MODEL was made of, for perplexity")
    add("--outtype", default="f16", metavar="T", help="of conversions (default: f16)")
    add("--work", type=Path, default=ROOT / "build" / "real", metavar="FOLDER")
    add(
        "--peers",
        nargs="*",
        metavar="[NAME=]PATH",
        help="llama-bench of each other engine, with options of it, if any, in the same word "
        "(default: the llama-bench on the PATH; llama-perplexity and llama-completion or "
        "llama-cli are used if they are beside it)",
    )
    add("--depths", type=numbers, default=DEPTHS, metavar="N,..", help="decode after N tokens")
    add("--prompts", type=numbers, default=PROMPTS, metavar="N,..", help="prompts of N tokens")
    add("-n", type=positive, default=64, metavar="N", dest="gen", help="tokens decoded at a depth")
    add("--kv", default="f16,q8_0", metavar="T,..", help="types of keys and values")
    add("-t", "--threads", type=positive, metavar="N", help="of every engine")
    add("--rounds", type=positive, default=3, metavar="N")
    add("--before", default="", metavar="COMMAND", help="starts each measurement: taskset -c 0,1")
    add("--no-start", action="store_true", help="do not measure the time to the first token")
    add("--out", type=Path, metavar="F", help="write the page there, too")
    add("--json", type=Path, metavar="F", help="write every sample there")
    args = parser.parse_args()
    if args.text is not None:
        if not args.text.exists():
            parser.error(f"{args.text}: cannot be read")
        args.text = args.text.resolve()
    args.work = args.work.resolve()
    return args


def tell(text: str) -> None:
    print(f"real.sh: {text}", file=sys.stderr, flush=True)


HERE = How(1, Path.cwd())  # for commands that are not measured


def convert(*line: str | Path) -> None:
    """Raises Failed."""
    powerinfer(HERE, "convert", *line)


def gguf_of(given: str, name: str, args: argparse.Namespace, *more: str) -> Path:
    """The GGUF of a file or folder, converted if it must be. more: arguments of convert. Raises
    Failed."""
    path, to = Path(given).resolve(), args.work / f"{name}.gguf"
    if path.is_dir() and not (path / "config.json").exists():
        files = list(path.glob("*.gguf"))
        if len(files) != 1:
            raise Failed(f"{path}: neither config.json nor one GGUF")
        path = files[0]
    if not path.exists():
        raise Failed(f"{path}: no such file or folder")
    if path.is_dir() or more:
        tell(f"converting {path}")
        convert(path, *more, "--outtype", args.outtype, "--outfile", to)
        return to
    return path


class Session:
    """One run of the script: what is measured, by whom, and what was found."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises Failed."""
        self.args = args
        args.work.mkdir(parents=True, exist_ok=True)
        self.found = Measured()
        self.peers = others(args.peers)
        threads, before = args.threads or lib.pi_default_threads(), shlex.split(args.before)
        self.how = How(threads, args.work, tuple(before))
        more = [args.predictors] if args.predictors else []
        self.model = gguf_of(args.model, "model", args, *more)
        self.original = gguf_of(args.original, "original", args) if args.original else None
        self.about = json.loads(powerinfer(HERE, "inspect", "--json", self.model))
        self.plain: Path | None = self.model
        self.modes: list[Ours] = []
        self._take_modes()
        self.ours = list(self.modes)
        if self.plain is not None:
            name = "powerinfer dense" if self.modes else "powerinfer"
            self.ours.append(Ours(name, self.plain))
        if self.plain is None and self.peers:
            self.found.skip("Other engines: there is no file that they read.")
            self.peers = []
        self.tests = self._tests()
        self._failed: set[str] = set()

    def _take_modes(self) -> None:
        """The modes of a sparse model, and its weights as plain matrices."""
        aware, work = self.about["neuron_aware"], self.args.work
        if not aware and self.about["activation"] not in activations.RELUS:
            return
        to = work / ("dense.gguf" if aware else "neurons.gguf")
        try:
            convert(self.model, *(["--dense"] if aware else []), "--outfile", to)
        except Failed as error:
            what = "The weights as plain matrices" if aware else "The weights as rows of neurons"
            self.found.skip(f"{what}: convert {error}.")
            if not aware:
                return
            to = self.original  # the next best for the others
        sparse = self.model if aware else to
        self.plain = to if aware else self.model
        names = ["off", "exact"]
        if self.about["predictor_ranks"] or self.about["predictor_sketches"]:
            names += ["predictor", "auto"]
        self.modes = [Ours(f"powerinfer {name}", sparse, name) for name in names]

    def _tests(self) -> list[Case]:
        """Lengths that fit into the model's context."""
        keys, architecture = self.about["metadata"], self.about["architecture"]
        most = keys.get(f"{architecture}.context_length") or 0

        def cut(wanted: Iterable[int], room: int, what: str) -> list[int]:
            fits: list[int] = []
            for n in wanted:
                least = n if not most or n <= room else room
                if least < WORTH_IT * n or least < 0 or least in fits:
                    self.found.skip(f"{what} {n:,}: the model's context has {most:,} tokens.")
                    continue
                if least < n:
                    self.found.skip(
                        f"{what} {n:,} is measured at {least:,}: the model's context has {most:,} "
                        "tokens."
                    )
                fits.append(least)
            return fits

        gen = self.args.gen
        prompts = cut((n for n in self.args.prompts if n), most, "A prompt of")
        depths = cut(self.args.depths, most - gen, "Decoding at")
        return [*(Case(n, 0, 0) for n in prompts), *(Case(0, gen, d) for d in depths)]

    def measure(self) -> None:
        """All rounds of speeds."""
        for i in range(1, self.args.rounds + 1):
            tell(f"round {i} of {self.args.rounds}")
            read = self._try("A plain read", self.how.machine, "read", self.how.threads)
            if read is not None:
                self.found.reads[i] = read["bytes"] / read["s"]
            if not self.args.no_start:
                self._start(i)
            for kv in self.args.kv.split(","):
                for test in self.tests:
                    self._test(i, kv, test)

    def _start(self, i: int) -> None:
        """The time to the first token, beside a copy of the same file, so not of every mode."""
        ours, found = self.ours[-1], self.found
        line = ("copy", ours.model, self.how.threads)
        copy = self._try("A copy of the file", self.how.machine, *line)
        if copy is not None:
            found.copies[i] = copy["s"]
        engines: list[Ours | Peer] = [ours, *self.peers]
        for who in engines:
            s = self._try(f"{who.name}, the first token", who.first, self.how, ours.model)
            if s is not None:
                found.firsts.setdefault(who.name, {})[i] = s

    def _test(self, i: int, kv: str, test: Case) -> None:
        engines: list[Ours | Peer] = [*self.ours, *self.peers]
        for who in engines:
            model = who.model if isinstance(who, Ours) else self.ours[-1].model
            row = self._try(f"{who.name}, {test}, {kv}", who.speed, self.how, model, test, kv)
            if row is None:
                continue
            key = (who.name, kv, test)
            self.found.speeds.setdefault(key, {})[i] = row["avg_ts"]
            if "bytes_per_token" in row:
                self.found.n_bytes[key] = row["bytes_per_token"]
                self.found.neurons[key] = row["neurons_computed"]

    def judge(self) -> None:
        """Perplexities."""
        if self.args.text is None:
            self.found.skip("Perplexity: there is no --text.")
            return
        # llama.cpp has no ReLU in a Llama, so it judges only what is dense.
        dense = self.original if self.modes else self.plain
        for kv in self.args.kv.split(","):
            for ours in self.modes:
                self._judge(ours, ours.model, kv)
            if dense is None:
                continue
            expected = self._judge(Ours("powerinfer", dense), dense, kv)
            for peer in self.peers:
                if expected is not None:
                    self._judge(peer, dense, kv, expected)

    def _judge(
        self, who: Ours | Peer, file: Path, kv: str, expected: Perplexity | None = None
    ) -> Perplexity | None:
        """expected: of the same windows."""
        what, args = f"{who.name}, perplexity, {kv}", self.args
        tell(what)
        line = (self.how, file, args.text, args.ctx, kv, args.separator)
        found = self._try(what, who.perplexity, *line)
        if found is not None and expected is not None and found.windows != expected.windows:
            self.found.skip(
                f"{what}: it scored {found.windows} windows and ours {expected.windows}, so the "
                "figures are not comparable."
            )
            return None
        if found is not None:
            self.found.quality[who.name, file.name, kv] = found
        return found

    def _try(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a call, or None if it fails or has failed before."""
        if what in self._failed:
            return None
        try:
            return call(*args)
        except Failed as error:
            self._failed.add(what)
            self.found.skip(f"{what}: {error}.")
            tell(f"{what}: {error}")
            return None

    def page(self) -> str:
        """The page in Markdown."""
        dense = self.ours[-1].name
        best = self.modes[-1].name if self.modes else dense
        names = [peer.name for peer in self.peers]
        pairs = [(best, dense)] if self.modes and best != dense else []
        pairs += [(name, peer) for name in dict.fromkeys((best, dense)) for peer in names]
        page = Page(self.found, [*(o.name for o in self.ours), *names], pairs, dense)
        return page.text(self.model.name, self._facts())

    def _facts(self) -> list[str]:
        about = self.about
        formats = sorted(about["formats"].items(), key=lambda item: -item[1]["bytes"])
        held = ", ".join(f"{name} {size_text(of['bytes'])}" for name, of in formats)
        weights = f"{count_text(about['n_params'])} weights"
        facts = [
            f"model: {about['architecture']}, {about['activation'] or 'activation not known'}, "
            f"{weights}, {held}",
            f"machine: {cpu_name()}, {self.how.threads} threads, kernels {isa()}",
            f"rounds: {self.args.rounds}, the engines in turn, {self.args.gen} tokens decoded; "
            f"{datetime.now(timezone.utc):%Y-%m-%d}",
        ]
        for peer in self.peers:
            build = peer.about.get("build_commit", "not known")
            options = f", {' '.join(peer.options)}" if peer.options else ""
            facts.append(f"{peer.name}: build {build}{options}")
        return facts

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "facts": self._facts(),
            "n_threads": self.how.threads,
            "rounds": self.args.rounds,
            **self.found.as_json(),
        }


def main() -> int:
    args = arguments()
    try:
        session = Session(args)
    except Failed as error:
        tell(f"error: {error}")
        return 1
    session.measure()
    session.judge()
    page = session.page()
    print(page)
    if args.out:
        args.out.write_text(page)
    if args.json:
        args.json.write_text(json.dumps(session.as_json(), indent=2) + "\n")
    return 0 if session.found.speeds else 1


if __name__ == "__main__":
    sys.exit(main())
