// The family of IQ1, IQ2 and IQ3, whose weights are looked up in grids (formats/grids.h).
//
// Each format has a reader (iq1.cpp, iq2.cpp, iq3.cpp; signed_grids.h), made for group j of 32
// columns of eight lanes, with what is still packed there:
//   Block, Place, grid      its block; where its members lie (below); its table
//   bits                    of the largest magnitude
//   index(i)                a lane's index of its columns 8 i .. 8 i + 7, or 4 i .. 4 i + 3
//   whole_bytes             are indices bytes? Then also:
//   lane(r)                 where those of lane r begin
//   negative(v)             255 where a sign of group v is set
//   factors()               bytes 0 and 1 of each lane: the factors 2 * scale + 1 of both halves
// So all that can be unpacked for eight lanes at once is; only entries are looked up one by one.
#pragma once

#include <type_traits>

#include "formats/grids.h"
#include "kernels/formats/k/format_16.h"
#include "kernels/lanes/block_kernels.h"

namespace ggml::cpu::GGML_ISA {

// Where group j of a lane finds what it has of a member: in a strip, whose lanes are rows, or in
// one block as stored, whose lanes are its groups. byte, half and nibble leave bits above them.
struct GroupsOfStrip : Interleaved {
    template <int of>  // the first of the words of lane r
    static const uint8_t* lane(const uint8_t* w, size_t member, int j, int r) {
        return w + kStrip * member + kGroup * of * j + 4 * r;
    }
    template <int of, int i>  // word i of a group's words
    static i256 word(const uint8_t* w, size_t member, int j) {
        return load(w + kStrip * member + kGroup * (of * j + i));
    }
    static i256 half(const uint8_t* w, size_t member, int j) {
        return shift_right32(load(w + kStrip * member + kGroup * (j / 2)), 16 * (j % 2));
    }
    static i256 byte(const uint8_t* w, size_t member, int j) {
        return shift_right32(load(w + kStrip * member + kGroup * (j / 4)), 8 * (j % 4));
    }
    static i256 nibble(const uint8_t* w, size_t member, int j) {
        return shift_right32(load(w + kStrip * member), 4 * j);
    }
    // Twelve bits of two groups in each 16.
    static i256 six_bits(const uint8_t* w, size_t member, int j) {
        return shift_right32(half(w, member, j / 2), 6 * (j % 2));
    }
};
struct GroupsOfBlock : Stored {
    template <int of>
    static const uint8_t* lane(const uint8_t* w, size_t member, int, int r) {
        return w + member + 4 * of * r;
    }
    template <int of, int i>
    static i256 word(const uint8_t* w, size_t member, int) {
        static_assert(of <= 2, "");
        if constexpr (of == 1) return load(w + member);
        uint64_t pairs[kStrip];
        std::memcpy(pairs, w + member, sizeof(pairs));
        i256 both[2];
        first_and_second(pairs, both[0], both[1]);
        return both[i];
    }
    static i256 half(const uint8_t* w, size_t member, int) { return widen16(w + member); }
    static i256 byte(const uint8_t* w, size_t member, int) {
        uint64_t bytes;
        std::memcpy(&bytes, w + member, sizeof(bytes));
        return widen8(bytes);
    }
    static i256 nibble(const uint8_t* w, size_t member, int) {
        return shift_right_each<0, 4, 8, 12, 16, 20, 24, 28>(cpu::GGML_ISA::word(w + member));
    }
    static i256 six_bits(const uint8_t* w, size_t member, int) {
        // Words that end with the 16 bits, so that none reaches beyond the block.
        const i256 ends = words<0, 0, 1, 1, 2, 2, 3, 3>(w + member - 2, 2);
        return shift_right_each<16, 22, 16, 22, 16, 22, 16, 22>(ends);
    }
};

// Byte i of each lane, as its number.
inline i256 byte_of(i256 a, int i) {
    return shift_right32(a, 8 * i) & splat32(255);
}
// Bytes 2 * scale + 1 of scales in the lowest bits of each lane.
inline i256 odd_factor(i256 scales, int mask) {
    return shift_left32(scales & splat32(mask), 1) | splat32(1);
}
inline i256 two_factors(i256 scales, int bits) {
    const int mask = (1 << bits) - 1;
    const i256 first = shift_left32(scales & splat32(mask), 1);
    const i256 second = shift_left32(scales & splat32(mask << bits), 9 - bits);
    return first | second | splat32(0x101);
}
// See with_eighth_bits in formats/grids.h; these bytes have seven bits already.
inline i256 with_eighth_bits(i256 seven) {
    i256 parity = seven ^ shift_right32(seven, 4);
    parity = parity ^ shift_right32(parity, 2);
    parity = parity ^ shift_right32(parity, 1);
    return seven | shift_left32(parity & splat8(1), 7);
}
// Four times seven bits as bytes.
inline i256 four_bytes(i256 bits) {
    return (bits & splat32(0x7f)) | shift_left32(bits & splat32(0x7f << 7), 1) |
           shift_left32(bits & splat32(0x7f << 14), 2) |
           shift_left32(bits & splat32(0x7f << 21), 3);
}
// 255 where group v has a sign, of bytes of signs for eight columns.
inline i256 negative_of(i256 signs, int v) {
    return has_bit(lane_bytes(signs, v / 2), splat32(v % 2 ? int(0x80402010) : 0x08040201));
}

// Of lanes, which are to be read one by one.
struct InLanes {
    explicit InLanes(i256 lanes) { store(at, as_float(lanes)); }
    uint32_t operator()(int, int lane) const {
        uint32_t index;
        std::memcpy(&index, at + lane, sizeof(index));
        return index;
    }
    alignas(32) float at[kStrip];
};
// The same of a unit, for all i in advance, because registers give their lanes slowly, and memory
// gives what was just written slowly, too.
template <typename Reader>
struct InMemory {
    static constexpr int n = sizeof(Reader::grid[0]) == 8 ? 4 : 8, blocks = Reader::Place::blocks;
    explicit InMemory(const uint8_t* w) {
        for (int j = 0; j < blocks; j++) {
            const Reader r(w, j);
#pragma GCC unroll 4
            for (int i = 0; i < n; i += 2) {
                const i256 two = r.index(i) | shift_left32(r.index(i + 1), 16);
                store(at[j][i / 2], as_float(two));
            }
        }
        __asm__("" : "+m"(at));  // else the compiler takes them from registers
    }
    struct Group {
        uint32_t operator()(int i, int lane) const {
            uint16_t two[2];
            std::memcpy(two, at[i / 2] + lane, sizeof(two));
            return two[i % 2];
        }
        const float (&at)[n / 2][kStrip];
    };
    Group group(const Reader&, int j) const { return {at[j]}; }
    alignas(32) float at[blocks][n / 2][kStrip];  // two indices in the bits of each
};
// Those that are bytes.
template <typename Reader>
struct InPlace {
    explicit InPlace(const uint8_t*) {}
    struct Group {
        uint32_t operator()(int i, int lane) const {
            constexpr int next = Reader::Place::blocks == 1 ? 4 : kGroup;
            return r.lane(lane)[next * (i / 4) + i % 4];
        }
        const Reader& r;
    };
    Group group(const Reader& r, int) const { return {r}; }
};

template <typename Reader>
struct GridFormat {
    using Block = typename Reader::Block;
    using Place = typename Reader::Place;
    using Grid = GridBlock<Block>;
    static constexpr bool shifts = Grid::signs == Signs::shift;
    static constexpr bool of_eight = sizeof(Reader::grid[0]) == 8;
    // The shift of IQ1 is added to bytes of 8 * (weight + 1) as 0 or 2.
    static constexpr int blocks = Place::blocks, halves = Grid::halves, straight = 1, tokens = 8;
    static constexpr int bias = shifts ? 9 : 0;
    static constexpr bool has_min = false, integers = false;

