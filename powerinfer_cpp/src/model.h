// What a model is: its sizes, its weights, its vocabulary. Immutable once loaded; any number of
// sessions share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "budget.h"
#include "bundle.h"
#include "ggml/file_io.h"
#include "ggml/gguf.h"
#include "ggml/neurons.h"
#include "ggml/ops.h"
#include "ggml/sketch.h"
#include "ggml/tensor.h"
#include "placement.h"
#include "powerinfer.h"
#include "vocab.h"
#include "weight_plan.h"

namespace powerinfer {

// How positions stretch beyond the context that a model was trained for.
struct RopeScaling {
    enum class Kind { none, linear, yarn };
    Kind kind = Kind::none;
    double factor = 1;
    double original_ctx = 0;               // yarn: positions before stretching
    double beta_fast = 32, beta_slow = 1;  // yarn: rotations between which frequencies blend
    double attention_factor = 1;           // yarn: on top of 0.1 ln(factor) + 1
};

// Sizes and constants of the architecture, from {arch}.* keys.
struct Config {
    std::string architecture;
    int64_t n_vocab = 0;
    int64_t n_ctx = 0;  // positions that the model was trained for
    int64_t n_embd = 0;
    int64_t n_layer = 0;
    int64_t n_ff = 0;       // neurons of a layer, or of one expert
    int64_t n_head = 0;     // query heads
    int64_t n_head_kv = 0;  // key and value heads, a divisor of n_head
    int64_t head_dim = 0;
    int64_t n_rot = 0;  // leading values of a head that rotate, even; 0: learned positions
    ggml::RopePairs rope_pairs = ggml::RopePairs::adjacent;
    double rope_base = 10000;
    RopeScaling rope_scaling;
    int64_t position_offset = 0;  // learned positions: row of position 0
    enum class Norm { rms, layer } norm = Norm::rms;
    float norm_eps = 0;
    ggml::Activation activation = ggml::Activation::silu;
    bool parallel_ffn = false;                // attention and FFN both read the layer's input
    int64_t n_expert = 0, n_expert_used = 0;  // 0: one FFN
    bool neuron_aware = false;                // FFN weights are neuron rows
    bool has_predictors = false;              // of some layer at least
    bool sketches = false;                    // they are sketches, not mlps
    int64_t predictor_rank = 0;               // of mlps, the largest
    bool predict_from_normed =
        false;                       // the predictor sees the FFN's normed input, not the residual
    bool route_layer_input = false;  // the router reads x itself, not the FFN's normed input
    ggml::Gating gating = ggml::Gating::softmax;

    int64_t q_dim() const { return n_head * head_dim; }
    int64_t kv_dim() const { return n_head_kv * head_dim; }
};

// Weights of a normalisation; no bias for RMSNorm.
struct NormWeights {
    const float* weight = nullptr;  // [n]
    const float* bias = nullptr;    // [n]
};

// A feed-forward block, or one expert of several. Without a gate: down . act(up . x).
struct Ffn {
    // Of dense files: matrices. gate, up: [n_ff, n_embd]; down: [n_embd, n_ff].
    ggml::Matrix gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    // Of neuron-aware files (neurons.n > 0): one bundle per neuron, and what predicts who fires.
    // Gates lie apart: exact mode reads all of them. 7B shape at Q4_0, exact: 8.5 tokens/s with
    // three rows in a bundle, 12.4 to 13.0 with two; by predictor 14.9 and as much or more.
    Bundle gates, bundle;
    ggml::Neurons neurons;
    ggml::Matrix fc1, fc2;  // [rank, n_embd], [n_ff, rank]; empty: no mlp
    ggml::Matrix signs;     // I8 [n_ff, n_embd / 8], 1 bit per weight; empty: no sketch
    const float* sketch_offset = nullptr;  // [n_ff]
    const float* rate = nullptr;  // [n_ff], share of profiled tokens on which a neuron fired
    // [n_ff], 1 where it fires so often that predicting it saves nothing.
    std::vector<uint8_t> unpredicted;
};

// One layer. Matrices are [outputs, inputs]; a null pointer or empty matrix is a part the model
// lacks.
struct Layer {
    NormWeights attn_norm;    // [n_embd]
    ggml::Matrix q, k, v, o;  // [q_dim | kv_dim | kv_dim, n_embd], o: [n_embd, q_dim]
    const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
    const float *q_norm = nullptr, *k_norm = nullptr;  // [head_dim], over each head
    int64_t window = 0;    // positions that a row sees, itself included; 0: all
    bool rotates = true;   // false: this layer's queries and keys carry no position
    NormWeights ffn_norm;  // [n_embd]
    Ffn ffn;
    ggml::Matrix router;         // [n_expert, n_embd]
    std::vector<Ffn> experts;    // instead of ffn
    float sparse_threshold = 0;  // predictor score below which a neuron is skipped
    float recall = 0;            // share of firings that it found when trained; 0: not known
};

// The file or files of a model: header parsed and checked, weights not read yet.
struct ModelFile {
    std::vector<std::unique_ptr<ggml::File>> files;
    std::vector<std::unique_ptr<ggml::Mapping>> mappings;  // of all files, or none
    ggml::Gguf gguf;  // of the first file, with the tensors of all

    static ModelFile open(const std::string& path);
    void map();
    // The first n bytes of a tensor's data.
    std::vector<uint8_t> read(const ggml::TensorInfo& t, uint64_t n) const;
};

struct Model {
    Config config;
    Vocab vocab;
    ModelFile file;
    std::shared_ptr<Budget> budget;  // of the model, its sessions, and what callers reserve
    Reservation reserved;            // for the weights

    ggml::Matrix token_embd;              // [n_vocab, n_embd]
    ggml::Matrix position_embd;           // [positions, n_embd], where positions are learned
    const float* rope_factors = nullptr;  // [n_rot / 2]: each frequency is divided by its factor
    NormWeights output_norm;              // [n_embd]
    ggml::Matrix output;                  // [n_vocab, n_embd]; token_embd's where the head is tied
    std::vector<Layer> layers;

    std::vector<WeightSpec> weights;     // what is loaded, in the order of the architecture
    WeightPlan plan;                     // where to, and how much that takes
    std::optional<Placement> placement;  // where neurons are to live; this build has them in RAM
    ggml::Memory packed;                 // strips and bundles
    ggml::Memory plain;                  // stored blocks that were read rather than mapped

    // Header only: config, vocabulary, budget, and weights with their tensors found and their
    // shapes and types checked, but no data. Throws Error naming file, key or tensor.
    static std::unique_ptr<Model> inspect(const std::string& path, const pi_model_params& params);
    // Reads, maps and packs the weights after taking them from the budget.
    static std::shared_ptr<const Model> load(const std::string& path,
                                             const pi_model_params& params);
};

}  // namespace powerinfer
