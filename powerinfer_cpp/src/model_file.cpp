// Opening the file or files of a model.
#include "model.h"

namespace powerinfer {

ModelFile ModelFile::open(const std::string& path) {
    ModelFile f;
    const auto add = [&](const std::string& p) {
        f.files.push_back(std::make_unique<ggml::File>(p));
        f.mappings.push_back(std::make_unique<ggml::Mapping>(*f.files.back()));
        return ggml::Gguf::parse(f.mappings.back()->data(), f.mappings.back()->size(), p);
    };
    f.gguf = add(path);
    const std::vector<std::string> parts = ggml::split_paths(f.gguf);
    for (size_t i = 1; i < parts.size(); i++) f.gguf.append_tensors(add(parts[i]), int(i));
    return f;
}

}  // namespace powerinfer
