"""The training itself: steps, measurements on held-out windows, and what a state holds.

Imports torch.
"""

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from .curve import Row
from .data import Tokens
from .network import Mlp
from .recipe import penalty_factor, rate_factor

_DECAY, _BETAS, _CLIP = 0.1, (0.9, 0.95), 1.0  # usual in the training of language models


def has_fast_bf16(device: str) -> bool:
    """Whether BF16 products are faster than those of F32 there."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported()


class Training:
    """A model that is trained for n_steps steps of n_batch windows.

    l1: the last factor of the penalty. parts: in so many pieces a batch is computed. rows: the
    curve. Batches follow from seed and step alone, so a training continues from `state` with the
    same results.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: list[Mlp],
        tokens: Tokens,
        *,
        n_steps: int,
        n_batch: int,
        parts: int,
        lr: float,
        l1: float,
        seed: int,
        device: str,
        bf16: bool,
    ):
        self.model, self.blocks, self.tokens = model, blocks, tokens
        self.n_steps, self.n_batch, self._parts = n_steps, n_batch, parts
        self._lr, self._l1, self._seed = lr, l1, seed
        self._device, self._bf16 = device, bf16
        self.step = 0
        self.rows: list[Row] = []
        self._losses: list[float] = []  # since the last row
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": _DECAY},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=lr,
            betas=_BETAS,
            fused=True,
        )

    def state_bytes(self) -> int:
        """About the size of a state: F32 weights and two moments of each."""
        return 12 * sum(p.numel() for p in self.model.parameters())

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "losses": self._losses,
            "rows": [asdict(row) for row in self.rows],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self._losses = state["step"], list(state["losses"])
        self.rows = [Row(**row) for row in state["rows"]]

    def advance(self) -> None:
        """One step. Raises ValueError if the loss is no number any more."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr * rate_factor(self.step, self.n_steps)
        factor = self._factor()
        batch = self.tokens.batch(self._seed, self.step, self.n_batch)
        mean = 0.0
        for part in torch.from_numpy(batch).tensor_split(self._parts):
            share = len(part) / self.n_batch
            loss = self._loss(part) * share
            mean += loss.item()
            if factor:
                loss = loss + factor * share * self._penalty()
            loss.backward()
        if not math.isfinite(mean):
            raise ValueError(f"the loss of step {self.step} is {mean}: a lower --lr may help")
        nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(mean)
        self.step += 1

    def measure(self, activation: str, threshold: float = 0.0) -> Row:
        """Adds a row for the held-out windows to the curve, and returns it. The blocks then have
        this activation."""
        for block in self.blocks:
            block.activation, block.threshold = activation, threshold
        held_out = torch.from_numpy(self.tokens.held_out)
        loss, penalty = 0.0, 0.0
        zero = torch.zeros(len(self.blocks), dtype=torch.float64)
        size = -(-self.n_batch // self._parts)
        with torch.no_grad():
            for part in held_out.split(size):
                share = len(part) / len(held_out)
                loss += share * self._loss(part).item()
                penalty += share * self._penalty().item()
                shares = [(block.inner == 0).double().mean() for block in self.blocks]
                zero += share * torch.stack(shares).cpu()
        losses, self._losses = self._losses, []
        row = Row(
            step=self.step,
            tokens=self.step * self.n_batch * (held_out.shape[1] - 1),
            activation=activation,
            threshold=threshold,
            loss=sum(losses) / len(losses) if losses else None,
            held_out_loss=loss,
            l1=self._factor(),
            penalty=penalty,
            zero=zero.tolist(),
        )
        self.rows.append(row)
        return row

    def _factor(self) -> float:
        return self._l1 * penalty_factor(self.step / self.n_steps)

    def _loss(self, windows: Tensor) -> Tensor:
        """Mean cross entropy of the windows' tokens but the first."""
        windows = windows.long().to(self._device)
        kind = torch.device(self._device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self._bf16):
            logits = self.model(input_ids=windows[:, :-1], use_cache=False).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())

    def _penalty(self) -> Tensor:
        """Mean over the layers of mean |h| / rms(h), for h of the last call.

        The divisor is taken as a constant. With it the factor means the same for models of any
        width and scale, and the pressure does not fade as the activations become smaller.
        """
        total = torch.zeros((), device=self._device)
        for block in self.blocks:
            inner = block.inner.float()
            rms = inner.detach().square().mean().sqrt().clamp_min(1e-12)
            total = total + inner.abs().mean() / rms
        return total / len(self.blocks)
