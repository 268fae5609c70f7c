// What this machine can do: for `powerinfer doctor` and for reading benchmarks against.
#pragma once

#include <cstdint>

#include "ggml/dtype.h"

namespace powerinfer {

// Bytes per second that a plain read of n_bytes of memory reaches.
double measure_read(int n_threads, uint64_t n_bytes);

// Multiply-adds per second of a 2048 x 4096 product with n_tokens tokens.
double measure_product(const ggml::DTypeInfo& type, int n_threads, int64_t n_tokens);

}  // namespace powerinfer
