// The neuron-aware feed-forward operator. Threads take segments of neurons. For one token a
// segment's gate, up and down are one pass over its candidates; for several tokens the first pass
// keeps what fired, and a second one adds the down rows by columns, so that each row is read once
// for all tokens. Both add in the same order, hence with the same bits.
#include "ggml/neurons.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"

namespace ggml {

namespace {

constexpr int64_t kSegments = 32;
constexpr int64_t kTile =
    8;  // candidates whose rows are on their way while the tile before is computed

// Neurons of a segment: whole tiles, so that dense lists stay aligned.
int64_t segment_size(int64_t n) {
    return (n + kSegments * kTile - 1) / (kSegments * kTile) * kTile;
}

// Columns that one thread adds at a time when there are several tokens. A piece of a folded row is
// a whole number of its blocks.
int64_t column_piece(const Neurons& w) {
    const int64_t unit = w.down.folded ? kStrip * info(w.down.type).block : 32;
    return std::min((std::max<int64_t>(256, unit) + unit - 1) / unit * unit, w.cols);
}

int64_t natural_column(int64_t place, int64_t cols) {
    const int64_t r = place % 8, j = place / 8 % 4, group = place / 32;
    return r * (cols / 8) + 4 * group + j;
}

// Adds kSegments sums of n values, `step` apart, into the first: neighbours, then pairs, and so on.
void add_tree(float* sums, int64_t step, int64_t n) {
    for (int64_t apart = 1; apart < kSegments; apart *= 2) {
        for (int64_t s = 0; s + apart < kSegments; s += 2 * apart) {
            float* to = sums + s * step;
            const float* from = sums + (s + apart) * step;
            for (int64_t i = 0; i < n; i++) to[i] += from[i];
        }
    }
}

}  // namespace

class SparseFfn {
 public:
    SparseFfn(Context& context, const Neurons& w, const Input& x, const NeuronMask& mask,
              NeuronScratch& scratch)
        : context_(context),
          kernels_(context.kernels),
          w_(w),
          x_(x),
          mask_(mask),
          s_(scratch),
          size_(segment_size(w.n)) {}

    void run(float* y, NeuronCounts* counts) {
        std::fill(s_.counts_.begin(), s_.counts_.end(), NeuronCounts{});
        fold_input();
        context_.threads.run(kSegments, 1, [&](int64_t begin, int64_t end, int thread) {
            for (int64_t s = begin; s < end; s++) segment(s, thread);
        });
        if (x_.rows == 1) {
            finish_one(y);
        } else {
            finish_many(y);
        }
        if (!counts) return;
        counts->rows += x_.rows;
        for (const NeuronCounts& c : s_.counts_) {
            counts->proposed += c.proposed;
            counts->fired += c.fired;
        }
    }

