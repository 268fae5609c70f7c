// Operators of models with several residual streams beside each other. A row is [n_streams, n].
#pragma once

#include <cstdint>

#include "ggml/context.h"

namespace ggml {

struct Streams {
    int64_t rows = 0, n_streams = 0, n = 0;
};

// x_i = row, for each stream i. row: [rows, n].
void repeat_in_streams(Context& context, const Streams& of, const float* row, float* x);
// y = mean over the streams of sigmoid(gate_i) * x_i. y: [rows, n]. x and gate are overwritten.
void mix_streams(Context& context, const Streams& of, float* x, float* gate, float* y);
// x_i += 2 sigmoid(score_i / n_streams) y. score: [rows, n_streams]; y: [rows, n].
void add_to_streams(Context& context, const Streams& of, float* x, const float* score,
                    const float* y);
// y_i = sigmoid(root(key_i . query_i / sqrt(n))) * value, where root(s) is the square root of |s|,
// 1e-6 at least, with the sign of s. value: [rows, n].
void gate_by_likeness(Context& context, const Streams& of, const float* key, const float* query,
                      const float* value, float* y);

}  // namespace ggml
