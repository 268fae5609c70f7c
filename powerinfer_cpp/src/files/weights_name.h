// What saved states call a model's weights.
#pragma once

#include <string>

#include "weights/model_file.h"

namespace powerinfer {

// 64 hexadecimal digits that tell models apart by their files' bytes: SHA-256 over the size of each
// part (u64) and CRC-32C of its pieces of 64 KiB (u32). Of more than 4 GiB together not all pieces
// count, but so many that are evenly spread that they have about 4 GiB; headers and tensors of up
// to 64 KiB always do. A copy of a file has the same name.
//
// For a bundled file it is the name of the file that it was written from, which computes the same.
//
// Takes the time to read these bytes: a GiB takes 0.1 to 0.4 s from memory on two cores. Throws
// Error(io).
std::string weights_name(const ModelFile& model);

}  // namespace powerinfer
