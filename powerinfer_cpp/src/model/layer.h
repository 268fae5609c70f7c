// A layer is a list of parts, each with its own sizes: attention, routers, feed-forward blocks. The
// families write the lists when a file is opened (families/); forward/walk.h walks over them in
// order.
//
// A part reads the residual stream or the same input as the part before, through a norm or as it
// is; what it gives may pass another norm, and is added to the stream at once or with the next
// part's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ggml/gate_limit.h"
#include "ggml/neurons.h"
#include "ggml/ops.h"
#include "ggml/recurrence.h"
#include "ggml/sketch.h"
#include "ggml/tensor.h"
#include "model/config.h"
#include "weights/neuron_layout.h"

namespace powerinfer {

// A normalisation and its weights; no bias for RMSNorm.
struct NormWeights {
    const float* weight = nullptr;  // [n]
    const float* bias = nullptr;    // [n]
    Norm kind = Norm::rms;
    float eps = 0;
};

// Matrices are [outputs, inputs]. A null pointer or an empty matrix means that the model has no
// such weight.

// How a part reads several residual streams and adds to them (hyper-connections). Of each stream z
// = RMSNorm(stream); the part reads the mean of sigmoid(up . silu(down . z / n)) * z over the n
// streams, and what it gives is added to stream i times 2 sigmoid(inject . z / n)_i.
struct StreamMix {
    int64_t rank = 0;
    const float* norm = nullptr;  // [n, n_embd]
    float norm_eps = 0;
    ggml::Matrix down, up;  // [rank, n * n_embd], [n * n_embd, rank]
    ggml::Matrix inject;    // [n, n * n_embd]; empty: they are only read
};

// What attention over latents (MLA, arXiv 2405.04434) has of its own. All heads share one key: the
// latent of a position behind its norm, and values that rotate. The latent is the value, too, so
// that the cache has it once. The matrices that would make the heads' keys and values of it are
// applied to queries and to results instead, for every row.
struct Latent {
    int64_t nope = 0;                    // values of a head's query that do not rotate
    int64_t out = 0;                     // values that a head gives
    int64_t q_rank = 0;                  // of the latent of queries; 0: they have none
    ggml::Matrix q_a;                    // [q_rank, n_embd]
    const float* q_a_norm = nullptr;     // [q_rank]
    std::vector<ggml::Matrix> k_b, v_b;  // of each head: [v_head_dim, nope], [out, v_head_dim]
};

// Attention over the positions of a sequence, with keys and values in the cache.
struct Attention {
    int64_t n_head = 0;      // of queries
    int64_t n_head_kv = 0;   // of keys and values, a divisor of n_head
    int64_t head_dim = 0;    // values of a query and of a key
    int64_t v_head_dim = 0;  // of a value
    int rope = -1;           // Config::ropes that rotates the heads; -1: none
    int64_t window = 0;      // positions that a row sees, its own too; 0: all
    bool both = false;       // it sees those behind it, too: as many as before it
    int64_t first = 0;       // the first position that later rows see
    // Queries are multiplied by 1 + growth ln(1 + floor(position / growth_ctx)).
    double growth = 0;
    int64_t growth_ctx = 1;
    bool v_norm = false;  // RMSNorm of each head of values, without a weight
    int64_t kv_of = -1;   // the layer before whose keys and values it reads; -1: it has its own
    float scale = 0, softcap = 0;  // of scores, see ggml::AttentionScores
    const float* sinks = nullptr;  // [n_head], the same
    // [q_dim | k_dim | v_dim, n_embd], [n_embd, out_dim]. Without v, values are the keys before
    // their norm and rotation.
    ggml::Matrix q, k, v, o;
    const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
    // Behind the rows of each head of q are as many of a gate, by whose sigmoid what the head gives
    // is multiplied.
    bool gated = false;
    // Or the gate has a matrix of its own, with one value for each head or for each of out_dim().
    int64_t n_gate = 0;  // n_head or out_dim(); 0: none
    ggml::Matrix gate;   // [n_gate, n_embd]
    ggml::GateBy gate_by = ggml::GateBy::sigmoid;
    // With a latent q has [n_head * (nope + the values that rotate), q_rank or n_embd], there is no
    // v, and k_norm is the latent's.
    std::optional<Latent> latent;
    // Over each head: with RMSNorm [head_dim], with LayerNorm [n_head | n_head_kv, head_dim]. Or
    // over the whole row: [q_dim | k_dim], where LayerNorm may add a bias.
    const float *q_norm = nullptr, *k_norm = nullptr;
    const float *q_norm_bias = nullptr, *k_norm_bias = nullptr;
    enum class Norms { by_head, whole_row, after_rope } norms = Norms::by_head;  // after: by head
    Norm norm = Norm::rms;            // of queries and keys
    float norm_eps = 0;               // of all norms of the part
    const float* out_norm = nullptr;  // [out_dim], RMSNorm of what the heads give, before o

