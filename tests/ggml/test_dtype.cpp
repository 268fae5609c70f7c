// The table of element types, half floats over their whole range, and the reference codecs: on the
// edges, and against hashes of what the public Python package gguf makes of the same numbers.
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

// 32 values from a fixed generator, within [-scale, scale].
std::vector<float> noise(float scale, uint32_t seed) {
    std::vector<float> x(kQ);
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = scale * (float(seed >> 8) / float(1 << 23) - 1);
    }
    return x;
}

void table() {
    for (DType type :
         {DType::F32, DType::F16, DType::Q4_0, DType::Q8_0, DType::I8, DType::I32, DType::BF16}) {
        const DTypeInfo& t = info(type);
        CHECK(t.type == type);
        CHECK(find_dtype(uint32_t(type)) == &t);
        CHECK(find_dtype(t.name) == &t);
        CHECK((t.decode == nullptr) == (t.encode == nullptr));
        CHECK(t.is_float() == (type != DType::I8 && type != DType::I32));
    }
    CHECK(find_dtype("q4_0") == &info(DType::Q4_0));
    CHECK(find_dtype("bF16") == &info(DType::BF16));
    for (const char* name : {"", "Q4", "Q4_00", "Q4_K", "F16 "}) CHECK(find_dtype(name) == nullptr);
    for (uint32_t id : {3u, 4u, 12u, 31u, 99u, 0xffffffffu}) CHECK(find_dtype(id) == nullptr);
    CHECK(info(DType::Q4_0).size(64) == 36);
    CHECK(info(DType::Q8_0).size(32) == 34);
    CHECK(info(DType::F32).size(3) == 12);
    CHECK_THROWS(internal, info(DType(12)));
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
        // Half way between two finite neighbours goes to the even one, a hair beside it to the near
        // one.
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
        // A constant is hit to the precision of the scale, a half that may be subnormal: c = q * d.
        for (float c : {1.0f, -1.0f, 0.3f, -1000.0f, 3e-3f})
            for (float v : through(type, std::vector<float>(kQ, c)))
                CHECK(std::fabs(v - c) <= std::fabs(c) / 2048 + steps * std::ldexp(1.0f, -25));
        // Noise: half a step, plus the scale's rounding; Q4_0 cuts the code 16 to 15: a whole step.
        for (uint32_t seed = 1; seed < 50; seed++) {
            const auto x = noise(2, seed), y = through(type, x);
            const float step = 2 / steps,
                        bound = type == DType::Q8_0 ? step * 0.51f + 0.001f : step * 1.01f + 0.001f;
            for (int i = 0; i < kQ; i++) CHECK(std::fabs(x[i] - y[i]) <= bound);
        }
        // Too small for a half scale: zeros. Too large: anything, but defined.
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
    CHECK(q4.qs[1] == 0x91);    // -7.5 and 0.5: halves go up
    CHECK(q4.qs[15] == 0xf8);   // -0.5 and 7.5, the last cut to 15
    for (float& v : x) v = -v;  // the opposite sign is in the scale
    info(DType::Q4_0).encode(x.data(), &q4, kQ);
    CHECK(f16_to_f32(q4.d) == -1.0f && q4.qs[0] == 0x80);

    for (int i = 0; i < kQ; i++) x[i] = float(i) - 0.5f;
    x[31] = -127;
    BlockQ8_0 q8;
    info(DType::Q8_0).encode(x.data(), &q8, kQ);
    CHECK(f16_to_f32(q8.d) == 1.0f);
    CHECK(q8.qs[31] == -127);
    CHECK(q8.qs[0] == -1 && q8.qs[1] == 1 && q8.qs[2] == 2);  // halves go away from zero

    // Of two weights of the same magnitude the first decides about the sign.
    std::vector<float> tie(kQ, 0.0f);
    tie[3] = 8, tie[7] = -8;
    info(DType::Q4_0).encode(tie.data(), &q4, kQ);
    CHECK(f16_to_f32(q4.d) == -1.0f);
    std::vector<float> zeros(kQ, 0.0f);
    info(DType::Q4_0).encode(zeros.data(), &q4, kQ);
    CHECK(q4.d == 0x8000 &&
          q4.qs[0] == 0x88);  // the public quantiser's zero block has the scale -0
}

// FNV-1a of the bytes that gguf.quants.quantize of gguf 0.19.0 gave for these 32,000 numbers.
void golden() {
    std::vector<float> x(32 * 1000);
    uint32_t seed = 7;
    for (float& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = 2 * (float(seed >> 8) / float(1 << 23) - 1);
    }
    const std::pair<DType, uint64_t> hashes[] = {{DType::F16, 0x1fd5e45aa2532cc4u},
                                                 {DType::BF16, 0x1f969a0604ab4d59u},
                                                 {DType::Q8_0, 0xb74febb7020c3417u},
                                                 {DType::Q4_0, 0x72430d89eac8667eu}};
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
    golden();
    return check::summary("test_dtype");
}
