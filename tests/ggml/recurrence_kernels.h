// Kernels of recurrence.h against their generic twins: what a row gives, and the state.
#pragma once

#include <utility>

#include "ggml/kernel_checks.h"
#include "ggml/recurrence.h"

namespace {

// call(kernel, sequence, rows, y) computes a sequence whose rows are [n, width], with rows that lie
// backwards. Checks what it writes, from zeros and from a state, there and beside it. A state ends
// with `scales` of its values; without them all kernels give the same bits.
template <typename Fn, typename F>
void test_sequence(Fn fn, Fn generic, int64_t n, int64_t width, int64_t out, int64_t state,
                   int64_t scales, const F& call) {
    std::vector<int32_t> places;
    for (int64_t i = n - 1; i >= 0; i--) places.push_back(int32_t(i));
    const auto rows = random_floats(n * width);
    auto start = random_floats(state);
    for (int64_t i = 1; i <= scales; i++) start[size_t(state - i)] = 1 / float(1 + 2 * i);
    for (int kind = 0; kind < 3; kind++) {
        const auto run = [&](Fn kernel) {
            std::vector<float> block(kind == 2 ? start : std::vector<float>(start.size(), NAN));
            std::vector<float> y(size_t(n * out), NAN);
            const float* before = kind == 0 ? nullptr : kind == 1 ? start.data() : block.data();
            call(kernel, StateRows{places.data(), n, before, block.data()}, rows, y.data());
            return std::make_pair(y, block);
        };
        const auto mine = run(fn), other = run(generic);
        if (scales == 0) {
            CHECK(mine == other);
        } else {
            CHECK(distance(mine.first, other.first, 1) < kRounding);
            CHECK(distance(mine.second, other.second) < kRounding);
        }
    }
}

void test_convolve(convolve_fn fn, convolve_fn generic, DType) {
    for (int64_t channels : {1, 8, 19, 128}) {
        for (int64_t taps : {1, 3, 4, 7}) {
            for (bool silu : {false, true}) {
                const auto weight = random_floats((channels + 5) * taps),
                           bias = random_floats(channels + 5);
                const Convolution how = {channels + 5,  taps,
                                         weight.data(), silu ? bias.data() : nullptr,
                                         silu,          taps == 7 ? 2 : 1};
                const int64_t width = channels + 5;
                const auto call = [&](convolve_fn f, const StateRows& sequence,
                                      const std::vector<float>& x, float* y) {
                    std::fill_n(y, sequence.n * width, 0.0f);
                    const int64_t past = how.state();  // only some channels are written
                    if (sequence.after != sequence.before) {
                        std::fill_n(sequence.after, past, 0.0f);
                    }
                    f(how, 5, channels, sequence, x.data(), width, y, width);
                };
                for (int64_t n : {1, 2, 11}) {
                    test_sequence(fn, generic, n, width, width, how.state(), 0, call);
                }
            }
        }
    }
}

// Sizes that fill registers and blocks of columns, and others.
constexpr int64_t kStateSizes[][2] = {{1, 1},   {3, 16},   {16, 8},    {37, 24},
                                      {64, 64}, {128, 64}, {128, 128}, {33, 130}};

void test_scan(scan_fn fn, scan_fn generic, DType) {
    for (const auto& size : kStateSizes) {
        Mamba2Scan how;
        how.n_head = 2, how.n_group = 1, how.n_state = size[0], how.head_dim = size[1];
        const auto dt_bias = random_floats(2), d = random_floats(2);
        const float a[] = {-0.02f, -1.5f};
        how.dt_bias = dt_bias.data(), how.a = a, how.d = d.data();
        const int64_t x = 2 * how.head_dim, width = x + 2 * how.n_state + 2;
        for (int64_t n : {1, 2, 16, 37}) {
            test_sequence(
                fn, generic, n, width, x, how.state(), 2,
                [&](scan_fn f, const StateRows& sequence, std::vector<float> rows, float* y) {
                    how.x = {rows.data(), width, how.head_dim};
                    how.b = {rows.data() + x, width, how.n_state};
                    how.c = {rows.data() + x + how.n_state, width, how.n_state};
                    how.dt = {rows.data() + width - 2, width, 1};
                    for (int64_t h : {0, 1}) f(how, h, sequence, {y, x, how.head_dim});
                });
        }
    }
}

// by_row: rows of states decay on their own, and states have no scales.
void test_delta_of(bool by_row, delta_fn fn, delta_fn generic) {
    for (const auto& size : kStateSizes) {
        DeltaRule how;
        how.n_k_head = 1, how.n_v_head = 2, how.head_dim = size[0], how.v_head_dim = size[1];
        how.by_row = by_row;
        const int64_t n_decays = by_row ? how.head_dim : 1;
        const auto dt_bias = random_floats(2 * n_decays);
        const float a[] = {-0.02f, -1.5f};
        how.dt_bias = dt_bias.data(), how.a = a;
        const int64_t v = 2 * how.head_dim, out = 2 * how.v_head_dim, alpha = v + out,
                      beta = alpha + 2 * n_decays, width = beta + 2;
        const float length = std::sqrt(float(how.head_dim));  // of a random row
        for (int64_t n : {1, 2, 16, 37}) {
            test_sequence(
                fn, generic, n, width, out, how.state(), 2,
                [&](delta_fn f, const StateRows& sequence, std::vector<float> rows, float* y) {
                    for (int64_t t = 0; t < n; t++) {
                        float* row = rows.data() + t * width;
                        for (int64_t i = 0; i < v; i++) row[i] /= length;
                    }
                    how.q = {rows.data(), width, how.head_dim};
                    how.k = {rows.data() + how.head_dim, width, how.head_dim};
                    how.v = {rows.data() + v, width, how.v_head_dim};
                    how.alpha = {rows.data() + alpha, width, n_decays};
                    how.beta = {rows.data() + beta, width, 1};
                    for (int64_t h : {0, 1}) f(how, h, sequence, {y, out, how.v_head_dim});
                });
        }
    }
}

void test_delta(delta_fn fn, delta_fn generic, DType) {
    for (const bool by_row : {false, true}) test_delta_of(by_row, fn, generic);
}

}  // namespace
