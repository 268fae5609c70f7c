// The grids of IQ1, IQ2 and IQ3. grids.inc has the indices of their values.
#include "formats/grids.h"

namespace ggml {

namespace {

#define GRID(name, ...) constexpr uint16_t k##name[] = {__VA_ARGS__};
#include "formats/grids.inc"
#undef GRID

constexpr uint8_t kIQ2[] = {8, 25, 43}, kIQ1[] = {0, 8, 16};
constexpr uint8_t kIQ3Xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t kIQ3S[] = {1, 3, 5, 7, 9, 11, 13, 15};

// `bits`: of an index of `values`.
template <int bits, int n, typename Entry>
constexpr void fill(const uint16_t (&rows)[n], const uint8_t* values, Entry (&to)[n]) {
    for (int i = 0; i < n; i++) {
        to[i] = 0;
        for (int k = 0; k < int(sizeof(Entry)); k++) {
            to[i] |= Entry(values[rows[i] >> bits * k & ((1 << bits) - 1)]) << 8 * k;
        }
    }
}

constexpr Grids filled() {
    Grids grids = {};
    fill<2>(kIQ2_XXS, kIQ2, grids.iq2_xxs);
    fill<2>(kIQ2_XS, kIQ2, grids.iq2_xs);
    fill<2>(kIQ2_S, kIQ2, grids.iq2_s);
    fill<2>(kIQ1_S, kIQ1, grids.iq1);
    fill<3>(kIQ3_XXS, kIQ3Xxs, grids.iq3_xxs);
    fill<3>(kIQ3_S, kIQ3S, grids.iq3_s);
    return grids;
}

}  // namespace

constexpr Grids kGrids = filled();

}  // namespace ggml