    int64_t q_dim() const { return n_head * head_dim; }
    int64_t q_rows() const { return gated ? 2 * q_dim() : q_dim(); }
    int64_t k_dim() const { return n_head_kv * head_dim; }
    int64_t v_dim() const { return n_head_kv * v_head_dim; }
    int64_t attended_dim() const { return n_head * v_head_dim; }
    int64_t out_dim() const { return latent ? n_head * latent->out : attended_dim(); }
    int64_t rotating() const { return head_dim - v_head_dim; }  // values of a key beside a latent
};

// Chooses experts for each row. The next feed-forward part of the layer computes them.
struct Router {
    ggml::Routing how;
    ggml::Matrix w;               // [n_expert, n_embd]
    const float* bias = nullptr;  // [n_expert], of the scores
    float scale = 1;              // of the scores
};

// A feed-forward block, or one expert of several. Without a gate: down . act(up . x).
struct Ffn {
    // For dense files: matrices. gate, up: [n_ff, n_embd]; down: [n_embd, n_ff].
    ggml::Matrix gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    const float* value_norm = nullptr;  // [n_ff], see FeedForward::norms_values
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

// One block for every row; or experts of the same sizes and types, of which a row computes those
// that the last router has chosen.
struct FeedForward {
    int64_t n_ff = 0;         // neurons of a block
    int64_t n_used = 0;       // experts that a row computes; 0: one block, without a router
    std::vector<Ffn> blocks;  // 1, or one per expert
    ggml::Matrix share;       // [1, n_embd]: what it gives is multiplied by sigmoid(share . x)
    // [n_expert]: numbers that multiply the products with the matrices of each expert; null: 1.
    // Once loaded, the matrices have theirs, too.
    const float *gate_scale = nullptr, *up_scale = nullptr, *down_scale = nullptr;
    // What experts read and give, [width] each, if that is narrower than a row of the model: narrow
    // . x, and widen . their sum. 0, and empty: they read x.
    int64_t width = 0;
    ggml::Matrix narrow, widen;       // [width, n_embd], [n_embd, width]
    const float* sum_bias = nullptr;  // [n_embd], added to what the experts give together
    ggml::Activation activation = ggml::Activation::silu;
    std::optional<ggml::Xielu> xielu;  // its parameters, if it is xielu
    ggml::GateLimit limit;             // of a gated activation; not of neuron rows
    // RMSNorm of the values act(gate . x) * up . x before down. Its weights are Ffn::value_norm; in
    // neuron-aware files the down rows have them as a factor. Then only the root of the mean square
    // is left, one number for all neurons of a row, which the finished sum is divided by: it needs
    // the squares of those that fire, and no others.
    bool norms_values = false;
    float norm_eps = 0;
    float sparse_threshold = 0;  // predictor score below which a neuron is skipped
    float recall = 0;            // share of firings that it found in training; 0: unknown
    // Where it is in the model: its layer, its number among all feed-forward parts, that of its
    // first block among all blocks, and neurons of a block of each part before it.
    int64_t layer = 0, index = 0, first_block = 0, first_neuron = 0;

