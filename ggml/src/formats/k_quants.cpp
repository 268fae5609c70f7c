// Encoders of Q2_K..Q6_K and IQ4: they search for codes (search.h), then write the bits described
// in blocks.h.
#include "quants.h"
#include "search.h"

namespace ggml {

namespace {

void or_bits(uint8_t& byte, int bits, int shift) {
    byte = uint8_t(byte | bits << shift);
}

void put_two_bits(const int8_t* q, uint8_t* qs) {
    for (int i = 0; i < kQK; i++) or_bits(qs[i / 128 * 32 + i % 32], q[i] & 3, i / 32 % 4 * 2);
}

// The nibbles of Q4_K and Q5_K (of Q5_K the low four bits).
void put_nibbles(const int8_t* q, uint8_t* qs) {
    for (int i = 0; i < kQK; i++) or_bits(qs[i / 64 * 32 + i % 32], q[i] & 15, i / 32 % 2 * 4);
}

void put_scales_k4(const Codes& c, uint8_t* scales) {
    for (int g = 0; g < 4; g++) {
        scales[g] = uint8_t(c.scale[g] | c.scale[g + 4] >> 4 << 6);
        scales[g + 4] = uint8_t(c.min[g] | c.min[g + 4] >> 4 << 6);
        scales[g + 8] = uint8_t((c.scale[g + 4] & 15) | (c.min[g + 4] & 15) << 4);
    }
}

int table_index(int8_t value) {
    int i = 0;
    while (i < 15 && kIQ4[i] != value) i++;
    return i;
}

void put_table_nibbles(const int8_t* q, uint8_t* qs) {
    for (int i = 0; i < kQ / 2; i++)
        qs[i] = uint8_t(table_index(q[i]) | table_index(q[i + kQ / 2]) << 4);
}

}  // namespace

void encode_q2_k(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ2_K>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block_min(x, w, 16, 15, 3, c);
        block.d = c.d;
        block.dmin = c.dmin;
        for (int g = 0; g < kQK / 16; g++) block.scales[g] = uint8_t(c.scale[g] | c.min[g] << 4);
        put_two_bits(c.q, block.qs);
    });
}

void encode_q3_k(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ3_K>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block(Uniform{4}, x, w, 16, 32, 0.1f, c);
        block.d = c.d;
        for (int g = 0; g < kQK / 16; g++) {
            const int scale = c.scale[g] + 32;
            or_bits(block.scales[g % 8], scale & 15, g / 8 * 4);
            or_bits(block.scales[8 + g % 4], scale >> 4, g / 4 * 2);
        }
        for (int i = 0; i < kQK; i++) {
            c.q[i] = int8_t(c.q[i] + 4);
            or_bits(block.hmask[i % 32], c.q[i] >> 2, i / 32);
        }
        put_two_bits(c.q, block.qs);
    });
}

void encode_q4_k(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ4_K>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block_min(x, w, 32, 63, 15, c);
        block.d = c.d;
        block.dmin = c.dmin;
        put_scales_k4(c, block.scales);
        put_nibbles(c.q, block.qs);
    });
}

void encode_q5_k(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ5_K>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block_min(x, w, 32, 63, 31, c);
        block.d = c.d;
        block.dmin = c.dmin;
        put_scales_k4(c, block.scales);
        put_nibbles(c.q, block.qs);
        for (int i = 0; i < kQK; i++) or_bits(block.qh[i % 32], c.q[i] >> 4, i / 32);
    });
}

void encode_q6_k(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockQ6_K>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block(Uniform{32}, x, w, 16, 128, 0.1f, c);
        block.d = c.d;
        for (int g = 0; g < kQK / 16; g++) block.scales[g] = int8_t(c.scale[g]);
        for (int i = 0; i < kQK; i++) {
            const int h = i / 128, j = i / 32 % 4, l = i % 32, q = c.q[i] + 32;
            or_bits(block.ql[64 * h + j % 2 * 32 + l], q & 15, j / 2 * 4);
            or_bits(block.qh[32 * h + l], q >> 4, 2 * j);
        }
    });
}

void encode_iq4_nl(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockIQ4_NL>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        int8_t q[kQ];
        block.d = search_codes(Uneven{}, x, w, 1, q);
        put_table_nibbles(q, block.qs);
    });
}

void encode_iq4_xs(const float* src, const float* importance, void* dst, int64_t n) {
    each_block<BlockIQ4_XS>(src, importance, dst, n, [](auto* x, auto* w, auto& block) {
        Codes c;
        search_block(Uneven{}, x, w, 32, 32, 1, c);
        block.d = c.d;
        for (int g = 0; g < kQK / kQ; g++) {
            const int scale = c.scale[g] + 32;
            or_bits(block.scales_l[g / 2], scale & 15, g % 2 * 4);
            block.scales_h = uint16_t(block.scales_h | (scale >> 4) << 2 * g);
            put_table_nibbles(c.q + kQ * g, block.qs + kQ / 2 * g);
        }
    });
}

}  // namespace ggml
