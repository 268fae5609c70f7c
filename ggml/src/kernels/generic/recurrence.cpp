// Mamba-2 and the gated delta rule as their formulas say: the specification of scan__f32 and
// delta__f32.
#include "kernels/recurrence.h"

#include <algorithm>

namespace ggml::cpu::generic {

namespace {

// Calls each(row, factor, scale, state) for the rows of a head. The `size` values of its state are
// decayed by then.
template <typename T, typename F>
void each_step(const T& how, int64_t head, int64_t n_head, int64_t size, const StateRows& sequence,
               const F& each) {
    float* const state = sequence.after + head * size;
    float* const kept = sequence.after + n_head * size + head;
    float scale = 1;
    if (!sequence.before) {
        std::fill_n(state, size, 0.0f);
    } else {
        scale = sequence.before[n_head * size + head];
        if (sequence.before != sequence.after) {
            std::copy_n(sequence.before + head * size, size, state);
        }
    }
    for (int64_t t = 0; t < sequence.n; t++) {
        Steps step;
        find_steps(how, head, sequence.rows + t, 1, step, scale);
        if (step.folded[0]) {
            for (int64_t i = 0; i < size; i++) state[i] *= step.decayed[0];
        }
        each(sequence.rows[t], step.factor[0], scale, state);
    }
    *kept = scale;
}

void scan(const Mamba2Scan& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.n_state, cols = how.head_dim, group = served_by(how, head);
    const auto step = [&](int64_t at, float dt, float scale, float* state) {
        const float *x = values(how.x, at, head), *b = values(how.b, at, group),
                    *c = values(how.c, at, group);
        float* const out = values(y, at, head);
        for (int64_t p = 0; p < cols; p++) {
            const float added = dt * x[p] / scale;
            float sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kScanColumns, r, p)];
                s += b[r] * added;
                sum += c[r] * s;
            }
            out[p] = scale * sum + how.d[head] * x[p];
        }
    };
    each_step(how, head, how.n_head, rows * cols, sequence, step);
}

void delta(const DeltaRule& how, int64_t head, const StateRows& sequence, const Heads& y) {
    const int64_t rows = how.head_dim, cols = how.v_head_dim, of_k = served_by(how, head);
    const auto step = [&](int64_t at, float beta, float scale, float* state) {
        const float *q = values(how.q, at, of_k), *k = values(how.k, at, of_k),
                    *v = values(how.v, at, head);
        const float* const decays = how.by_row ? values(how.alpha, at, head) : nullptr;
        float* const out = values(y, at, head);
        for (int64_t c = 0; c < cols; c++) {
            float seen = 0, sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kDeltaColumns, r, c)];
                if (decays) s *= decays[r];
                seen += s * k[r];
            }
            const float change = beta * (v[c] - scale * seen) / scale;
            for (int64_t r = 0; r < rows; r++) {
                float& s = state[state_at(rows, cols, kDeltaColumns, r, c)];
                s += k[r] * change;
                sum += s * q[r];
            }
            out[c] = scale * sum;
        }
    };
    each_step(how, head, how.n_v_head, rows * cols, sequence, step);
}

}  // namespace

const scan_fn scan__f32 = scan;
const delta_fn delta__f32 = delta;

}  // namespace ggml::cpu::generic
