// Intermediate results of a forward pass over up to n_ubatch rows. Names are as in the formulas of
// forward.cpp and ffn.cpp.
#pragma once

#include "ggml/attention.h"
#include "ggml/carver.h"
#include "ggml/neurons.h"
#include "ggml/ops.h"
#include "ggml/sketch.h"
#include "memory/batch.h"
#include "memory/states.h"
#include "memory/stored_scratch.h"
#include "model/model.h"

namespace powerinfer {

struct Workspace {
    Workspace() = default;
    // params must be resolved. For a context of `threads` threads. stored: neurons stay on the
    // disk.
    Workspace(ggml::Carver& carver, const Model& model, const pi_session_params& params,
              int threads, bool stored);

    Batch batch;
    ggml::InputBuffer input;
    ggml::AttentionRow* attention_rows = nullptr;  // [rows]
    ggml::AttentionScratch attention;
    float *x = nullptr, *normed = nullptr;     // [rows, n_embd]: residual stream, its norm
    float *out = nullptr, *ffn_out = nullptr;  // [rows, n_embd]: to be added to x
    // Sizes of layers and their parts are those of the largest.
    float *q = nullptr, *attended = nullptr;  // [rows, q_dim], [rows, attended]
    float *k = nullptr, *v = nullptr;         // [rows, k_dim], [rows, v_dim]
    float *gate = nullptr, *up = nullptr;     // [max(rows, n_expert_used), n_ff]
    float* by_head = nullptr;                 // of latents: [rows, by_head]
    std::vector<float*> cos_sin;              // of each table of RoPE: [rows, n_rot]
    // Of Model::layer_embd: the embeddings of all layers, a row of its table, and the gates of one
    // layer.
    float* layer_embd = nullptr;                             // [rows, n_layer, width]
    float *layer_embd_row = nullptr, *layer_gate = nullptr;  // [2, n_layer * width], [rows, width]

    // For parts with a state: rows by sequence; what enters their states, what else they have
    // computed of their input, and what the operators give.
    RowsBySequence by_sequence;
    float *entering = nullptr, *beside = nullptr, *folded = nullptr;
    // Of Model::nextn: what its layer is made of, and the logits of a guess.
    float *joined = nullptr, *guessed = nullptr;  // [rows, 2 n_embd], [n_vocab]

    // For mixtures: scores and weights, the rows of each expert, and the rows of one expert.
    float* router = nullptr;  // [rows, n_expert]
    ggml::RouteScratch routed;
    ggml::ExpertRows expert_rows = {};                        // [rows * n_expert_used]
    float *gathered = nullptr, *gathered_residual = nullptr;  // [rows, n_embd], or null: unused
    float* expert_out = nullptr;                              // [max(rows, n_expert_used), n_embd]
    ggml::RowProduct* products = nullptr;                     // [2 * n_expert_used]
    float* share = nullptr;                                   // [rows]
    float *narrow = nullptr, *narrow_sum = nullptr;           // [rows, FeedForward::width]

    // For neuron rows and predictors.
    ggml::NeuronScratch neurons;
    ggml::Candidates candidates;
    float* sums = nullptr;  // [segments, n_embd], for one row
    // [rows, n_ff], for norms of neurons' values: 0 for those that do not fire.
    float* values = nullptr;
    StoredScratch stored;
    ggml::SketchScratch sketch;
    float* hidden = nullptr;  // [rows, rank]
    // For the rows of a block, or for those of all experts that a single row has chosen: [n, n_ff],
    // [n].
    float* score = nullptr;
    int32_t* audited = nullptr;  // [rows]: segments to be audited, or -1
    bool* masked = nullptr;
    bool* flags = nullptr;  // [rows, n_ff]: which neurons fired, if recorded
};

}  // namespace powerinfer
