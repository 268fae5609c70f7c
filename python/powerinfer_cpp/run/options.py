"""The options with which a model is opened."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ..core import options
from ..core.checks import function, whole, whole_or_none
from ..core.gguf import Gguf
from ..core.sequences.context import ROWS_KEPT
from ..core.sequences.embedding import check_pooling
from ..text import chat
from .drafts import DraftFile, LlamaDraftModel, LlamaDraftMtp

DEFAULT_POSITIONS = 512  # llama-cpp-python's


class Options:
    """What `Llama` is called with, checked.

    model, session: fields of pi_model_params and of pi_session_params, the latter for one text at
    a time. named_format: that of chats, by which chat_handler may answer, too; None: the file's
    own. adapters: files and their scales.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int = 0,
        seed: int | None = None,
        vocab_only: bool = False,
        n_checkpoints: int | None = None,
        swa_full: bool | None = None,
        logits_all: bool = False,
        embedding: bool = False,
        chat_format: str | None = None,
        chat_handler: object = None,
        spm_infill: bool = False,
        pooling_type: int = -1,
        last_n_tokens_size: int = 64,
        use_mmap: bool = True,
        use_mlock: bool = False,
        type_k: int | None = None,
        type_v: int | None = None,
        verbose: bool = True,
        vram_budget: float | None = None,
        n_cpu_moe: int = 0,
        ram_budget: float | None = None,
        device: str | None = None,
        reset_gpu_index: bool = False,
        disable_gpu_index: bool = False,
        op_offload: bool | None = None,
        bundle: bool = True,
        mmap_anyway: bool = False,
        sparse: str = "auto",
        sparse_threshold: float | None = None,
        record: str = "off",
        draft_model: LlamaDraftModel | DraftFile | str | Path | None = None,
        lora_path: str | Path | dict[str | Path, float] | None = None,
        lora_scale: float = 1.0,
        lora_allow_predictor: bool = False,
        progress_callback: Callable[[float], object] | None = None,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        allow_unknown: bool = False,
        rope_scaling_type: int | None = None,
        rope_freq_base: float | None = None,
        rope_freq_scale: float | None = None,
        yarn_ext_factor: float | None = None,
        yarn_attn_factor: float | None = None,
        yarn_beta_fast: float | None = None,
        yarn_beta_slow: float | None = None,
        yarn_orig_ctx: int | None = None,
        **unknown: object,
    ):
        """**The context**

        - n_ctx: positions. None: 512, or the model's if that is less; 0: the model's.
        - n_batch, n_ubatch: 512 tokens per call of the engine, and computed at once.
        - n_checkpoints: positions from which prompts can go on, of a model whose layers have a
          state or a window (docs/states.md). None: 8, or what a sixteenth of the budget has room
          for.
        - swa_full: layers with a window keep what is behind it of all positions. None: what a
          quarter of the RAM takes that the budget leaves (docs/states.md#windows).
        - logits_all: False. Keep the logits of every token in `scores`, not only the last ones.
        - last_n_tokens_size: 64 last tokens get penalties; -1: all.
        - type_k, type_v: GGUF type ids of the KV cache: F16 (1, the default), Q8_0 (8) or F32 (0).
        - rope_scaling_type (0 none, 1 linear, 2 yarn), rope_freq_base, rope_freq_scale (0.25 for
          four times the context), yarn_ext_factor, yarn_attn_factor, yarn_beta_fast,
          yarn_beta_slow, yarn_orig_ctx: instead of the file's. None, 0, negative numbers, and
          LangChain's rope_freq_base=10000 and rope_freq_scale=1 mean what the file says.
        - seed: of the random numbers of all calls. None: different each time.

        **Threads**

        - n_threads: that compute one token. None: the physical cores that this process may use,
          without a phone's small ones. Not more than its processors are used.
        - n_threads_batch: that compute several tokens. None: n_threads.

        **The device** (without these options only the CPU computes)

        - device: "cuda0" or "cpu".
        - n_gpu_layers: at most this many of the last layers on the device; -1: what fits.
        - vram_budget: limit in GiB of what the device may take; 0: no device. A device or a
          vram_budget alone means what fits.
        - n_cpu_moe: 0. The experts of a mixture's first so many layers stay with the CPU. Which of
          the others are on the device follows the text, as far as there is room (docs/gpu.md).
        - reset_gpu_index: False. The device gets the neurons that fire most often, whatever a
          placement in or beside the file says.
        - disable_gpu_index: False. No neurons on the device. Giving both is a ValueError.
        - op_offload: True. The device computes all neurons of prompts, those in RAM as well, and
          the experts of long prompts.

        **Memory**

        - ram_budget: limit in GiB. None: what is free. A model that does not fit runs from storage,
          if it is a mixture of experts or its file has neuron rows.
        - mmap_anyway: False. Other models that do not fit run as well, slowly: each token reads
          what is missing. Else they are refused (OutOfMemoryError).
        - bundle: True. Write the bundled file that neuron rows need for that, if there is none yet,
          and when the model is closed a list of what was in memory.
        - use_mmap, use_mlock: True, False. Map the file; keep its pages in RAM.

        **Neurons**

        - sparse: "auto" (prompts as "exact", generated tokens with a predictor if there is one),
          "off", "exact" or "predictor".
        - sparse_threshold: of predictors. None: the file's.

        **Adapters**

        - lora_path, lora_scale: a LoRA adapter (GGUF) and its scale 1.0, or a dict of several and
          their scales; see set_adapters.
        - lora_allow_predictor: False. Use predictors with adapters, for which they were not made;
          else sparse="auto" computes as "exact" while an adapter is used, and "predictor" refuses
          one.

        **Chats and infill**

        - chat_format: one of chat.FORMATS, or a registered one. None: the file's own template.
        - chat_handler: answers chats instead (llama_chat_format.py).
        - spm_infill: False. Completions with a suffix have the suffix before the prefix.

        **Drafts**

        - draft_model: guesses the next tokens, which are then checked together: the same text,
          sooner where it repeats itself. LlamaPromptLookupDecoding(), or the path of a smaller
          model with the same vocabulary (llama_speculative.py), or LlamaDraftMtp() for models that
          bring a layer for it along. Recording does without.

        **Embeddings**

        - embedding: False. Allow embeddings; the first completion then opens a second session.
          Also under the name embeddings.
        - pooling_type: 0 none, 1 mean, 2 first, 3 last; -1: as the file says, or mean.

        **Recording**

        - record: "off", "fired" or "fired+input", for `activations` and `ffn_inputs`; with sparse
          "off" or "exact", and without a device.

        **The file**

        - vocab_only: False. Tokenizer and metadata, no weights.
        - kv_overrides: values in place of those of the file's header, by key.
        - allow_unknown: False. Run a file without the keys and tensors that this engine does not
          know and that change results; else it is refused (UnsupportedModelError).
        - tokenizer: llama-cpp-python's is a ValueError: the file's own is used.
        - progress_callback: called with 0..1 while loading; returning False cancels (Cancelled).
        - verbose: True. Print a few lines to stderr; they also go to the logger "powerinfer_cpp",
          whatever verbose is.
        """
        embedding = bool(unknown.pop("embeddings", False) or embedding)  # a fork's name
        options.check_unknown(unknown)
        n_ctx = whole_or_none("n_ctx", n_ctx)
        n_threads = whole_or_none("n_threads", n_threads) or 0
        n_threads_batch = whole_or_none("n_threads_batch", n_threads_batch) or n_threads
        n_gpu_layers = whole_or_none("n_gpu_layers", n_gpu_layers)
        type_k, type_v = whole_or_none("type_k", type_k), whole_or_none("type_v", type_v)
        n_batch, n_ubatch = whole("n_batch", n_batch), whole("n_ubatch", n_ubatch)
        n_checkpoints = whole_or_none("n_checkpoints", n_checkpoints)
        self.pooling_type = check_pooling(whole("pooling_type", pooling_type))
        self.last_n = whole("last_n_tokens_size", last_n_tokens_size)
        self.session = {
            "n_ctx": n_ctx,
            "n_batch": n_batch,
            "n_ubatch": min(n_ubatch, n_batch),
            # Rows per call whose logits can be kept; 0: all.
            "n_logits": 0 if logits_all else min(ROWS_KEPT, n_batch),
            "n_threads": n_threads,
            "n_threads_batch": n_threads_batch,
            "n_checkpoints": -1 if n_checkpoints is None else n_checkpoints,
            "n_kv_old": options.ALL_OLD if swa_full else -1,
            "type_k": 1 if type_k is None else type_k,
            "type_v": 1 if type_v is None else type_v,
            "lora_allow_predictor": bool(lora_allow_predictor),
            **options.sparse_fields(sparse, sparse_threshold),
            **options.record_field(record),
            **options.rope_fields(
                rope_scaling_type=rope_scaling_type,
                rope_freq_base=rope_freq_base,
                rope_freq_scale=rope_freq_scale,
                yarn_ext_factor=yarn_ext_factor,
                yarn_attn_factor=yarn_attn_factor,
                yarn_beta_fast=yarn_beta_fast,
                yarn_beta_slow=yarn_beta_slow,
                yarn_orig_ctx=yarn_orig_ctx,
            ),
        }
        device_fields = options.device_fields(device, n_gpu_layers, vram_budget)
        placement_field = options.placement_field(reset_gpu_index, disable_gpu_index)
        if device_fields and self.session["record"]:
            raise ValueError('record needs device="cpu": a device does not record')
        self.chat_handler, self.named_format = chat.chosen(chat_format, chat_handler)
        if not device_fields:
            asked = {"n_gpu_layers": n_gpu_layers, "vram_budget": vram_budget}
            options.note_without_gpu(asked, verbose)
        self.model = {
            "vocab_only": vocab_only,
            "use_mmap": use_mmap,
            "use_mlock": use_mlock,
            "n_threads": n_threads,
            "ram_budget": options.budget_bytes("ram_budget", ram_budget),
            **placement_field,
            **options.expert_field(n_cpu_moe),
            "op_offload": op_offload is None or bool(op_offload),
            "bundle": bool(bundle),
            "mmap_anyway": bool(mmap_anyway),
            "allow_unknown": bool(allow_unknown),
            "nextn": isinstance(draft_model, LlamaDraftMtp),
            **options.override_field(kv_overrides),
            **({} if vocab_only else device_fields),
        }
        self.model_path, self.verbose, self.seed = str(model_path), verbose, seed
        self.vocab_only, self.logits_all, self.embedding = vocab_only, bool(logits_all), embedding
        self.chat_format, self.spm_infill = chat_format, spm_infill
        self.draft_model, self.kv_overrides = draft_model, kv_overrides
        if progress_callback is not None:
            function("progress_callback", progress_callback)
        self.progress = progress_callback
        if lora_path and not isinstance(lora_path, str | os.PathLike | dict):
            raise ValueError(f"lora_path must be a path, or a dict of scales, not {lora_path!r}")
        given = lora_path if isinstance(lora_path, dict) else {lora_path: lora_scale}
        self.adapters = given if lora_path and not vocab_only else {}
        if n_ctx is None:
            with Gguf(self.model_path) as gguf:
                trained = gguf.n_ctx_train or DEFAULT_POSITIONS
                self.session["n_ctx"] = gguf.n_ctx_text or min(DEFAULT_POSITIONS, trained)
