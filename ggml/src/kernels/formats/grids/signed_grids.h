// What the readers of IQ2 and IQ3 share (see grid_format.h). An entry has eight columns in IQ2 and
// four in IQ3, and each column has a sign of its own.
#pragma once

#include "kernels/formats/grids/grid_format.h"

namespace ggml::cpu::GGML_ISA {

template <typename B, typename P>
struct SignedGrid {
    using Block = B;
    using Place = P;
    static f32x8 d(const uint8_t* w) { return P::halves(w, offsetof(B, d)); }

    explicit SignedGrid(i256 bits) : signs(bits) {}
    i256 negative(int v) const { return negative_of(signs, v); }

    const i256 signs;
};

// XXS: indices are bytes. A word has seven of each eight signs, and above them the scale.
template <typename B, typename P>
struct XxsGrid : SignedGrid<B, P> {
    static constexpr int bits = 6;
    static constexpr bool whole_bytes = true;

    XxsGrid(const uint8_t* from, int group, i256 word)
        : SignedGrid<B, P>(with_eighth_bits(four_bytes(word))), w(from), j(group), high(word) {}
    i256 index(int i) const {
        const size_t qs = offsetof(B, qs);
        return byte_of(i < 4 ? P::template word<2, 0>(w, qs, j) : P::template word<2, 1>(w, qs, j),
                       i % 4);
    }
    const uint8_t* lane(int r) const { return P::template lane<2>(w, offsetof(B, qs), j, r); }
    i256 factors() const { return odd_factor(shift_right32(high, 28), 15); }

    const uint8_t* const w;
    const int j;
    const i256 high;
};

// S: indices are bytes in so many words, with one or two further bits each in a byte, qh.
template <typename B, typename P, int words>
struct SGrid : SignedGrid<B, P> {
    static constexpr bool whole_bytes = false;

    SGrid(const uint8_t* w, int j)
        : SignedGrid<B, P>(P::template word<1, 0>(w, offsetof(B, signs), j)),
          first(P::template word<words, 0>(w, offsetof(B, qs), j)),
          last(P::template word<words, words - 1>(w, offsetof(B, qs), j)),
          qh(P::byte(w, offsetof(B, qh), j)) {}
    i256 index(int i) const {
        constexpr int more = 2 / words, mask = words == 1 ? 0x300 : 0x100;
        return byte_of(i < 4 ? first : last, i % 4) |
               (shift_left32(qh, 8 - more * i) & splat32(mask));
    }

    const i256 first, last, qh;
};

}  // namespace ggml::cpu::GGML_ISA
