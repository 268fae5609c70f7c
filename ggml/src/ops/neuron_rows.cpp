// Chooses the kernel for a row's format, and the order of columns that it needs.
#include "ops/neuron_rows.h"

#include <algorithm>
#include <cstring>

namespace ggml::cpu {

namespace {

// The span (see column_at) of the column order that these rows use; 0 for plain order.
int64_t span_of(const NeuronRows& rows, int64_t cols) {
    return rows.folded ? cols : info(rows.type).block == kQK ? kQK : 0;
}

// The kernel for folded rows or rows of single values, or the one for blocks as stored.
template <typename F>
F kernel_for(const NeuronRows& rows, const F* folded, const F* stored) {
    const bool as_stored = !rows.folded && info(rows.type).is_quantised();
    return (as_stored ? stored : folded)[int(rows.type)];
}

// The fewest tokens for which rows are packed as strips, and those that are then computed at a
// time.
constexpr int64_t kFewest = 4, kTokens = 64;

bool can_pack(const NeuronRows& rows) {
    const DTypeInfo& format = info(rows.type);
    return !rows.folded && format.is_quantised() && format.block < kQK;
}

// As many of the first n tokens are neighbours.
int64_t neighbours(const int32_t* tokens, int64_t n) {
    int64_t i = 1;
    while (i < n && tokens[i] == tokens[0] + i) i++;
    return i;
}

}  // namespace

RowProducts::RowProducts(Context& context, const Neurons& w, const Input& x,
                         const NeuronScratch& scratch, int64_t begin, int64_t end)
    : kernels_(context.kernels), w_(w), in_{x.x, x.q8, scratch.folded, x.q8} {
    in_.folded.cols = x.cols;
    in_.grouped.q = scratch.grouped;
    for (const bool fold : {true, false}) {
        const auto wants = [&](const NeuronRows& rows) {
            return rows && rows.folded == fold && span_of(rows, x.cols);
        };
        if (!wants(w.gate) && !wants(w.up)) continue;
        const Q8Rows& out = fold ? in_.folded : in_.grouped;
        const int64_t span = (fold ? x.cols : kQK) / kQ, n_blocks = x.cols / kQ;
        context.threads.run(end - begin, 1, [&](int64_t from, int64_t to, int) {
            for (int64_t b = (begin + from) * n_blocks; b < (begin + to) * n_blocks; b += span) {
                fold_span(b, span / kStrip, out);
            }
        });
    }
}

// Reorders 8 * eighth blocks of 32 from b0 on.
void RowProducts::fold_span(int64_t b0, int64_t eighth, const Q8Rows& out) const {
    const Q8Rows& in = in_.q8;
    for (int64_t b = 0; b < eighth; b++) {
        for (int64_t r = 0; r < kStrip; r++) {
            const int64_t from = b0 + r * eighth + b, first = b0 + b * kStrip, to = first + r;
            int8_t* q = out.q + first * kQ + 4 * r;
            for (int64_t v = 0; v < 8; v++) {
                std::memcpy(q + 4 * kStrip * v, in.q + from * kQ + 4 * v, 4);
            }
            if (out.d == in.d) continue;  // in spans of 256 the blocks stay where they are
            out.d[to] = in.d[from];
            out.s8[to] = in.s8[from];
            out.ds[to] = in.ds[from];
            for (int64_t half : {0, 1}) out.s16[2 * to + half] = in.s16[2 * from + half];
        }
    }
}

void RowProducts::dot(const NeuronRows& rows, const float* bias, const int32_t* ids, int64_t n,
                      const int32_t* tokens, int64_t nt, float* out, const Next& next,
                      uint8_t* strips) const {
    int32_t room[kMostRows], next_room[kMostRows];
    const int32_t* const at = rows_at(rows, ids, n, room);
    if (rows.tiles != NeuronRows::Tiles::none) {
        dot_tiles(rows, at, n, tokens, nt, out);
    } else if (strips && can_pack(rows) && n >= kStrip && nt >= kFewest &&
               neighbours(tokens, nt) == nt) {
        dot_packed(rows, at, n, tokens[0], nt, strips, out);
    } else {
        NeuronInput in = in_;
        in.prefetch = prefetch(rows, next, next_room);
        const dot_fn kernel = kernel_for(rows, kernels_.dot, kernels_.stored_dot);
        kernel(rows.data, rows.stride, at, n, w_.cols, in, tokens, nt, out);
    }
    if (!bias) return;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < nt; j++) {
            out[i * nt + j] += bias[tokens[j] * w_.bias_stride + ids[i]];
        }
    }
}

