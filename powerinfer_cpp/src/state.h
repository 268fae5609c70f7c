// A sequence as bytes, for going on later in the same model; not a file format.
#pragma once

#include "session.h"

namespace powerinfer {

// Bytes of a sequence, and writing them. Throw Error(argument) for a sequence that is not there.
uint64_t state_size(const Session& session, int32_t seq);
void save_state(const Session& session, int32_t seq, uint8_t* out);
// Makes a sequence what was saved. Throws Error(format) for bytes that are no state of this model
// and KV type, or whose positions this session would compute in another way, Error(context) for
// more positions than there are; then the sequence is what it was.
void load_state(Session& session, int32_t seq, const uint8_t* data, uint64_t size);

}  // namespace powerinfer
