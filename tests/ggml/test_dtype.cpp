// The table of element types, all half floats, and the reference codecs: edge cases, and hashes of
// the results of the public Python package gguf for the same numbers.
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "check.h"
#include "ggml/blocks.h"
#include "ggml/dtype.h"

using namespace ggml;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> through(DType type, const std::vector<float>& x) {
    const DTypeInfo& t = info(type);
    std::vector<uint8_t> bytes(size_t(t.size(int64_t(x.size()))));
    std::vector<float> y(x.size());
    t.encode(x.data(), bytes.data(), int64_t(x.size()));
    t.decode(bytes.data(), y.data(), int64_t(x.size()));
    return y;
}

// n values from a fixed generator, within [-scale, scale].
std::vector<float> noise(float scale, uint32_t seed, size_t n = kQ) {
    std::vector<float> x(n);
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = scale * (float(seed >> 8) / float(1 << 23) - 1);
    }
    return x;
}

void table() {
    for (DType type :
         {DType::F32,    DType::F16,     DType::Q4_0,  DType::Q4_1,  DType::Q5_0,  DType::Q5_1,
          DType::Q8_0,   DType::Q2_K,    DType::Q3_K,  DType::Q4_K,  DType::Q5_K,  DType::Q6_K,
          DType::IQ4_NL, DType::IQ4_XS,  DType::I8,    DType::I32,   DType::BF16,  DType::IQ2_XXS,
          DType::IQ2_XS, DType::IQ3_XXS, DType::IQ1_S, DType::IQ3_S, DType::IQ2_S, DType::IQ1_M,
          DType::TQ1_0,  DType::TQ2_0,   DType::MXFP4, DType::NVFP4}) {
        const DTypeInfo& t = info(type);
        CHECK(t.type == type);
        CHECK(find_dtype(uint32_t(type)) == &t);
        CHECK(find_dtype(t.name) == &t);
        const bool grids = std::strncmp(t.name, "IQ", 2) == 0 && t.name[2] < '4';
        CHECK((t.encode == nullptr) == (!t.is_float() || grids || type == DType::NVFP4));
        CHECK(t.is_float() == (type != DType::I8 && type != DType::I32));
    }
    CHECK(find_dtype("q4_0") == &info(DType::Q4_0));
    CHECK(find_dtype("bF16") == &info(DType::BF16));
    for (const char* name : {"", "Q4", "Q4_00", "Q4_K_M", "F16 "})
        CHECK(find_dtype(name) == nullptr);
    for (uint32_t id : {4u, 9u, 15u, 31u, 99u, 0xffffffffu}) CHECK(find_dtype(id) == nullptr);
    CHECK(info(DType::Q4_0).size(64) == 36);
    CHECK(info(DType::Q8_0).size(32) == 34);
    CHECK(info(DType::F32).size(3) == 12);
    CHECK(info(DType::Q4_K).size(512) == 288);
    CHECK_THROWS(internal, info(DType(4)));
}

