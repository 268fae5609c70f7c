// The bundled file that belongs to a model's file: beside it, or in the user's cache.
#pragma once

#include <string>

#include "model/model.h"

namespace powerinfer {

// 64 hexadecimal digits that tell files apart (powerinfer.bundle.source_hash): SHA-256 over, for
// each part of the model, its size (u64), its header up to the first tensor, and of every tensor
// all bytes up to 64 KiB, else 4 KiB from its middle. Reads a few MB of a large file.
std::string source_hash(const ModelFile& file);

// Is there a bundled file at `bundle` that was written from the file with this hash?
bool is_bundle_of(const std::string& bundle, const std::string& hash);

// The path of the bundled file that was written from the model at `path`, or "": PATH.bundle.gguf,
// else HASH.bundle.gguf in the cache folder. One of another hash does not count, nor a damaged one.
// Throws Error for a model that cannot be read.
std::string find_bundle(const std::string& path);

// Where a new one belongs: PATH.bundle.gguf if that folder can be written to, else in the cache
// folder, which is made if it is missing: $XDG_CACHE_HOME/powerinfer_cpp or
// ~/.cache/powerinfer_cpp. Throws Error(io) if there is neither.
std::string bundle_target(const std::string& path);

}  // namespace powerinfer
