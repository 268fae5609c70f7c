#!/usr/bin/env python3
"""Train the small model of stories-relu2: Mamba-2, attention and experts with squared ReLU.

  python models/train_relu2.py --text stories-train.txt --valid stories-valid.txt --out FOLDER

It is a nemotron_h of config.json, as Nemotron 3 Nano is. What a chosen expert computes is made
sparse by an L1 penalty on what its ReLU lets through, before that is squared: where the square is
small its slope is too, so a penalty on squares would leave them small instead of zero. The penalty
grows until a tenth of the neurons fires. Needs torch and safetensors; minutes on a GPU, hours on a
processor. Texts are separated by <|endoftext|>, or are files of tokens that --write-tokens wrote.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

HERE = Path(__file__).resolve().parent
BOS, EOS = 1, 2
SEPARATOR = "<|endoftext|>"


@dataclass
class Shape:
    """Sizes of the model. pattern: M Mamba-2, * attention, E experts."""

    pattern: str = "MEMEM*E"
    n_vocab: int = 2048
    n_embd: int = 256
    n_head: int = 8
    n_head_kv: int = 2
    head_dim: int = 32
    mamba_heads: int = 12
    mamba_head_dim: int = 32
    mamba_groups: int = 2
    mamba_state: int = 64
    taps: int = 4
    n_expert: int = 8
    n_used: int = 2
    n_ff: int = 192
    n_ff_shared: int = 256
    scale: float = 2.5
    eps: float = 1e-5
    n_positions: int = 1024

    def config(self) -> dict[str, object]:
        """config.json, with the keys of published models."""
        return {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "dtype": "float16",
            "hybrid_override_pattern": self.pattern,
            "num_hidden_layers": len(self.pattern),
            "vocab_size": self.n_vocab,
            "hidden_size": self.n_embd,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": None,
            "max_position_embeddings": self.n_positions,
            "tie_word_embeddings": False,
            "layer_norm_epsilon": self.eps,
            "num_attention_heads": self.n_head,
            "num_key_value_heads": self.n_head_kv,
            "head_dim": self.head_dim,
            "attention_bias": False,
            "mamba_num_heads": self.mamba_heads,
            "mamba_head_dim": self.mamba_head_dim,
            "n_groups": self.mamba_groups,
            "ssm_state_size": self.mamba_state,
            "conv_kernel": self.taps,
            "use_conv_bias": True,
            "use_bias": False,
            "mamba_hidden_act": "silu",
            "chunk_size": 64,
            # transformers takes it as a least time step of prompts, which this model does not have.
            "time_step_min": 1e-9,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "intermediate_size": self.n_ff,
            "n_routed_experts": self.n_expert,
            "num_experts_per_tok": self.n_used,
            "moe_intermediate_size": self.n_ff,
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": self.n_ff_shared,
            "moe_latent_size": None,
            "norm_topk_prob": True,
            "routed_scaling_factor": self.scale,
            "n_group": 1,
            "topk_group": 1,
        }


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, groups: int = 1) -> torch.Tensor:
    parts = x.float().unflatten(-1, (groups, -1))
    parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    return parts.flatten(-2) * weight


def scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    rate: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    chunk: int = 64,
) -> torch.Tensor:
    """Mamba-2's recurrence S = exp(dt rate) S + (dt x) b, y = S c, from a state of zeros
    (arXiv 2405.21060, section 6), as products of matrices: within chunks, and between them.

    x: [texts, positions, heads, width]; dt: [texts, positions, heads]; rate: [heads];
    b, c: [texts, positions, groups, state]. Returns y, like x.
    """
    n_text, n, n_head, width = x.shape
    n_group = b.shape[2]
    tail = -n % chunk  # time steps of zero change no state

    def chunks(values: torch.Tensor, heads: int) -> torch.Tensor:
        """[texts, chunks, groups, heads of a group, positions, values]"""
        values = functional.pad(values.flatten(2), (0, 0, 0, tail))
        values = values.unflatten(1, (-1, chunk)).unflatten(-1, (n_group, heads, -1))
        return values.permute(0, 1, 3, 4, 2, 5)

    per_group = n_head // n_group
    fade = chunks(dt * rate, per_group).squeeze(-1).cumsum(-1)  # until and with a position
    x, b, c = chunks(x * dt.unsqueeze(-1), per_group), chunks(b, 1), chunks(c, 1)

    def faded(until: torch.Tensor, since: torch.Tensor, least: int) -> torch.Tensor:
        """exp(until[i] - since[j]) where i - j is at least this, else 0."""
        size = until.shape[-1]
        kept = torch.ones(size, size, dtype=torch.bool, device=until.device).tril(-least)
        found = until.unsqueeze(-1) - since.unsqueeze(-2)
        return found.masked_fill(~kept, -math.inf).exp()

    y = (c @ b.mT * faded(fade, fade, 0)) @ x
    last = fade[..., -1:]
    added = b.mT @ (x * (last - fade).exp().unsqueeze(-1))  # to the state, by each chunk
    whole = last.squeeze(-1).movedim(1, -1)  # [texts, groups, heads, chunks]
    total = whole.cumsum(-1)
    before = torch.einsum("tghij,tjghsw->tighsw", faded(total - whole, total, 1), added)
    y = y + (c @ before) * fade.exp().unsqueeze(-1)
    return y.permute(0, 1, 4, 2, 3, 5).reshape(n_text, n + tail, n_head, width)[:, :n]


class Mamba2(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.inner = shape.mamba_heads * shape.mamba_head_dim
        self.both = 2 * shape.mamba_groups * shape.mamba_state
        channels = self.inner + self.both
        self.in_proj = nn.Linear(
            shape.n_embd, self.inner + channels + shape.mamba_heads, bias=False
        )
        self.conv1d = nn.Conv1d(channels, channels, shape.taps, groups=channels)
        # Rates of 1 to 16, and time steps of 0.001 to 0.1, as in the paper's code.
        dt = torch.exp(torch.empty(shape.mamba_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus gives dt
        self.A_log = nn.Parameter(torch.empty(shape.mamba_heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(shape.mamba_heads))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, shape.n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        gate, mixed, dt = (
            self.in_proj(x)
            .float()
            .split([self.inner, self.inner + self.both, shape.mamba_heads], -1)
        )
        with torch.autocast(x.device.type, enabled=False):
            # Shifted sums: quicker than conv1d where each channel has its own few taps.
            padded = functional.pad(mixed, (0, 0, shape.taps - 1, 0))
            n = x.shape[1]
            taps = self.conv1d.weight.squeeze(1)
            mixed = self.conv1d.bias + sum(
                padded[:, i : i + n] * taps[:, i] for i in range(shape.taps)
            )
            values, b, c = functional.silu(mixed).split(
                [self.inner, self.both // 2, self.both // 2], -1
            )
            values = values.unflatten(-1, (shape.mamba_heads, -1))
            b, c = (part.unflatten(-1, (shape.mamba_groups, -1)) for part in (b, c))
            y = scan(values, functional.softplus(dt + self.dt_bias), -self.A_log.exp(), b, c)
            y = (y + self.D.unsqueeze(-1) * values).flatten(2) * functional.silu(gate)
            y = rms_norm(y, self.norm.weight, shape.eps, shape.mamba_groups)
        return self.out_proj(y)


class Attention(nn.Module):
    """Without positions: the Mamba layers know the order."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        for name, heads in (("q", shape.n_head), ("k", shape.n_head_kv), ("v", shape.n_head_kv)):
            projection = nn.Linear(shape.n_embd, heads * shape.head_dim, bias=False)
            setattr(self, f"{name}_proj", projection)
        self.o_proj = nn.Linear(shape.n_head * shape.head_dim, shape.n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        times = self.shape.n_head // self.shape.n_head_kv
        k, v = (part.repeat_interleave(times, 1) for part in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """All experts are computed for all tokens, as one block: in this size that is quickest."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        rows = shape.n_expert * shape.n_ff
        self.gate = nn.Linear(shape.n_embd, shape.n_expert, bias=False)
        # Added to the scores for the choice alone. No gradient: `balance` keeps all in use.
        self.register_buffer("choice_bias", torch.zeros(shape.n_expert))
        self.register_buffer("load", torch.zeros(shape.n_expert))
        self.up_proj = nn.Linear(shape.n_embd, rows, bias=False)
        self.down_proj = nn.Linear(rows, shape.n_embd, bias=False)
        self.shared_up = nn.Linear(shape.n_embd, shape.n_ff_shared, bias=False)
        self.shared_down = nn.Linear(shape.n_ff_shared, shape.n_embd, bias=False)
        self.passed: torch.Tensor | float = 0.0  # mean of what ReLU let through, with gradient
        self.firing: torch.Tensor | float = 0.0  # share of neurons that fired

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        with torch.autocast(x.device.type, enabled=False):
            scores = self.gate(x.float()).sigmoid()
            chosen = (scores.detach() + self.choice_bias).topk(shape.n_used).indices
            weights = scores.gather(-1, chosen)
            weights = shape.scale * weights / (weights.sum(-1, keepdim=True) + 1e-20)
            used = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
            weights = torch.zeros_like(scores).scatter(-1, chosen, weights)
        routed = functional.relu(self.up_proj(x)).unflatten(-1, (shape.n_expert, -1))
        shared = functional.relu(self.shared_up(x))
        if self.training:
            with torch.no_grad():
                self.load = used.sum((0, 1))
            ones = used.unsqueeze(-1).to(routed.dtype)
            count = used.shape[0] * used.shape[1] * (shape.n_used * shape.n_ff + shape.n_ff_shared)
            self.passed = (
                (routed * ones).sum(dtype=torch.float32) + shared.sum(dtype=torch.float32)
            ) / count
            with torch.no_grad():
                fired = ((routed > 0) * ones).sum(dtype=torch.float32) + (shared > 0).sum()
                self.firing = fired / count
        routed = routed.square() * weights.unsqueeze(-1).to(routed.dtype)
        return self.down_proj(routed.flatten(-2)) + self.shared_down(shared.square())

    @torch.no_grad()
    def balance(self, step: float) -> None:
        """Moves the choice towards experts that the last batch used less than others."""
        self.choice_bias += step * (self.load.mean() - self.load).sign()


class Model(nn.Module):
    def __init__(self, shape: Shape, dropout: float = 0.0):
        super().__init__()
        self.shape, self.dropout = shape, dropout
        kinds = {"M": Mamba2, "*": Attention, "E": Experts}
        self.embeddings = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.mixers = nn.ModuleList(kinds[kind](shape) for kind in shape.pattern)
        count = len(shape.pattern) + 1
        self.norms = nn.ParameterList(torch.ones(shape.n_embd) for _ in range(count))
        self.head = nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                out = name.endswith(("out_proj", "o_proj", "down_proj", "shared_down"))
                spread = 0.03 / math.sqrt(count) if out else 0.03
                nn.init.normal_(module.weight, std=spread)
        nn.init.normal_(self.embeddings.weight, std=0.03)

    @property
    def experts(self) -> list[Experts]:
        return [mixer for mixer in self.mixers if isinstance(mixer, Experts)]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        def drop(values: torch.Tensor) -> torch.Tensor:
            return functional.dropout(values, self.dropout, self.training)

        x = drop(self.embeddings(tokens))
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = x + drop(mixer(rms_norm(x, norm, self.shape.eps)))
        return self.head(rms_norm(x, self.norms[-1], self.shape.eps)).float()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """With the names of published checkpoints."""
        yield "backbone.embeddings.weight", self.embeddings.weight
        for i, mixer in enumerate(self.mixers):
            ours = f"backbone.layers.{i}"
            yield f"{ours}.norm.weight", self.norms[i]
            if not isinstance(mixer, Experts):
                for name, values in mixer.named_parameters():
                    yield f"{ours}.mixer.{name}", values
                continue
            yield f"{ours}.mixer.gate.weight", mixer.gate.weight
            yield f"{ours}.mixer.gate.e_score_correction_bias", mixer.choice_bias
            yield f"{ours}.mixer.shared_experts.up_proj.weight", mixer.shared_up.weight
            yield f"{ours}.mixer.shared_experts.down_proj.weight", mixer.shared_down.weight
            up = mixer.up_proj.weight.chunk(self.shape.n_expert, 0)
            down = mixer.down_proj.weight.chunk(self.shape.n_expert, 1)
            for e, (rows, columns) in enumerate(zip(up, down, strict=True)):
                yield f"{ours}.mixer.experts.{e}.up_proj.weight", rows
                yield f"{ours}.mixer.experts.{e}.down_proj.weight", columns
        yield "backbone.norm_f.weight", self.norms[-1]
        yield "lm_head.weight", self.head.weight

    def save(self, folder: Path) -> None:
        """A checkpoint of transformers in F16; what chooses experts stays F32, as published."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.shape.config(), indent=2) + "\n")
        found = {
            name: values.detach()
            .to("cpu", torch.float32 if name.endswith("correction_bias") else torch.float16)
            .contiguous()
            for name, values in self.tensors()
        }
        part = folder / "model.safetensors.part"
        save_file(found, part, metadata={"format": "pt"})
        part.replace(folder / "model.safetensors")


def read_tokens(path: Path, tokenizer: Path) -> np.ndarray:
    """Of each text, after BOS and before EOS."""
    if path.suffix == ".bin":
        return np.fromfile(path, np.uint16).astype(np.int64)
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    found: list[int] = []
    for text in path.read_text(encoding="utf-8").split(SEPARATOR):
        if text.strip():
            found += [BOS, *pieces.encode(text.strip()), EOS]
    return np.array(found, np.int64)


@torch.no_grad()
def perplexity(model: Model, tokens: torch.Tensor, n_ctx: int = 256) -> float:
    """Of the second half of windows that begin with BOS, as `powerinfer perplexity` measures it."""
    windows = tokens[: len(tokens) // n_ctx * n_ctx].view(-1, n_ctx).clone()
    windows[:, 0] = BOS
    model.eval()
    total = 0.0
    for rows in windows.split(16):
        logits = model(rows)[:, n_ctx // 2 - 1 : -1]
        total += functional.cross_entropy(
            logits.flatten(0, 1), rows[:, n_ctx // 2 :].flatten(), reduction="sum"
        ).item()
    model.train()
    return math.exp(total / (len(windows) * (n_ctx // 2)))


def batches(tokens: torch.Tensor, n_ctx: int, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Windows of n_ctx + 1 tokens for ever: each pass has all of the texts, cut at other places and
    in another order. A fifth of the windows is moved to the beginning of its text; the others get
    BOS in front, which is how the model is run."""
    rng = np.random.default_rng(seed)
    begins = np.flatnonzero(tokens.cpu().numpy() == BOS)
    span = torch.arange(n_ctx + 1, device=tokens.device)
    while True:
        starts = np.arange(rng.integers(n_ctx), len(tokens) - n_ctx, n_ctx)
        rng.shuffle(starts)
        moved = rng.random(len(starts)) < 0.2
        texts = begins[np.searchsorted(begins, starts, side="right") - 1]
        starts = np.where(moved, texts, starts)
        for i in range(0, len(starts) - size + 1, size):
            at = torch.from_numpy(starts[i : i + size]).to(tokens.device)
            rows = tokens[at.unsqueeze(1) + span]
            rows[:, 0] = BOS
            yield rows


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    device = options.device
    torch.set_float32_matmul_precision("high")  # of the scan, which is not in BF16
    shape = Shape(**{f.name: getattr(options, f.name) for f in fields(Shape)})
    model = Model(shape, options.dropout).to(device)
    tokens = torch.from_numpy(read_tokens(options.text, options.tokenizer)).to(device)
    # The last texts are kept out, to compare runs by; the valid ones are for the card alone.
    begins = torch.nonzero(tokens == BOS).flatten()
    cut = int(begins[-max(1, min(options.held_out, len(begins) // 2))])
    tokens, held_out = tokens[:cut], tokens[cut:]
    steps = max(1, round(options.epochs * len(tokens) / (options.batch * options.ctx)))
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(tokens)} tokens, {count} parameters, {steps} steps", flush=True)

    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": options.decay},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)
    data = batches(tokens, options.ctx, options.batch, options.seed)
    log_l1 = torch.tensor(math.log(0.02), device=device)
    mixed = torch.autocast(device, torch.bfloat16, enabled=options.bf16)
    start = saved = time.monotonic()
    loss = firing = torch.zeros(())
    for step in range(steps + 1):
        now = time.monotonic()
        done = max(step / steps, (now - start) / (60 * options.minutes))
        last = done >= 1
        if step % options.report == 0 or last:
            shares = " ".join(f"{float(block.firing):.3f}" for block in model.experts)
            loads = " ".join(
                f"{float(block.load.max() / block.load.mean().clamp(min=1)):.2f}"
                for block in model.experts
            )
            print(
                f"step {step} {now - start:.0f} s loss {loss.item():.3f} firing {shares} "
                f"L1 {log_l1.exp().item():.4f} largest load {loads}",
                flush=True,
            )
            if not math.isfinite(loss.item()):
                raise SystemExit("the loss is no number")
        if now - saved > 60 or last:
            saved = now
            model.save(options.out)
            print(f"held out: perplexity {perplexity(model, held_out):.4f}", flush=True)
        if last:
            break
        rate = min(1, (step + 1) / min(200, max(1, steps // 10))) * (
            0.02 + 0.49 * (1 + math.cos(math.pi * done))
        )
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate
        rows = next(data)
        with mixed:
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        passed = torch.stack([block.passed for block in model.experts]).mean()
        (loss + log_l1.exp() * passed).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # The penalty follows the share that fires, which is to fall over the first half.
        target = options.firing * (0.5 / options.firing) ** max(0.0, 1 - done / 0.5)
        firing = torch.stack([block.firing for block in model.experts]).mean()
        log_l1 += 20 / steps * (firing / target - 1).clamp(-1, 1)
        log_l1.clamp_(math.log(0.01), math.log(2))
        for block in model.experts:
            block.balance(2e-3 * rate)

    # As the file has them.
    torch.set_float32_matmul_precision("highest")
    for values in model.parameters():
        values.data = values.data.half().float()
    valid = torch.from_numpy(read_tokens(options.valid, options.tokenizer)).to(device)
    for name, text in (("held out", held_out), ("valid", valid)):
        print(f"F16 weights, {name}: perplexity {perplexity(model, text):.4f}", flush=True)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.model")
    parser.add_argument("--write-tokens", action="store_true", help="write two files of tokens")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    bf16 = argparse.BooleanOptionalAction
    parser.add_argument("--bf16", action=bf16, default=torch.cuda.is_available())
    parser.add_argument("--minutes", type=float, default=1e6, help="end after these at the latest")
    parser.add_argument("--epochs", type=float, default=32)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--firing", type=float, default=0.1, help="share of neurons that may fire")
    parser.add_argument("--held-out", type=int, default=100, help="texts of the training text")
    parser.add_argument("--report", type=int, default=200, help="steps between lines")
    parser.add_argument("--seed", type=int, default=0)
    for field in fields(Shape):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.write_tokens:
        for path in (options.text, options.valid):
            tokens = read_tokens(path, options.tokenizer)
            tokens.astype(np.uint16).tofile(options.out / f"{path.stem}.bin")
        return
    shutil.copyfile(options.tokenizer, options.out / "tokenizer.model")
    train(options)


if __name__ == "__main__":
    main()
