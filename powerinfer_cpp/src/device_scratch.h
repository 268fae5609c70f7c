// The memory of a session on a device, and what it shares with the CPU.
#pragma once

#include "ggml/carver.h"
#include "ggml/device_ops.h"
#include "model.h"

namespace powerinfer {

// What changes from row to row. The host fills one in pinned memory and copies it to its like on
// the device.
struct DeviceStep {
    DeviceStep() = default;
    // params must be resolved.
    DeviceStep(ggml::Carver& carver, const Config& config, const pi_session_params& params,
               int64_t n_layers);

    float* x = nullptr;  // [n_embd]: the residual stream
    int32_t* position = nullptr;
    uint32_t* epoch = nullptr;  // of the row, see DeviceExchange
    ggml::KvSlot* slot = nullptr;
    ggml::DeviceAttentionRow* rows = nullptr;  // [n_layers]
    int32_t* pages = nullptr;                  // [pages of n_ctx]: those of the row's sequence
};

// Intermediate results of one row. Names are as in the formulas of forward.cpp.
struct DeviceScratch {
    DeviceScratch() = default;
    // For the n_layers that the device has. params must be resolved.
    DeviceScratch(ggml::Carver& carver, const Config& config, const pi_session_params& params,
                  int64_t n_layers);

    DeviceStep step;
    ggml::DeviceInput residual;                // x is step.x
    ggml::DeviceInput normed, ffn_normed;      // [n_embd]
    ggml::DeviceInput attended;                // [q_dim]
    ggml::DeviceInput hidden;                  // [rank]
    ggml::DeviceInput fired;                   // [n_ff], where FFNs are matrices
    float *out = nullptr, *ffn_out = nullptr;  // [n_embd]
    float *q = nullptr, *k = nullptr, *v = nullptr;
    float *up = nullptr, *score = nullptr;  // [n_ff]
    ggml::DeviceSketchScratch sketch;       // for one input of n_embd
    float* cos_sin = nullptr;               // [n_rot]
    double* frequency = nullptr;            // [n_rot / 2]
    float* logits = nullptr;                // [n_vocab]
    ggml::DeviceAttentionScratch attention;
    ggml::DeviceLists lists;
    ggml::DeviceFfnScratch ffn;
    uint32_t* arrived = nullptr;           // [n_layers]
    unsigned long long* counts = nullptr;  // [n_layers][3], see DeviceFfnScratch; then `waited`
    unsigned long long* waited = nullptr;  // [1], see DeviceExchange
};

// Keys and values: [pages][n_layers][keys, values][n_head_kv][64][head_dim].
uint64_t device_kv_bytes(const Config& config, const pi_session_params& params, int64_t n_layers);

// What the device and the CPU share, in memory that both see: a step to be copied, and where the
// halves of each layer meet.
struct DeviceShared {
    DeviceShared(ggml::Carver& carver, const Config& config, const pi_session_params& params,
                 int64_t n_layers);

    DeviceStep step;
    std::vector<ggml::DeviceExchange> exchange;  // without the members in device memory
};

}  // namespace powerinfer