 private:
    // Q8 activations in the order of folded rows; see NeuronInput.
    void fold_input() {
        const bool needed = w_.gate.wants_q8() || w_.up.wants_q8();
        if (!needed) return;
        const Q8Rows& in = x_.q8;
        Q8Rows& out = s_.folded_;
        out.cols = in.cols;
        const int64_t n_blocks = in.cols / kQ, eighth = n_blocks / kStrip;
        context_.threads.run(x_.rows, 1, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                for (int64_t b = 0; b < eighth; b++) {
                    for (int64_t r = 0; r < kStrip; r++) {
                        const int64_t from = t * n_blocks + r * eighth + b;
                        const int64_t to = t * n_blocks + b * kStrip + r;
                        out.d[to] = in.d[from];
                        out.s8[to] = in.s8[from];
                        out.ds[to] = in.ds[from];
                        for (int64_t half : {0, 1}) {
                            out.s16[2 * to + half] = in.s16[2 * from + half];
                        }
                        int8_t* q = out.q + (t * n_blocks + b * kStrip) * kQ + 4 * r;
                        for (int64_t v = 0; v < 8; v++) {
                            std::memcpy(q + 4 * kStrip * v, in.q + from * kQ + 4 * v, 4);
                        }
                    }
                }
            }
        });
    }

    bool masked(int64_t t) const { return mask_.masked && mask_.masked[t]; }

    // Ids of the neurons of [begin, end) that row t may compute.
    int64_t propose(int64_t t, int64_t begin, int64_t end, int32_t* ids) const {
        int64_t n = 0;
        if (!masked(t)) {
            for (int64_t i = begin; i < end; i++) ids[n++] = int32_t(i);
            return n;
        }
        const float* score = mask_.score + t * w_.n;
        for (int64_t i = begin; i < end; i++) {
            ids[n] = int32_t(i);  // kept by moving on: no branch to mispredict
            n += score[i] >= mask_.threshold || (mask_.hot && mask_.hot[i]);
        }
        return n;
    }

    void dot(const NeuronRows& rows, const float* bias, const int32_t* ids, int64_t n, int64_t t,
             float* out) const {
        const NeuronInput in{x_.x, x_.q8, s_.folded_, t};
        if (rows.folded || !info(rows.type).is_quantised()) {
            kernels_.dot[int(rows.type)](rows.data, rows.stride, ids, n, w_.cols, in, out);
        } else {
            stored_dot(rows, ids, n, t, out);
        }
        if (bias) {
            for (int64_t i = 0; i < n; i++) out[i] += bias[ids[i]];
        }
    }

    // Block formats whose rows are too short to fold: decoded, a piece at a time.
    void stored_dot(const NeuronRows& rows, const int32_t* ids, int64_t n, int64_t t,
                    float* out) const {
        const DTypeInfo& format = info(rows.type);
        float piece[256];
        for (int64_t i = 0; i < n; i++) {
            float sum = 0;
            for (int64_t c = 0; c < w_.cols; c += format.block) {
                format.decode(rows.data + ids[i] * rows.stride + format.size(c), piece,
                              format.block);
                float part = 0;
                kernels_.matmul[int(DType::F32)](reinterpret_cast<const uint8_t*>(piece), 0, 1,
                                                 format.block, x_.x + t * w_.cols + c, 0, 1, &part,
                                                 1);
                sum += part;
            }
            out[i] = sum;
        }
    }

    // y[0, cols) += sum of h * down rows, from column c0 on (of the folded order where rows are
    // folded).
    void add(const int32_t* ids, const float* h, int64_t n, int64_t c0, int64_t cols,
             float* y) const {
        const uint8_t* data = w_.down.data + info(w_.down.type).size(c0);
        if (w_.down.folded || !info(w_.down.type).is_quantised()) {
            kernels_.add[int(w_.down.type)](data, w_.down.stride, ids, n, cols, h, y);
            return;
        }
        for (int64_t i = 0; i < n; i++) {
            kernels_.accumulate[int(w_.down.type)](data + ids[i] * w_.down.stride, 0, 1, cols,
                                                   h + i, 0, 1, y, 0);
        }
    }

    float activate(float v) const {
        switch (w_.act) {
            case Activation::relu:
            case Activation::drelu:
                return v > w_.threshold ? v : 0;
            case Activation::relu2:
                return v > w_.threshold ? v * v : 0;
            default:
                break;
        }
        const float a = w_.act == Activation::silu ? v / (1.0f + std::exp(-v))
                                                   : 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
        return std::fabs(a) < w_.threshold ? 0 : a;
    }

    // From the values of the first matrix (gate, or up where there is no gate) to the neurons that
    // fire: their ids and values, compacted. `ids` and `g` may be the outputs.
    int64_t fire(const int32_t* ids, const float* g, int64_t n, int64_t t, int32_t* fired,
                 float* h) const {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i++) {
            const float a = activate(g[i]);
            fired[m] = ids[i];
            h[m] = a;
            m += a != 0;
        }
        if (!w_.gate || m == 0) return m;
        int64_t kept = 0;
        for (int64_t i = 0; i < m; i += kTile) {
            const int64_t part = std::min(kTile, m - i);
            float u[kTile];
            dot(w_.up, w_.up_bias, fired + i, part, t, u);
            for (int64_t j = 0; j < part; j++) {
                const float up = w_.act == Activation::drelu ? activate(u[j]) : u[j];
                const float value = h[i + j] * up;
                fired[kept] = fired[i + j];
                h[kept] = value;
                kept += value != 0;
            }
        }
        return kept;
    }

    void fetch(const NeuronRows& rows, int32_t id) const {
        if (!rows) return;
        const uint8_t* row = rows.data + id * rows.stride;
        for (int64_t i = 0; i < info(rows.type).size(w_.cols); i += 64) __builtin_prefetch(row + i);
    }

    void segment(int64_t s, int thread) {
        const int64_t begin = std::min(s * size_, w_.n), end = std::min(begin + size_, w_.n);
        if (x_.rows == 1) {
            one_token(s, begin, end, thread);
        } else {
            many_tokens(s, begin, end, thread);
        }
    }

    // Tiles of candidates: while one tile's gates are computed, up and down of what fired in the
    // tile before are on their way.
    void one_token(int64_t s, int64_t begin, int64_t end, int thread) {
        const NeuronRows& first = w_.gate ? w_.gate : w_.up;
        const float* first_bias = w_.gate ? w_.gate_bias : w_.up_bias;
        float* sum = s_.partial_ + s * w_.cols;
        std::fill_n(sum, w_.cols, 0.0f);
        int32_t* ids = s_.ids_ + begin;
        const int64_t n = propose(0, begin, end, ids);
        NeuronCounts& counts = s_.counts_[size_t(thread)];
        counts.proposed += n;
        const bool scattered = masked(0);
        int32_t waiting[kTile];
        float waiting_g[kTile];
        int64_t n_waiting = 0;
        const auto finish_waiting = [&] {
            int32_t fired[kTile];
            float h[kTile];
            const int64_t m = fire(waiting, waiting_g, n_waiting, 0, fired, h);
            add(fired, h, m, 0, w_.cols, sum);
            counts.fired += m;
            n_waiting = 0;
        };
        for (int64_t i = 0; i < n; i += kTile) {
            const int64_t part = std::min(kTile, n - i);
            if (scattered) {  // an unbroken run of rows the processor fetches by itself
                for (int64_t j = i + part; j < std::min(i + 2 * kTile, n); j++)
                    fetch(first, ids[j]);
            }
            float g[kTile];
            dot(first, first_bias, ids + i, part, 0, g);
            finish_waiting();
            for (int64_t j = 0; j < part; j++) {
                if (activate(g[j]) == 0) continue;
                waiting[n_waiting] = ids[i + j];
                waiting_g[n_waiting++] = g[j];
                if (w_.gate) fetch(w_.up, ids[i + j]);
                fetch(w_.down, ids[i + j]);
            }
        }
        finish_waiting();
    }

    void many_tokens(int64_t s, int64_t begin, int64_t end, int thread) {
        const NeuronRows& first = w_.gate ? w_.gate : w_.up;
        const float* first_bias = w_.gate ? w_.gate_bias : w_.up_bias;
        NeuronCounts& counts = s_.counts_[size_t(thread)];
        // The gates of a few neurons for all tokens at a time: their rows stay in the nearest
        // cache.
        float* gates = s_.gates_ + int64_t(thread) * x_.rows * size_;
        for (int64_t i = begin; i < end; i += kTile) {
            const int64_t last = std::min(i + kTile, end);
            for (int64_t t = 0; t < x_.rows; t++) {
                int32_t ids[kTile];
                float g[kTile];
                const int64_t n = propose(t, i, last, ids);
                counts.proposed += n;
                if (n) dot(first, first_bias, ids, n, t, g);
                // Neurons that were not proposed count as not firing.
                float* row = gates + t * size_ + (i - begin);
                std::fill_n(row, last - i, NAN);
                for (int64_t j = 0; j < n; j++) row[ids[j] - i] = g[j];
            }
        }
        for (int64_t t = 0; t < x_.rows; t++) {
            int32_t* ids = s_.ids_ + t * w_.n + begin;
            float* h = s_.h_ + t * w_.n + begin;
            int64_t n = 0;
            for (int64_t i = begin; i < end; i++) {
                const float g = gates[t * size_ + i - begin];
                ids[n] = int32_t(i);
                h[n] = g;
                n += !std::isnan(g);
            }
            const int64_t m = fire(ids, h, n, t, ids, h);
            s_.lengths_[t * kSegments + s] = int32_t(m);
            counts.fired += m;
        }
    }

    // Where a sum in the order of the down rows belongs in y.
    void place(const float* sum, int64_t c0, int64_t n, float* y) const {
        for (int64_t i = 0; i < n; i++) {
            const int64_t c = w_.down.folded ? natural_column(c0 + i, w_.cols) : c0 + i;
            y[c] = sum[i] + (w_.down_bias ? w_.down_bias[c] : 0.0f);
        }
    }

    void finish_one(float* y) {
        context_.threads.run(w_.cols, 256, [&](int64_t begin, int64_t end, int) {
            add_tree(s_.partial_ + begin, w_.cols, end - begin);
            place(s_.partial_ + begin, begin, end - begin, y);
        });
    }

    void finish_many(float* y) {
        const int64_t piece = column_piece(w_), n_pieces = (w_.cols + piece - 1) / piece;
        context_.threads.run(n_pieces, 1, [&](int64_t begin, int64_t end, int thread) {
            float* sums = s_.partial_ + int64_t(thread) * kSegments * piece;
            for (int64_t p = begin; p < end; p++) {
                const int64_t c0 = p * piece, n = std::min(piece, w_.cols - c0);
                for (int64_t t = 0; t < x_.rows; t++) {
                    std::fill_n(sums, kSegments * piece, 0.0f);
                    for (int64_t s = 0; s < kSegments; s++) {
                        const int64_t at = t * w_.n + std::min(s * size_, w_.n);
                        add(s_.ids_ + at, s_.h_ + at, s_.lengths_[t * kSegments + s], c0, n,
                            sums + s * piece);
                    }
                    add_tree(sums, piece, n);
                    place(sums, c0, n, y + t * w_.cols);
                }
            }
        });
    }

    Context& context_;
    const cpu::Kernels& kernels_;
    const Neurons& w_;
    const Input& x_;
    const NeuronMask& mask_;
    NeuronScratch& s_;
    const int64_t size_;

    using NeuronInput = cpu::NeuronInput;
};

