// Which parts of neurons were in memory when a model was closed, as a file beside its bundled file:
// the next run begins with them. Only for models without a profile, which would know better.
#pragma once

#include <string>
#include <vector>

#include "storage/cache/residency.h"

namespace powerinfer {

// What a list of parts belongs to. A list of another model is no list.
struct ResidentOwner {
    std::string hash;  // powerinfer.bundle.source_hash
    int32_t n_blocks = 0, n = 0;
};

// Layout, little-endian: "PIRS", u32 version 1, u64 FNV-1a of the hash, i32 n_blocks, i32 n, u64
// count, then for each part u32 (block * n + id) * 2 + half and f32 worth, then CRC-32C of all of
// it. Throws Error(io) if it cannot be written; then an older one is as before.
void save_resident(const std::string& path, const ResidentOwner& owner,
                   const std::vector<RankedPart>& parts);
// Nothing if there is no such file, or it is of another model or damaged.
std::vector<RankedPart> load_resident(const std::string& path, const ResidentOwner& owner);

}  // namespace powerinfer
