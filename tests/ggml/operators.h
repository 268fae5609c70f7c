// Checks of operators: contexts with several numbers of threads for each instruction set, and
// comparison with formulas in double precision.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "check.h"
#include "ggml/context.h"
#include "ggml/status.h"
#include "kernels/kernels.h"

using namespace ggml;

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline std::mt19937 rng(7);

inline Floats random_floats(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    Floats v(static_cast<size_t>(n));
    for (float& x : v) x = normal(rng);
    return v;
}

// Bounds for sums of floats in any order: every addition rounds by at most 2^-24 of the sum of
// magnitudes. The tests add up to a few hundred terms, and errors mostly cancel.
constexpr double kRounding = 4e-6;

// The error |got - expected| relative to `size`, the sum of the magnitudes that were added.
inline bool close(const Floats& got, const Doubles& expected, const Doubles& size,
                  double limit = kRounding) {
    for (size_t i = 0; i < got.size(); i++) {
        if (!(std::fabs(double(got[i]) - expected[i]) <= limit * size[i] + 1e-30)) return false;
    }
    return got.size() == expected.size();
}

inline bool same(const Floats& a, const Floats& b) {
    return a.size() == b.size() &&
           (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(float)));
}

// Contexts with 1, 2 and 3 threads and the tested instruction set.
inline std::vector<Context*> contexts;

// op(context, first row, rows) computes some rows. Checks that every thread count and every row
// alone give the same bits as all rows together, and returns these.
inline Floats steady(const std::function<Floats(Context&, int64_t, int64_t)>& op, int64_t rows) {
    const Floats all = op(*contexts[0], 0, rows);
    for (Context* c : contexts) CHECK(same(op(*c, 0, rows), all));
    const size_t width = all.size() / size_t(rows);
    for (int64_t t = 0; t < rows; t++) {
        const auto from = all.begin() + ptrdiff_t(size_t(t) * width);
        CHECK(same(op(*contexts[size_t(t) % 3], t, 1), Floats(from, from + ptrdiff_t(width))));
    }
    return all;
}

// Calls test(name) for each instruction set of this machine, with its contexts.
inline void for_each_isa(const std::function<void(const char*)>& test) {
    int known = 0;
    const char* const* isas = cpu::isa_names(&known);
    CHECK(known >= 1);
    for (int i = 0; i < known; i++) {
        setenv("GGML_ISA", isas[i], 1);
        try {
            select_kernels();
        } catch (const Error& e) {
            CHECK(e.code() == Code::unsupported && std::strcmp(isas[i], "generic"));
            std::printf("skipped: %s\n", e.what());
            continue;
        }
        Context one(1), two(2), three(3);
        contexts = {&one, &two, &three};
        test(isas[i]);
        contexts.clear();
    }
}
