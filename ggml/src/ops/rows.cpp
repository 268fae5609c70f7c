// Operators that move rows: embeddings, positions, and the rows of experts.
#include <algorithm>

#include "ggml/math.h"
#include "ggml/ops.h"
#include "kernels/kernels.h"
#include "ops/grain.h"

namespace ggml {

void embed_rows(Context& context, const Matrix& w, const int32_t* ids, int64_t offset, int64_t n,
                float* y) {
    OpTimer timer(context.profile, "embed_rows");
    timer.read(uint64_t(n * w.row_bytes()));
    context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) decode_row(w, ids[t] + offset, y + t * w.cols);
    });
}

void rope_table(Context& context, const double* frequency, int64_t n_pairs, double magnitude,
                const int32_t* position, int64_t n, float* cos_sin) {
    const OpTimer timer(context.profile, "rope_table");
    context.threads.run(n, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            float* row = cos_sin + t * n_pairs * 2;
            for (int64_t i = 0; i < n_pairs; i++) {
                const SinCos angle = sincos_f64(double(position[t]) * frequency[i]);
                row[2 * i] = float(angle.cos * magnitude);
                row[2 * i + 1] = float(angle.sin * magnitude);
            }
        }
    });
}

void rope(Context& context, float* x, int64_t rows, int64_t n_head, int64_t head_dim,
          const float* cos_sin, int64_t n_pairs, RopePairs pairs) {
    const OpTimer timer(context.profile, "rope");
    const int64_t n = n_head * head_dim;
    context.threads.run(rows, cpu::row_grain(n), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; t++) {
            context.kernels.rope[int(DType::F32)](x + t * n, n_head, head_dim,
                                                  cos_sin + t * n_pairs * 2, n_pairs, pairs);
        }
    });
}

void zero(Context& context, float* x, int64_t n) {
    const OpTimer timer(context.profile, "zero");
    context.threads.run(n, 1 << 16, [&](int64_t begin, int64_t end, int) {
        std::fill_n(x + begin, end - begin, 0.0f);
    });
}

void gather_rows(Context& context, const float* x, const int32_t* rows, int64_t n, int64_t cols,
                 float* out) {
    const OpTimer timer(context.profile, "gather_rows");
    context.threads.run(n, 1 + 4096 / cols, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) std::copy_n(x + rows[i] * cols, cols, out + i * cols);
    });
}

void scatter_add(Context& context, const float* x, const int32_t* rows, const float* expert_weights,
                 int64_t n, int64_t cols, float* y) {
    const OpTimer timer(context.profile, "scatter_add");
    // By columns, since a row may come again.
    const int64_t grain = std::max<int64_t>(256, (8192 / std::max<int64_t>(n, 1) + 15) / 16 * 16);
    context.threads.run(cols, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = 0; i < n; i++) {
            const float* const from = x + i * cols;
            float* const to = y + rows[i] * cols;
            for (int64_t c = begin; c < end; c++) to[c] += expert_weights[i] * from[c];
        }
    });
}

void nonzero(Context& context, const float* x, int64_t n, bool* flags) {
    const OpTimer timer(context.profile, "nonzero");
    context.threads.run(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; i++) flags[i] = x[i] != 0;
    });
}

void count_flags(Context& context, const bool* flags, int64_t rows, int64_t n, uint64_t* counts) {
    const OpTimer timer(context.profile, "count_flags");
    context.threads.run(n, 1 << 10, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = 0; t < rows; t++) {
            for (int64_t i = begin; i < end; i++) counts[i] += flags[t * n + i];
        }
    });
}

void add_squares(Context& context, const float* x, int64_t rows, int64_t n, double* sums) {
    const OpTimer timer(context.profile, "add_squares");
    context.threads.run(n, 64, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = 0; t < rows; t++) {
            for (int64_t i = begin; i < end; i++) sums[i] += double(x[t * n + i]) * x[t * n + i];
        }
    });
}

}  // namespace ggml