    // Groups 2 l and 2 l + 1 without their signs. at(i, r): index i of lane r.
    template <typename At>
    static void two(const At& at, int l, i256& first, i256& second) {
        if constexpr (of_eight) {
            uint64_t entries[kStrip];
            for (int r = 0; r < kStrip; r++) entries[r] = Reader::grid[at(l, r)];
            first_and_second(entries, first, second);
        } else {
            first = four(at, 2 * l);
            second = four(at, 2 * l + 1);
        }
    }
    template <typename At>
    static i256 four(const At& at, int v) {
        uint32_t entries[kStrip];
        for (int r = 0; r < kStrip; r++) entries[r] = uint32_t(Reader::grid[at(v, r)]);
        return lanes(entries);
    }
    static i256 shifted(i256 q, i256 negative) {
        return add8(q, sub8(splat8(2), negative & splat8(2)));
    }
    static i256 signed_bytes(i256 q, i256 negative) {
        return shifts ? shifted(q, negative) : sub8(q ^ negative, negative);
    }
    static i256 weights(const uint8_t* w, int j, int v) {
        const Reader r(w, j);
        const InLanes at(r.index(of_eight ? v / 2 : v));
        i256 q;
        if constexpr (of_eight) {
            i256 first, second;
            two(at, v / 2, first, second);
            q = v % 2 ? second : first;
        } else {
            q = four(at, v);
        }
        return signed_bytes(q, r.negative(v));
    }

