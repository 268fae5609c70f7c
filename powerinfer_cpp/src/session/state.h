// A sequence as bytes, to continue it later with the same model. Not a file format.
#pragma once

#include <string>

#include "session/session.h"

namespace powerinfer {

// Raise it whenever the rounding of any result changes: a kernel's, an order of sums, a function of
// ggml/math.h. States of another number are refused, here and in Python (pi_numerics), because they
// would continue with bits that this version does not compute.
constexpr int32_t kNumerics = 4;

// The size of a sequence in bytes, and writing it. Throw Error(argument) if the sequence does not
// exist. The first state of a model reads its file, to name its weights (weights_name): Error(io).
uint64_t state_size(const Session& session, int32_t seq);
void save_state(const Session& session, int32_t seq, uint8_t* out);
// Replaces a sequence by a saved one. Throws Error(format) if the bytes are not a state of this
// model and KV type or this session would compute its positions differently, Error(context) if it
// has more positions than the context or than are free. After these errors the sequence is
// unchanged. Throws Error(device) and leaves it empty if the device fails.
void load_state(Session& session, int32_t seq, const uint8_t* data, uint64_t size);
// A part of n positions from `first` on, where a page of the cache begins, as bytes; and appending
// such bytes to a sequence that ends where the part begins. They throw as those above do, and
// Error(argument) if the sequence has no such positions. After an error the sequence is unchanged.
uint64_t part_size(const Session& session, int32_t seq, int64_t first, int64_t n);
void save_part(const Session& session, int32_t seq, int64_t first, int64_t n, uint8_t* out);
void load_part(Session& session, int32_t seq, const uint8_t* data, uint64_t size);
// The same with a file: the bytes and their CRC-32C. Errors begin with the path; also Error(io),
// and Error(format) for another checksum.
void save_state_file(const Session& session, int32_t seq, const std::string& path);
void load_state_file(Session& session, int32_t seq, const std::string& path);

}  // namespace powerinfer
