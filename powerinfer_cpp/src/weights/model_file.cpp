#include "weights/model_file.h"

namespace powerinfer {

ModelFile ModelFile::open(const std::string& path) {
    ModelFile f;
    const auto add = [&](const std::string& p) {
        f.files.push_back(std::make_unique<ggml::File>(p));
        return ggml::Gguf::read(*f.files.back());
    };
    f.gguf = add(path);
    const std::vector<std::string> parts = ggml::split_paths(f.gguf);
    for (size_t i = 1; i < parts.size(); i++) f.gguf.append_tensors(add(parts[i]), int(i));
    return f;
}

void ModelFile::map() {
    for (const auto& file : files) mappings.push_back(std::make_unique<ggml::Mapping>(*file));
}

std::vector<uint8_t> ModelFile::read(const ggml::TensorInfo& t, uint64_t n) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    files[size_t(t.file)]->read(t.offset, bytes.data(), bytes.size());
    return bytes;
}

}  // namespace powerinfer
