// The file or files of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ggml/file_io.h"
#include "ggml/gguf.h"

namespace powerinfer {

// The header is parsed and checked; no weights are read yet.
struct ModelFile {
    std::vector<std::unique_ptr<ggml::File>> files;
    std::vector<std::unique_ptr<ggml::Mapping>> mappings;  // of all files, or none
    ggml::Gguf gguf;  // the header of the first file, with the tensors of all files

    static ModelFile open(const std::string& path);
    void map();
    // The first n bytes of a tensor's data.
    std::vector<uint8_t> read(const ggml::TensorInfo& t, uint64_t n) const;
};

}  // namespace powerinfer
