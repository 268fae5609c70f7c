// What a mixture is expected to do whose experts are partly on the disk.
#pragma once

#include "model/model.h"

namespace powerinfer {

// The share of the experts chosen by tokens that memory is expected to have, if it has room for
// this share of all experts: as others measured with Qwen3-30B-A3B (docs/storage.md).
double expected_hits(double share);

// Seconds that a generated token is expected to take besides waiting for the disk, if the whole
// model is in memory: its bytes at 30 GB/s, what two cores read.
double memory_seconds(const Model& model);

// Seconds in which kDisk reads the experts that a generated token is expected to miss.
double expected_read_seconds(const Model& model, const PageShape& experts);

}  // namespace powerinfer