    // Values of a row that a block reads and gives, in a model of n_embd.
    int64_t columns(int64_t n_embd) const { return width ? width : n_embd; }
    bool routed() const { return n_used > 0; }
    int64_t n_blocks() const { return int64_t(blocks.size()); }
    int64_t n_expert() const { return routed() ? n_blocks() : 0; }
    // The number of one of its blocks in neuron stores and traces.
    int32_t number(int64_t block) const { return int32_t(first_block + block); }
};

// What the tokens say to this layer: project . (act(gate . x) * their embeddings for the layer),
// see Model::layer_embd.
struct LayerEmbedding {
    ggml::Matrix gate, project;  // [width, n_embd], [n_embd, width]
    ggml::Activation activation = ggml::Activation::silu;
};

// Parts that fold all positions of a sequence into numbers of a fixed count, its state: no position
// of it can be taken back. They are found by their member state(): floats of a part and sequence,
// those of the convolution first. entering(): floats of a row that the state depends on, from which
// it can be computed once more. beside(): what else a row's part computes of its input. folded():
// what the operators give, which `out` reads; room(): what they need for that.

// A causal convolution between two gates (LFM2): b, c, u are products of x; out . (c * conv(b *
// u)). Its state is the last taps - 1 columns of b * u.
struct ShortConvolution {
    int64_t channels = 0, taps = 0;
    ggml::Matrix b, c, u, out;    // [channels, n_embd] each, [n_embd, channels]
    const float* conv = nullptr;  // [channels, taps], the newest column's last

    int64_t state() const { return (taps - 1) * channels; }
    int64_t entering() const { return channels; }
    int64_t beside() const { return 2 * channels; }
    int64_t folded() const { return channels; }
    int64_t room() const { return folded(); }
};

// Mamba-2 (arXiv 2405.21060): z, u, B, C and dt are products of x; u, B, C = silu(conv(u, B, C) +
// bias); for each head S = exp(dt a) S + dt u (x) B, y = S C + d u; out . norm(y * silu(z)).
struct Mamba2 {
    int64_t n_head = 0, head_dim = 0;  // heads of u and z
    int64_t n_group = 0;               // of heads that share B and C, a divisor of n_head
    int64_t n_state = 0;               // values of B and C, columns of a head's state
    int64_t taps = 0;
    ggml::Matrix z, ubc, dt, out;  // [inner | channels | n_head, n_embd], [n_embd, inner]
    const float *conv = nullptr, *conv_bias = nullptr;           // [channels, taps], [channels]
    const float *dt_bias = nullptr, *a = nullptr, *d = nullptr;  // [n_head]; a < 0
    const float* norm = nullptr;  // [inner], RMSNorm of norm_group values each; null: none
    int64_t norm_group = 0;
    float norm_eps = 0;

    int64_t inner() const { return n_head * head_dim; }
    int64_t channels() const { return inner() + 2 * n_group * n_state; }
    int64_t state() const {
        return (taps - 1) * channels() + ggml::matrix_states(n_head, n_state, head_dim);
    }
    int64_t entering() const { return channels() + n_head; }
    int64_t beside() const { return inner() + n_head; }
    int64_t folded() const { return inner(); }
    int64_t room() const { return folded(); }
};

// Of queries and keys of delta nets that are made as long as 1, whatever the eps of norms:
// transformers has this one, llama.cpp that of norms. Published models have the same.
constexpr float kUnitEps = 1e-6f;

// A gated delta net (arXiv 2412.06464): q, k, v = silu(conv(qkv . x)), z = gate . x; for each head
// of v S = exp(g) S, S = S + k (x) beta (v - S^T k), y = S^T q; out . (norm(y) * silu(z)). Or rows
// of S decay on their own (ggml::DeltaRule), as in Kimi's delta attention (arXiv 2510.26692).
struct DeltaNet {
    int64_t n_k_head = 0, n_v_head = 0;    // of queries and keys; of values, a multiple
    int64_t head_dim = 0, v_head_dim = 0;  // values of a query and of a key; of a value
    int64_t taps = 0;
    bool tiled = false;           // v head h is served by k head h mod n_k_head; or h / (n_v / n_k)
    bool by_row = false;          // alpha and dt_bias have head_dim values a head
    float lower_bound = 0;        // of the exponent of a row's decay; 0: none
    bool sigmoid_gate = false;    // sigmoid(z) in the place of silu(z)
    ggml::Matrix qkv, gate, out;  // [channels, n_embd], [v_dim, n_embd], [n_embd, v_dim]
    ggml::Matrix beta, alpha;     // [n_v_head, n_embd], [n_alpha, n_embd]
    // In their place, the rows of each head of keys together: of q, k, its heads of v, those of z;
    // of beta, alpha.
    ggml::Matrix by_head, beta_alpha;  // [by_head_dim, n_embd], [2 n_v_head, n_embd]
    // In the place of qkv and conv, one for each.
    ggml::Matrix q, k, v;                                                 // [k_dim | v_dim, n_embd]
    const float *q_conv = nullptr, *k_conv = nullptr, *v_conv = nullptr;  // [k_dim | v_dim, taps]
    // What alpha and gate read in the place of x, if rank > 0: of products of it.
    int64_t rank = 0;
    ggml::Matrix alpha_low, gate_low;              // [rank, n_embd]
    const float* conv = nullptr;                   // [channels, taps]
    const float *dt_bias = nullptr, *a = nullptr;  // [n_alpha], [n_v_head]; a < 0
    const float* norm = nullptr;                   // [v_head_dim]
    float norm_eps = 0;                            // 0: the model's
    float beta_scale = 1;                          // see ggml::DeltaRule

