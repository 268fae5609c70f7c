// Counts the bits where signs differ, weighted by levels.
#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

namespace {

// Adds the weighted count over 32 bytes: at most 56 per byte.
inline i256 add_count(i256 sum, i256 differ, const uint8_t* levels, int64_t plane) {
    i256 counts = add_bit_counts<0>(splat8(0), differ & load(levels));
    counts = add_bit_counts<1>(counts, differ & load(levels + plane));
    counts = add_bit_counts<2>(counts, differ & load(levels + 2 * plane));
    return add_bytes(sum, counts);
}

void sketch(const uint8_t* signs, int64_t n_rows, int64_t bytes, const uint8_t* planes,
            int32_t* out) {
    const int64_t plane = plane_bytes(bytes), whole = bytes / 32 * 32;
    const uint8_t* levels = planes + plane;
    for (int64_t r = 0; r < n_rows; r++, signs += bytes) {
        i256 sum = splat8(0);
        for (int64_t i = 0; i < whole; i += 32) {
            const i256 differ = load(signs + i) ^ load(planes + i);
            sum = add_count(sum, differ, levels + i, plane);
        }
        if (whole < bytes) {  // levels beyond the end are 0
            uint8_t rest[32] = {};
            std::memcpy(rest, signs + whole, size_t(bytes - whole));
            const i256 differ = load(rest) ^ load(planes + whole);
            sum = add_count(sum, differ, levels + whole, plane);
        }
        out[r] = total(sum);
    }
}

}  // namespace

const sketch_fn sketch__i1_i4 = sketch;

}  // namespace ggml::cpu::GGML_ISA