void halfs() {
    for (uint32_t h = 0; h < 65536; h++) {
        const bool nan16 = (h & 0x7fff) > 0x7c00, nan_bf = (h & 0x7fff) > 0x7f80;
        const float f = f16_to_f32(f16_t(h)), b = bf16_to_f32(bf16_t(h));
        if (nan16) {
            CHECK(std::isnan(f) && std::isnan(f16_to_f32(f32_to_f16(f))));
        } else if (f32_to_f16(f) != h) {
            CHECK(!"f16 round trip");
        }
        if (nan_bf) {
            CHECK(std::isnan(b) && std::isnan(bf16_to_f32(f32_to_bf16(b))));
        } else if (f32_to_bf16(b) != h) {
            CHECK(!"bf16 round trip");
        }
        // Midpoints between finite neighbours round to even; values just beside them round to the
        // nearest.
        if ((h & 0x7fff) < 0x7bff) {
            const float next = f16_to_f32(f16_t(h + 1)), middle = f + (next - f) / 2;
            const bool good = f32_to_f16(middle) == ((h & 1) ? h + 1 : h) &&
                              f32_to_f16(std::nextafter(middle, f)) == h &&
                              f32_to_f16(std::nextafter(middle, next)) == h + 1;
            if (!good) CHECK(!"f16 rounding");
        }
        if ((h & 0x7fff) < 0x7f7f) {
            const uint32_t middle = h << 16 | 0x8000;
            const bool good = f32_to_bf16(bits_to_float(middle)) == ((h & 1) ? h + 1 : h) &&
                              f32_to_bf16(bits_to_float(middle - 1)) == h &&
                              f32_to_bf16(bits_to_float(middle + 1)) == h + 1;
            if (!good) CHECK(!"bf16 rounding");
        }
    }
    CHECK(f16_to_f32(0x3c00) == 1.0f && f16_to_f32(0xc000) == -2.0f &&
          f16_to_f32(0x7bff) == 65504.0f);
    CHECK(f16_to_f32(1) == std::ldexp(1.0f, -24) && f16_to_f32(0x0400) == std::ldexp(1.0f, -14));
    CHECK(f32_to_f16(65519.99f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00);
    CHECK(f32_to_f16(-1e30f) == 0xfc00 && f32_to_f16(kInf) == 0x7c00);
    CHECK(f32_to_f16(std::ldexp(1.0f, -25)) == 0 && f32_to_f16(std::ldexp(-1.5f, -25)) == 0x8001);
    CHECK(f32_to_f16(1e-40f) == 0 && f32_to_f16(-0.0f) == 0x8000);
    CHECK(f32_to_bf16(3.4e38f) == 0x7f80 && f32_to_bf16(-kInf) == 0xff80);
    CHECK(std::isnan(bf16_to_f32(f32_to_bf16(bits_to_float(0x7f800001)))));
    CHECK(std::isnan(f16_to_f32(f32_to_f16(bits_to_float(0x7f800001)))));
}

void floats() {
    const std::vector<float> x = {0, -0.0f, 1, -3.5f, 65504, 1e-7f, 0.1f};
    const auto y32 = through(DType::F32, x), y16 = through(DType::F16, x),
               yb = through(DType::BF16, x);
    CHECK(std::memcmp(x.data(), y32.data(), 4 * x.size()) == 0);
    for (size_t i = 0; i < x.size(); i++) {
        CHECK(std::fabs(y16[i] - x[i]) <= std::fabs(x[i]) / 2048 + std::ldexp(1.0f, -25));
        CHECK(std::fabs(yb[i] - x[i]) <= std::fabs(x[i]) / 256);
        CHECK(std::signbit(y16[i]) == std::signbit(x[i]) &&
              std::signbit(yb[i]) == std::signbit(x[i]));
    }
    // A row may begin at an odd address.
    std::vector<uint8_t> bytes(15);
    std::vector<float> back(7);
    info(DType::F16).encode(x.data(), bytes.data() + 1, 7);
    info(DType::F16).decode(bytes.data() + 1, back.data(), 7);
    CHECK(back == y16);
    info(DType::F32).decode(nullptr, back.data(), 0);
}

void blocks() {
    for (DType type : {DType::Q8_0, DType::Q4_0}) {
        const float steps = type == DType::Q8_0 ? 127 : 8;
        for (float v : through(type, std::vector<float>(64, 0.0f))) CHECK(v == 0);
        // A constant is exact up to the precision of the scale, a half that may be subnormal: c = q
        // * d.
        for (float c : {1.0f, -1.0f, 0.3f, -1000.0f, 3e-3f})
            for (float v : through(type, std::vector<float>(kQ, c)))
                CHECK(std::fabs(v - c) <= std::fabs(c) / 2048 + steps * std::ldexp(1.0f, -25));
        // Noise: half a step plus the rounding of the scale. Q4_0 clips code 16 to 15: a whole
        // step.
        for (uint32_t seed = 1; seed < 50; seed++) {
            const auto x = noise(2, seed), y = through(type, x);
            const float step = 2 / steps,
                        bound = type == DType::Q8_0 ? step * 0.51f + 0.001f : step * 1.01f + 0.001f;
            for (int i = 0; i < kQ; i++) CHECK(std::fabs(x[i] - y[i]) <= bound);
        }
        // Too small for a half-float scale: zeros. Too large: any value, but no undefined
        // behaviour.
        for (float v : through(type, noise(1e-12f, 3))) CHECK(v == 0);
        for (float v : through(type, noise(1e-44f, 3))) CHECK(v == 0);
        through(type, noise(3e38f, 3));
        auto odd = noise(1, 4);
        odd[5] = kInf;
        through(type, odd);
        odd[5] = std::numeric_limits<float>::quiet_NaN();
        through(type, odd);
        CHECK(through(type, {}).empty());
    }
}

void bits() {
    std::vector<float> x(kQ);
    for (int i = 0; i < kQ; i++) x[i] = float(i - 16) / 2;  // -8 .. 7.5
    BlockQ4_0 q4;
    info(DType::Q4_0).encode(x.data(), &q4, kQ);
    CHECK(f16_to_f32(q4.d) == 1.0f);
    CHECK(q4.qs[0] == 0x80);    // -8 and 0
    CHECK(q4.qs[1] == 0x91);    // -7.5 and 0.5: halves round up
    CHECK(q4.qs[15] == 0xf8);   // -0.5 and 7.5, the latter clipped to 15
    for (float& v : x) v = -v;  // the sign goes to the scale
    info(DType::Q4_0).encode(x.data(), &q4, kQ);
    CHECK(f16_to_f32(q4.d) == -1.0f && q4.qs[0] == 0x80);

    for (int i = 0; i < kQ; i++) x[i] = float(i) - 0.5f;
    x[31] = -127;
    BlockQ8_0 q8;
    info(DType::Q8_0).encode(x.data(), &q8, kQ);
    CHECK(f16_to_f32(q8.d) == 1.0f);
    CHECK(q8.qs[31] == -127);
    CHECK(q8.qs[0] == -1 && q8.qs[1] == 1 && q8.qs[2] == 2);  // halves round away from zero

    // Of two weights of the same magnitude the first determines the sign.
    std::vector<float> tie(kQ, 0.0f);
    tie[3] = 8, tie[7] = -8;
    info(DType::Q4_0).encode(tie.data(), &q4, kQ);
    CHECK(f16_to_f32(q4.d) == -1.0f);
    std::vector<float> zeros(kQ, 0.0f);
    info(DType::Q4_0).encode(zeros.data(), &q4, kQ);
    CHECK(q4.d == 0x8000 &&
          q4.qs[0] == 0x88);  // as in the public quantiser, a zero block has scale -0
}

// All exponents with all codes of MXFP4; and what the encoder makes of unusual values.
void powers() {
    const float values[] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int e = 0; e < 256; e++) {
        for (int low = 0; low < 16; low++) {
            BlockMXFP4 block = {uint8_t(e), {}};
            for (int i = 0; i < 16; i++) block.qs[i] = uint8_t(low | i << 4);
            float y[kQ];
            info(DType::MXFP4).decode(&block, y, kQ);
            for (int i = 0; i < kQ; i++) {
                const int code = i < 16 ? low : i - 16;
                const float value = code < 8 ? values[code] : -values[code - 8];
                CHECK(y[i] == std::ldexp(value, e - 128));
            }
        }
    }
    // Each value of the format is its own code.
    for (int e = 0; e < 252; e++) {
        std::vector<float> x;
        for (int i = 0; i < kQ; i++) {
            x.push_back(std::ldexp(i % 16 < 8 ? values[i % 8] : -values[i % 8], e - 128));
        }
        CHECK(through(DType::MXFP4, x) == x);
    }
    // Between two values the first code of both: codes grow with the magnitude.
    for (const auto& [x, y] : {std::pair(0.5f, 0.0f), {1.5f, 1}, {-2.5f, -2}, {5, 4}, {-7, -6}}) {
        std::vector<float> all(kQ, x);
        all[9] = 12;
        CHECK(through(DType::MXFP4, all)[0] == y);
    }
    for (float scale : {1e-44f, 1e-38f, 1e-37f, 3e38f}) {
        const auto x = noise(scale, 3), y = through(DType::MXFP4, x);
        for (int i = 0; i < kQ; i++) {
            CHECK(std::fabs(x[i] - y[i]) <= std::fmax(scale / 4, std::ldexp(1.0f, -129)));
        }
    }
    for (float odd : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
        auto x = noise(1, 4);
        x[5] = odd;
        through(DType::MXFP4, x);
        through(DType::MXFP4, std::vector<float>(kQ, odd));
    }
    for (float v : through(DType::MXFP4, std::vector<float>(kQ, 0.0f))) CHECK(v == 0);
}

