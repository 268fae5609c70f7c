// Intermediate results of a forward pass over up to n_ubatch rows, by the part of a layer that
// makes them. Names are as in the formulas of forward/. Sizes are those of the
// largest layer or part.
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

// Of attention. Queries of latents and gates are in the place of others for a while: latent.cpp and
// attention() say so.
struct HeadRows {
    float *q = nullptr, *attended = nullptr;  // [rows, q_dim], [rows, attended]
    float *k = nullptr, *v = nullptr;         // [rows, k_dim], [rows, v_dim]
    float* by_head = nullptr;                 // of latents and gates: [rows, by_head]
    float* gate = nullptr;                    // of Attention::gate: [rows, n_gate]
    std::vector<float*> cos_sin;              // of each table of RoPE: [rows, n_rot]
    ggml::AttentionRow* rows = nullptr;       // [rows]
    float* score_bias = nullptr;  // of Model::score_bias: [n_head, 2 n_ctx - 1], or null
    ggml::AttentionScratch scratch;
};

// Of parts with a state: rows by sequence; what enters their states, what else they have computed
// of their input, and what the operators give.
struct StateRows {
    RowsBySequence by_sequence;
    float *entering = nullptr, *beside = nullptr, *folded = nullptr;
};

// Of blocks that are matrices, and of adapters: the values of all rows that are computed together,
// block after block.
struct FfnRows {
    float *gate = nullptr, *up = nullptr;  // [values]
    bool* fired = nullptr;                 // [values]: which neurons fired, if recorded
    float* share = nullptr;                // [rows]: of FeedForward::share, in mixtures
    ggml::OwnProduct* products = nullptr;  // [3 * blocks]
};

// Of a router and its experts.
struct MixtureRows {
    float* scores = nullptr;  // [rows, n_expert]
    ggml::RouteScratch routed;
    ggml::ExpertRows chosen = {};  // [rows * n_used]
    bool* computed = nullptr;      // [n_expert]: true for those that no row has chosen, too
    // The rows of experts, one expert after the other: [max(rows, n_used), width].
    ggml::InputBuffer gathered_q8;
    float *gathered = nullptr, *out = nullptr;
    float* gathered_residual = nullptr;              // [rows, n_embd], or null: unused
    float *narrow = nullptr, *narrow_sum = nullptr;  // [rows, FeedForward::width]
    ggml::SharedInput narrow_input;
};

// Of neuron rows.
struct NeuronValues {
    ggml::NeuronScratch scratch;
    ggml::Candidates candidates;
    float* sums = nullptr;  // [segments, n_embd], for one row
    // [rows, n_ff], for norms of neurons' values: 0 for those that do not fire.
    float* values = nullptr;
    StoredScratch stored;
};

// Of predictors. For the rows of a block, or for those of all experts that a single row has chosen.
struct PredictorRows {
    ggml::SketchScratch sketch;
    float* hidden = nullptr;     // [rows, rank]
    float* score = nullptr;      // [n, n_ff]
    bool* masked = nullptr;      // [n]
    int32_t* audited = nullptr;  // [rows]: segments to be audited, or -1
};

// Of Model::layer_embd: the embeddings of all layers, rows of its table, and the gates of a layer.
struct LayerEmbeddingRows {
    static constexpr int64_t kAtOnce = 32;  // rows that the disk brings together
    float* all = nullptr;                   // [rows, n_layer, width]
    float* rows = nullptr;                  // [kAtOnce or all, n_layer * width], of a table
    float* gate = nullptr;                  // [rows, width]
};

// Of several residual streams: their norm, the gates of its values, and what those are made of.
struct MixedRows {
    float *normed = nullptr, *gate = nullptr;  // [rows, n_streams, n_embd]
    float* low = nullptr;                      // [rows, rank]
    float* score = nullptr;                    // [rows, n_streams], see ggml::add_to_streams
};

// Of n-grams: rows of the table, by number and together, in floats.
struct GramRows {
    int64_t* id = nullptr;    // [rows, NGrams::n_heads()]
    float* joined = nullptr;  // [rows, NGrams::joined()]
};

// Of Model::nextn: what its layer is made of, and the logits of a guess.
struct GuessRows {
    float *joined = nullptr, *logits = nullptr;  // [rows, 2 n_embd], [n_vocab]
};

struct Workspace {
    Workspace() = default;
    // params must be resolved. For a context of `threads` threads. stored: neurons stay on the
    // disk.
    Workspace(ggml::Carver& carver, const Model& model, const pi_session_params& params,
              int threads, bool stored);

    Batch batch;
    float* x = nullptr;        // [rows, n_streams, n_embd]: residual stream
    float* normed = nullptr;   // [rows, n_embd]: what parts read, if not the stream
    float* out = nullptr;      // as x: to be added to it
    float* ffn_out = nullptr;  // [rows, n_embd]: the same, of what waits for the next part
    ggml::SharedInput read;    // what the parts of a layer read
    ggml::InputBuffer input;   // of one product after the other

    HeadRows heads;
    StateRows state;
    FfnRows ffn;
    MixtureRows mixture;
    NeuronValues neurons;
    PredictorRows predictor;
    LayerEmbeddingRows embedding;
    MixedRows mixed;
    GramRows grams;
    GuessRows guess;
};

}  // namespace powerinfer
