// Records launches, so that another executor can repeat them and compare (tests/gpu/ptx). With the
// environment variable SHIM_RECORD set to a folder, launches are written there, with their
// arguments and memory before and after: of each kernel those with a grid that it has not had, and
// the second, fourth and so on; at most five, and one at a time.
//
// launches.jsonl has a JSON object per line, data.bin the bytes that they point to ("range":
// address, place in data.bin, number of bytes):
//   {"memory": address, "bytes": n, "host": 0 or 1}     an allocation; host: of pinned memory
//   {"free": address}
//   {"kernel": its address less that of shim_anchor, "grid": [3], "block": [3], "shared": bytes,
//    "parameters": ["hex"], "before": [range], "written": [[address, bytes]], "after": [range]}
// before: what changed since the last recorded launch ended. written: what copies and kernels that
// are not recorded have written since then, even if the bytes stayed the same. after: what this
// launch changed.
#pragma once

#include <string>
#include <vector>

#include "simt/block.h"

namespace shim {

// Is the environment variable set?
bool recording();

void note_allocation(const void* memory, size_t bytes, bool host);
void note_free(const void* memory);
// Bytes that a copy wrote.
void note_write(const void* memory, size_t bytes);

struct Launch {
    const void* kernel;
    Extent grid, block;
    size_t shared;
    std::vector<std::string> parameters;  // their bytes
};
// Around the run of a kernel, on the thread that runs it. True: this launch is recorded.
bool record_before(const Launch& launch);
void record_after();

}  // namespace shim
