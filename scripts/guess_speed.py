#!/usr/bin/env python3
"""Measures what the layer that guesses tokens (multi-token prediction) saves at an acceptance.

    scripts/guess_speed.py 4b.gguf --make 4b      # Qwen 3.5 4B's shape, random weights in Q4_0
    scripts/guess_speed.py q-mtp.gguf --add q.gguf  # q.gguf, and a layer like its last attention
    scripts/guess_speed.py 4b.gguf --accept 0.8

A text is written greedily several times without guesses, and then with them, by a model that was
opened for it. Each guess is computed, and with the probability of --accept the text's own next
token is taken in its place, else another one: so random weights will do. Whether guesses pay is
not asked unless --judge is given: then they are left out for a while where they do not.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from powerinfer_cpp.convert import source
from powerinfer_cpp.convert.formats import Format, encode, format_by_name
from powerinfer_cpp.convert.stored import Stored
from powerinfer_cpp.convert.writer import Entry, array, boolean, float32, string, uint32, write_gguf
from powerinfer_cpp.core.gguf import Gguf
from powerinfer_cpp.core.session import Session
from powerinfer_cpp.run.drafts import Drafts, LlamaDraftMtp

from powerinfer_cpp import Llama

SLAB = 4096  # rows of random numbers that all matrices share


@dataclass(frozen=True)
class Shape:
    """Sizes of a published Qwen 3.5."""

    layers: int
    embd: int
    ff: int
    heads: int
    kv: int
    v_heads: int
    vocab: int = 248320
    head: int = 256
    period: int = 4
    k_heads: int = 16
    width: int = 128  # of a head of a delta net


SHAPES = {
    "0.8b": Shape(24, 1024, 3584, 8, 2, 16),
    "2b": Shape(24, 2048, 6144, 8, 2, 16),
    "4b": Shape(32, 2560, 9216, 16, 4, 32),
    "9b": Shape(32, 4096, 12288, 16, 4, 32),
    "small": Shape(4, 256, 512, 2, 1, 16, vocab=4096),
}


def tensors(s: Shape, fmt: Format) -> Iterator[Stored]:
    """Those of the model, and of the layer that guesses."""
    rng = np.random.default_rng(1)
    f32 = format_by_name("F32")

    def matrix(name: str, rows: int, cols: int) -> Stored:
        n = min(SLAB, rows)
        values = rng.standard_normal((n, cols), np.float32) / np.float32(np.sqrt(cols))
        slab = encode(fmt, values).reshape(n, -1)
        read = lambda a, b: slab[np.arange(a, b) % n].reshape(-1)  # noqa: E731
        return Stored(f"{name}.weight", (rows, cols), fmt, read)

    def plain(name: str, values: np.ndarray) -> Stored:
        rows = values.astype(np.float32).reshape(-1, values.shape[-1])
        return Stored(name, values.shape, f32, lambda a, b: rows[a:b].reshape(-1).view(np.uint8))

    def norm(name: str, n: int) -> Stored:
        return plain(f"{name}.weight", np.ones(n))

    yield matrix("token_embd", s.vocab, s.embd)
    yield norm("output_norm", s.embd)
    yield matrix("output", s.vocab, s.embd)
    k, v = s.k_heads * s.width, s.v_heads * s.width
    for i in range(s.layers + 1):
        b = f"blk.{i}"
        yield norm(f"{b}.attn_norm", s.embd)
        yield norm(f"{b}.post_attention_norm", s.embd)
        if i == s.layers:
            yield matrix(f"{b}.nextn.eh_proj", s.embd, 2 * s.embd)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                yield norm(f"{b}.nextn.{name}", s.embd)
        if i == s.layers or (i + 1) % s.period == 0:
            yield matrix(f"{b}.attn_q", 2 * s.heads * s.head, s.embd)
            yield matrix(f"{b}.attn_k", s.kv * s.head, s.embd)
            yield matrix(f"{b}.attn_v", s.kv * s.head, s.embd)
            yield matrix(f"{b}.attn_output", s.embd, s.heads * s.head)
            yield norm(f"{b}.attn_q_norm", s.head)
            yield norm(f"{b}.attn_k_norm", s.head)
        else:
            yield matrix(f"{b}.attn_qkv", 2 * k + v, s.embd)
            yield matrix(f"{b}.attn_gate", v, s.embd)
            yield matrix(f"{b}.ssm_beta", s.v_heads, s.embd)
            yield matrix(f"{b}.ssm_alpha", s.v_heads, s.embd)
            yield plain(f"{b}.ssm_conv1d.weight", rng.standard_normal((2 * k + v, 4)) / 2)
            yield plain(f"{b}.ssm_dt.bias", np.zeros(s.v_heads))
            yield plain(f"{b}.ssm_a", np.full(s.v_heads, -0.1))
            yield norm(f"{b}.ssm_norm", s.width)
            yield matrix(f"{b}.ssm_out", s.embd, v)
        yield matrix(f"{b}.ffn_gate", s.ff, s.embd)
        yield matrix(f"{b}.ffn_up", s.ff, s.embd)
        yield matrix(f"{b}.ffn_down", s.embd, s.ff)


def keys(s: Shape) -> list[Entry]:
    """The metadata."""
    sizes = {
        "context_length": 32768,
        "embedding_length": s.embd,
        "block_count": s.layers + 1,
        "nextn_predict_layers": 1,
        "feed_forward_length": s.ff,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv,
        "attention.key_length": s.head,
        "attention.value_length": s.head,
        "rope.dimension_count": s.head // 4,
        "full_attention_interval": s.period,
        "ssm.conv_kernel": 4,
        "ssm.state_size": s.width,
        "ssm.group_count": s.k_heads,
        "ssm.time_step_rank": s.v_heads,
        "ssm.inner_size": s.v_heads * s.width,
    }
    words = ["<unk>", "<s>", "</s>", *(f"<{i}>" for i in range(s.vocab - 3))]
    return [
        string("general.name", "random weights that guess"),
        *(uint32(f"qwen35.{key}", value) for key, value in sizes.items()),
        array("qwen35.rope.dimension_sections", "INT32", [11, 11, 10, 0]),
        float32("qwen35.attention.layer_norm_rms_epsilon", 1e-6),
        float32("qwen35.rope.freq_base", 1e7),
        string("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", "STRING", words),
        array("tokenizer.ggml.scores", "FLOAT32", [-float(i) for i in range(s.vocab)]),
        array("tokenizer.ggml.token_type", "INT32", [2, 3, 3] + [4] * (s.vocab - 3)),
        uint32("tokenizer.ggml.bos_token_id", 1),
        uint32("tokenizer.ggml.eos_token_id", 2),
        boolean("tokenizer.ggml.add_bos_token", False),
        boolean("tokenizer.ggml.add_space_prefix", False),
    ]


def added(gguf: Gguf) -> tuple[list[Entry], list[Stored]]:
    """A model with a layer that guesses: as its last one with attention, whose feed-forward block
    or experts are those of the last layer with such, behind norms of 1 and a random matrix."""
    arch, n = gguf.value("general.architecture"), source.n_layer(gguf)
    found = source.tensors(gguf)
    of_layer: dict[int, list[Stored]] = {}
    for tensor in found:
        if tensor.name.startswith("blk."):
            of_layer.setdefault(int(tensor.name.split(".")[1]), []).append(tensor)
    if len(of_layer) > n:
        raise SystemExit("the file has such a layer")

    def last(part: str) -> int:
        return max(i for i, of in of_layer.items() if any(part in t.name for t in of))

    attention, block = last(".attn_output."), last(".ffn_up")
    new = []
    for i in dict.fromkeys((attention, block)):
        for tensor in of_layer[i]:
            name = tensor.name.split(".", 2)[2]
            if i == block != attention and name == "attn_norm.weight":  # one norm in each layer
                name = "post_attention_norm.weight"
            new.append(replace(tensor, name=f"blk.{n}.{name}"))
    n_embd = source.size(gguf, "embedding_length")
    fmt = format_by_name("Q8_0" if n_embd % 16 == 0 else "F16")
    values = np.random.default_rng(1).standard_normal((n_embd, 2 * n_embd), np.float32)
    matrix = encode(fmt, values / np.float32(np.sqrt(n_embd))).reshape(n_embd, -1)
    ones = np.ones(n_embd, np.float32).view(np.uint8)
    join = Stored(
        f"blk.{n}.nextn.eh_proj.weight", values.shape, fmt, lambda a, b: matrix[a:b].reshape(-1)
    )
    norms = [
        Stored(
            f"blk.{n}.nextn.{name}.weight", (n_embd,), format_by_name("F32"), lambda _a, _b: ones
        )
        for name in ("enorm", "hnorm", "shared_head_norm")
    ]
    entries = []
    for entry in source.entries(gguf):
        if isinstance(entry.value, list) and len(entry.value) == n and arch in entry.key:
            of = attention if ".attention." in entry.key else block
            entry = replace(entry, value=[*entry.value, entry.value[of]])
        if entry.key != f"{arch}.block_count":
            entries.append(entry)
    entries += [uint32(f"{arch}.block_count", n + 1), uint32(f"{arch}.nextn_predict_layers", 1)]
    return entries, [*found, *new, join, *norms]


class Luck:
    """Session.guess with a chosen acceptance."""

    def __init__(self, accept: float, text: list[int]) -> None:
        self.accept, self.known = accept, text
        self.compute, self.rng = Session.guess, np.random.default_rng(0)
        self.n = self.right = 0

    def guess(self, session: Session, token: int, sequence: int = 0) -> tuple[int, float]:
        self.compute(session, token, sequence)
        n = session.length(sequence) + 1
        self.n += 1
        if n < len(self.known) and self.rng.random() < self.accept:
            self.right += 1
            return self.known[n], 1.0
        return 3, 1.0


def written(llm: Llama, n: int) -> tuple[list[int], float]:
    """A text of n tokens, and tokens a second behind its first ones."""
    warm, ids = 8, list(range(3, 35))
    steps = llm.generate(ids, temp=0.0)
    ids += [next(steps) for _ in range(warm)]
    begin = time.perf_counter()
    ids += [next(steps) for _ in range(n)]
    return ids, n / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", type=Path)
    add("--make", choices=SHAPES, help="write the model, and measure nothing")
    add("--add", type=Path, metavar="FILE", help="the same of this model, with a guessing layer")
    add("--type", default="Q4_0", help="of the matrices of --make")
    add("--accept", type=float, nargs="+", default=[0.8])
    add("--n", type=int, default=128, help="tokens of a text")
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=0, help="0: all")
    add("--judge", action="store_true", help="leave guesses out where they do not pay")
    args = parser.parse_args()
    if args.make:
        shape, fmt = SHAPES[args.make], format_by_name(args.type)
        write_gguf(args.model, "qwen35", keys(shape), list(tensors(shape, fmt)))
        return
    if args.add:
        with Gguf(str(args.add)) as gguf:
            entries, stored = added(gguf)
            arch = str(gguf.value("general.architecture"))
            write_gguf(args.model, arch, entries, stored, gguf.files)
        return
    if not args.judge:
        Drafts.TRIAL = 1 << 30
    options = {"n_ctx": args.n + 64, "n_threads": args.threads or None, "verbose": False}
    with Llama(args.model, **options) as llm:
        texts = [written(llm, args.n) for _ in range(args.rounds + 1)][1:]
    text, alone = texts[0][0], [speed for _, speed in texts]
    lucks, guessed = [Luck(accept, text) for accept in args.accept], []
    with Llama(args.model, draft_model=LlamaDraftMtp(0.0), **options) as llm:
        if not llm._model.guesses:
            raise SystemExit("the model does not fit memory with its guessing layer")
        for luck in lucks:
            Session.guess = lambda *given, by=luck, **more: by.guess(*given, **more)
            texts = [written(llm, args.n) for _ in range(args.rounds + 1)][1:]
            Session.guess = luck.compute
            if any(ids != text for ids, _ in texts):
                raise SystemExit("the text with guesses is another one")
            guessed.append([speed for _, speed in texts])
    base = statistics.median(alone)
    print(f"without guesses: {base:.2f} tokens/s")
    for luck, speeds in zip(lucks, guessed, strict=True):
        speed = statistics.median(speeds)
        print(
            f"acceptance {luck.right / max(luck.n, 1):.2f} of {luck.n} guesses: {speed:.2f} "
            f"tokens/s, {speed / base:.2f} times"
        )


if __name__ == "__main__":
    main()
