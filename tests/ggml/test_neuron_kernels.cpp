// Kernels of neuron rows, compared with generic. Bits must not depend on other rows and tokens.
#include <cmath>
#include <cstring>

#include "circle.h"
#include "ggml/check.h"
#include "ggml/neuron_rows.h"
#include "ggml/neurons.h"
#include "kernels/kernels.h"

using namespace ggml;

namespace {

// Several tokens that use all rows, in kernels for these.
void test_all(const cpu::Kernels& k, const Rows& rows, int64_t cols, const int32_t* ids, int64_t n,
              bool stored) {
    const auto add = (stored ? k.stored_add : k.add)[int(rows.view.type)];
    for (int64_t nt : {2, 7}) {
        std::vector<int32_t> first{0}, row;
        for (int64_t t = 0; t < nt; t++) {
            for (int32_t r = 0; r < n; r++) row.push_back(r);
            first.push_back(int32_t(row.size()));
        }
        const Floats h = normal(n * nt);
        Floats sum = normal(nt * cols), alone = sum;
        add(rows.view.data, rows.view.stride, ids, n, cols, {first.data(), row.data(), h.data()},
            nt, sum.data(), cols);
        for (int64_t t = 0; t < nt; t++) {
            add(rows.view.data, rows.view.stride, ids, n, cols,
                {first.data() + t, row.data(), h.data()}, 1, alone.data() + t * cols, 0);
        }
        CHECK(sum == alone);
    }
}

// Random activations, also in the order of rows with spans of so many columns: written
// independently.
struct Tokens {
    Tokens(int64_t nt, int64_t cols, int64_t span, bool block)
        : x(normal(nt * cols)),
          context(1),
          buffer("input", nt, cols),
          input(buffer->prepare(context, x.data(), nt, cols, cols % kQ == 0)),
          q(size_t(nt * cols)),
          d(q.size()),
          ds(q.size()),
          s8(q.size()),
          s16(q.size()) {
        const int64_t eighth = span / 8;
        for (int64_t c = 0; block && c < nt * cols; c++) {
            const int64_t at = c % span, r = at / eighth, b = at % eighth / 32, v = c % 32 / 4,
                          j = c % 4, half = c % 32 / 16;
            const int64_t to = c / span * (span / 32) + b * 8 + r, from = c / 32;
            q[size_t(c / span * span + ((b * 8 + v) * 8 + r) * 4 + j)] = input.q8.q[c];
            d[size_t(to)] = input.q8.d[from];
            ds[size_t(to)] = input.q8.ds[from];
            s8[size_t(to)] = input.q8.s8[from];
            s16[size_t(2 * to + half)] = input.q8.s16[2 * from + half];
        }
        const Q8Rows ordered{cols, q.data(), d.data(), s8.data(), ds.data(), s16.data()};
        in = {x.data(), input.q8, ordered, ordered};
    }
    const Floats x;
    Context context;
    Carved<InputBuffer> buffer;
    const Input input;
    std::vector<int8_t> q;
    Floats d, ds;
    std::vector<int32_t> s8;
    std::vector<int16_t> s16;
    cpu::NeuronInput in;
};

// Rows with blocks of 32 as stored have the bits of the same rows as a strip.
void test_strip_bits(const cpu::Kernels& k, const Rows& rows, int64_t cols, const int32_t* ids,
                     int64_t n, const cpu::NeuronInput& in, int64_t nt, const int32_t* tokens,
                     const Floats& y) {
    const DType type = rows.view.type;
    std::vector<uint8_t> strip(size_t(kStrip * info(type).size(cols)));
    Floats product(size_t(nt * kStrip));
    for (int64_t i = 0; i + kStrip <= n; i += kStrip) {
        const uint8_t* each[kStrip];
        for (int64_t r = 0; r < kStrip; r++)
            each[r] = rows.view.data + ids[i + r] * rows.view.stride;
        pack_strip(type, each, cols, strip.data());
        k.strip[int(type)](strip.data(), 1, in.q8, 0, nt, product.data(), kStrip);
        for (int64_t r = 0; r < kStrip; r++) {
            for (int64_t j = 0; j < nt; j++) {
                CHECK(product[size_t(tokens[j] * kStrip + r)] == y[size_t((i + r) * nt + j)]);
            }
        }
    }
}

// Sums of rows in tiles have the bits of those of rows as stored: for all rows of whole tiles, and
// for some; and in a range of columns.
void test_tiles(const cpu::Kernels& k, DType type, int64_t cols) {
    const int64_t n = 40, nt = 5, block = info(type).block;
    const Rows rows(type, n, cols, 1, false);
    const Tiled tiled(rows, cols, NeuronRows::Tiles::blocks);
    std::vector<int32_t> ids, first{0}, row;
    for (int32_t i = 0; i < n; i++) ids.push_back(i);
    for (int64_t t = 0; t < nt; t++) {
        for (int32_t r = 0; r < n; r++) {
            if (r % (t + 1) == 0) row.push_back(r);
        }
        first.push_back(int32_t(row.size()));
    }
    const Floats h = normal(int64_t(row.size()));
    const int64_t stride = rows.view.stride, at = info(type).bytes, last = cols - block;
    for (int64_t tokens : {int64_t(1), nt}) {
        const cpu::WeightedRows weighted{first.data(), row.data(), h.data()};
        Floats sum = normal(tokens * cols), expected = sum, part(size_t(tokens * block), 0);
        k.tiled_add[int(type)](tiled.data.data(), stride, ids.data(), n, cols, weighted, tokens,
                               sum.data(), cols);
        k.stored_add[int(type)](rows.packed.data(), stride, ids.data(), n, cols, weighted, tokens,
                                expected.data(), cols);
        CHECK(sum == expected);
        Floats same = part;
        k.tiled_add[int(type)](tiled.data.data() + last / block * kStrip * at, stride, ids.data(),
                               n, block, weighted, tokens, part.data(), block);
        k.stored_add[int(type)](rows.packed.data() + last / block * at, stride, ids.data(), n,
                                block, weighted, tokens, same.data(), block);
        CHECK(part == same);
    }
}

// `stored`: the kernels for blocks as stored.
void test_kernels(DType type, const char* isa, bool stored) {
    const cpu::Kernels *k = cpu::kernels_for(isa), *generic = cpu::kernels_for("generic");
    if (!k) {
        std::printf("skipped: this machine has no ISA %s\n", isa);
        return;
    }
    const auto dot_of = [&](const cpu::Kernels& kernels) {
        return (stored ? kernels.stored_dot : kernels.dot)[int(type)];
    };
    const auto add_of = [&](const cpu::Kernels& kernels) {
        return (stored ? kernels.stored_add : kernels.add)[int(type)];
    };
    for (int64_t cols : {8, 32, 33, 96, 256, 512, 1280, 2048, 4096, 2720}) {
        const bool block = info(type).is_quantised();
        if (block && (stored ? cols % info(type).block != 0 : !can_fold(type, cols))) continue;
        const int64_t n = 23;
        Rows rows(type, n, cols, 1, !stored);
        const int64_t nt = 5;
        const bool plain = block && stored && info(type).block < kQK;
        const Tokens x(nt, cols, stored && !plain ? kQK : cols, block && !plain);
        const cpu::NeuronInput& in = x.in;
        const int32_t ids[] = {0, 3, 4, 5, 9, 11, 12, 17, 20, 21, 22}, tokens[] = {4, 0, 1, 2, 3};
        const int64_t m = 11;
        Floats y(m * nt), expected(m * nt);
        dot_of (*k)(rows.view.data, rows.view.stride, ids, m, cols, in, tokens, nt, y.data());
        dot_of (*generic)(rows.view.data, rows.view.stride, ids, m, cols, in, tokens, nt,
                          expected.data());
        for (int64_t i = 0; i < m * nt; i++) {
            CHECK(std::fabs(y[size_t(i)] - expected[size_t(i)]) <
                  2e-5 * std::sqrt(double(cols)) + 1e-5);
            float alone;
            dot_of (*k)(rows.view.data, rows.view.stride, ids + i / nt, 1, cols, in,
                        tokens + i % nt, 1, &alone);
            CHECK(alone == y[size_t(i)]);
        }
        if (plain) test_strip_bits(*k, rows, cols, ids, m, in, nt, tokens, y);
        test_all(*k, rows, cols, ids, m, stored);
        // Token 0 uses all rows, the others every second, third and so on; token 4 none.
        std::vector<int32_t> first{0}, row;
        for (int64_t t = 0; t < nt; t++) {
            for (int32_t r = 0; r < m && t < 4; r++) {
                if (r % (t + 1) == 0) row.push_back(r);
            }
            first.push_back(int32_t(row.size()));
        }
        const Floats h = normal(int64_t(row.size()));
        const cpu::WeightedRows weighted{first.data(), row.data(), h.data()};
        Floats sum = normal(nt * cols), sum_generic = sum, one_by_one = sum;
        Floats sum_avx2 = sum;
        add_of (*k)(rows.view.data, rows.view.stride, ids, m, cols, weighted, nt, sum.data(), cols);
        add_of (*generic)(rows.view.data, rows.view.stride, ids, m, cols, weighted, nt,
                          sum_generic.data(), cols);
        for (int64_t t = 0; t < nt; t++) {
            for (int32_t i = first[size_t(t)]; i < first[size_t(t) + 1]; i++) {
                const int32_t range[] = {i, i + 1};
                add_of (*k)(rows.view.data, rows.view.stride, ids, m, cols,
                            {range, row.data(), h.data()}, 1, one_by_one.data() + t * cols, 0);
            }
        }
        CHECK(sum == one_by_one);
        for (size_t i = 0; i < sum.size(); i++) CHECK(std::fabs(sum[i] - sum_generic[i]) < 1e-4);
        const auto is = [&](const char* name) { return !std::strcmp(isa, name); };
        if (!is("avx512") && !is("vnni") && !is("avxvnni")) continue;  // same bits as avx2
        const cpu::Kernels& avx2 = *cpu::kernels_for("avx2");
        dot_of(avx2)(rows.view.data, rows.view.stride, ids, m, cols, in, tokens, nt,
                     expected.data());
        add_of(avx2)(rows.view.data, rows.view.stride, ids, m, cols, weighted, nt, sum_avx2.data(),
                     cols);
        CHECK(y == expected && sum == sum_avx2);
    }
}

// So many that kernels may multiply tiles of rows and tokens.
void test_many(DType type, const char* isa) {
    const cpu::Kernels *k = cpu::kernels_for(isa), *generic = cpu::kernels_for("generic");
    if (!k) return;
    for (int64_t cols : {256, 512, 2560}) {
        if (info(type).is_quantised() && !can_fold(type, cols)) continue;
        const int64_t n = 37;
        const Rows rows(type, n, cols, 1);
        std::vector<int32_t> ids;
        for (int32_t i = 0; i < n; i++) ids.push_back(i * 7 % int32_t(n));
        for (int64_t nt : {16, 17, 31, 70}) {
            // In the quick circle: the longest rows in two of the batches, others in the others.
            if (!full_circle() && (cols == 2560) != (nt == 16 || nt == 31)) continue;
            const Tokens x(nt + 1, cols, cols, info(type).is_quantised());
            std::vector<int32_t> tokens;  // neighbours, or not
            for (int32_t t = 0; t < nt; t++) tokens.push_back(t + (nt == 31 && t > 20 ? 1 : 0));
            Floats y(size_t(n * nt)), expected(y.size());
            k->dot[int(type)](rows.view.data, rows.view.stride, ids.data(), n, cols, x.in,
                              tokens.data(), nt, y.data());
            generic->dot[int(type)](rows.view.data, rows.view.stride, ids.data(), n, cols, x.in,
                                    tokens.data(), nt, expected.data());
            for (int64_t i = 0; i < n * nt; i++) {
                CHECK(std::fabs(y[size_t(i)] - expected[size_t(i)]) <
                      2e-5 * std::sqrt(double(cols)) + 1e-5);
                float alone;
                k->dot[int(type)](rows.view.data, rows.view.stride, &ids[size_t(i / nt)], 1, cols,
                                  x.in, &tokens[size_t(i % nt)], 1, &alone);
                CHECK(alone == y[size_t(i)]);
            }
        }
    }
}

}  // namespace

