// Where a run of values in blocks of 32 lies (attention.h, KvLayer).
#pragma once

#include "formats/value_weights.h"
#include "ggml/attention.h"

namespace ggml::cpu {

// The codes of columns [32 b, 32 b + 32): [kKvPage / 4 groups of positions][32 columns][4].
[[gnu::always_inline]] inline int64_t codes_at(int64_t b) {
    return b * kKvPage * kQ;
}
// The scales of these columns: f16 [kKvPage], behind all codes.
[[gnu::always_inline]] inline int64_t scales_at(int64_t head_dim, int64_t b) {
    return head_dim * kKvPage + b * kKvPage * int64_t(sizeof(f16_t));
}

}  // namespace ggml::cpu
