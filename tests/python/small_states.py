"""Small models whose layers have a state, with random weights: one of each kind of layers."""

from __future__ import annotations

from pathlib import Path

import gguf
import mamba_models
import numpy as np
import tiny
from families import golden, quiet
from powerinfer_cpp.convert import convert

KINDS = ["lfm2", "qwen3-5", "nemotron"]
# Of the LFM2, whose short convolutions alternate with attention.
LAYERS = "ccacca"  # convolutions and attention
N_EMBD, N_FF, N_HEAD, N_HEAD_KV, TAPS = 64, 96, 4, 2, 3
HEAD = N_EMBD // N_HEAD


def make(folder: Path, template: str | None = None, kind: str = "lfm2") -> Path:
    """A GGUF of one of KINDS, with a chat template if there is one."""
    if kind == "lfm2":
        return _lfm2(folder, template)
    if kind in mamba_models.MODELS:
        checkpoint = mamba_models.checkpoint(kind, folder / "model")
    else:
        checkpoint = golden(kind, folder / "model")
    if template is not None:
        (checkpoint / "chat_template.jinja").write_text(template)
    return convert(checkpoint, outfile=folder / f"{kind}.gguf", outtype="f32", log=quiet)


def _lfm2(folder: Path, template: str | None) -> Path:
    """Written here, as llama.cpp writes its files, with the tokenizer of `tiny.make`."""
    plain = gguf.GGUFReader(tiny.make(folder / "plain", template))
    path = folder / "states.gguf"
    out = gguf.GGUFWriter(path, "lfm2")
    for field in plain.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            out.add_key_value(field.name, field.contents(), kind, element)
    n_vocab = len(plain.fields["tokenizer.ggml.tokens"].contents())
    out.add_vocab_size(n_vocab)
    out.add_context_length(4096)
    out.add_embedding_length(N_EMBD)
    out.add_block_count(len(LAYERS))
    out.add_feed_forward_length(N_FF)
    out.add_head_count(N_HEAD)
    out.add_head_count_kv([N_HEAD_KV if kind == "a" else 0 for kind in LAYERS])
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(1e6)
    out.add_shortconv_l_cache(TAPS)
    for name, values in _weights(n_vocab).items():
        out.add_tensor(f"{name}.weight", values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _weights(n_vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int, by: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * by / np.sqrt(shape[-1])).astype(np.float32)

    e, f, kv = N_EMBD, N_FF, N_HEAD_KV * HEAD
    found = {"token_embd": normal(n_vocab, e, by=8.0), "token_embd_norm": 1 + normal(e)}
    for i, kind in enumerate(LAYERS):
        parts = {
            "attn_norm": 1 + normal(e),
            "ffn_norm": 1 + normal(e),
            "ffn_gate": normal(f, e, by=2.0),
            "ffn_up": normal(f, e, by=2.0),
            "ffn_down": normal(e, f, by=2.0),
        }
        if kind == "a":
            parts |= {
                "attn_q": normal(e, e, by=2.0),
                "attn_k": normal(kv, e, by=2.0),
                "attn_v": normal(kv, e, by=2.0),
                "attn_output": normal(e, e, by=2.0),
                "attn_q_norm": 1 + normal(HEAD),
                "attn_k_norm": 1 + normal(HEAD),
            }
        else:
            parts |= {
                "shortconv.in_proj": normal(3 * e, e, by=2.0),
                "shortconv.conv": normal(e, TAPS, by=2.0),
                "shortconv.out_proj": normal(e, e, by=2.0),
            }
        found |= {f"blk.{i}.{name}": values for name, values in parts.items()}
    return found
