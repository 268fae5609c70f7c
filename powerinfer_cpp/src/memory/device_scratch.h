// The memory of a session on a device, and what it shares with the CPU. Arrays are for the rows
// that are computed at a time: they are carved anew for each number of rows, so that what is copied
// for a few rows is small.
#pragma once

#include "ggml/carver.h"
#include "ggml/device_ops.h"
#include "memory/kv_layout.h"
#include "memory/states.h"
#include "model/model.h"

namespace powerinfer {

// The most rows that a device computes at a time; with a list of neurons each; with logits; and the
// most bytes of scratch for attention, whose rows may be computed in several parts. Neurons and
// experts of RAM that come to a prompt cross the bus once for so many rows.
constexpr int64_t kDeviceRows = 4096, kDeviceLists = 32, kDeviceResults = 32;
constexpr int64_t kDeviceAttentionBytes = 32 << 20;

// What changes from row to row. The host fills one in pinned memory and copies it to its like on
// the device.
struct DeviceStep {
    DeviceStep() = default;
    // For n rows of a session. params must be resolved.
    DeviceStep(ggml::Carver& carver, const Model& model, const pi_session_params& params,
               int64_t n_layers, int64_t n);

    uint32_t* epoch = nullptr;  // [1]: of the rows, see DeviceExchange. It comes first
    float* x = nullptr;         // [n, n_embd]: the residual stream
    int32_t* position = nullptr;
    ggml::KvSlot* slot = nullptr;              // [classes of keys and values, n]
    ggml::DeviceAttentionRow* rows = nullptr;  // [n_layers, n]
    int32_t* kept = nullptr;                   // [n]: rows with results
    float* embedding = nullptr;                // [n_layers, n, width]: what tokens say to layers
    int32_t* pages = nullptr;                  // [classes, sequences of n rows, pages of n_ctx]
    // Of layers with a state: the sequences of the rows, how many they are, and the rows of one
    // after the other; and where what enters in a row is kept.
    ggml::DeviceSequence* sequences = nullptr;               // [sequences of n rows]
    int32_t *n_sequences = nullptr, *by_sequence = nullptr;  // [1], [n]
    float** entered = nullptr;                               // [n]
};

// Intermediate results. Names are as in the formulas of forward/.
struct DeviceScratch {
    DeviceScratch() = default;
    // For n rows and the n_layers that the device has. params must be resolved.
    DeviceScratch(ggml::Carver& carver, const Model& model, const pi_session_params& params,
                  int64_t n_layers, int64_t n);

    // What stays from call to call, at the same place for every number of rows.
    uint32_t* arrived = nullptr;  // [n_layers]
    // [feed-forward parts, 3], see DeviceFfnScratch; then `waited` and `late`.
    unsigned long long* counts = nullptr;
    unsigned long long *waited = nullptr, *late = nullptr;  // [1], see DeviceExchange
    std::vector<double*> frequency;                         // of each table of RoPE: [n_rot / 2]

    DeviceStep step;
    ggml::DeviceInput residual;            // x is step.x
    ggml::DeviceInput normed, ffn_normed;  // [n, n_embd]
    ggml::DeviceInput attended;            // [n, attended or out_dim]
    // Of heads apart: queries with their gates; of latents, what goes through a matrix of each
    // head, and what came through it.
    ggml::DeviceInput by_head;
    float* gate = nullptr;                     // of Attention::gate: [n, n_gate]
    ggml::DeviceChoice all_heads;              // of latents: every row chooses all
    ggml::DeviceInput embedding;               // [n, width]: gates of LayerEmbedding
    ggml::DeviceInput narrow, narrow_sum;      // [n, FeedForward::width]
    float* share = nullptr;                    // [n]: scores of FeedForward::share
    ggml::DeviceInput hidden;                  // [lists, rank]
    ggml::DeviceInput fired;                   // [n, n_ff], where FFNs are matrices
    float *out = nullptr, *ffn_out = nullptr;  // [n, n_embd]
    float *q = nullptr, *k = nullptr, *v = nullptr;
    float *up = nullptr, *score = nullptr;  // [n, n_ff], [lists, n_ff]
    ggml::DeviceSketchScratch sketch;
    std::vector<float*> cos_sin;                         // of each table of RoPE: [n, n_rot]
    float *results = nullptr, *result_logits = nullptr;  // [kDeviceResults, n_embd or n_vocab]
    ggml::DeviceAttentionScratch attention;
    int64_t attention_rows = 0;  // at a time
    ggml::DeviceLists lists;
    ggml::DeviceFfnScratch ffn;
    // Of mixtures: scores [n, n_expert], and by pair of a row and an expert.
    float* scores = nullptr;
    ggml::DeviceChoice choice;
    ggml::DeviceInput expert_fired;                     // [pairs, n_ff]
    float *expert_up = nullptr, *expert_out = nullptr;  // [pairs, n_ff], [pairs, n_embd]
    // Of parts with a state: what enters it, what else is computed of the part's input, and what
    // the operators give (LargestSizes).
    float *entering = nullptr, *beside = nullptr;
    ggml::DeviceInput folded;
    ggml::DeviceStateScratch states;
};

// The most rows at a time, and the scratch memory for any number up to it.
int64_t device_rows(const pi_session_params& params);
uint64_t device_scratch_bytes(const Model& model, const pi_session_params& params,
                              int64_t n_layers);
// The states of the layers that the device has.
StateLayout device_state_layout(const Model& model, int64_t n_layers);
// Their keys and values.
KvLayout device_kv_layout(const Model& model, const pi_session_params& params, int64_t n_layers);

// What the device and the CPU share, in memory that both see: a step to be copied, and where the
// halves of each layer meet. Layers have flags and counts of their own; the rest is one for all,
// since a layer publishes after the layer before has taken its answer.
struct DeviceShared {
    DeviceShared(ggml::Carver& carver, const Model& model, const pi_session_params& params,
                 int64_t n_layers);

    uint8_t* step = nullptr;                     // room for a DeviceStep of any number of rows
    std::vector<ggml::DeviceExchange> exchange;  // without the members in device memory
};

}  // namespace powerinfer