void RowProducts::dot_strips(DType type, const uint8_t* strips, int64_t n_strips,
                             const int32_t* ids, int64_t first, int64_t n, int64_t t0, int64_t nt,
                             float* out, int64_t ldo) const {
    const strip_fn kernel = kernels_.strip[int(type)];
    const int64_t ldy = n_strips * kStrip;
    if (ldo == 1 && n == ldy) return kernel(strips, n_strips, in_.q8, t0, 1, out, 0);  // all rows
    float part[kTokens * kPacked];
    const int64_t most = kTokens * kPacked / ldy;
    for (int64_t t = 0; t < nt; t += most) {
        const int64_t count = std::min(most, nt - t);
        kernel(strips, n_strips, in_.q8, t0 + t, count, part, ldy);
        for (int64_t i = 0; i < n; i++) {
            const float* const from = part + ids[i] - first;
            for (int64_t j = 0; j < count; j++) out[i * ldo + t + j] = from[j * ldy];
        }
    }
}

// Rows of a strip that are not asked for are computed nevertheless. Where tiles are used, there are
// few of them: at the ends of a thread's piece.
void RowProducts::dot_tiles(const NeuronRows& rows, const int32_t* ids, int64_t n,
                            const int32_t* tokens, int64_t nt, float* out) const {
    for (int64_t i = 0, end = 0; i < n; i = end) {
        const int64_t first = ids[i] / kStrip, beyond = first + kMostRows / kStrip;
        const auto follows = [&] {
            const int64_t strip = ids[end] / kStrip, last = ids[end - 1] / kStrip;
            return strip < beyond && (strip == last || strip == last + 1);
        };
        for (end = i + 1; end < n && follows();) end++;
        const int64_t n_strips = ids[end - 1] / kStrip - first + 1;
        for (int64_t t = 0, count = 0; t < nt; t += count) {
            count = neighbours(tokens + t, nt - t);
            dot_strips(rows.type, rows.data + first * kStrip * rows.stride, n_strips, ids + i,
                       first * kStrip, end - i, tokens[t], count, out + i * nt + t, nt);
        }
    }
}

void RowProducts::in_order(const NeuronRows& rows, const float* bias, int64_t first, int64_t n,
                           float* out) const {
    const int64_t n_strips = (n + kStrip - 1) / kStrip;
    kernels_.strip[int(rows.type)](rows.data + first * rows.stride, n_strips, in_.q8, 0, 1, out, 0);
    for (int64_t i = 0; bias && i < n; i++) out[i] += bias[first + i];
}

void RowProducts::dot_packed(const NeuronRows& rows, const int32_t* ids, int64_t n, int64_t t0,
                             int64_t nt, uint8_t* strips, float* out) const {
    const int64_t bytes = info(rows.type).size(w_.cols);
    for (int64_t i = 0; i < n; i += kPacked) {
        const int64_t m = std::min(kPacked, n - i), n_strips = (m + kStrip - 1) / kStrip;
        for (int64_t s = 0; s < n_strips; s++) {
            const uint8_t* each[kStrip];
            for (int64_t r = 0; r < kStrip; r++) {
                each[r] = rows.data + ids[std::min(i + s * kStrip + r, n - 1)] * rows.stride;
            }
            pack_strip(rows.type, each, w_.cols, strips + s * kStrip * bytes);
        }
        dot_strips(rows.type, strips, n_strips, kEach.data(), 0, m, t0, nt, out + i * nt, nt);
    }
}

void RowProducts::add(const int32_t* ids, int64_t n, int64_t c0, int64_t cols,
                      const WeightedRows& weighted, int64_t nt, float* y, int64_t ldy,
                      const Next& next) const {
    const bool tiled = w_.down.tiles != NeuronRows::Tiles::none;
    const uint8_t* data = w_.down.data + info(w_.down.type).size(c0) * (tiled ? kStrip : 1);
    int32_t room[kMostRows], next_room[kMostRows];
    ids = rows_at(w_.down, ids, n, room);
    const WeightedRows ready{weighted.first, weighted.row, weighted.h,
                             prefetch(w_.down, next, next_room)};
    const add_fn kernel = tiled ? kernels_.tiled_add[int(w_.down.type)]
                                : kernel_for(w_.down, kernels_.add, kernels_.stored_add);
    kernel(data, w_.down.stride, ids, n, cols, ready, nt, y, ldy);
}

int64_t column_piece(const Neurons& w) {
    const int64_t unit = w.down.folded ? kStrip * info(w.down.type).block : kQK;
    return std::min((kQK + unit - 1) / unit * unit, w.cols);
}

void unpermute(const Neurons& w, const float* sum, int64_t c0, int64_t n, float* y) {
    const int64_t span = span_of(w.down, w.cols);
    const auto put = [&](int64_t c, float v) { y[c] = v + (w.down_bias ? w.down_bias[c] : 0.0f); };
    for (int64_t i = 0; !span && i < n; i++) put(c0 + i, sum[i]);
    for (int64_t i = 0; span && i < n; i += kQ) {  // whole groups
        const int64_t c = column_at(c0 + i, span);
        for (int64_t j = 0; j < 4; j++) {
            for (int64_t r = 0; r < 8; r++) put(c + r * (span / 8) + j, sum[i + 8 * j + r]);
        }
    }
}

}  // namespace ggml::cpu
