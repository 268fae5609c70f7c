// Counts the bits where signs differ, weighted by levels, in plain C++: the specification of
// sketch__i1_i4.
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

void sketch(const uint8_t* signs, int64_t n_rows, int64_t bytes, const uint8_t* planes,
            int32_t* out) {
    const int64_t plane = plane_bytes(bytes);
    for (int64_t r = 0; r < n_rows; r++, signs += bytes) {
        out[r] = 0;
        for (int64_t i = 0; i < bytes; i++) {
            const unsigned differ = signs[i] ^ planes[i];
            for (int p = 0; p < 3; p++) {
                out[r] += __builtin_popcount(differ & planes[(p + 1) * plane + i]) << p;
            }
        }
    }
}

}  // namespace

const sketch_fn sketch__i1_i4 = sketch;

}  // namespace ggml::cpu::generic