    // What enters, in this order: queries, keys and values in one array or in three.
    enum Enters : uint8_t { kAlpha, kBeta, kQueries, kKeys, kValues };
    int64_t k_dim() const { return n_k_head * head_dim; }
    int64_t v_dim() const { return n_v_head * v_head_dim; }
    int64_t channels() const { return 2 * k_dim() + v_dim(); }
    int64_t by_head_dim() const { return channels() + v_dim(); }
    int64_t n_decays() const { return by_row ? head_dim : 1; }  // of a head
    int64_t n_alpha() const { return n_v_head * n_decays(); }
    int64_t state() const {
        return (taps - 1) * channels() + ggml::matrix_states(n_v_head, head_dim, v_head_dim);
    }
    int64_t entering() const { return channels() + n_alpha() + n_v_head; }
    int64_t beside() const { return v_dim() + n_alpha() + n_v_head; }
    int64_t folded() const { return v_dim(); }
    int64_t room() const { return std::max(by_head_dim() + 2 * n_v_head, 2 * rank); }
};

// What the last tokens say to several residual streams. The last 2, 3, ... `order` tokens choose a
// row of a table by each of `heads` hashes, and all these rows together are e. With key = norm(key
// . e), query = norm(streams) and value . e, v_i = gate_i value, where gate_i says how alike key_i
// and query_i are (ggml::gate_by_likeness); v + silu(conv(norm(v))) is added to the streams.
//
// hash = XOR over j of id(t - j) multiplier[j] in 64 bits, and the row of head h is offset[h] +
// hash mod size[h]. Tokens before the last one that ends a text count as that one.
struct NGrams {
    int64_t order = 0, heads = 0;
    int64_t n_streams = 0, n_embd = 0;
    int64_t taps = 0;                   // of the convolution, `order` positions apart
    int32_t end = 0;                    // the token that ends a text
    std::vector<int64_t> multiplier;    // [order]
    std::vector<int64_t> offset, size;  // [n_heads()], those of two tokens first
    int64_t head_dim = 0;               // values of a row
    ggml::Matrix table;                 // [rows, head_dim]
    ggml::Matrix key, value;            // [width, joined], [n_embd, joined]
    const float* conv = nullptr;        // [width, taps]
    const float *key_norm = nullptr, *query_norm = nullptr, *conv_norm = nullptr;  // [width]
    float norm_eps = 0;

    int64_t n_heads() const { return (order - 1) * heads; }
    int64_t joined() const { return n_heads() * head_dim; }
    int64_t width() const { return n_streams * n_embd; }
    int64_t state() const { return (taps - 1) * order * width(); }
    int64_t entering() const { return width(); }
    int64_t beside() const { return width(); }
    int64_t folded() const { return 0; }  // there is no output matrix
    int64_t room() const { return width() + n_embd; }
};

// Is T a kind of part with a state?
template <typename T, typename = void>
constexpr bool kHasState = false;
template <typename T>
constexpr bool kHasState<T, std::void_t<decltype(std::declval<T>().state())>> = true;

// For std::visit of a part's op, a function for each kind: a new kind does not compile until each
// visit has one for it.
template <typename... F>
struct ByKind : F... {
    using F::operator()...;
};
template <typename... F>
ByKind(F...) -> ByKind<F...>;

struct LayerPart {
    enum class Input {
        stream,    // the residual stream
        as_before  // what the part before has read, behind its norm
    };
    enum class Add { now, with_next };

