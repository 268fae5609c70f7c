#include "files/weights_name.h"

#include <algorithm>

#include "base/sha256.h"
#include "ggml/crc32c.h"
#include "ggml/threads.h"

namespace powerinfer {

namespace {

constexpr uint64_t kHashed = 64 << 10, kMostHashed = uint64_t(4) << 30;

struct Hashed {
    const ggml::File* file;
    uint64_t offset, bytes;
};

// The chunks of [begin, end) of which every `step`-th counts.
void add_chunks(std::vector<Hashed>& chunks, const ggml::File& file, uint64_t begin, uint64_t end,
                uint64_t step) {
    for (uint64_t at = begin; at < end; at += step * kHashed)
        chunks.push_back({&file, at, std::min(kHashed, end - at)});
}

std::vector<Hashed> chunks_of(const ModelFile& model) {
    uint64_t total = 0;
    for (const auto& file : model.files) total += file->size();
    const uint64_t step = total / kMostHashed + 1;
    std::vector<Hashed> chunks;
    for (const auto& file : model.files) add_chunks(chunks, *file, 0, file->size(), step);
    if (step == 1) return chunks;
    std::vector<uint64_t> headers;
    for (const auto& file : model.files) headers.push_back(file->size());
    for (const ggml::TensorInfo& t : model.gguf.tensors()) {
        uint64_t& header = headers[size_t(t.file)];
        header = std::min(header, t.offset);
        if (t.bytes <= kHashed)
            add_chunks(chunks, *model.files[size_t(t.file)], t.offset, t.offset + t.bytes, 1);
    }
    for (size_t i = 0; i < headers.size(); i++)
        add_chunks(chunks, *model.files[i], 0, headers[i], 1);
    return chunks;
}

}  // namespace

std::string weights_name(const ModelFile& model) {
    const std::string_view source = model.gguf.string("powerinfer.bundle.weights_hash", "");
    if (!source.empty()) return std::string(source);
    const std::vector<Hashed> chunks = chunks_of(model);
    std::vector<uint32_t> checksums(chunks.size());
    ggml::Threads threads(ggml::default_threads());
    std::vector<std::vector<uint8_t>> buffers(size_t(threads.size()));
    threads.run(int64_t(chunks.size()), 16, [&](int64_t begin, int64_t end, int thread) {
        std::vector<uint8_t>& bytes = buffers[size_t(thread)];
        bytes.resize(kHashed);
        for (int64_t i = begin; i < end; i++) {
            const Hashed& chunk = chunks[size_t(i)];
            chunk.file->read(chunk.offset, bytes.data(), size_t(chunk.bytes));
            checksums[size_t(i)] = ggml::crc32c(bytes.data(), size_t(chunk.bytes));
        }
    });
    Sha256 hash;
    for (const auto& file : model.files) {
        const uint64_t size = file->size();
        hash.add(&size, sizeof(size));
    }
    hash.add(checksums.data(), checksums.size() * sizeof(checksums[0]));
    return hash.hex();
}

}  // namespace powerinfer
