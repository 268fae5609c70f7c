// Bundled files of version 2: written from another file of the model, and checked.
#pragma once

#include <string>

#include "model/model.h"

namespace powerinfer {

// Writes the model in `source` to `target` with the rows of its neurons in bundles
// (neuron_layout.h): the other tensors and the keys as they are, parts of a split file as one file.
// source: any neuron-aware file that the engine reads, bundled ones too. The file appears when it
// is complete. While another process writes it, this one waits, and is content if that is a bundled
// file of the same model.
//
// Throws Error(unsupported) for a file that is not neuron-aware; Error(io), also if the disk has
// too little room; Error(argument) if both are the same file; Error(cancelled) if progress() says
// so.
void write_bundled(const std::string& source, const std::string& target,
                   const pi_bundle_params& params);

// The size of that file's tensors. Reads only headers.
uint64_t bundled_size(const std::string& source);

// Reads all bundles of a file and compares their checksums. Throws Error(format) naming the first
// neuron that is damaged; Error(unsupported) for a file without checksums.
void check_bundled(const std::string& path, const pi_bundle_params& params);

}  // namespace powerinfer