    static f32x8 unit(const uint8_t* w) { return mul(Reader::d(w), splat(Grid::unit)); }
    // Of all 32 columns.
    static f32x8 scale(f32x8 unit, i256 factors) {
        return mul(unit, to_float(factors & splat32(255)));
    }
    static HalfFactors both(const Reader& r) {
        const i256 factors = r.factors();
        return half_factors(factors, factors, 0);
    }
    static Numbers numbers(const uint8_t* w, int j, int half) {
        const Reader r(w, j);
        if constexpr (halves == 1) return {scale(unit(w), r.factors()), splat(0)};
        const HalfFactors f = both(r);
        return {mul(unit(w), short_to_float(half ? f.second : f.first, 0)), splat(0)};
    }

    template <typename X>
    static i256 product(const i256 (&q)[8], const X& x, [[maybe_unused]] const HalfFactors& f) {
        if constexpr (halves == 1) {
            return products32<Reader::bits>(q, x);
        } else {
            constexpr int sums = Reader::bits <= 5 ? 4 : 2;
            return add32(products16<sums, 0>(q, x, f.first), products16<sums, 4>(q, x, f.second));
        }
    }

    template <int T, typename X>
    static void multiply(const uint8_t* w, const X& x, int64_t first, f32x8 (&sum)[T]) {
        using Indices = std::conditional_t<Reader::whole_bytes, InPlace<Reader>, InMemory<Reader>>;
        const f32x8 d = unit(w);
        const Indices indices(w);
        for (int j = 0; j < blocks; j++) {
            const int64_t b = first + j;
            const Reader r(w, j);
            const auto at = indices.group(r, j);
            i256 q[8], negative[8];
#pragma GCC unroll 4
            for (int l = 0; l < 4; l++) two(at, l, q[2 * l], q[2 * l + 1]);
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++) {
                negative[v] = r.negative(v);
                if constexpr (shifts || !kTurnsActivations) {
                    q[v] = signed_bytes(q[v], negative[v]);
                } else {
                    negative[v] = negative[v] | splat8(1);
                }
            }
            HalfFactors f;
            f32x8 factor = d;
            if constexpr (halves == 1) {
                factor = scale(d, r.factors());
            } else {
                f = both(r);
            }
            for (int t = 0; t < T; t++) {
                const auto values = x.values(t, b);
                i256 exact;
                if constexpr (shifts) {
                    const i256 nine = splat16(bias);
                    const i256 offsets = halves == 1 ? nine : mul16(f.offset, nine);
                    exact = sub32(product(q, values, f), add_pairs(offsets, x.sums16(t, b)));
                } else if constexpr (kTurnsActivations) {
                    exact = product(q, Turned<decltype(values)>{values, negative}, f);
                } else {
                    exact = product(q, values, f);
                }
                sum[t] = add_block(sum[t], factor, x.scale(t, b), exact);
            }
        }
    }

 private:
    // Activations with the signs of weights: 1 or 255.
    template <typename X>
    struct Turned {
        i256 operator[](int v) const { return turned(x[v], signs[v]); }
        const X& x;
        const i256 (&signs)[8];
    };
};

}  // namespace ggml::cpu::GGML_ISA

// Types of a file's own: templates outside of the instruction set's namespace, which get them, then
// are no symbols that others could share (test_isa.py).
#define GRID_KERNELS(Reader, strip_name, dot_name, add_name, stored_dot_name, stored_add_name) \
    namespace {                                                                                \
    struct Strip##Reader : GridFormat<Reader<GroupsOfStrip>> {};                               \
    struct Stored##Reader : GridFormat<Reader<GroupsOfBlock>> {};                              \
    }                                                                                          \
    BLOCK_KERNELS(Strip##Reader, strip_name, dot_name, add_name)                               \
    STORED_KERNELS(Stored##Reader, stored_dot_name, stored_add_name)