// All scales with all codes of NVFP4; and each place, where all others are 0.
void halves_of_e4m3() {
    const float values[] = {0, 1, 2, 3, 4, 6, 8, 12};
    float y[2 * kQ];
    for (int e = 0; e < 256; e++) {
        const int exponent = e >> 3 & 15, mantissa = exponent ? 8 + (e & 7) : e & 7;
        const float scale =
            e == 127 ? 0 : std::ldexp(float(mantissa), (exponent ? exponent : 1) - 11);
        for (int code = 0; code < 16; code++) {
            const float value = (code < 8 ? values[code] : -values[code - 8]) * scale;
            BlockNVFP4 block;
            std::memset(block.d, e, sizeof(block.d));
            std::memset(block.qs, code | code << 4, sizeof(block.qs));
            info(DType::NVFP4).decode(&block, y, 2 * kQ);
            for (float v : y) CHECK(v == value);
        }
    }
    for (int i = 0; i < 2 * kQ; i++) {
        BlockNVFP4 block = {};
        block.d[i / 16] = 64;  // half of it is 1
        block.qs[i / 16 * 8 + i % 8] = uint8_t(7 << i % 16 / 8 * 4);
        info(DType::NVFP4).decode(&block, y, 2 * kQ);
        for (int k = 0; k < 2 * kQ; k++) CHECK(y[k] == (k == i ? 12 : 0));
    }
}

