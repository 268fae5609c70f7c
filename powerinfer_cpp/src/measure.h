// Measures the machine, for `powerinfer doctor` and as a reference for benchmarks.
#pragma once

#include <cstdint>

#include "ggml/dtype.h"

namespace powerinfer {

// Bytes per second of reading n_bytes of memory.
double measure_read(int n_threads, uint64_t n_bytes);

// Multiply-adds per second of a 2048 x 4096 matrix times n_tokens tokens.
double measure_product(const ggml::DTypeInfo& type, int n_threads, int64_t n_tokens);

}  // namespace powerinfer
