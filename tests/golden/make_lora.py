#!/usr/bin/env python3
"""Makes lora/: two adapters of the checkpoint llama-relu-gqa, and what the package peft computes
with them.

    python tests/golden/make_lora.py

Needs torch, transformers and peft (0.21), so that the tests need none of them. The adapters have
random weights of a size that changes every logit. `first` changes all matrices of the layers, in
16 bits. `second` has the head, other ranks and scales for some modules, and rank-stabilised scales.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
BASE = HERE / "llama-relu-gqa"
OUT = HERE / "lora"
N_TOKENS = 12
ADAPTERS: dict[str, dict[str, Any]] = {
    "first": {
        "r": 4,
        "lora_alpha": 6,
        "target_modules": [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
    },
    "second": {
        "r": 3,
        "lora_alpha": 5,
        "use_rslora": True,
        "rank_pattern": {"down_proj": 2},
        "alpha_pattern": {"model.layers.1.self_attn.q_proj": 9},
        "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"],
    },
}
# What is computed with: scales of the adapters.
MIXES = {"first": (1.0, 0.0), "second": (0.0, 1.0), "both": (0.75, -0.5)}


def main() -> None:
    import torch
    from make_golden import logits
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers import AutoModelForCausalLM

    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    base = AutoModelForCausalLM.from_pretrained(
        BASE, dtype=torch.float32, attn_implementation="eager"
    )
    model = None
    for name, given in ADAPTERS.items():
        config = LoraConfig(task_type="CAUSAL_LM", **given)
        if model is None:
            model = get_peft_model(base, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    generator = torch.Generator().manual_seed(7)
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    for layer in layers:
        for name in ADAPTERS:
            for factor, size in ((layer.lora_A, 1.0), (layer.lora_B, 0.6)):
                if name in factor:
                    w = factor[name].weight
                    values = torch.randn(w.shape, generator=generator) * size / w.shape[-1] ** 0.5
                    w.data = values.half().float() if name == "first" else values
    model.save_pretrained(OUT)
    for name in ADAPTERS:
        tidy(OUT / name, half=name == "first")
    (OUT / "README.md").unlink(missing_ok=True)
    tokens = np.random.default_rng(7).integers(3, 300, N_TOKENS).astype(np.int32)
    tokens[0] = 1
    found = {}
    for mix, scales in MIXES.items():
        model.base_model.set_adapter(list(ADAPTERS))
        for layer in layers:
            for name, scale in zip(ADAPTERS, scales, strict=True):
                layer.set_scale(name, scale)
        found[mix] = logits(model.eval(), tokens)
    base_logits = np.load(BASE / "expected.npz")
    np.savez_compressed(OUT / "logits.npz", tokens=tokens, **found)
    size = sum(f.stat().st_size for f in OUT.rglob("*") if f.is_file())
    print(f"{size / 1000:.0f} kB, logits spread over {found['both'].std():.2f}", end="")
    print(f" (the base's over {base_logits['logits'].std():.2f})")


def tidy(folder: Path, half: bool) -> None:
    """Keeps what conversion needs, in 16 bits if the values are exact there."""
    import torch
    from safetensors.torch import load_file, save_file

    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_model.safetensors"
    weights = {}
    for key, value in load_file(path).items():
        exact = half or "base_layer" in key  # peft saves a copy of the base's head, too
        weights[key] = value.to(torch.float16 if exact else torch.float32)
    save_file(weights, path)
    path.chmod(0o644)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "llama-relu-gqa"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
