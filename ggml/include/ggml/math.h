// Our own elementary functions. C libraries round theirs differently, even between versions, and
// one bit of a score can change the chosen token. These functions use only additions,
// multiplications, divisions and bit operations, which IEEE 754 defines exactly (rounding to
// nearest, without flushing denormals). The build forbids the compiler to fuse them.
//
// Errors are in units in the last place of the result (ulp). They are the largest ones measured:
// for float functions over all inputs except the smallest, which were sampled; for double functions
// over 2e7 inputs. test_math.cpp checks errors and bits. The polynomials are minimax fits.
// Coefficients were rounded one at a time, and the remaining ones were fitted again.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// GPU kernels call these functions too, and kernels that are compiled for some instruction set: see
// bits_to_float in blocks.h.
#ifdef __CUDACC__
#define GGML_BOTH __host__ __device__
#else
#define GGML_BOTH [[gnu::always_inline]]
#endif

namespace ggml {

namespace math {

template <typename To, typename From>
GGML_BOTH inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "not the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// holds ? a : b, by masks. GCC compiles `? :` to branches and then does not vectorise the loop.
GGML_BOTH inline float choose(bool holds, float a, float b) {
    const uint32_t mask = 0 - uint32_t(holds);
    return bits_as<float>((bits_as<uint32_t>(a) & mask) | (bits_as<uint32_t>(b) & ~mask));
}

GGML_BOTH inline double choose(bool holds, double a, double b) {
    const uint64_t mask = 0 - uint64_t(holds);
    return bits_as<double>((bits_as<uint64_t>(a) & mask) | (bits_as<uint64_t>(b) & ~mask));
}

// c0 + c1 x + c2 x^2 + ..
template <typename T>
GGML_BOTH inline T polynomial(T, T c) {
    return c;
}
template <typename T, typename... Rest>
GGML_BOTH inline T polynomial(T x, T c, Rest... rest) {
    return c + x * polynomial(x, rest...);
}

// Adding one of these to a small number rounds it to an integer, which is then in the lowest bits
// of the sum.
constexpr float kRound32 = 0x1.8p23f;
constexpr double kRound64 = 0x1.8p52;

// ln 2 and pi / 2 split into parts (Cody and Waite). Products of all parts but the last with the
// integers in use are exact.
constexpr float kLn2High32 = 0x1.62e4p-1f, kLn2Low32 = 0x1.7f7d1cp-20f;
constexpr double kLn2High64 = 0x1.62e42fefa38p-1, kLn2Low64 = 0x1.ef35793c7673p-45;
constexpr double kHalfPi[] = {0x1.921fb54p+0, 0x1.10b46118p-30, 0x1.313198ap-61,
                              0x1.701b839a25205p-92};

// a - b and its rounding error (Knuth's TwoSum).
struct Difference {
    GGML_BOTH Difference(double a, double b) : value(a - b) {
        const double back = value - a;
        rest = (a - (value - back)) - (b + back);
    }
    double value, rest;
};

}  // namespace math

// e^(x - k ln 2), for k = x / ln 2, rounded.
GGML_BOTH inline float exp_of_rest(float x, float k) {
    using namespace math;
    const float high = x - k * kLn2High32, low = k * kLn2Low32, r = high - low;
    const float q = polynomial(r, 0x1.fffffcp-2f, 0x1.55548ap-3f, 0x1.55584ep-5f, 0x1.123f3p-7f,
                               0x1.6ad154p-10f);
    return 1 + (high - (low - r * r * q));
}

// e^x, 0.90 ulp. Correct down to the smallest denormal, below that 0; infinity above the largest
// float; NaN stays NaN. Free of branches, so that loops over arrays are vectorised.
GGML_BOTH inline float exp_f32(float x) {
    using namespace math;
    x = choose(x < -104, -104.0f, x);  // false for NaN
    x = choose(x > 89, 89.0f, x);
    // x = k ln 2 + r with |r| <= ln 2 / 2: e^x = 2^k e^r.
    const float shifted = x * 0x1.715476p+0f + kRound32;
    const float k = shifted - kRound32;
    const float p = exp_of_rest(x, k);
    // Multiplies by 2^(k/2) twice, because 2^k itself may not be a float although the result is. k
    // + 256 is not negative, as the shift requires.
    const uint32_t n = bits_as<uint32_t>(shifted) - bits_as<uint32_t>(kRound32) + 256;  // k + 256
    const uint32_t half = n >> 1;
    return p * bits_as<float>((half - 1) << 23) * bits_as<float>((n - half - 1) << 23);
}

// e^x for x <= 0, with the bits of exp_f32 from -86 on; e^-86 below that, NaN for NaN. For weights
// beside one that is 1.
GGML_BOTH inline float exp_of_negative(float x) {
    using namespace math;
    x = choose(x < -86, -86.0f, x);
    const float shifted = x * 0x1.715476p+0f + kRound32;
    const float k = shifted - kRound32;
    return exp_of_rest(x, k) * bits_as<float>((bits_as<uint32_t>(shifted) << 23) + 0x3f800000);
}

// e^x - 1 - x for x <= 0, 2.30 ulp; NaN stays NaN. Free of branches: both ranges are computed.
GGML_BOTH inline float exp_tail(float x) {
    using namespace math;
    const float near = x * x *
                       polynomial(x, 0x1p-1f, 0x1.555556p-3f, 0x1.555556p-5f, 0x1.111112p-7f,
                                  0x1.6c16c2p-10f, 0x1.a01a02p-13f, 0x1.a01a02p-16f,
                                  0x1.71de3ap-19f, 0x1.27e4fcp-22f, 0x1.ae6456p-26f);
    return choose(x > -1, near, exp_f32(x) - 1 - x);
}

// e^x in double, 0.88 ulp; limits and NaN as above.
GGML_BOTH inline double exp_f64(double x) {
    using namespace math;
    x = choose(x < -746, -746.0, choose(x > 710, 710.0, x));
    const double shifted = x * 0x1.71547652b82fep+0 + kRound64;
    const double k = shifted - kRound64;
    const double high = x - k * kLn2High64, low = k * kLn2Low64, r = high - low;
    const double q = polynomial(r, 0x1p-1, 0x1.555555555555dp-3, 0x1.555555555556bp-5,
                                0x1.111111110e58fp-7, 0x1.6c16c16c0b715p-10, 0x1.a01a01b5b4dc5p-13,
                                0x1.a01a01dd10d5fp-16, 0x1.71ddebabd80f7p-19, 0x1.27e4740201ee8p-22,
                                0x1.af725371f3ddap-26, 0x1.1fed1359611f4p-29);
    const double p = 1 + (high - (low - r * r * q));
    const uint64_t n = bits_as<uint64_t>(shifted) - bits_as<uint64_t>(kRound64) + 2048;  // k + 2048
    const uint64_t half = n >> 1;
    return p * bits_as<double>((half - 1) << 52) * bits_as<double>((n - half - 1) << 52);
}

// k ln 2 + ln(1 + f), with 1 + f between sqrt(1/2) and sqrt(2).
GGML_BOTH inline double log_of_rest(double f, double k) {
    using namespace math;
    // With s = f / (2 + f) the series has only odd powers: ln(1 + f) = 2s + 2/3 s^3 + ... Writing
    // 2s = f - f^2/2 + s f^2/2 keeps the exact f out of the division.
    const double s = f / (2 + f), z = s * s, square = 0.5 * f * f;
    const double more =
        z * polynomial(z, 0x1.5555555555593p-1, 0x1.999999997f98ap-2, 0x1.249249423434p-2,
                       0x1.c71c51cd6cc4ep-3, 0x1.74664c3335c6ap-3, 0x1.39a04c36fcb06p-3,
                       0x1.2f14ad96ae479p-3);
    return k * kLn2High64 - ((square - (s * (square + more) + k * kLn2Low64)) - f);
}

// ln x of a positive number that is neither denormal nor infinite, with the bits of log_f64. Free
// of branches. It adds `more` to the exponent of x.
GGML_BOTH inline double log_of_normal(double x, double more = 0) {
    using namespace math;
    constexpr uint64_t one = 0x3ff0000000000000, mantissa = 0xfffffffffffff;
    // x = 2^k (1 + f), with 1 + f between sqrt(1/2) and sqrt(2).
    const uint64_t bits = bits_as<uint64_t>(x), within = (bits & mantissa) | one;
    const uint64_t halved = (bits_as<uint64_t>(0x1.6a09e667f3bcdp+0) - within) >> 63;
    // The exponent becomes the lowest bits of 2^52.
    const double biased = bits_as<double>((bits >> 52) + halved + bits_as<uint64_t>(0x1p52));
    return log_of_rest(bits_as<double>(within - (halved << 52)) - 1,
                       biased - (0x1p52 + 1023) + more);
}

// Natural logarithm, 0.84 ulp. -infinity for 0, NaN for negative numbers.
GGML_BOTH inline double log_f64(double x) {
    using namespace math;
    // Constants, not calls: kernels of an instruction set must not share functions with others.
    using limits = std::numeric_limits<double>;
    constexpr double infinity = limits::infinity(), nan = limits::quiet_NaN();
    constexpr double most = limits::max(), least_normal = limits::min();
    if (x == 0) return -infinity;
    if (x < 0) return nan;
    if (!(x <= most)) return x;  // infinity, NaN
    return x < least_normal ? log_of_normal(x * 0x1p54, -54) : log_of_normal(x);
}

// log(1 + e^x). Where that is small its error is up to 1e-16. Free of branches, like exp_f64.
GGML_BOTH inline double softplus_f64(double x) {
    using namespace math;
    const double above = choose(x > 0, x, 0.0), sum = 1 + exp_f64(choose(x > 0, -x, x));
    const bool halved = sum > 0x1.6a09e667f3bcdp+0;
    return above + log_of_rest(choose(halved, 0.5 * sum, sum) - 1, choose(halved, 1.0, 0.0));
}

// Sine and cosine of x in radians, 0.79 ulp for |x| up to 1.2e7. Larger x are first reduced by
// multiples of the double nearest to 2 pi. The result then belongs to another angle, but is still
// on the unit circle.
struct SinCos {
    double sin, cos;
};
GGML_BOTH inline SinCos sincos_f64(double x) {
    using namespace math;
    if (std::fabs(x) > 0x1.8p23) x = std::fmod(x, 0x1.921fb54442d18p+2);
    const double shifted = x * 0x1.45f306dc9c883p-1 + kRound64;
    const double k = shifted - kRound64;
    const Difference first(x - k * kHalfPi[0], k * kHalfPi[1]);
    const Difference second(first.value, k * kHalfPi[2]);
    const Difference angle(second.value, k * kHalfPi[3] - (first.rest + second.rest));
    const double r = angle.value, z = r * r;  // r + angle.rest, at most pi / 4
    const double sine =
        r + (angle.rest * (1 - 0.5 * z) +
             r * z *
                 polynomial(z, -0x1.5555555555549p-3, 0x1.111111110f8a4p-7, -0x1.a01a019c15b3cp-13,
                            0x1.71de357aacae7p-19, -0x1.ae5e683a7d129p-26, 0x1.5d93842f2c8a8p-33));
    const Difference most(1, 0.5 * z);
    const double cosine =
        most.value +
        (most.rest - r * angle.rest +
         z * z *
             polynomial(z, 0x1.555555555554cp-5, -0x1.6c16c16c1521dp-10, 0x1.a01a019cbf0d4p-16,
                        -0x1.27e4f8126530bp-22, 0x1.1ee9f1108a06ap-29, -0x1.8fb10a153ff73p-37));
    switch (bits_as<uint64_t>(shifted) & 3) {  // k mod 4, also for negative k
        case 0:
            return {sine, cosine};
        case 1:
            return {cosine, -sine};
        case 2:
            return {-sine, -cosine};
        default:
            return {-cosine, sine};
    }
}

// Error function, 1.04 ulp. Free of branches: both ranges are always computed.
GGML_BOTH inline float erf_f32(float x) {
    using namespace math;
    const float z = x * x;
    const float middle =
        x + x * polynomial(z, 0x1.06eba8p-3f, -0x1.81274p-2f, 0x1.ce2d6p-4f, -0x1.b80074p-6f,
                           0x1.5440bp-8f, -0x1.a594bcp-11f, 0x1.4d534cp-14f);
    // For |x| >= 7/8: 1 - e^-g(|x|), which is 1 beyond 4. g is expanded about a point just below
    // 7/8, where the rounding of its value matters most; at this point a float matches that value
    // to 5e-10. It is below 16, where both exponentials have the same bits.
    float size = ::fabsf(x);
    size = choose(size > 4, 4.0f, size);
    const float g = polynomial(size - 0x1.b84p-1f, 0x1.7f08cep+0f, 0x1.33de8ep+1f, 0x1.a61890p-1f,
                               0x1.8565b6p-5f, -0x1.7497f0p-7f, 0x1.0eac4ap-9f, -0x1.aa1366p-13f);
    const float outer = ::copysignf(1 - exp_of_negative(-g), x);
    return choose(size < 0.875f, middle, outer);
}

// Hyperbolic tangent, 1.05 ulp. Free of branches, like erf_f32.
GGML_BOTH inline float tanh_f32(float x) {
    using namespace math;
    const float size = ::fabsf(x), z = x * x;
    const float middle = size + size * z *
                                    polynomial(z, -0x1.55554ap-2f, 0x1.110ddap-3f, -0x1.b97fbcp-5f,
                                               0x1.5f7c2ep-6f, -0x1.f596e0p-8f, 0x1.c60aacp-10f);
    const float outer = 1 - 2 / (1 + exp_f32(2 * size));
    return ::copysignf(choose(size < 0.75f, middle, outer), x);
}

// Activation functions.
GGML_BOTH inline float sigmoid(float v) {
    return 1 / (1 + exp_f32(-v));
}
GGML_BOTH inline float silu(float v) {
    return v / (1 + exp_f32(-v));
}
// The decay of a row of a state (DeltaRule): e^(-a softplus(x)), or, with a lower bound of the
// exponent, e^(bound sigmoid(a x)).
GGML_BOTH inline float row_decay(double x, float a) {
    return exp_f32(-a * float(softplus_f64(x)));
}
GGML_BOTH inline float bounded_row_decay(double x, float a, float bound) {
    return exp_f32(bound * sigmoid(float(double(a) * x)));
}
// Both factors of gpt-oss's gated activation, of gate and of up.
GGML_BOTH inline float oai_gate(float v) {
    v = math::choose(v > 7, 7.0f, v);
    return v / (1 + exp_f32(-1.702f * v));
}
GGML_BOTH inline float oai_up(float v) {
    return math::choose(v > 7, 7.0f, math::choose(v < -7, -7.0f, v)) + 1;
}
GGML_BOTH inline float gelu(float v) {  // the exact form, "gelu" in transformers
    return 0.5f * v * (1 + erf_f32(v * 0.70710678f));
}
// Its approximation 0.5 v (1 + tanh(u)) with u = sqrt(2 / pi) (v + 0.044715 v^3):
// "gelu_pytorch_tanh" and "gelu_new" in transformers. 0.5 (1 + tanh(u)) is sigmoid(2 u), where
// nothing cancels.
GGML_BOTH inline float gelu_tanh(float v) {
    return v / (1 + exp_f32(-v * (1.5957691f + 0.071354814f * (v * v))));
}

}  // namespace ggml
