// Mamba-2 and the gated delta rule as their formulas say: the specification of scan__f32 and
// delta__f32.
#include "kernels/recurrence.h"

#include <algorithm>

namespace ggml::cpu::generic {

namespace {

// The state of a head of `size` values, where it is after the rows.
float* begin_state(const StateRows& sequence, int64_t head, int64_t size) {
    float* state = sequence.after + head * size;
    if (!sequence.before) {
        std::fill_n(state, size, 0.0f);
    } else if (sequence.before != sequence.after) {
        std::copy_n(sequence.before + head * size, size, state);
    }
    return state;
}

void scan(const Mamba2Scan& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.n_state, cols = how.head_dim, group = served_by(how, head);
    float* const state = begin_state(sequence, head, rows * cols);
    for (int64_t t = 0; t < sequence.n; t++) {
        const int64_t at = sequence.rows[t];
        Steps step;
        find_steps(how, head, sequence.rows + t, 1, step);
        const float *x = values(how.x, at, head), *b = values(how.b, at, group),
                    *c = values(how.c, at, group);
        float* const out = values(y, at, head);
        for (int64_t p = 0; p < cols; p++) {
            const float added = step.factor[0] * x[p];
            float sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kScanColumns, r, p)];
                s = step.decay[0] * s + b[r] * added;
                sum += c[r] * s;
            }
            out[p] = sum + how.d[head] * x[p];
        }
    }
}

void delta(const DeltaRule& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.head_dim, cols = how.v_head_dim, of_k = served_by(how, head);
    float* const state = begin_state(sequence, head, rows * cols);
    for (int64_t t = 0; t < sequence.n; t++) {
        const int64_t at = sequence.rows[t];
        Steps step;
        find_steps(how, head, sequence.rows + t, 1, step);
        const float *q = values(how.q, at, of_k), *k = values(how.k, at, of_k),
                    *v = values(how.v, at, head);
        float* const out = values(y, at, head);
        for (int64_t c = 0; c < cols; c++) {
            float seen = 0, sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kDeltaColumns, r, c)];
                s *= step.decay[0];
                seen += s * k[r];
            }
            const float change = step.factor[0] * (v[c] - seen);
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kDeltaColumns, r, c)];
                s += k[r] * change;
                sum += s * q[r];
            }
            out[c] = sum;
        }
    }
}

}  // namespace

const scan_fn scan__f32 = scan;
const delta_fn delta__f32 = delta;

}  // namespace ggml::cpu::generic
