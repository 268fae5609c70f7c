// How much one thread computes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ggml::cpu {

// Rows of n values for a norm and the like. A region of two threads costs 0.7 us, in which one
// thread computes 5,000 values: fewer than twice that stay on the caller.
inline int64_t row_grain(int64_t n) {
    return std::max<int64_t>(1, 8192 / n);
}

}  // namespace ggml::cpu
