// A model: sizes, weights, vocabulary. It does not change once loaded; any number of sessions share
// it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/placement.h"
#include "device/device_model.h"
#include "ggml/file_io.h"
#include "ggml/gguf.h"
#include "ggml/neurons.h"
#include "ggml/ops.h"
#include "ggml/sketch.h"
#include "ggml/tensor.h"
#include "powerinfer.h"
#include "storage/store_shape.h"
#include "tokenizer/vocab.h"
#include "weights/neuron_layout.h"
#include "weights/weight_plan.h"

namespace powerinfer {

// How RoPE is scaled for contexts longer than in training.
struct RopeScaling {
    // longrope: a factor for each frequency, one set for sessions of up to original_ctx positions,
    // one for longer ones. dynamic: a base that grows with n_ctx of a session that is longer than
    // the model's.
    enum class Kind { none, linear, yarn, longrope, dynamic };
    Kind kind = Kind::none;
    double factor = 1;
    double magnitude = 1;                  // of cosine and sine
    double original_ctx = 0;               // yarn, longrope: positions in training
    double beta_fast = 32, beta_slow = 1;  // yarn: turns between which it interpolates
    // How far frequencies that turn often stay as they are; negative: 1 with yarn, else 0.
    double extension = -1;
    double attention_factor = 1;  // yarn: multiplies 0.1 ln(factor) + 1
};

// Sizes and constants of the architecture, from the keys {arch}.*.
struct Config {
    std::string architecture;
    int64_t n_vocab = 0;
    int64_t n_ctx = 0;  // positions that the model was trained with
    int64_t n_embd = 0;
    int64_t n_layer = 0;
    int64_t n_ff = 0;       // neurons of a layer, or of one expert
    int64_t n_head = 0;     // query heads
    int64_t n_head_kv = 0;  // key and value heads, a divisor of n_head
    int64_t head_dim = 0;
    int64_t n_rot = 0;  // values of a head that rotate, even; 0: learned positions
    ggml::RopePairs rope_pairs = ggml::RopePairs::adjacent;
    double rope_base = 10000;
    double local_rope_base = 0;  // of layers with a window, without scaling; 0: as all others
    RopeScaling rope_scaling;
    float embedding_scale = 1;    // multiplies the rows of the embedding table
    float attention_scale = 0;    // of attention scores, usually 1 / sqrt(head_dim)
    float attention_softcap = 0;  // of attention scores, see ggml::AttentionScores
    float logit_softcap = 0;      // the same for logits
    int64_t position_offset = 0;  // learned positions: row of position 0
    enum class Norm { rms, layer } norm = Norm::rms;
    float norm_eps = 0;
    ggml::Activation activation = ggml::Activation::silu;
    bool post_norms = false;                  // of what attention and FFN add to x
    bool parallel_ffn = false;                // attention and FFN both read the layer's input
    int64_t n_expert = 0, n_expert_used = 0;  // 0: one FFN
    bool neuron_aware = false;                // FFN weights are neuron rows
    bool has_predictors = false;              // in at least one layer
    bool sketches = false;                    // predictors are sketches, not MLPs
    int64_t predictor_rank = 0;               // the largest rank of MLPs
    bool predict_from_normed = false;         // predictors read the normed input, not the residual
    bool route_layer_input = false;  // the router reads x itself, not the FFN's normed input
    ggml::Gating gating = ggml::Gating::softmax;

    int64_t q_dim() const { return n_head * head_dim; }
    int64_t kv_dim() const { return n_head_kv * head_dim; }
};

// Is this activation exactly 0 for negative inputs?
inline bool relu_family(ggml::Activation act) {
    return act == ggml::Activation::relu || act == ggml::Activation::drelu ||
           act == ggml::Activation::relu2;
}

// Weights of a normalisation; no bias for RMSNorm.
struct NormWeights {
    const float* weight = nullptr;  // [n]
    const float* bias = nullptr;    // [n]
};

// A feed-forward block, or one expert of several. Without a gate: down . act(up . x).
struct Ffn {
    // For dense files: matrices. gate, up: [n_ff, n_embd]; down: [n_embd, n_ff].
    ggml::Matrix gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    // For neuron-aware files (neurons.n > 0): rows in bundles, and the predictor. Gates are in
    // their own bundle, because exact mode reads all of them. Measured with 7B shapes in Q4_0:
    // exact 8.5 tokens/s with gate, up and down in one bundle, 12.4 to 13.0 with gates apart; by
    // predictor 14.9, and at least as much with gates apart.
    Bundle gates, bundle;
    ggml::Neurons neurons;
    StoredNeurons stored;   // where the file has them one by one; empty for most files
    ggml::Matrix fc1, fc2;  // [rank, n_embd], [n_ff, rank]; empty: no MLP predictor
    ggml::Matrix signs;     // I8 [n_ff, n_embd / 8], 1 bit per weight; empty: no sketch
    const float* sketch_offset = nullptr;  // [n_ff]
    const float* rate = nullptr;  // [n_ff], share of profiled tokens on which a neuron fired
    // [n_ff], 1 for neurons that fire so often that predicting them saves nothing.
    std::vector<uint8_t> unpredicted;
};

// One layer. Matrices are [outputs, inputs]. A null pointer or an empty matrix means that the model
// has no such part.
struct Layer {
    NormWeights attn_norm;    // [n_embd]
    ggml::Matrix q, k, v, o;  // [q_dim | kv_dim | kv_dim, n_embd], o: [n_embd, q_dim]
    const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
    // Over each head: with RMSNorm [head_dim], with LayerNorm (which has no bias here)
    // [n_head | n_head_kv, head_dim].
    const float *q_norm = nullptr, *k_norm = nullptr;
    int64_t window = 0;    // positions that a row sees, including its own; 0: all
    bool rotates = true;   // false: no RoPE in this layer
    NormWeights ffn_norm;  // [n_embd]
    NormWeights attn_post_norm, ffn_post_norm;  // [n_embd], of what is added to x
    Ffn ffn;
    ggml::Matrix router;         // [n_expert, n_embd]
    std::vector<Ffn> experts;    // instead of ffn
    float sparse_threshold = 0;  // predictor score below which a neuron is skipped
    float recall = 0;            // share of firings that it found in training; 0: unknown
};

// The file or files of a model. The header is parsed and checked; no weights are read yet.
struct ModelFile {
    std::vector<std::unique_ptr<ggml::File>> files;
    std::vector<std::unique_ptr<ggml::Mapping>> mappings;  // of all files, or none
    ggml::Gguf gguf;  // the header of the first file, with the tensors of all files