// Formats with our own search: accuracy, and robustness.
void searched() {
    struct {
        DType type;
        float rms;  // for uniform noise in [-2, 2]: 2% above the measured value
    } const rows[] = {{DType::Q2_K, 0.26f},    {DType::Q3_K, 0.141f},  {DType::Q4_K, 0.0636f},
                      {DType::Q5_K, 0.0312f},  {DType::Q6_K, 0.0153f}, {DType::Q4_1, 0.071f},
                      {DType::Q5_0, 0.0369f},  {DType::Q5_1, 0.0346f}, {DType::IQ4_NL, 0.0763f},
                      {DType::IQ4_XS, 0.0768f}};
    for (const auto& row : rows) {
        const size_t n = kQK;
        for (float v : through(row.type, std::vector<float>(n, 0.0f))) CHECK(v == 0);
        for (float c : {1.0f, -1.0f, 0.3f, -100.0f, 3e-2f})
            for (float v : through(row.type, std::vector<float>(n, c)))
                CHECK(std::fabs(v - c) <= 0.02f * std::fabs(c));
        double squares = 0;
        for (uint32_t seed = 1; seed <= 50; seed++) {
            const auto x = noise(2, seed, n), y = through(row.type, x);
            for (size_t i = 0; i < n; i++) squares += double(x[i] - y[i]) * double(x[i] - y[i]);
        }
        const double rms = std::sqrt(squares / (50 * n));
        CHECK(rms <= double(row.rms));
        // One large weight among small ones is preserved.
        auto outlier = noise(0.01f, 5, n);
        outlier[77] = 3;
        CHECK(std::fabs(through(row.type, outlier)[77] - 3) < 0.1f);
        // Too small for a half-float scale, too large, or NaN: any value, but no undefined
        // behaviour.
        for (float scale : {1e-12f, 1e-44f, 1e15f, 3e38f}) through(row.type, noise(scale, 3, n));
        for (float odd : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
            auto x = noise(1, 4, n);
            x[5] = odd;
            through(row.type, x);
            through(row.type, std::vector<float>(n, odd));
        }
        CHECK(through(row.type, {}).empty());
    }
    // The places of bits, by hand: one weight of the block differs from the rest.
    BlockQ4_K q4 = {};
    q4.d = q4.dmin = f32_to_f16(1);
    q4.scales[0] = 3 | 2 << 6, q4.scales[4] = 5 | 1 << 6, q4.scales[8] = 7 | 9 << 4;
    q4.qs[1] = 0xa0, q4.qs[64] = 0x0b;
    float y[kQK];
    info(DType::Q4_K).decode(&q4, y, kQK);
    CHECK(y[0] == -5 && y[1] == -5);                // group 0: scale 3, min 5
    CHECK(y[33] == 0 && y[32] == 0);                // group 1: no scale, no min
    CHECK(y[128] == 11 * (2 * 16 + 7) - (16 + 9));  // group 4: the split scales
    CHECK(y[129] == -(16 + 9));
    BlockQ6_K q6 = {};
    q6.d = f32_to_f16(0.5f);
    q6.scales[15] = -128;
    q6.qh[32 + 31] = 0xc0, q6.ql[64 + 63] = 0xf0;
    info(DType::Q6_K).decode(&q6, y, kQK);
    CHECK(y[255] == -64 * 31 && y[254] == 64 * 32 && y[0] == 0);
}

// The values -d, 0 and d survive; others become the nearest of them.
void ternary() {
    for (DType type : {DType::TQ1_0, DType::TQ2_0}) {
        std::vector<float> x(2 * kQK);
        uint32_t seed = 3;
        for (size_t i = 0; i < x.size(); i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = float(int(seed >> 16) % 3 - 1) * (i < kQK ? 0.375f : 3.0f);
        }
        CHECK(through(type, x) == x);
        x[0] = 0.375f, x[1] = 0.18f, x[2] = -0.19f, x[3] = -0.0f;
        const auto y = through(type, x);
        CHECK(y[1] == 0 && y[2] == -0.375f && y[3] == 0);
        for (float scale : {0.0f, 1e-12f, 1e-44f, 1e15f, 3e38f})
            through(type, noise(scale, 3, kQK));
        for (float odd : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
            x[5] = odd;
            through(type, x);
            through(type, std::vector<float>(kQK, odd));
        }
        CHECK(through(type, {}).empty());
    }
}

