// Causal attention, one KV head and a few adjacent rows at a time. Blocks of 64 positions go
// through scores, a running softmax and the weighted sum of values (as in FlashAttention, arXiv
// 2205.14135). So the full score matrix is never stored, and the rows read keys and values once.
// Blocks are always whole pages of the cache. So the bits of a row do not depend on how the prompt
// is split.
#include <algorithm>
#include <cmath>

#include "ggml/math.h"
#include "ggml/ops.h"
#include "kernels/kernels.h"

namespace ggml {

namespace {

constexpr int64_t kBlock = kKvPage;  // positions
constexpr int64_t kQueries = 16;     // query heads that share a pass over keys and values

struct Softmax {
    float largest = -INFINITY;
    float sum = 0;

    // Turns n scores into weights relative to the new largest score. Returns the factor by which
    // earlier results must be multiplied.
    float update(float* score, int64_t n, AttentionScores how) {
        float scale = how.scale;
        if (how.softcap != 0) {
            const float inner = scale / how.softcap;
            for (int64_t i = 0; i < n; i++) score[i] = tanh_f32(score[i] * inner);
            scale = how.softcap;
        }
        // Eight lanes, so that each loop is vectorised. The order of additions depends only on n.
        float tops[8], sums[8] = {};
        std::fill_n(tops, 8, largest);
        const auto by_lanes = [&](const auto& step) {
            int64_t i = 0;
            for (; i + 8 <= n; i += 8) {
                for (int j = 0; j < 8; j++) step(score[i + j], j);
            }
            for (int j = 0; i + j < n; j++) step(score[i + j], j);
        };
        by_lanes([&](float& v, int j) {
            v *= scale;
            tops[j] = std::max(tops[j], v);
        });
        const float top = *std::max_element(tops, tops + 8);
        const float shrink = exp_f32(largest - top);
        for (int64_t i = 0; i < n; i++) score[i] = exp_f32(score[i] - top);
        by_lanes([&](float v, int j) { sums[j] += v; });
        sum *= shrink;
        for (float part : sums) sum += part;
        largest = top;
        return shrink;
    }
};

// n_rows rows times n_heads query heads of one KV head. The rows begin at the same position of a
// sequence, and each one sees at least as many positions as the row before it.
void attend(const cpu::Kernels& kernels, const KvLayer& s, int64_t n_head, AttentionScores how,
            const AttentionRow* rows, int64_t n_rows, int64_t kv_head, int64_t n_heads,
            const float* q, float* out) {
    const int64_t row_bytes = s.position_bytes(), ld = n_head * s.head_dim;
    Softmax softmax[kQueries];
    float weights[kQueries * kBlock];
    for (int64_t t = 0; t < n_rows; t++) std::fill_n(out + t * ld, n_heads * s.head_dim, 0.0f);
    const bool together = n_heads == 1;  // one head per row: the queries have a constant stride
    for (int64_t p = rows[0].first; p < rows[n_rows - 1].end; p = (p / kBlock + 1) * kBlock) {
        const int64_t offset = rows[0].pages[p / kBlock] * s.page_stride +
                               kv_head * s.head_bytes() + p % kBlock * row_bytes;
        const uint8_t *k = s.k + offset, *v = s.v + offset;
        // Scores of n positions, or their values' contribution, for `count` queries. The first
        // query is head h of row t; the next ones follow at a distance of `step`.
        const auto scores = [&](int64_t n, int64_t t, int64_t count, int64_t step) {
            kernels.matmul[int(s.type)](k, row_bytes, n, s.head_dim, q + t * ld, step, count,
                                        weights + t * n_heads * kBlock, kBlock);
        };
        const auto values = [&](int64_t n, int64_t t, int64_t count, int64_t step) {
            kernels.accumulate[int(s.type)](v, row_bytes, n, s.head_dim,
                                            weights + t * n_heads * kBlock, kBlock, count,
                                            out + t * ld, step);
        };
        const int64_t block_end = (p / kBlock + 1) * kBlock;
        const auto seen = [&](int64_t t) { return std::min(block_end, rows[t].end) - p; };
        int64_t first = 0;  // first row that sees a position of this block
        while (seen(first) <= 0) first++;
        const int64_t n = seen(n_rows - 1);
        if (together) {
            scores(n, first, n_rows - first, ld);
        } else {
            for (int64_t t = first; t < n_rows; t++) scores(n, t, n_heads, s.head_dim);
        }
        for (int64_t i = first * n_heads; i < n_rows * n_heads; i++) {
            const int64_t t = i / n_heads;
            const float shrink = softmax[i].update(weights + i * kBlock, seen(t), how);
            if (shrink == 1.0f) continue;
            float* to = out + t * ld + i % n_heads * s.head_dim;
            for (int64_t c = 0; c < s.head_dim; c++) to[c] *= shrink;
        }
        for (int64_t t = first; t < n_rows;) {
            int64_t end = t + 1;  // rows that see the same positions of it
            while (together && end < n_rows && seen(end) == seen(t)) end++;
            values(seen(t), t, together ? end - t : n_heads, together ? ld : s.head_dim);
            t = end;
        }
    }
    for (int64_t i = 0; i < n_rows * n_heads; i++) {
        float* to = out + i / n_heads * ld + i % n_heads * s.head_dim;
        for (int64_t c = 0; c < s.head_dim; c++) to[c] /= softmax[i].sum;
    }
}

// How many of the n rows can share a pass over keys: rows of the first one's sequence whose window
// begins at the same position.
int64_t sharing(const AttentionRow* rows, int64_t n) {
    int64_t m = 1;
    while (m < n && rows[m].pages == rows[0].pages && rows[m].first == rows[0].first &&
           rows[m].end >= rows[m - 1].end) {
        m++;
    }
    return m;
}

}  // namespace

void attention(Context& context, const KvLayer& layer, int64_t n_head, AttentionScores scores,
               const AttentionRow* rows, int64_t n_rows, const float* q, float* out) {
    OpTimer timer(context.profile, "attention");
    const int64_t n_kv = layer.n_head_kv, group = n_head / n_kv, heads = std::min(group, kQueries);
    const int64_t tile = kQueries / heads, n_tiles = (n_rows + tile - 1) / tile;
    int64_t positions = 0;  // that one KV head reads; shared passes count once
    for (int64_t t = 0; t < n_rows;) {
        t += sharing(rows + t, std::min(tile - t % tile, n_rows - t));
        positions += (rows[t - 1].end - rows[t - 1].first) * ((group + heads - 1) / heads);
    }
    timer.read(uint64_t(positions * 2 * n_kv * layer.position_bytes()));
    context.threads.run(n_tiles * n_kv, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t last = std::min((i / n_kv + 1) * tile, n_rows), kv_head = i % n_kv;
            for (int64_t t = i / n_kv * tile; t < last;) {
                const int64_t n = sharing(rows + t, last - t);
                for (int64_t h = 0; h < group; h += heads) {
                    const int64_t at = (t * n_head + kv_head * group + h) * layer.head_dim;
                    attend(context.kernels, layer, n_head, scores, rows + t, n, kv_head,
                           std::min(heads, group - h), q + at, out + at);
                }
                t += n;
            }
        }
    });
}

}  // namespace ggml