    static ModelFile open(const std::string& path);
    void map();
    // The first n bytes of a tensor's data.
    std::vector<uint8_t> read(const ggml::TensorInfo& t, uint64_t n) const;
};

class NeuronStore;

// How a budget of RAM is divided if neurons stay on the disk (storage_plan.h).
struct StoragePlan {
    StoreShape shape;
    PredictorShape predictors;                     // of experts
    uint64_t tables = 0, reader = 0, process = 0;  // bytes
    uint64_t least = 0;                            // the least budget with which the model runs so
    int32_t n_ubatch = 0;                          // rows that sessions compute at once, at most
    int32_t sparse = 0;                            // of the sessions: a pi_sparse
    bool predicted = false;                        // sessions compute what predictors propose
    // What a generated token is expected to wait for reads of the disk that caches are divided for
    // (kDisk), if nothing is computed meanwhile. It never rises with the budget.
    double read_seconds = 0;
};

struct Model {
    Model();
    ~Model();
    Config config;
    Vocab vocab;
    ModelFile file;
    std::shared_ptr<Budget> budget;  // for the model, its sessions and callers' reservations
    Reservation reserved;            // for the weights

    ggml::Matrix token_embd;              // [n_vocab, n_embd]
    ggml::Matrix position_embd;           // [positions, n_embd], where positions are learned
    const float* rope_factors = nullptr;  // [n_rot / 2]: each frequency is divided by its factor
    // The same for longrope, for short and for long sessions.
    const float *rope_short = nullptr, *rope_long = nullptr;
    NormWeights output_norm;  // [n_embd]
    ggml::Matrix output;      // [n_vocab, n_embd]; token_embd if the head is tied
    std::vector<Layer> layers;

    std::vector<WeightSpec> weights;      // what is loaded, in the order of the architecture
    WeightPlan plan;                      // their places, and the size of the memory
    std::optional<Placement> placement;   // wanted tiers of neurons
    std::unique_ptr<DeviceModel> device;  // what a device has; or null
    // Layers that the device has, the last ones.
    int64_t device_layers() const;
    // Neurons of a layer whose rows it has.
    int64_t device_neurons(int64_t layer) const;
    // Are there neurons whose value may be exactly zero, so that their rows are not needed?
    bool skips_neurons() const;
    const ggml::File* embedding_file = nullptr;  // has token_embd, if that stays on the disk
    uint64_t embedding_offset = 0;               // there
    std::optional<StoragePlan> storage;          // neurons stay on the disk; or RAM has all
    // Of these neurons. It belongs to whichever session computes: see its mutex.
    std::unique_ptr<NeuronStore> store;
    bool keeps_resident = false;  // its file may be written when the model is closed
    // What saved states call the weights (state.cpp), once one has asked for it.
    mutable struct {
        std::mutex mutex;
        std::string name;
    } weights_name;
    ggml::Memory packed;  // strips and bundles
    ggml::Memory plain;   // stored weights that were read, not mapped

    // Reads the header only: config, vocabulary, budget, and weights with tensors found and shapes
    // and types checked. Throws Error naming file, key or tensor.
    static std::unique_ptr<Model> inspect(const std::string& path, const pi_model_params& params);
    // The same, and then reserves memory in the budget and reads, maps and packs the weights.
    static std::shared_ptr<const Model> load(const std::string& path,
                                             const pi_model_params& params);
};

}  // namespace powerinfer
