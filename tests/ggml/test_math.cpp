// The elementary functions against long double's, over samples of all magnitudes and of what a
// model meets, and their bits against a sum over these samples that every machine must find.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "ggml/math.h"

using namespace ggml;
using math::bits_as;
using math::polynomial;

namespace {

const float inf = std::numeric_limits<float>::infinity();
const float nan_value = std::numeric_limits<float>::quiet_NaN();

// The error of `got` in units of the last place that `want` has as a T.
template <typename T>
double error(T got, long double want) {
    using limits = std::numeric_limits<T>;
    if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e9;
    if (std::isinf(got)) {  // right from half a unit beyond the largest number on
        const long double end =
            std::ldexp(1 - std::ldexp(1.0L, -limits::digits - 1), limits::max_exponent);
        return std::fabs(want) >= end && (want > 0) == (got > 0) ? 0 : 1e9;
    }
    int exponent = limits::min_exponent;
    if (want != 0) std::frexp(want, &exponent);
    const int place = std::max(exponent, limits::min_exponent) - limits::digits;
    return double(std::ldexp(std::fabs((long double)got - want), -place));
}

// The bits of results, in order; NaN has several, and processors differ in which they make.
struct Bits {
    void add(float v) { add(double(v)); }
    void add(double v) {
        if (!std::isnan(v)) sum = (sum ^ bits_as<uint64_t>(v)) * 0x100000001b3 + (sum >> 32);
    }
    uint64_t sum = 0xcbf29ce484222325;
};

// The worst error of results, and their bits.
struct Results {
    template <typename T>
    void add(T got, long double want) {
        worst = std::max(worst, error(got, want));
        bits.add(got);
    }
    void expect(const char* name, double limit, uint64_t expected) const {
        CHECK(worst <= limit);
        CHECK(bits.sum == expected);
        if (!(worst <= limit && bits.sum == expected)) {
            std::fprintf(stderr, "%s: %.4f ulp, at most %.4f; bits 0x%016llx\n", name, worst, limit,
                         (unsigned long long)(bits.sum));
        }
    }
    double worst = 0;
    Bits bits;
};

// Every float of a range of bits, `step` apart: one sign, rising magnitude.
std::vector<float> floats(float from, float to, uint32_t step) {
    std::vector<float> x;
    const uint32_t end = bits_as<uint32_t>(to);
    for (uint64_t b = bits_as<uint32_t>(from); b <= end; b += step) {
        x.push_back(bits_as<float>(uint32_t(b)));
    }
    return x;
}

// Loops that the compiler may make vector code of, and a call that it cannot.
template <float (*f)(float)>
std::vector<float> all(const std::vector<float>& x) {
    std::vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = f(x[i]);
    return y;
}
using Function = float (*)(float);

// f over a dense sample of floats of both signs: its error, the same bits alone as in a loop, never
// falling by more than the last place, and the sum of all bits.
template <float (*f)(float)>
void test_f32(const char* name, long double (*reference)(long double), float most, double limit,
              uint64_t expected) {
    volatile Function alone = f;
    bool same = true, rising = true;
    Results results;
    const auto follow = [&](const std::vector<float>& x) {
        const std::vector<float> y = all<f>(x);
        for (size_t i = 0; i < x.size(); i++) {
            results.add(y[i], reference(x[i]));
            same &= bits_as<uint32_t>(Function(alone)(x[i])) == bits_as<uint32_t>(y[i]) ||
                    std::isnan(y[i]);
            if (i == 0) continue;
            const bool up = x[i] > x[i - 1];
            const float before = up ? y[i - 1] : y[i], after = up ? y[i] : y[i - 1];
            rising &= !(after < std::nextafter(before, -inf));
        }
    };
    for (const float sign : {1.0f, -1.0f}) {
        follow(floats(sign * 0x1p-10f, sign * most, 97));
        follow(floats(sign * 0.0f, sign * 0x1p-10f, 9973));
        follow(floats(sign * most, sign * inf, 99991));
        for (const float at : {0.3f, 0.34657f, 0.875f, 1.0f, 3.9f, 20.0f, 87.3f, 88.7f, 103.9f}) {
            follow(floats(sign * at, sign * at * 1.003f, 1));
        }
    }
    CHECK(same);
    CHECK(rising);
    results.expect(name, limit, expected);
}

void test_ends() {
    CHECK(exp_f32(0) == 1 && exp_f32(-0.0f) == 1 && exp_f32(inf) == inf && exp_f32(-inf) == 0);
    CHECK(std::isnan(exp_f32(nan_value)) && std::isnan(exp_f32(-nan_value)));
    CHECK(exp_f32(89) == inf && exp_f32(1e30f) == inf);
    CHECK(exp_f32(88.72283f) < inf && exp_f32(88.72284f) == inf);
    CHECK(exp_f32(-103.9f) == std::numeric_limits<float>::denorm_min());
    CHECK(exp_f32(-104) == 0 && exp_f32(-1e30f) == 0);
    bool same = true;
    for (float x : floats(-0.0f, -86, 97)) same &= exp_of_negative(x) == exp_f32(x);
    CHECK(same && exp_of_negative(0) == 1 && std::isnan(exp_of_negative(nan_value)));
    CHECK(exp_of_negative(-87) == exp_f32(-86) && exp_of_negative(-inf) == exp_f32(-86));
    CHECK(exp_f64(0) == 1 && exp_f64(double(inf)) == double(inf) && exp_f64(-double(inf)) == 0);
    CHECK(std::isnan(exp_f64(double(nan_value))));
    CHECK(exp_f64(709.78) < double(inf) && exp_f64(709.79) == double(inf));
    CHECK(exp_f64(-745.1) == std::numeric_limits<double>::denorm_min() && exp_f64(-746) == 0);
    CHECK(log_f64(1) == 0 && log_f64(0) == -double(inf) && log_f64(-0.0) == -double(inf));
    CHECK(log_f64(double(inf)) == double(inf) && std::isnan(log_f64(double(nan_value))));
    CHECK(std::isnan(log_f64(-1)) && std::isnan(log_f64(-double(inf))));
    CHECK(erf_f32(0) == 0 && erf_f32(inf) == 1 && erf_f32(-inf) == -1 && erf_f32(4) == 1);
    CHECK(std::isnan(erf_f32(nan_value)) && std::signbit(erf_f32(-0.0f)));
    CHECK(tanh_f32(0) == 0 && tanh_f32(inf) == 1 && tanh_f32(-inf) == -1 && tanh_f32(9.1f) == 1);
    CHECK(std::isnan(tanh_f32(nan_value)) && std::signbit(tanh_f32(-0.0f)));
    CHECK(sincos_f64(0).sin == 0 && sincos_f64(0).cos == 1);
    CHECK(std::isnan(sincos_f64(double(inf)).sin) && std::isnan(sincos_f64(double(inf)).cos));
    CHECK(std::isnan(sincos_f64(double(nan_value)).sin));
    CHECK(silu(0) == 0 && silu(200) == 200 && silu(-200) == 0 && sigmoid(0) == 0.5f);
    CHECK(gelu(0) == 0 && gelu(200) == 200 && gelu(-200) == 0);
    CHECK(gelu_tanh(0) == 0 && gelu_tanh(200) == 200 && gelu_tanh(-200) == 0);
    CHECK(gelu_tanh(1e30f) == 1e30f && gelu_tanh(-1e30f) == 0 && std::isnan(gelu_tanh(nan_value)));
    CHECK(sigmoid(inf) == 1 && sigmoid(-inf) == 0 && std::isnan(silu(nan_value)));
}

// Numbers that every machine draws alike: std's distributions are each library's own.
struct Random {
    double unit() { return double(engine() >> 11) * 0x1p-53; }
    double sign() { return engine() % 2 ? 1 : -1; }
    int64_t below(int64_t n) { return int64_t(engine() % uint64_t(n)); }
    // In [1, 2) times a power of 2, from 2^least on. One draw after the other: compilers differ in
    // which argument of a call they look at first.
    double of_size(int least, int64_t sizes) {
        const double significand = 1 + unit();
        return std::ldexp(significand, least + int(below(sizes)));
    }
    std::mt19937_64 engine{17};
};

// f at numbers that `draw` gives to `at`, in many rounds: its error, and the sum of all bits.
void test_f64(const char* name, double (*f)(double), long double (*reference)(long double),
              double limit, uint64_t expected,
              void (*draw)(Random& random, const std::function<void(double)>& at)) {
    Random random;
    Results results;
    const std::function<void(double)> at = [&](double x) { results.add(f(x), reference(x)); };
    for (int i = 0; i < 400000; i++) draw(random, at);
    results.expect(name, limit, expected);
}

void test_exp_f64() {
    test_f64(
        "exp_f64", exp_f64, [](long double x) { return std::exp(x); }, 0.86, 0x16b74f0dc178007f,
        [](Random& random, const std::function<void(double)>& at) {
            at(-750 + 1470 * random.unit());
            at(-1 + 2 * random.unit());
            at(-random.of_size(-60, 70));
        });
}

void test_log_f64() {
    test_f64(
        "log_f64", log_f64, [](long double x) { return std::log(x); }, 0.82, 0x761ae906a923e741,
        [](Random& random, const std::function<void(double)>& at) {
            at(0.5 + 1.5 * random.unit());
            at(random.of_size(-1074, 2098));
            at(1 + random.of_size(-53, 52));
            at(1 - random.of_size(-54, 52));
        });
}

void test_sincos_f64() {
    Random random;
    Results results;
    const auto one = [&](double x) {
        const SinCos y = sincos_f64(x);
        results.add(y.sin, std::sin((long double)x));
        results.add(y.cos, std::cos((long double)x));
    };
    for (int i = 0; i < 300000; i++) {
        const double sign = random.sign();
        one(sign * random.of_size(-17, 40));
        const double position = double(random.below(10000000));
        one(sign * position * exp_f64(-9 * random.unit()));
        // Next to a multiple of pi / 2, where nearly all of the angle cancels.
        one(sign * double(1 + random.below(8000000)) * 0x1.921fb54442d18p+0);
    }
    results.expect("sincos_f64", 0.78, 0xb554e8de0c1ce28c);
    bool bounded = true;
    for (int i = 0; i < 10000; i++) {
        const SinCos y = sincos_f64(-random.of_size(23, 1000));
        bounded &= std::fabs(y.sin * y.sin + y.cos * y.cos - 1) < 1e-15;
    }
    CHECK(bounded);
}

// What is left of e^x behind 1 + x, for negative x.
void test_exp_tail() {
    Results results;
    const auto reference = [](long double x) {
        if (x < -0.01L) return std::expm1(x) - x;
        return x * x * polynomial(x, 1 / 2.0L, 1 / 6.0L, 1 / 24.0L, 1 / 120.0L, 1 / 720.0L);
    };
    for (const float x : floats(-0x1p-60f, -110, 97)) results.add(exp_tail(x), reference(x));
    results.expect("exp_tail", 2.30, 0x804bf5deffb17a0f);
    CHECK(exp_tail(0) == 0 && exp_tail(-1e30f) == 1e30f && exp_tail(-inf) == inf);
    CHECK(std::isnan(exp_tail(nan_value)));
}

}  // namespace

int main() {
    test_ends();
    test_f32<exp_f32>(
        "exp_f32", [](long double x) { return std::exp(x); }, 105, 0.88, 0x60ae1d2b9c9563ff);
    test_f32<erf_f32>(
        "erf_f32", [](long double x) { return std::erf(x); }, 5, 0.98, 0xca920cd9c2fd06e3);
    test_f32<tanh_f32>(
        "tanh_f32", [](long double x) { return std::tanh(x); }, 10, 1.04, 0x3d393cae0aff8ef7);
    test_exp_tail();
    test_exp_f64();
    test_log_f64();
    test_sincos_f64();
    return check::summary("math");
}
