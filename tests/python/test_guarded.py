"""The C API lets no C++ exception out: into a C program it would end the process."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# These read members, set them, or free: nothing that throws. All others go through `guarded`.
PLAIN = """
    pi_last_error pi_version pi_numerics pi_device_name pi_bundle_version
    pi_model_default_params pi_session_default_params pi_sampler_default_params
    pi_bundle_default_params pi_disk_default_params
    pi_plan_free pi_model_free pi_reservation_free pi_gguf_free pi_session_free pi_adapter_free
    pi_breakers_free pi_sampler_free pi_sampler_seconds
    pi_plan_n_parts pi_plan_n_ways pi_plan_budget pi_plan_vram_budget pi_plan_n_ctx
    pi_model_device_neurons pi_model_layer_device_neurons pi_model_budget pi_model_architecture
    pi_model_activation pi_model_n_vocab pi_model_n_ctx pi_model_n_embd pi_model_n_layer
    pi_model_n_ff pi_model_n_expert pi_model_layer_n_ff pi_model_layer_n_expert pi_model_layer_width
    pi_model_n_params pi_model_n_bytes pi_model_has_predictors pi_model_has_states
    pi_model_has_windows pi_model_guesses pi_model_is_encoder pi_model_ranks
    pi_session_pooled_width
    pi_model_gguf
    pi_token_bos pi_token_eos pi_token_nl pi_token_add_bos pi_token_add_eos pi_token_ends
    pi_gguf_version pi_gguf_is_pwri pi_gguf_n_files pi_gguf_file pi_gguf_n_values pi_gguf_n_tensors
    pi_session_n_ctx pi_session_n_batch pi_session_free_positions pi_sequence_length
    pi_sequence_first_cut pi_session_profile pi_session_n_ops
"""
DEFINED = re.compile(
    r"^[\w:]+[\w:<>* ]*[ *](pi_\w+)\([^;{]*\) (?:noexcept )?\{\n(.*?)^\}", re.M | re.S
)
DECLARED = re.compile(r"^(?:const )?\w+\*? (pi_\w+)\(", re.M)


def test_every_call_that_can_throw_is_guarded() -> None:
    bodies: dict[str, str] = {}
    for source in sorted((ROOT / "powerinfer_cpp" / "src").rglob("*.cpp")):
        bodies.update(DEFINED.findall(source.read_text(encoding="utf-8")))
    headers = (ROOT / "powerinfer_cpp" / "include").glob("*.h")
    declared = {name for h in headers for name in DECLARED.findall(h.read_text(encoding="utf-8"))}
    assert len(declared) > 100 and declared == set(bodies)
    passes_on = re.compile(r"\b(guarded|guarded_or|recorded|pi_eval_batch)\(")
    open_ones = {name for name, body in bodies.items() if not passes_on.search(body)}
    assert open_ones == set(PLAIN.split())
