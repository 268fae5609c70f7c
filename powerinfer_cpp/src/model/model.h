// A model: sizes, weights, vocabulary. It does not change once loaded; any number of sessions share
// it.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/placement.h"
#include "device/device_model.h"
#include "ggml/tensor.h"
#include "model/config.h"
#include "model/layer.h"
#include "powerinfer.h"
#include "storage/experts/page_shape.h"
#include "storage/neurons/store_shape.h"
#include "tokenizer/vocab.h"
#include "weights/model_file.h"
#include "weights/weight_plan.h"

namespace powerinfer {

class ExpertStore;
class NeuronStore;

// How a budget of RAM is divided if neurons stay on the disk (storage_plan.h), or whole experts or
// blocks (expert_plan.h).
struct StoragePlan {
    StoreShape shape;                              // of neurons
    PageShape predictors;                          // of experts
    PageShape experts;                             // whole ones, or blocks, instead of neurons
    uint64_t tables = 0, reader = 0, process = 0;  // bytes
    uint64_t least = 0;                            // the least budget with which the model runs so
    int32_t n_ubatch = 0;                          // rows that sessions compute at once, at most
    int32_t sparse = 0;                            // of the sessions: a pi_sparse
    bool predicted = false;                        // sessions compute what predictors propose
    // What a generated token is expected to wait for reads of the disk that caches are divided for
    // (kDisk), if nothing is computed meanwhile. It never rises with the budget.
    double read_seconds = 0;
    // Of whole experts: the share of those chosen that memory is expected to have; what a generated
    // token takes with its reads; and the budget with which it takes half of that, 0: none does.
    double hits = 0, token_seconds = 0;
    uint64_t twice = 0;
};

// A table of which single rows are read from the disk.
struct StoredTable {
    const ggml::File* file = nullptr;  // null: it is in memory
    uint64_t offset = 0;               // there
    ggml::Matrix table;                // its type and sizes
};

// Biases of the scores of attention by distance, the same in all layers.
struct ScoreBias {
    // Of each head, by the bucket that a distance is in: the first half is of positions before a
    // row and of its own, the other half of those behind it (arXiv 2004.09297).
    ggml::Matrix buckets;  // [n_buckets, n_head]
    // In its place, what a position is worth less for each step to it (ALiBi, arXiv 2108.12409).
    std::vector<float> slopes;  // [n_head]

    explicit operator bool() const { return buckets || !slopes.empty(); }
    // The usual slopes: 2^(-8 i / n) of head i from 1 on, and beyond the last power of two those
    // between them.
    void slope(int64_t n_head);
    // The table of ggml::AttentionScores, for distances below n_ctx: [n_head, 2 n_ctx - 1].
    void fill(int64_t n_ctx, float* table) const;
};

// norm(act(w . x + bias)), of the vector of a text.
struct TextStep {
    enum class Act { none, tanh, gelu };

    ggml::Matrix w;
    const float* bias = nullptr;
    Act act = Act::none;
    std::optional<NormWeights> norm;
};

struct Model {
    Model();
    ~Model();
    Config config;
    // DRY's breakers keep the vocabulary beyond the model.
    std::shared_ptr<Vocab> shared_vocab = std::make_shared<Vocab>();
    Vocab& vocab = *shared_vocab;
    ModelFile file;
    std::shared_ptr<Budget> budget;  // for the model, its sessions and callers' reservations
    Reservation reserved;            // for the weights

