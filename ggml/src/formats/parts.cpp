// Unpacks blocks of every format; blocks.h describes the bits.
#include "parts.h"

namespace ggml {

namespace {

void one_scale(Parts& p) {
    for (int g = 0; g < kQ / 16; g++) p.scale[g] = p.min[g] = 1;
}

void nibbles(const uint8_t* qs, int8_t* q) {
    for (int i = 0; i < kQ / 2; i++) {
        q[i] = int8_t(qs[i] & 15);
        q[i + kQ / 2] = int8_t(qs[i] >> 4);
    }
}

void fifth_bits(const uint8_t* qh, int8_t* q) {
    for (int i = 0; i < kQ; i++) q[i] = int8_t(q[i] | (qh[i / 8] >> i % 8 & 1) << 4);
}

void subtract(int8_t* q, int n, int offset) {
    for (int i = 0; i < n; i++) q[i] = int8_t(q[i] - offset);
}

// Scales and mins of Q4_K and Q5_K. Each one covers two groups of 16.
void scales_k4(const uint8_t* s, Parts& p) {
    for (int g = 0; g < 4; g++) {
        p.scale[2 * g] = p.scale[2 * g + 1] = s[g] & 63;
        p.min[2 * g] = p.min[2 * g + 1] = s[g + 4] & 63;
        p.scale[2 * g + 8] = p.scale[2 * g + 9] = int16_t((s[g + 8] & 15) | s[g] >> 6 << 4);
        p.min[2 * g + 8] = p.min[2 * g + 9] = int16_t(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
    }
}

void two_bits(const uint8_t* qs, int8_t* q) {
    for (int i = 0; i < kQK; i++) q[i] = int8_t(qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3);
}

}  // namespace

void take_apart(const BlockQ4_0& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    one_scale(p);
    nibbles(block.qs, p.q);
    subtract(p.q, kQ, 8);
}

void take_apart(const BlockQ4_1& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    p.m = f16_to_f32(block.m);
    one_scale(p);
    nibbles(block.qs, p.q);
}

void take_apart(const BlockQ5_0& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    one_scale(p);
    nibbles(block.qs, p.q);
    fifth_bits(block.qh, p.q);
    subtract(p.q, kQ, 16);
}

void take_apart(const BlockQ5_1& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    p.m = f16_to_f32(block.m);
    one_scale(p);
    nibbles(block.qs, p.q);
    fifth_bits(block.qh, p.q);
}

void take_apart(const BlockQ8_0& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    one_scale(p);
    std::memcpy(p.q, block.qs, kQ);
}

void take_apart(const BlockQ2_K& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    p.m = -f16_to_f32(block.dmin);
    for (int g = 0; g < kQK / 16; g++) {
        p.scale[g] = block.scales[g] & 15;
        p.min[g] = block.scales[g] >> 4;
    }
    two_bits(block.qs, p.q);
}

void take_apart(const BlockQ3_K& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    for (int g = 0; g < kQK / 16; g++) {
        const int low = block.scales[g % 8] >> g / 8 * 4 & 15;
        const int high = block.scales[8 + g % 4] >> g / 4 * 2 & 3;
        p.scale[g] = int16_t((low | high << 4) - 32);
    }
    two_bits(block.qs, p.q);
    for (int i = 0; i < kQK; i++) {
        p.q[i] = int8_t(p.q[i] + (block.hmask[i % 32] >> i / 32 & 1) * 4 - 4);
    }
}

void take_apart(const BlockQ4_K& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    p.m = -f16_to_f32(block.dmin);
    scales_k4(block.scales, p);
    for (int i = 0; i < kQK; i++)
        p.q[i] = int8_t(block.qs[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15);
}

void take_apart(const BlockQ5_K& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    p.m = -f16_to_f32(block.dmin);
    scales_k4(block.scales, p);
    for (int i = 0; i < kQK; i++) {
        const int low = block.qs[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
        p.q[i] = int8_t(low | (block.qh[i % 32] >> i / 32 & 1) << 4);
    }
}

void take_apart(const BlockQ6_K& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    for (int g = 0; g < kQK / 16; g++) p.scale[g] = block.scales[g];
    for (int i = 0; i < kQK; i++) {
        const int h = i / 128, j = i / 32 % 4, l = i % 32;
        const int low = block.ql[64 * h + j % 2 * 32 + l] >> j / 2 * 4 & 15;
        p.q[i] = int8_t((low | (block.qh[32 * h + l] >> 2 * j & 3) << 4) - 32);
    }
}

void take_apart(const BlockIQ4_NL& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    one_scale(p);
    nibbles(block.qs, p.q);
    for (int i = 0; i < kQ; i++) p.q[i] = kIQ4[p.q[i]];
}

void take_apart(const BlockIQ4_XS& block, Parts& p) {
    p.d = f16_to_f32(block.d);
    for (int g = 0; g < kQK / kQ; g++) {
        const int low = block.scales_l[g / 2] >> g % 2 * 4 & 15, high = block.scales_h >> 2 * g & 3;
        p.scale[2 * g] = p.scale[2 * g + 1] = int16_t((low | high << 4) - 32);
        nibbles(block.qs + 16 * g, p.q + kQ * g);
    }
    for (int8_t& q : p.q) q = kIQ4[q];
}

}  // namespace ggml
