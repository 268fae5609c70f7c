// Any bytes as the parts of a split model file, with "--part--" between them: the loader must end
// in a model that computes, or in an Error. Through files, as the loader reads them.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tiny_model.h"
#include "ggml/status.h"
#include "model/model.h"
#include "session/session.h"

namespace {

using namespace powerinfer;

constexpr std::string_view kBetween = "--part--";
constexpr size_t kMost = 8;  // parts

// Writes the parts under the names of a split file; returns the first one's. A single part has a
// name that says nothing.
std::string written(const tiny::Folder& folder, std::string_view bytes) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at != bytes.npos && parts.size() < kMost;) {
        const size_t end = bytes.find(kBetween, at);
        parts.push_back(bytes.substr(at, end - at));
        at = end == bytes.npos ? end : end + kBetween.size();
    }
    std::string first;
    for (size_t i = 0; i < parts.size(); i++) {
        const std::string path = folder / (parts.size() == 1 ? std::string("one.gguf")
                                                             : ggml::format("m-%05zu-of-%05zu.gguf",
                                                                            i + 1, parts.size()));
        std::ofstream(path, std::ios::binary) << parts[i];
        if (i == 0) first = path;
    }
    return first;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const tiny::Folder folder;
    if (size < 1) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    pi_model_params how = pi_model_default_params();
    how.n_threads = 1;
    how.use_mmap = data[0] & 1;
    try {
        Session session(Model::load(written(folder, bytes), how), [] {
            pi_session_params params = pi_session_default_params();
            params.n_ctx = params.n_batch = params.n_ubatch = 2;
            params.n_threads = params.n_threads_batch = 1;
            return params;
        }());
        const int32_t token = 0;
        pi_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.n = 1;
        batch.token = &token;
        session.eval(batch);
    } catch (const ggml::Error&) {
    }
    return 0;
}