    ggml::Matrix token_embd;     // [n_vocab, n_embd]
    ggml::Matrix position_embd;  // [positions, n_embd], where positions are learned
    // Embeddings of each layer: what is made of the token's, and where the model has a table for
    // that, rows of the token.
    struct {
        int64_t width = 0;            // of a layer; 0: none
        bool of_tokens = false;       // there is a table
        ggml::Matrix tokens;          // [n_vocab, n_layer * width]
        ggml::Matrix project;         // [n_layer * width, n_embd]
        const float* norm = nullptr;  // [width]
    } layer_embd;
    ScoreBias score_bias;
    ggml::Matrix token_types;                   // [types, n_embd], added to the embedding
    std::optional<NormWeights> embedding_norm;  // [n_embd], of the embedding with its position
    // Of scaled tables of RoPE, [n_rot / 2]: each frequency is divided by its factor.
    const float* rope_factors = nullptr;
    // The same for longrope, for short and for long sessions.
    const float *rope_short = nullptr, *rope_long = nullptr;
    NormWeights output_norm;              // [n_embd]; without a weight: there is none
    std::optional<StreamMix> output_mix;  // in its place, where there are several streams
    ggml::Matrix output;  // [n_vocab, n_embd]; token_embd if the head is tied; an encoder has none
    const float* output_bias = nullptr;  // [n_vocab]
    // What the vector of a text goes through, and in its place what gives scores of a text.
    std::deque<TextStep> dense, ranker;
    std::vector<Layer> layers;  // with that of `nextn`, if it was asked for
    // What is before and behind the layer that guesses the token after the next one (multi-token
    // prediction, arXiv 2412.19437), the last one of `layers`. It reads join . [norm(embedding of
    // the token), norm(what the head read of the row before)].
    struct {
        ggml::Matrix join;                                       // [n_embd, 2 n_embd]
        const float *token_norm = nullptr, *row_norm = nullptr;  // [n_embd]
        const float* last_norm = nullptr;                        // [n_embd]; null: output_norm
        bool centred = false;     // last_norm is LayerNorm's, without bias
        float last_eps = 0;       // of last_norm
        ggml::Matrix token_embd;  // [n_vocab, n_embd]; empty: the model's
        ggml::Matrix output;      // the same
    } nextn;
    bool guesses() const { return int64_t(layers.size()) > config.n_layer; }
    std::vector<const FeedForward*> ffns;  // the feed-forward parts of all layers, in order
    const NGrams* grams = nullptr;         // the part with n-grams, of which there is one at most
    // Of all feed-forward parts.
    int64_t n_blocks() const {
        return ffns.empty() ? 0 : ffns.back()->first_block + ffns.back()->n_blocks();
    }
    // The feed-forward part of a layer for callers who know of one: its experts, if others stand
    // beside them that every row computes. Null if it has none.
    const FeedForward* ffn_of(int64_t layer) const;
    // The same of a layer that has one. Throws Error(unsupported) if it has none.
    const FeedForward& only_ffn(int64_t layer) const;
    // Does it stand beside experts, as a shared one that every row computes?
    bool beside_experts(const FeedForward& part) const {
        return !part.routed() && ffn_of(part.layer)->routed();
    }
    // The next feed-forward part; or null.
    const FeedForward* ffn_after(const FeedForward& part) const {
        const auto next = size_t(part.index) + 1;
        return next < ffns.size() ? ffns[next] : nullptr;
    }
    // Neurons of the layers from this one on; those of one expert of a mixture.
    int64_t neurons_from(int64_t layer) const;

    std::vector<WeightSpec> weights;      // what is loaded, in the order of the architecture
    WeightPlan plan;                      // their places, and the size of the memory
    std::optional<Placement> placement;   // wanted tiers of neurons
    std::unique_ptr<DeviceModel> device;  // what a device has; or null
    LeftToCpu left_to_cpu;                // why a device that was asked for has nothing
    // Layers that the device has, the last ones.
    int64_t device_layers() const;
    // Neurons of a layer whose rows it has.
    int64_t device_neurons(int64_t layer) const;
    int64_t n_experts() const;  // that rows choose from, of all layers
    // Are there neurons whose value may be exactly zero, so that their rows are not needed?
    bool skips_neurons() const;
    // Of token_embd, and of layer_embd.tokens or n-grams: rows of a table of their own.
    StoredTable token_embd_stored, own_rows_stored;
    std::optional<StoragePlan> storage;  // neurons stay on the disk; or RAM has all
    // What would be `storage` with mmap_anyway, of a model that does not fit RAM.
    std::optional<StoragePlan> anyway;
    // Of these neurons. It belongs to whichever session computes: see its mutex.
    std::unique_ptr<NeuronStore> store;
    std::unique_ptr<ExpertStore> experts;  // the same, of whole experts or blocks
    // Do neurons stay on the disk? Sessions have other memory then.
    bool stores_neurons() const { return storage && !storage->experts; }
    int32_t n_sessions = 1;       // that it keeps room for
    bool keeps_resident = false;  // its file may be written when the model is closed
    // What saved states call the weights (state.cpp), once one has asked for it.
    mutable struct {
        std::mutex mutex;
        std::string name;
    } weights_name;
    ggml::Memory packed;  // strips and bundles
    ggml::Memory plain;   // stored weights that were read, not mapped
    // `packed`, where a device gets experts from it.
    ggml::PinnedMemory pinned;

    // Reads the header only: config, vocabulary, budget, and weights with tensors found and shapes
    // and types checked. Throws Error naming file, key or tensor.
    static std::unique_ptr<Model> inspect(const std::string& path, const pi_model_params& params);
    // The same, and then reserves memory in the budget and reads, maps and packs the weights.
    static std::shared_ptr<const Model> load(const std::string& path,
                                             const pi_model_params& params);
};

// An expert as it goes to a device.
inline ExpertWeights expert_weights(const Ffn& f) {
    if (f.neurons.n > 0) return {{}, {}, {}, nullptr, nullptr, nullptr, &f.neurons};
    return {f.gate, f.up, f.down, f.gate_bias, f.up_bias, f.down_bias};
}

}  // namespace powerinfer
