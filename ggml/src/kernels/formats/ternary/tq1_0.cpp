// Kernels of TQ1_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/ternary/ternary_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// A digit of every byte. powers: 3^n in 16 bits, for digit n.
inline i256 digits(i256 bytes, i256 powers) {
    const i256 low = splat16(255), three = splat16(3);
    // Of 16 bits: the digit is in bits 8 and 9.
    const auto threefold = [&](i256 each) { return mul16(mul16(each, powers) & low, three); };
    const i256 even = threefold(bytes & low), odd = threefold(shift_right16(bytes, 8));
    return shift_right16(even, 8) | (odd & splat16(0x300));
}

constexpr int kPowers[] = {1, 3, 9, 27, 81};

// Bytes, less the digits of the highest powers that were taken off them.
struct Rest {
    // 128 less than the byte, in signed bytes, so that one comparison shows a digit. Three times as
    // much is 3 * byte - 3 * 128, which modulo 256 is 128 less as well.
    explicit Rest(i256 all) : bytes(all ^ splat8(0x80)) {}
    // The highest digit, which is 0 below 256 / 3, and 1 below 2 * 256 / 3.
    i256 digit() const {
        const i256 none = greater8(splat8(86 - 128), bytes),
                   one = greater8(splat8(171 - 128), bytes);
        return add8(splat8(2), add8(none, one));
    }
    void next() { bytes = add8(add8(bytes, bytes), bytes); }

    i256 bytes;
};

struct TQ1_0 : TernaryFormat<TQ1_0> {
    using Block = BlockTQ1_0;
    // Calls use(bytes, n, place) for each register of bytes, which has n digits; digit i is group
    // v of the 32 columns j for {j, v} = place(i).
    struct Place {
        int j, v;
    };
    template <typename Use>
    static void each_register(const uint8_t* w, const Use& use) {
        const uint8_t* const qs = w + kStrip * offsetof(Block, qs);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) {
            use(load(qs + kGroup * v), 5, [=](int i) { return Place{i, v}; });
        }
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            use(load(qs + kGroup * (8 + v)), 5,
                [=](int i) { return Place{5 + i / 2, 4 * (i % 2) + v}; });
        }
        use(load(w + kStrip * offsetof(Block, qh)), 4, [](int i) { return Place{7, 4 + i}; });
    }

    static i256 weights(const uint8_t* w, int j, int v) {
        const uint8_t* const qs = w + kStrip * offsetof(Block, qs);
        if (j < 5) return digits(load(qs + kGroup * v), splat16(kPowers[j]));
        const int n = 2 * (j - 5) + v / 4;
        if (n < 5) return digits(load(qs + kGroup * (8 + v % 4)), splat16(kPowers[n]));
        return digits(load(w + kStrip * offsetof(Block, qh)), splat16(kPowers[v - 4]));
    }

#ifdef GGML_ADDS_BYTES
    // A digit is what multiplication by 3 loses: 3 * byte = 256 * digit + next byte. So their
    // products are (3 * (the bytes' products) - (the next ones')) / 256.
    template <typename X>
    static void byte_products(const uint8_t* w, const X& x, int64_t first, i256 (&exact)[8]) {
        i256 bytes[8], next[8];
        for (int j = 0; j < 8; j++) bytes[j] = next[j] = splat32(0);
        each_register(w, [&](i256 all, int n, const auto& place) {
            i256 rest = all;
#pragma GCC unroll 5
            for (int i = 0; i < n; i++) {
                const Place at = place(i);
                const i256 values = x.values(0, first + at.j)[at.v];
                bytes[at.j] = add_byte_products(bytes[at.j], rest, values);
                rest = add8(add8(rest, rest), rest);
                next[at.j] = add_byte_products(next[at.j], rest, values);
            }
        });
        for (int j = 0; j < 8; j++) {
            const i256 threefold = add32(add32(bytes[j], bytes[j]), bytes[j]);
            exact[j] = shift_right_signed32(sub32(threefold, next[j]), 8);
        }
    }
#endif

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        const f32x8 scale = load_f16(w + kStrip * offsetof(Block, d));
#ifdef GGML_ADDS_BYTES
        if constexpr (T == 1) {
            i256 exact[8];
            byte_products(w, x, first, exact);
            for (int j = 0; j < 8; j++) add(x, 0, first + j, scale, exact[j], sum[0]);
            return;
        }
#endif
        i256 codes[8][8];
        each_register(w, [&](i256 all, int n, const auto& place) {
            Rest rest(all);
#pragma GCC unroll 5
            for (int i = 0; i < n; i++) {
                codes[place(i).j][place(i).v] = rest.digit();
                rest.next();
            }
        });
        for (int j = 0; j < 8; j++) {
            for (int t = 0; t < T; t++) {
                const i256 product = products32<4>(codes[j], x.values(t, first + j));
                add(x, t, first + j, scale, product, sum[t]);
            }
        }
    }

 private:
    template <typename X>
    static void add(const X& x, int t, int64_t b, f32x8 scale, i256 product, f32x8& sum) {
        const i256 offset = add_pairs(splat16(bias), x.sums16(t, b));
        sum = add_block(sum, scale, x.scale(t, b), sub32(product, offset));
    }
};

// As stored: lane g has columns 32 g on. Lanes 0 to 4 take a digit each of the same bytes, the
// others two of the next 16 bytes, but for the last half of lane 7, which takes those of qh.
struct StoredTQ1_0 : TernaryFormat<StoredTQ1_0, Stored> {
    using Block = BlockTQ1_0;
    static i256 weights(const uint8_t* w, int, int v) {
        constexpr int32_t two = 0x10001;  // the same power in both halves of a lane
        alignas(32) static constexpr int32_t powers[][8] = {
            {two, 3 * two, 9 * two, 27 * two, 81 * two, two, 9 * two, 81 * two},
            {two, 3 * two, 9 * two, 27 * two, 81 * two, 3 * two, 27 * two, two},
            {two, 3 * two, 9 * two, 27 * two, 81 * two, 3 * two, 27 * two, 3 * two},
            {two, 3 * two, 9 * two, 27 * two, 81 * two, 3 * two, 27 * two, 9 * two},
            {two, 3 * two, 9 * two, 27 * two, 81 * two, 3 * two, 27 * two, 27 * two},
        };
        alignas(32) static constexpr int32_t lanes[][8] = {
            {-1, -1, -1, -1, -1, 0, 0, 0},
            {0, 0, 0, 0, 0, -1, -1, -1},
            {0, 0, 0, 0, 0, -1, -1, 0},
            {0, 0, 0, 0, 0, 0, 0, -1},
        };
        const uint8_t* const qs = w + offsetof(Block, qs);
        const i256 first = word(qs + 4 * v) & load(lanes[0]), second = word(qs + 32 + 4 * (v % 4));
        if (v < 4) return digits(first | (second & load(lanes[1])), load(powers[0]));
        const i256 last = word(w + offsetof(Block, qh)) & load(lanes[3]);
        return digits(first | (second & load(lanes[2])) | last, load(powers[v - 3]));
    }
};

}  // namespace

BLOCK_KERNELS(TQ1_0, strip__tq1_0_q8, dot__tq1_0, add__tq1_0)
STORED_KERNELS(StoredTQ1_0, stored_dot__tq1_0, stored_add__tq1_0)

}  // namespace ggml::cpu::GGML_ISA