// FNV-1a hashes of the results of gguf.quants.dequantize (gguf 0.19.0) for 100 blocks of random
// bytes.
void golden_decode() {
    const std::pair<DType, uint64_t> hashes[] = {
        {DType::Q8_0, 0xf5c573f3f6e32cc8u},    {DType::Q4_0, 0x5b4e06bce360119au},
        {DType::Q4_1, 0xa4ce0e9cc2ade460u},    {DType::Q5_0, 0x8a07aa04135bd8c6u},
        {DType::Q5_1, 0x22aa63ecdf75c79fu},    {DType::Q2_K, 0xef656209ba32ecf0u},
        {DType::Q3_K, 0xac7f3ee58b24c521u},    {DType::Q4_K, 0x74e21b5f975cf024u},
        {DType::Q5_K, 0xe9d730beccb32a40u},    {DType::Q6_K, 0x5e06e1a220d14b65u},
        {DType::IQ4_NL, 0x7311fd19a45691b9u},  {DType::IQ4_XS, 0x0df0b4bcea273e19u},
        {DType::IQ2_XXS, 0xbf4eff72c79b7efau}, {DType::IQ2_XS, 0xa43fd3c855846b3cu},
        {DType::IQ3_XXS, 0x2cf7961994c21206u}, {DType::IQ1_S, 0xbb7cb28f6b4ab782u},
        {DType::IQ3_S, 0x63e8ba8709e7ba1au},   {DType::IQ2_S, 0xff5576c1eeb4b8ffu},
        {DType::IQ1_M, 0x7acfc82c170175bcu},   {DType::MXFP4, 0xf8f7212a7b0f6530u},
        {DType::TQ1_0, 0x173ecff2937579ceu},   {DType::TQ2_0, 0xcaab3ae85f9077fbu},
        {DType::NVFP4, 0x0f43dd14f72bf411u}};
    for (const auto& [type, expected] : hashes) {
        std::vector<uint8_t> bytes(size_t(100 * info(type).bytes));
        uint32_t seed = 9;
        for (uint8_t& byte : bytes) {
            seed = seed * 1664525u + 1013904223u;
            byte = uint8_t(seed >> 24);
        }
        std::vector<float> y(size_t(100 * info(type).block));
        info(type).decode(bytes.data(), y.data(), int64_t(y.size()));
        uint64_t hash = 0xcbf29ce484222325u;
        for (float v : y) {
            const uint32_t word = std::isnan(v) ? 0x7fc00000 : float_to_bits(v);
            for (int i = 0; i < 32; i += 8) hash = (hash ^ (word >> i & 255)) * 0x100000001b3u;
        }
        CHECK(hash == expected);
    }
}

// FNV-1a hashes of the results of gguf.quants.quantize (gguf 0.19.0) for these 32,000 numbers.
void golden() {
    std::vector<float> x(32 * 1000);
    uint32_t seed = 7;
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = 2 * (float(seed >> 8) / float(1 << 23) - 1);
    }
    const std::pair<DType, uint64_t> hashes[] = {
        {DType::F16, 0x1fd5e45aa2532cc4u},   {DType::BF16, 0x1f969a0604ab4d59u},
        {DType::Q8_0, 0xb74febb7020c3417u},  {DType::Q4_0, 0x72430d89eac8667eu},
        {DType::Q4_1, 0x9d2b6d1896bf242du},  {DType::Q5_0, 0x7ddda2d0f531db0du},
        {DType::Q5_1, 0x731b770c4a38723bu},  {DType::TQ1_0, 0x14ad037c225700bfu},
        {DType::TQ2_0, 0xccdce162fa3a1d79u}, {DType::MXFP4, 0xd1c5230f60f14383u}};
    for (const auto& [type, expected] : hashes) {
        std::vector<uint8_t> bytes(size_t(info(type).size(int64_t(x.size()))));
        info(type).encode(x.data(), bytes.data(), int64_t(x.size()));
        uint64_t hash = 0xcbf29ce484222325u;
        for (uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
        CHECK(hash == expected);
    }
}

}  // namespace

int main() {
    table();
    halfs();
    floats();
    blocks();
    bits();
    powers();
    halves_of_e4m3();
    searched();
    ternary();
    golden_decode();
    golden();
    return check::summary("test_dtype");
}
