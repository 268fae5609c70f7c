// CRC-32C. The instruction of SSE4.2 takes 8 bytes in 3 cycles of latency, so that one chain of
// them has a third of what the processor could do. Three chains run side by side over thirds of a
// piece; a table then moves a chain's checksum across the bytes of the next one.
#include "ggml/crc32c.h"

#include <array>
#include <cstring>

#ifdef GGML_X86
#include <cpuid.h>
#include <nmmintrin.h>
#endif

namespace ggml {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // its bits reversed: the lowest bit comes first

// table[k][b]: the checksum register after byte b and k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables t{};
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t r = b;
        for (int bit = 0; bit < 8; bit++) r = r >> 1 ^ (r & 1 ? kPolynomial : 0);
        t[0][b] = r;
    }
    for (size_t k = 1; k < t.size(); k++) {
        for (size_t b = 0; b < 256; b++) t[k][b] = t[k - 1][b] >> 8 ^ t[0][t[k - 1][b] & 255];
    }
    return t;
}

constexpr Tables kTables = make_tables();

uint32_t table_step(uint32_t r, uint8_t byte) {
    return r >> 8 ^ kTables[0][(r ^ byte) & 255];
}

// The register after the bytes, without the inversions at both ends.
uint32_t by_table(const uint8_t* p, size_t n, uint32_t r) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        std::memcpy(&word, p, 8);
        word ^= r;
        r = 0;
        for (int k = 0; k < 8; k++) r ^= kTables[size_t(7 - k)][word >> 8 * k & 255];
    }
    for (; n > 0; p++, n--) r = table_step(r, *p);
    return r;
}

#ifdef GGML_X86

constexpr size_t kThird = 256;  // bytes of a chain

// shift[k][b]: the register b << 8 k after kThird zero bytes.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

Shift make_shift() {
    Shift s{};
    for (uint32_t k = 0; k < 4; k++) {
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t r = b << 8 * k;
            for (size_t i = 0; i < kThird; i++) r = table_step(r, 0);
            s[k][b] = r;
        }
    }
    return s;
}

uint32_t shifted(const Shift& s, uint32_t r) {
    return s[0][r & 255] ^ s[1][r >> 8 & 255] ^ s[2][r >> 16 & 255] ^ s[3][r >> 24];
}

__attribute__((target("sse4.2,crc32"))) uint32_t by_instruction(const uint8_t* p, size_t n,
                                                                uint32_t r) {
    static const Shift shift = make_shift();
    const auto word = [](const uint8_t* at) {
        uint64_t w;
        std::memcpy(&w, at, 8);
        return w;
    };
    for (; n >= 3 * kThird; p += 3 * kThird, n -= 3 * kThird) {
        uint64_t a = r, b = 0, c = 0;
        for (size_t i = 0; i < kThird; i += 8) {
            a = _mm_crc32_u64(a, word(p + i));
            b = _mm_crc32_u64(b, word(p + kThird + i));
            c = _mm_crc32_u64(c, word(p + 2 * kThird + i));
        }
        r = shifted(shift, shifted(shift, uint32_t(a)) ^ uint32_t(b)) ^ uint32_t(c);
    }
    uint64_t a = r;
    for (; n >= 8; p += 8, n -= 8) a = _mm_crc32_u64(a, word(p));
    r = uint32_t(a);
    for (; n > 0; p++, n--) r = _mm_crc32_u8(r, *p);
    return r;
}

bool has_instruction() {
    static const bool has = [] {
        unsigned a, b, c, d;
        return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
    }();
    return has;
}

#else

bool has_instruction() {
    return false;
}

constexpr auto by_instruction = by_table;

#endif

}  // namespace

uint32_t crc32c(const void* data, size_t n, uint32_t crc) {
    const auto* p = static_cast<const uint8_t*>(data);
    return ~(has_instruction() ? by_instruction(p, n, ~crc) : by_table(p, n, ~crc));
}

uint32_t crc32c_by_table(const void* data, size_t n, uint32_t crc) {
    return ~by_table(static_cast<const uint8_t*>(data), n, ~crc);
}

const char* crc32c_method() {
    return has_instruction() ? "sse4.2" : "table";
}

}  // namespace ggml
