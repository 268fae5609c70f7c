// Kernels of attention (ggml/attention.h) against their generic twins.
#pragma once

#include <algorithm>
#include <utility>

#include "ggml/attention.h"
#include "ggml/kernel_checks.h"

namespace {

// Queries by the first n keys of a page, of any number of columns. Each score has the bits that it
// has among all keys, and alone.
void test_scores(scores_fn fn, scores_fn generic, DType type) {
    for (int64_t dim : {1, 6, 40, 64, 250}) {
        for (int64_t nt : {1, 2, 3, 4, 5, 7, 8, 13, 64}) {
            const auto keys = random_rows(type, dim, kKvPage);
            const auto q = random_floats(nt * dim);
            const int64_t ldy = kKvPage + 3;
            std::vector<float> y(size_t(nt * ldy), 1), expected(y);
            fn(keys.data(), keys.data(), dim, kKvPage, q.data(), nt, y.data(), ldy);
            generic(keys.data(), keys.data(), dim, kKvPage, q.data(), nt, expected.data(), ldy);
            CHECK(distance(y, expected) < kRounding);
            CHECK(same_alone(
                [&](int64_t t, int64_t n, float* out) {
                    std::fill_n(out, ldy, 1.0f);
                    fn(keys.data(), keys.data(), dim, kKvPage, q.data() + t * dim, n, out, ldy);
                },
                y, nt, ldy));
            for (int64_t n : {1, 16, 17, 27, 32, 33, 48, 49, 63}) {
                std::vector<float> few(size_t(nt * ldy), 1);
                fn(keys.data(), keys.data(), dim, n, q.data(), nt, few.data(), ldy);
                for (int64_t t = 0; t < nt; t++) {
                    CHECK(std::equal(few.begin() + t * ldy, few.begin() + t * ldy + n,
                                     y.begin() + t * ldy));
                    CHECK(few[size_t(t * ldy + kKvPage)] == 1);
                }
            }
        }
    }
}

// Beside products in double: weights are rounded to 14 bits. What is beside the range of positions
// may be no number; a scale within it that is none makes its columns NaN.
void test_weigh(weigh_fn fn, weigh_fn generic, DType type) {
    using Ranges = std::vector<std::pair<int64_t, int64_t>>;
    for (int64_t dim : {32, 64, 96, 256}) {
        const int64_t row = info(type).size(dim);
        auto rows = random_rows(type, kKvPage, dim);
        std::vector<float> values(size_t(kKvPage * dim));
        info(type).decode(rows.data(), values.data(), kKvPage * dim);
        for (const auto& [from, to] : Ranges{{0, 64}, {0, 1}, {63, 64}, {5, 18}, {16, 33}}) {
            const uint16_t nan = 0x7e00;
            for (int64_t p : {from - 1, to}) {
                if (p < 0 || p >= kKvPage) continue;
                std::memcpy(rows.data() + p * row, &nan, sizeof(nan));
            }
            std::vector<uint8_t> run(rows.size(), 0xff);
            rows_to_values(type, dim, rows.data(), kKvPage, run.data());
            for (int64_t nt : {1, 2, 3, 5, 6, 13}) {
                const int64_t lda = kKvPage + 3;
                auto a = random_floats(nt * lda);
                for (float& v : a) v = v * v;
                for (int64_t t = 0; t < nt; t++) {
                    for (int64_t p = 0; p < kKvPage; p++) {
                        if (p < from || p >= to) a[size_t(t * lda + p)] = p % 2 ? NAN : INFINITY;
                    }
                }
                const std::vector<float> start = random_floats(nt * dim);
                std::vector<float> y = start, expected = start;
                const auto call = [&](weigh_fn f, int64_t t, int64_t n, float* out) {
                    f(run.data(), run.data(), dim, from, to, a.data() + t * lda, lda, n, out, dim);
                };
                call(fn, 0, nt, y.data());
                call(generic, 0, nt, expected.data());
                CHECK(distance(y, expected) < kRounding);
                CHECK(same_alone(
                    [&](int64_t t, int64_t n, float* out) {
                        std::memcpy(out, start.data() + t * dim, size_t(dim) * sizeof(float));
                        call(fn, t, n, out);
                    },
                    y, nt, dim));
                for (int64_t t = 0; t < nt; t++) {
                    for (int64_t c = 0; c < dim; c++) {
                        double sum = double(start[size_t(t * dim + c)]), size = std::fabs(sum);
                        for (int64_t p = from; p < to; p++) {
                            const double term = double(a[size_t(t * lda + p)]) *
                                                double(values[size_t(p * dim + c)]);
                            sum += term;
                            size += std::fabs(term);
                        }
                        CHECK(std::fabs(sum - double(y[size_t(t * dim + c)])) <= 3e-3 * size);
                    }
                }
            }
            for (const uint16_t bad : {uint16_t(0x7e00), uint16_t(0x7c00)}) {
                auto damaged = rows;
                std::memcpy(damaged.data() + from * row, &bad, sizeof(bad));
                rows_to_values(type, dim, damaged.data(), kKvPage, run.data());
                const std::vector<float> a(kKvPage, 1);
                std::vector<float> y(size_t(dim), 0);
                fn(run.data(), run.data(), dim, from, to, a.data(), kKvPage, 1, y.data(), dim);
                for (int64_t c = 0; c < dim; c++) {
                    CHECK(std::isnan(y[size_t(c)]) == (c < int64_t(kQ)));
                }
            }
            info(type).encode(values.data(), rows.data(), kKvPage * dim);
        }
    }
}

// The same bits, with any range of a block, and beside what is no number.
void test_softmax(softmax_fn fn, softmax_fn generic, DType) {
    for (float softcap : {0.0f, 2.0f}) {
        for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 256},
                                                                                 {0, 1},
                                                                                 {255, 256},
                                                                                 {3, 250},
                                                                                 {16, 32},
                                                                                 {17, 31},
                                                                                 {63, 130},
                                                                                 {240, 256}}) {
            for (float other : {0.0f, 100.0f, -INFINITY, INFINITY, NAN}) {
                std::vector<float> score = random_floats(kAttentionBlock, 5);
                for (int64_t i = 0; i < kAttentionBlock; i++) {
                    if (i < begin || i >= end) score[size_t(i)] = NAN;
                }
                if (other != 0) score[size_t((begin + end) / 2)] = other;
                std::vector<float> expected = score;
                float top, sum, expected_top, expected_sum;
                fn(score.data(), begin, end, softcap, &top, &sum);
                generic(expected.data(), begin, end, softcap, &expected_top, &expected_sum);
                const auto same = [](float a, float b) { return a == b || (a != a && b != b); };
                CHECK(same(top, expected_top) && same(sum, expected_sum));
                CHECK((sum != sum) == (other != other || (softcap == 0 && std::isinf(other) &&
                                                          (other > 0 || end - begin == 1))));
                for (int64_t i = begin; i < end; i++) {
                    CHECK(same(score[size_t(i)], expected[size_t(i)]));
                }
            }
        }
    }
}

}  // namespace
