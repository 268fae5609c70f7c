// The family of IQ1, IQ2 and IQ3, whose weights are looked up in grids (formats/grids.h). Blocks of
// eight rows lie in a strip one after the other. Lane r reads group j of the block of row r, or
// group r of one block as stored.
#pragma once

#include "formats/grids.h"
#include "kernels/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

template <typename Of, bool stored>
struct GridFormat {
    using Block = Of;
    using Grid = GridBlock<Block>;
    static constexpr int blocks = stored ? 1 : 8, bias = 0, halves = Grid::halves, tokens = 8;
    static constexpr bool has_min = false, integers = false;

    static const Block& block(const uint8_t* w, int r) {
        return reinterpret_cast<const Block*>(w)[stored ? 0 : r];
    }
    static int group(int j, int r) { return stored ? r : j; }

    static i256 signs(const uint8_t* w, int j) {
        uint32_t bits[kStrip];
        for (int r = 0; r < kStrip; r++) bits[r] = sign_bits<Grid>(block(w, r), group(j, r));
        return lanes(bits);
    }
    // Columns 8 l .. 8 l + 7 of the 32: groups 2 l and 2 l + 1.
    static void two(const uint8_t* w, int j, int l, i256 signs, i256& first, i256& second) {
        uint64_t entries[kStrip];
        for (int r = 0; r < kStrip; r++) entries[r] = Grid::eight(block(w, r), group(j, r), l);
        first_and_second(entries, first, second);
        const i256 bits = lane_bytes(signs, l);
        first = with_signs(first, has_bit(bits, splat32(0x08040201)));
        second = with_signs(second, has_bit(bits, splat32(int(0x80402010))));
    }
    static i256 with_signs(i256 q, i256 negative) {
        return Grid::signs == Signs::shift ? add8(q, negative | splat8(1))
                                           : sub8(q ^ negative, negative);
    }
    static i256 weights(const uint8_t* w, int j, int v) {
        i256 first, second;
        two(w, j, v / 2, signs(w, j), first, second);
        return v % 2 ? second : first;
    }

    static f32x8 unit(const uint8_t* w) {
        f16_t d[kStrip];
        const uint8_t* each[kStrip];
        for (int r = 0; r < kStrip; r++) {
            d[r] = Grid::d(block(w, r));
            each[r] = reinterpret_cast<const uint8_t*>(d + r);
        }
        return mul(gather_f16(each), splat(Grid::unit));
    }
    static i256 scales(const uint8_t* w, int j) {
        uint32_t bits[kStrip];
        for (int r = 0; r < kStrip; r++) bits[r] = Grid::scales(block(w, r), group(j, r));
        return lanes(bits);
    }
    // unit * (2 * scale + 1).
    static f32x8 scale(f32x8 unit, i256 scales, int half) {
        const i256 mask = splat32(2 * kScaleMask<Grid>), odd = splat32(1);
        const int at = scale_at<Grid>(half);
        const i256 twice = at ? shift_right32(scales, at - 1) : shift_left32(scales, 1);
        return mul(unit, to_float((twice & mask) | odd));
    }
    static Numbers numbers(const uint8_t* w, int j, int half) {
        return {scale(unit(w), scales(w, j), half), splat(0)};
    }

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        const f32x8 d = unit(w);
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            const i256 bits = signs(w, j), factors = scales(w, j);
            i256 q[8];
#pragma GCC unroll 4
            for (int l = 0; l < 4; l++) two(w, j, l, bits, q[2 * l], q[2 * l + 1]);
#pragma GCC unroll 2
            for (int half = 0; half < halves; half++) {
                const f32x8 factor = scale(d, factors, half);
                const int from = 4 * half, n = 8 / halves;
                for (int t = 0; t < T; t++) {
                    const auto values = x.values(t, b);
                    i256 product = signed_products(q[from], values[from]);
                    for (int v = from + 1; v < from + n; v++) {
                        product = add32(product, signed_products(q[v], values[v]));
                    }
                    sum[t] = add_block(sum[t], factor, x.scale(t, b), product);
                }
            }
        }
    }
};

}  // namespace ggml::cpu::GGML_ISA

// Types of a file's own: templates outside of the instruction set's namespace, which get them, then
// are no symbols that others could share (test_isa.py).
#define GRID_KERNELS(suffix, Block)                      \
    namespace {                                          \
    struct Strip_##suffix : GridFormat<Block, false> {}; \
    struct Stored_##suffix : GridFormat<Block, true> {}; \
    }                                                    \
    BLOCK_KERNELS(suffix, Strip_##suffix)                \
    STORED_KERNELS(suffix, Stored_##suffix)