    Input input = Input::stream;
    std::optional<NormWeights> norm;       // [n_embd], of the stream
    std::optional<StreamMix> mix;          // in its place, where there are several streams
    std::optional<NormWeights> post_norm;  // [n_embd], of what the part gives
    bool norms_sum = false;                // post_norm is of that and the stream together
    float scale = 1;                       // of what the part gives, behind its norm
    Add add = Add::now;
    std::optional<NormWeights> sum_norm;     // [n_embd], of its sum with what waits
    std::optional<NormWeights> stream_norm;  // [n_embd], of the stream, once this was added to it
    std::variant<Attention, Router, FeedForward, LayerEmbedding, ShortConvolution, Mamba2, DeltaNet,
                 NGrams>
        op;
};

struct Layer {
    // Weights are found by their addresses in it, which stay while parts are added.
    std::deque<LayerPart> parts;
    const float* scale = nullptr;  // [1], of the stream behind the last part
    // Of a layer that guesses tokens (Model::nextn): the values of the row before that it joins
    // with each token. Those of the last row wait for the next token as a state.
    int64_t hidden = 0;

    // The first part of a kind; or null.
    template <typename T>
    const T* find() const {
        for (const LayerPart& part : parts) {
            if (const T* found = std::get_if<T>(&part.op)) return found;
        }
        return nullptr;
    }
    template <typename T>
    T* find() {
        return const_cast<T*>(std::as_const(*this).find<T>());
    }
};

// What parts keep of a sequence, what of a row enters that, and what their output matrices read of
// what was folded: floats. 0: there is no part with a state.
struct StateSizes {
    int64_t state = 0, entering = 0, folded = 0;
};
// Of a layer.
StateSizes state_sizes(const Layer& layer);

// Calls f(part, before) for the parts of a layer that have a state; before: the sizes of those
// before it. Each one's state begins at a cache line.
template <typename F>
void for_state_parts(const Layer& layer, const F& f) {
    StateSizes before;
    for (const LayerPart& part : layer.parts) {
        std::visit(
            [&](const auto& op) {
                if constexpr (kHasState<std::decay_t<decltype(op)>>) {
                    before.state = (before.state + 15) / 16 * 16;
                    f(op, std::as_const(before));
                    before.state += op.state();
                    before.entering += op.entering();
                    before.folded += op.folded();
                }
            },
            part.op);
    }
}

// The experts that the router at part k chooses from. Throws Error(internal) if there are none.
const FeedForward& experts_after(const Layer& layer, size_t k);

// A block of matrices that reads the same rows as the experts of part k, and follows them: a shared
// expert. They can be computed together. Null: there is none.
const FeedForward* part_beside(const Layer& layer, size_t k);

// The largest sizes of the parts of all layers, for memory that they share; 0: no such part.
struct LargestSizes {
    int64_t n_head = 0, head_dim = 0, v_head_dim = 0, q_dim = 0, k_dim = 0, v_dim = 0;
    int64_t attended = 0,
            out_dim = 0;              // results of attention and what becomes of them, inputs of o
    int64_t latent = 0, by_head = 0;  // v_head_dim of latents; values of heads apart
    int64_t n_gate = 0;
    int64_t n_ff = 0, n_expert = 0, n_used = 0, expert_width = 0;
    // Of parts with a state: what enters it, what its part computes beside that, and the room of
    // results.
    int64_t entering = 0, beside = 0, folded = 0;
    int64_t mixed = 0;              // rank of StreamMix
    int64_t joined = 0, grams = 0;  // of NGrams: values and rows of the table that a row needs
};
LargestSizes largest_sizes(const std::vector<Layer>& layers);

}  // namespace powerinfer
