// Operators that fold the rows of a sequence into a state, position by position.
//
// The bits of a row and of a state depend neither on how a sequence is cut into calls, nor on the
// number of threads, nor on other sequences.
#pragma once

#include <cstdint>

namespace ggml {

// The rows of one sequence in a pass, in the order of their positions.
struct StateRows {
    const int32_t* rows = nullptr;  // [n], their places in the pass
    int64_t n = 0;
    const float* before = nullptr;  // the state before the first row; null: zeros
    float* after = nullptr;         // the state after the last row; may be `before`
};

}  // namespace ggml
