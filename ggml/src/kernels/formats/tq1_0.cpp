// Kernels of TQ1_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/ternary_format.h"

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

struct TQ1_0 : TernaryFormat<TQ1_0> {
    using Block = BlockTQ1_0;
    static i256 weights(const uint8_t* w, int j, int v) {
        const uint8_t* const qs = w + kStrip * offsetof(Block, qs);
        if (j < 5) return digits(load(qs + kGroup * v), splat16(kPowers[j]));
        const int n = 2 * (j - 5) + v / 4;
        if (n < 5) return digits(load(qs + kGroup * (8 + v % 4)), splat16(kPowers[n]));
        return digits(load(w + kStrip * offsetof(Block, qh)), splat16(kPowers[v - 4]));
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

BLOCK_KERNELS(tq1_0, TQ1_0)
STORED_KERNELS(tq1_0, StoredTQ1_0)

}  // namespace ggml::cpu::GGML_ISA
