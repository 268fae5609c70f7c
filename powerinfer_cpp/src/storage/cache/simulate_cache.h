// Replays a trace of the neurons that a text needed, and counts what each policy of the cache would
// have read.
#pragma once

#include <cstdint>

#include "storage/cache/residency.h"

namespace powerinfer {

// Which parts each token needed, in the order of the blocks: bits [n_tokens, n_blocks, (n + 7) /
// 8], bit i % 8 of byte i / 8.
struct CacheTrace {
    int32_t n_tokens = 0;
    const uint8_t* gate = nullptr;     // proposed neurons; null: all of them
    const uint8_t* up_down = nullptr;  // neurons that were computed
};

enum class CachePolicy {
    residency = 0,
    lru = 1,
    fixed = 2,   // the parts with the highest rates, for ever
    belady = 3,  // the optimum, which knows the future; with bypass, each pool alone
};

struct CacheStart {
    const float *gate_rate = nullptr, *up_down_rate = nullptr;  // [n_blocks, n]; null: starts empty
    int32_t warm_up = 0;                                        // first tokens, not counted
};

struct CacheCounts {
    int64_t needed[2] = {}, missed[2] = {};  // parts, by Half
    int64_t reads = 0;  // neurons of which something was missed: one read brings both parts
};

CacheCounts simulate_cache(const ResidencyShape& shape, const ResidencyOptions& options,
                           CachePolicy policy, const CacheTrace& trace, const CacheStart& start);

}  // namespace powerinfer