int main() {
    int n_isas = 0;
    const char* const* isas = cpu::isa_names(&n_isas);
    for (int i = 0; i < n_isas; i++) {
        for (DType type :
             {DType::F32,     DType::F16,    DType::BF16,    DType::Q4_0,   DType::Q4_1,
              DType::Q5_0,    DType::Q5_1,   DType::Q8_0,    DType::Q2_K,   DType::Q3_K,
              DType::Q4_K,    DType::Q5_K,   DType::Q6_K,    DType::IQ4_NL, DType::IQ4_XS,
              DType::IQ2_XXS, DType::IQ2_XS, DType::IQ3_XXS, DType::IQ1_S,  DType::IQ3_S,
              DType::IQ2_S,   DType::IQ1_M,  DType::TQ1_0,   DType::TQ2_0,  DType::MXFP4,
              DType::NVFP4}) {
            test_kernels(type, isas[i], false);
            if (info(type).is_quantised()) test_kernels(type, isas[i], true);
            test_many(type, isas[i]);
            const cpu::Kernels* const k = cpu::kernels_for(isas[i]);
            for (int64_t cols : {32, 64, 96, 352, 576}) {
                if (k && can_tile(type, cols)) test_tiles(*k, type, cols);
            }
        }
    }
    return check::summary("test_neuron_kernels");
}
