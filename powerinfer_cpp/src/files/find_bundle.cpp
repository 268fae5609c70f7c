#include "files/find_bundle.h"

#include <algorithm>

#include "base/sha256.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;

namespace {

std::string beside(const std::string& path) {
    return path + ".bundle.gguf";
}

// "" if the user has none.
std::string our_cache() {
    const std::string folder = ggml::cache_folder();
    return folder.empty() ? "" : folder + "/powerinfer_cpp";
}

}  // namespace

std::string source_hash(const ModelFile& model) {
    constexpr uint64_t kWhole = 64 << 10, kMiddle = 4 << 10;
    Sha256 hash;
    for (size_t i = 0; i < model.files.size(); i++) {
        const ggml::File& file = *model.files[i];
        uint64_t header = file.size();
        for (const ggml::TensorInfo& t : model.gguf.tensors()) {
            if (t.file == int(i)) header = std::min(header, t.offset);
        }
        const uint64_t size = file.size();
        hash.add(&size, sizeof(size));
        std::vector<uint8_t> bytes(static_cast<size_t>(header));
        file.read(0, bytes.data(), bytes.size());
        hash.add(bytes.data(), bytes.size());
        for (const ggml::TensorInfo& t : model.gguf.tensors()) {
            if (t.file != int(i)) continue;
            bytes.resize(size_t(t.bytes <= kWhole ? t.bytes : kMiddle));
            const uint64_t from = t.bytes <= kWhole ? 0 : t.bytes / 2 / kMiddle * kMiddle;
            file.read(t.offset + from, bytes.data(), bytes.size());
            hash.add(bytes.data(), bytes.size());
        }
    }
    return hash.hex();
}

bool is_bundle_of(const std::string& bundle, const std::string& hash) {
    if (!ggml::file_exists(bundle)) return false;
    try {
        const ggml::File file(bundle);
        const ggml::Gguf gguf = ggml::Gguf::read(file);
        return gguf.integer("powerinfer.bundle.version", 0, INT32_MAX, 0) == kStoreVersion &&
               gguf.string("powerinfer.bundle.source_hash", "") == hash;
    } catch (const Error&) {
        return false;
    }
}

std::string find_bundle(const std::string& path) {
    const std::string folder = our_cache();
    const std::string hash = source_hash(ModelFile::open(path));
    if (is_bundle_of(beside(path), hash)) return beside(path);
    const std::string cached = folder + "/" + hash + ".bundle.gguf";
    return !folder.empty() && is_bundle_of(cached, hash) ? cached : "";
}

std::string bundle_target(const std::string& path) {
    const std::string folder = ggml::folder_of(path);
    if (ggml::may_write_in(folder)) return beside(path);
    const std::string cache = our_cache();
    if (cache.empty()) {
        throw Error(Code::io, folder +
                                  ": cannot be written to, and there is no cache folder "
                                  "(XDG_CACHE_HOME, HOME)");
    }
    const std::string hash = source_hash(ModelFile::open(path));
    ggml::make_folders(cache);
    return cache + "/" + hash + ".bundle.gguf";
}

}  // namespace powerinfer
