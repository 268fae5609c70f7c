"""Tiny checkpoints of models that give vectors and scores of texts, laid out as published ones are.

Weights are random; encoder_reference.py computes with them in float64. Tokenizers are those of the
package `tokenizers`, whose ids are the reference for ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
from encoder_shapes import SHAPES, Shapes, linear, norm
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as post

N_CTX = 320  # positions: more than a block of attention (256)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = ("the", "bear", "river", "of", "and", "small", "frog", "ball", "##ing", "##ly", "un")
OTHERS = (*".,!?-'()%$", "中", "文", "é", "ü", "и", "да", "##да", "か", "し", "##し")

# ---- Tokenizers ----------------------------------------------------------------------------------


OF_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OF_MPNET = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")


def word_pieces(first: tuple[str, ...] = OF_BERT, **how: Any) -> Tokenizer:
    """WordPiece, as BERT's tokenizer.json has it. first: special tokens; how: of BertNormalizer."""
    texts = [*first, *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS, *OTHERS]
    vocab = {text: i for i, text in enumerate(texts)}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(**how)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in first])
    if first == OF_BERT:
        cls, sep = "[CLS]", "[SEP]"
        made.post_processor = post.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
        )
    else:
        made.post_processor = post.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


MERGES = (
    *(("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("an", "d"), ("r", "e")),
    *(("y", "e"), ("ye", "s"), ("n", "o"), ("Ã", "©"), ("Ġ", "b"), ("e", "r")),
)


def byte_pairs(
    special: tuple[str, ...], single: str, pair: str, nfc: bool = False, plain: tuple[str, ...] = ()
) -> Tokenizer:
    """Byte-level BPE. special: the first tokens; single, pair: templates; plain: further added
    tokens that are no control tokens."""
    texts = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(m) for m in MERGES)]
    vocab = {text: i for i, text in enumerate(texts)}
    made = Tokenizer(models.BPE(vocab, list(MERGES)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if nfc:
        made.normalizer = normalizers.NFC()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    if single:
        known = [(text, vocab[text]) for text in special]
        made.post_processor = post.TemplateProcessing(single, pair, known)
    return made


ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TURNS = ("<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDS = ("<|begin|>", "<|end|>", "<|mask|>", "<|pad|>")


def of_roberta() -> Tokenizer:
    return byte_pairs(ROBERTA, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


def between(first: str, last: str) -> Tokenizer:
    return byte_pairs(
        (first, last, "[MASK]", "[PAD]"),
        f"{first} $A {last}",
        f"{first} $A {last} $B {last}",
        nfc=True,
    )


# ---- Families ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Small:
    """What a checkpoint is like. prefix: of the tensors of the encoder; head: those of the ranker;
    unused: those that no vector depends on; pooling: sentence-transformers' name; dense: widths and
    activations of what is behind it."""

    config: dict[str, Any]
    tokenizer: Any
    prefix: str = ""
    head: Shapes = field(default_factory=dict)
    unused: Shapes = field(default_factory=dict)
    pooling: str = "mean"
    dense: tuple[tuple[int, str], ...] = ()
    old_norms: bool = False  # named gamma and beta
    padding: int = 0  # rows of the embedding beyond the tokens
    five: dict[str, Any] | None = None  # config.json as transformers 5 has it, whose names it has


BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "max_position_embeddings": N_CTX,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
OF_ROBERTA = {
    "architectures": ["RobertaModel"],
    "model_type": "roberta",
    "max_position_embeddings": N_CTX + 2,
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    **{"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
}
MODERN: dict[str, Any] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertModel"],
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "hidden_activation": "gelu",
    "max_position_embeddings": N_CTX,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "global_attn_every_n_layers": 3,
    "local_attention": 10,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "classifier_pooling": "cls",
    **{"bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0, "sep_token_id": 1},
    "pad_token_id": 3,
}
LLAMA: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 40,
    "max_position_embeddings": N_CTX,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3},
}
QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    **{"n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40, "n_positions": 8192},
    "max_trained_positions": N_CTX,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    **{"qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False},
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
GTE: dict[str, Any] = {
    **BERT,
    "model_type": "new",
    "architectures": ["NewModel"],
    "type_vocab_size": 1,
    "position_embedding_type": "rope",
    "rope_theta": 20000,
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}
SCORE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
POOLER = linear("pooler.dense", 24, 24)
OF_PRETRAINING = {
    "cls.predictions.bias": (5,),
    "cls.predictions.transform.dense.weight": (24, 24),
    "cls.seq_relationship.weight": (2, 24),
    "bert.embeddings.position_ids": (1, N_CTX),
}


def of_bert() -> Tokenizer:
    made = word_pieces()
    # Of training, and none of the reader's business.
    made.enable_truncation(8)
    made.enable_padding(length=12, pad_id=0, pad_token="[PAD]")
    return made


ALL: dict[str, Small] = {
    "bert": Small(BERT, of_bert, unused=POOLER),
    # As a file of TensorFlow's time that still has what only pretraining needs.
    "bert-old": Small(
        BERT, word_pieces, "bert.", unused=OF_PRETRAINING, old_norms=True, pooling="cls"
    ),
    "distilbert": Small(
        {
            "model_type": "distilbert",
            "architectures": ["DistilBertModel"],
            **{"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "activation": "gelu"},
            "max_position_embeddings": N_CTX,
            "pad_token_id": 0,
        },
        lambda: word_pieces(lowercase=False),
        unused={"vocab_transform.weight": (24, 24), "vocab_projector.bias": (5,)},
    ),
    "roberta": Small({**BERT, **OF_ROBERTA}, of_roberta, unused={"lm_head.bias": (5,)}),
    "xlm-roberta": Small(
        {**BERT, **OF_ROBERTA, "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"},
        of_roberta,
        "roberta.",
        pooling="cls",
    ),
    "mpnet": Small(
        {
            **{key: BERT[key] for key in BERT if key != "type_vocab_size"},
            "model_type": "mpnet",
            "architectures": ["MPNetModel"],
            "max_position_embeddings": N_CTX + 2,
            "relative_attention_num_buckets": 32,
            "pad_token_id": 1,
        },
        lambda: word_pieces(OF_MPNET),
        unused=POOLER,
    ),
    "nomic": Small(NOMIC, word_pieces, padding=6),
    "nomic-five": Small(
        NOMIC,
        word_pieces,
        five={
            **{**BERT, "model_type": "nomic_bert", "architectures": ["NomicBertModel"]},
            **{"head_dim": 8, "hidden_act": "silu"},
            "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        },
    ),
    "gte": Small(GTE, word_pieces, unused=POOLER, pooling="cls"),
    "gte-five": Small(
        {**GTE, "type_vocab_size": 0},
        word_pieces,
        five={
            **{**BERT, "model_type": "gte", "architectures": ["GteModel"], "type_vocab_size": 0},
            "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
        },
    ),
    "modernbert": Small(MODERN, lambda: between("[CLS]", "[SEP]"), padding=3),
    "modernbert-silu": Small(  # as IBM's, with layers by name and norms with biases
        {
            **{k: v for k, v in MODERN.items() if k != "global_attn_every_n_layers"},
            "hidden_activation": "silu",
            "norm_bias": True,
            "layer_types": ["sliding_attention", *["full_attention"] * 2, "sliding_attention"],
        },
        lambda: between("[CLS]", "[SEP]"),
        "model.",
        pooling="cls",
    ),
    "eurobert": Small(
        {
            **LLAMA,
            "model_type": "eurobert",
            "architectures": ["EuroBertModel"],
            "rope_theta": 250000.0,
            "clf_pooling": "late",
        },
        lambda: byte_pairs(
            ENDS, "<|begin|> $A <|end|>", "<|begin|> $A <|end|> <|begin|> $B <|end|>"
        ),
    ),
    "llama-embed": Small(
        {
            **LLAMA,
            "model_type": "llama_bidirec",
            "architectures": ["LlamaBidirectionalModel"],
            "rope_theta": 500000.0,
            "pooling": "avg",
        },
        lambda: byte_pairs(ENDS, "<|begin|> $A", "<|begin|> $A $B"),
    ),
    "embeddinggemma": Small(
        {
            **LLAMA,
            "model_type": "gemma3_text",
            "architectures": ["Gemma3TextModel"],
            "num_hidden_layers": 3,
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 12,
            "query_pre_attn_scalar": 9,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "use_bidirectional_attention": True,
        },
        lambda: byte_pairs(ENDS, "<|begin|> $A <|end|>", "<|begin|> $A <|end|> $B <|end|>"),
        dense=((52, "Tanh"), (10, "Identity")),
    ),
    "qwen3": Small(
        {**LLAMA, **QWEN3},
        lambda: byte_pairs(ENDS, "$A <|end|>", "$A $B", nfc=True),
        "model.",
        pooling="lasttoken",
    ),
    "qwen3-rank": Small(
        {**LLAMA, **QWEN3},
        lambda: byte_pairs(TURNS, "", "", nfc=True, plain=("<think>", "</think>")),
        "model.",
        pooling="lasttoken",
    ),
    "bert-rank": Small(
        {**BERT, **SCORE, **IDENTITY, "architectures": ["BertForSequenceClassification"]},
        word_pieces,
        "bert.",
        head={**linear("bert.pooler.dense", 24, 24), **linear("classifier", 1, 24)},
    ),
    "roberta-rank": Small(
        {
            **{**BERT, **OF_ROBERTA, **SCORE},
            "architectures": ["XLMRobertaForSequenceClassification"],
            "model_type": "xlm-roberta",
        },
        of_roberta,
        "roberta.",
        head={**linear("classifier.dense", 24, 24), **linear("classifier.out_proj", 1, 24)},
    ),
    "modernbert-rank": Small(
        {**MODERN, **SCORE, "architectures": ["ModernBertForSequenceClassification"]},
        lambda: between("[CLS]", "[SEP]"),
        "model.",
        head={
            **linear("head.dense", 24, 24, False),
            **norm("head.norm", 24, False),
            **linear("classifier", 1, 24),
        },
    ),
}
RANKERS = [name for name in ALL if name.endswith("-rank")]


# ---- Folders -------------------------------------------------------------------------------------


@dataclass
class Checkpoint:
    """weights: by the names that they have without `prefix`, in new spelling."""

    folder: Path
    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    dense: list[tuple[dict[str, np.ndarray], str]]
    pooling: str

    @cached_property
    def tokenizer(self) -> Tokenizer:
        made = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        made.no_truncation()
        made.no_padding()
        return made

    def ids(self, text: str, other: str | None = None) -> list[int]:
        return self.tokenizer.encode(text, other).ids

    def types(self, text: str, other: str) -> list[int]:
        """Token types of a pair."""
        many = self.config.get("type_vocab_size", 1) > 1
        found = self.tokenizer.encode(text, other).type_ids
        return found if many else [0] * len(found)


def random_weights(shapes: Shapes, ones: bool, seed: int) -> dict[str, np.ndarray]:
    """ones: norms are near 1, and not near 0."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        if "embedding" in name and len(shape) > 1 or "embed_tokens" in name:
            scale, mean = 0.7, 0.0
        elif name.endswith("bias"):
            scale, mean = 0.3, 0.0
        elif len(shape) == 1:
            scale, mean = 0.2, float(ones)
        else:
            scale, mean = 1.6 / np.sqrt(shape[-1]), 0.0
        found[name] = (mean + scale * values).astype(np.float32)
    return found


# Of Nomic's and GTE's published names; of two of them in one, the rows are of several.
FIVE = (
    *(
        ("encoder.layers.", "layers."),
        ("encoder.layer.", "layers."),
        ("emb_ln", "embeddings.LayerNorm"),
    ),
    *((".attn.Wqkv", ".self_attn.{q,k,v}_proj"), (".attn.out_proj", ".self_attn.o_proj")),
    (".attention.qkv_proj", ".self_attn.{q,k,v}_proj"),
    *((".attention.o_proj", ".self_attn.o_proj"), (".mlp.up_gate_proj", ".mlp.{up,gate}_proj")),
    *(
        (".mlp.fc11", ".mlp.up_proj"),
        (".mlp.fc12", ".mlp.gate_proj"),
        (".mlp.fc2", ".mlp.down_proj"),
    ),
    *((".norm1", ".post_attention_layernorm"), (".norm2", ".post_mlp_layernorm")),
    *((".attn_ln", ".post_attention_layernorm"), (".mlp_ln", ".post_mlp_layernorm")),
)


def as_five(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors of Nomic's models and GTE by the names of transformers 5."""
    found = {}
    for name, values in stored.items():
        for theirs, new in FIVE:
            name = name.replace(theirs, new)
        before, brace, rest = name.partition("{")
        parts, _, after = rest.partition("}")
        names = [f"{before}{part}{after}" for part in parts.split(",")] if brace else [name]
        found |= dict(zip(names, np.split(values, len(names)), strict=True))
    return found


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def make(
    folder: Path, name: str, changes: dict[str, Any] | None = None, seed: int = 0
) -> Checkpoint:
    """A checkpoint of ALL. changes: to config.json; None removes."""
    small = ALL[name]
    tokenizer = small.tokenizer()
    n_vocab = tokenizer.get_vocab_size() + small.padding
    given = {**small.config, "vocab_size": n_vocab, **(changes or {})}
    cfg = {key: value for key, value in given.items() if value is not None}
    kind, ones = cfg["model_type"], cfg["model_type"] != "gemma3_text"
    shapes = SHAPES[kind](cfg)
    weights = random_weights(shapes | small.head, ones, seed)
    stored = {small.prefix + key: weights[key] for key in shapes}
    if small.five:
        stored = as_five(stored)
    stored |= {key: weights[key] for key in small.head}
    if small.old_norms:
        old = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for ours, theirs in old:
            stored = {key.replace(ours, theirs): value for key, value in stored.items()}
    stored |= random_weights(small.unused, ones, seed + 1)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**small.five, "vocab_size": n_vocab} if small.five else cfg)
    checkpoints.save_safetensors(folder / "model.safetensors", stored, "F32")
    tokenizer.save(str(folder / "tokenizer.json"))
    dense = [] if name in RANKERS else sentence_files(folder, small, seed)
    return Checkpoint(folder, cfg, weights, dense, small.pooling)


def sentence_files(
    folder: Path, small: Small, seed: int
) -> list[tuple[dict[str, np.ndarray], str]]:
    """What sentence-transformers keeps beside a model; the weights of dense layers."""
    modules = ["Transformer", "Pooling", *["Dense"] * len(small.dense), "Normalize"]
    write_json(
        folder / "modules.json",
        [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(modules)
        ],
    )
    modes = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    pooling = {f"pooling_mode_{m}": m == modes[small.pooling] for m in modes.values()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 24, **pooling})
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": "the river ", "document": "frog: "}, "default_prompt_name": None},
    )
    found, width = [], 24
    for i, (out, act) in enumerate(small.dense):
        path = folder / f"{2 + i}_Dense"
        kind = "linear.Identity" if act == "Identity" else f"activation.{act}"
        write_json(
            path / "config.json",
            {
                "in_features": width,
                "out_features": out,
                "bias": i == 0,
                "activation_function": f"torch.nn.modules.{kind}",
            },
        )
        weights = random_weights(linear("linear", out, width, i == 0), True, seed + 2 + i)
        checkpoints.save_safetensors(path / "model.safetensors", weights, "F32")
        found.append((weights, act))
        width = out
    return found