namespace {

// Widest column piece of any format: a folded 256-block row.
constexpr int64_t kWidestPiece = kStrip * 256;

struct Sizes {
    Sizes(int64_t max_rows, int64_t n, int64_t cols, int threads)
        : per_neuron(max_rows * n),
          lengths(max_rows * kSegments),
          gates(max_rows > 1 ? threads * max_rows * segment_size(n) : 0),
          partial(kSegments *
                  std::max(cols, max_rows > 1 ? threads * std::min(cols, kWidestPiece) : 0)),
          blocks(max_rows * ((cols + kQ - 1) / kQ)) {}
    uint64_t bytes() const {
        return uint64_t(per_neuron) * 8 + uint64_t(lengths + gates + partial) * 4 +
               uint64_t(blocks) * (kQ + 3 * 4 + 2 * 2);
    }
    int64_t per_neuron, lengths, gates, partial, blocks;
};

}  // namespace

uint64_t NeuronScratch::bytes(int64_t max_rows, int64_t n, int64_t cols, int max_threads) {
    return Sizes(max_rows, n, cols, max_threads).bytes();
}

NeuronScratch::NeuronScratch(int64_t max_rows, int64_t n, int64_t cols, int max_threads)
    : memory_(bytes(max_rows, n, cols, max_threads), "sparse scratch"),
      counts_(size_t(max_threads)) {
    const Sizes sizes(max_rows, n, cols, max_threads);
    uint8_t* at = memory_.data();
    const auto take = [&](auto& pointer, int64_t count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
        at += uint64_t(count) * sizeof(*pointer);
    };
    take(partial_, sizes.partial);
    take(h_, sizes.per_neuron);
    take(gates_, sizes.gates);
    take(ids_, sizes.per_neuron);
    take(lengths_, sizes.lengths);
    take(folded_.d, sizes.blocks);
    take(folded_.ds, sizes.blocks);
    take(folded_.s8, sizes.blocks);
    take(folded_.s16, 2 * sizes.blocks);
    take(folded_.q, sizes.blocks * kQ);
}

void sparse_ffn(Context& context, const Neurons& neurons, const Input& x, const NeuronMask& mask,
                NeuronScratch& scratch, float* y, NeuronCounts* counts) {
    const NeuronRows* parts[] = {&neurons.gate, &neurons.up, &neurons.down};
    uint64_t bytes = 0;
    for (const NeuronRows* p : parts) {
        if (*p) bytes += uint64_t(neurons.n * info(p->type).size(neurons.cols));
    }
    const OpTimer timer(context.profile, "sparse_ffn", bytes);
    SparseFfn(context, neurons, x, mask, scratch).run(y, counts);
}

}  // namespace ggml
