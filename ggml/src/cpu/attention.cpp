// Causal attention, one (row, KV head) at a time: blocks of 64 positions go through scores, a
// running softmax and the weighted sum of values, so that the full score matrix is never stored.
// Blocks start at position 0 for every row: a row's bits do not depend on the chunk of the prompt
// it came in.
#include <algorithm>
#include <cmath>

#include "cpu/kernels.h"
#include "ggml/ops.h"

namespace ggml {

namespace {

constexpr int64_t kBlock = 64;  // positions
constexpr int64_t kHeads = 16;  // query heads of one KV head that are done together

struct Softmax {
    float largest = -INFINITY;
    float sum = 0;

    // Turns n scores into weights relative to the new largest score; returns what earlier results
    // must be multiplied with.
    float update(float* score, int64_t n, float scale) {
        float top = largest;
        for (int64_t i = 0; i < n; i++) top = std::max(top, score[i] * scale);
        const float shrink = std::exp(largest - top);
        sum *= shrink;
        for (int64_t i = 0; i < n; i++) {
            score[i] = std::exp(score[i] * scale - top);
            sum += score[i];
        }
        largest = top;
        return shrink;
    }
};

void attend(const cpu::Kernels& kernels, const AttentionShape& s, const AttentionRow& row,
            int64_t kv_head, int64_t n_heads, const float* q, float* out) {
    const int64_t row_bytes = info(s.type).size(s.head_dim);
    const uint8_t* k = row.k + kv_head * s.head_stride;
    const uint8_t* v = row.v + kv_head * s.head_stride;
    Softmax softmax[kHeads];
    float weights[kHeads * kBlock];
    std::fill_n(out, n_heads * s.head_dim, 0.0f);
    for (int64_t p = 0; p < row.n_pos; p += kBlock) {
        const int64_t n = std::min(kBlock, row.n_pos - p);
        kernels.matmul[int(s.type)](k + p * row_bytes, row_bytes, n, s.head_dim, q, s.head_dim,
                                    n_heads, weights, kBlock);
        for (int64_t h = 0; h < n_heads; h++) {
            const float shrink = softmax[h].update(weights + h * kBlock, n, s.scale);
            if (shrink == 1.0f) continue;
            for (int64_t i = 0; i < s.head_dim; i++) out[h * s.head_dim + i] *= shrink;
        }
        kernels.accumulate[int(s.type)](v + p * row_bytes, row_bytes, n, s.head_dim, weights,
                                        kBlock, n_heads, out, s.head_dim);
    }
    for (int64_t h = 0; h < n_heads; h++) {
        for (int64_t i = 0; i < s.head_dim; i++) out[h * s.head_dim + i] /= softmax[h].sum;
    }
}

}  // namespace

void attention(Context& context, const AttentionShape& s, const AttentionRow* rows, int64_t n_rows,
               const float* q, float* out) {
    uint64_t bytes = 0;
    for (int64_t t = 0; t < n_rows; t++) bytes += uint64_t(rows[t].n_pos);
    bytes *= uint64_t(2 * s.n_head_kv * info(s.type).size(s.head_dim));
    const OpTimer timer(context.profile, "attention", bytes);
    const int64_t group = s.n_head / s.n_head_kv;
    context.threads.run(n_rows * s.n_head_kv, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t t = i / s.n_head_kv, kv_head = i % s.n_head_kv;
            for (int64_t h = 0; h < group; h += kHeads) {
                const int64_t at = (t * s.n_head + kv_head * group + h) * s.head_dim;
                attend(context.kernels, s, rows[t], kv_head, std::min(kHeads, group - h), q + at,
                       out + at);
            }
        }
    });
}

}  // namespace ggml
