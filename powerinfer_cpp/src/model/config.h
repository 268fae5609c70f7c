// What a file says of its model as a whole. Sizes of attention and feed-forward blocks belong to
// the parts of layers (layer.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/notes.h"
#include "ggml/ops.h"

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
    bool truncate = true;  // yarn: are the dimensions that turn so often whole numbers?
    // How far frequencies that turn often stay as they are; negative: 1 with yarn, else 0.
    double extension = -1;
    double attention_factor = 1;  // yarn: multiplies 0.1 ln(factor) + 1
};

// RMSNorm, or LayerNorm.
enum class Norm : uint8_t { rms, layer };

// How the rows of a text become one vector: not at all, or their mean, the first or the last one.
// The numbers of {arch}.pooling_type.
enum class Pooling : int32_t { none = 0, mean = 1, first = 2, last = 3 };

// A table of RoPE (arXiv 2104.09864) that attention of some layers uses.
struct Rope {
    double base = 10000;
    int64_t n_rot = 0;   // values of a head that rotate, even
    bool scaled = true;  // by RopeScaling, the file's factors and what a session asks for
    ggml::RopePairs pairs = ggml::RopePairs::adjacent;
};

// Sizes and constants of the architecture, from the keys {arch}.*.
struct Config {
    std::string architecture;
    // Rows see those behind them, too, so that a text is computed in one pass: nothing is
    // generated, and nothing of it is kept for later.
    bool encoder = false;
    bool hybrid = false;  // some layers have no attention, or no feed-forward block
    int64_t n_vocab = 0;
    int64_t n_ctx = 0;  // positions that the model was trained with
    // The most that a session may have: from there on rows would see only some of those before,
    // which an indexer chooses. 0: as many as one likes.
    int64_t n_indexed = 0;
    int64_t n_embd = 0;
    int64_t n_streams = 1;  // residual streams beside each other, see StreamMix
    int64_t stream_width() const { return n_streams * n_embd; }
    int64_t n_layer = 0;
    int64_t first_heads = 0;  // of the first layer with attention; 0: none has it
    // Layers behind them that guess further tokens (multi-token prediction). See Model::nextn.
    int64_t n_nextn = 0;
    ggml::RopePairs rope_pairs = ggml::RopePairs::adjacent;  // of all `ropes`
    // The first one is what the keys say. None: positions are learned, layers with a state know
    // them (hybrid), or scores are biased by distance.
    std::vector<Rope> ropes;
    bool learned_positions() const { return ropes.empty() && !hybrid; }
    RopeScaling rope_scaling;
    float embedding_scale = 1;             // multiplies the rows of the embedding table
    float logit_scale = 1;                 // multiplies the logits
    float logit_softcap = 0;               // of logits, see ggml::AttentionScores
    int64_t position_offset = 0;           // learned positions: row of position 0
    Pooling rank_pooling = Pooling::last;  // of what Model::ranker reads
    // What the parts of layers have unless their family says otherwise.
    Norm norm = Norm::rms;
    bool norm_bias = true;  // LayerNorm adds one
    float norm_eps = 0;
    ggml::Activation activation = ggml::Activation::silu;
    bool neuron_aware = false;         // FFN weights are neuron rows
    bool has_predictors = false;       // in at least one layer
    bool sketches = false;             // predictors are sketches, not MLPs
    int64_t predictor_rank = 0;        // the largest rank of MLPs
    bool predict_from_normed = false;  // predictors read the normed input, not the residual
    Notes notes;                       // what the file does not say and was guessed
};

// Is this activation exactly 0 for negative inputs?
inline bool relu_family(ggml::Activation act) {
    return act == ggml::Activation::relu || act == ggml::Activation::drelu ||
           act == ggml::Activation::relu2;
}

}  // namespace powerinfer
