#include "files/weights_name.h"

#include <algorithm>

#include "base/sha256.h"
#include "ggml/crc32c.h"
#include "ggml/threads.h"

namespace powerinfer {

namespace {

constexpr uint64_t kPiece = 64 << 10, kMost = uint64_t(4) << 30;

struct Chunk {
    const ggml::File* file;
    uint64_t offset, bytes;
};

// The pieces of [begin, end) of which every `step`-th counts.
void add_pieces(std::vector<Chunk>& pieces, const ggml::File& file, uint64_t begin, uint64_t end,
                uint64_t step) {
    for (uint64_t at = begin; at < end; at += step * kPiece)
        pieces.push_back({&file, at, std::min(kPiece, end - at)});
}

std::vector<Chunk> pieces_of(const ModelFile& model) {
    uint64_t total = 0;
    for (const auto& file : model.files) total += file->size();
    const uint64_t step = total / kMost + 1;
    std::vector<Chunk> pieces;
    for (const auto& file : model.files) add_pieces(pieces, *file, 0, file->size(), step);
    if (step == 1) return pieces;
    std::vector<uint64_t> headers;
    for (const auto& file : model.files) headers.push_back(file->size());
    for (const ggml::TensorInfo& t : model.gguf.tensors()) {
        uint64_t& header = headers[size_t(t.file)];
        header = std::min(header, t.offset);
        if (t.bytes <= kPiece)
            add_pieces(pieces, *model.files[size_t(t.file)], t.offset, t.offset + t.bytes, 1);
    }
    for (size_t i = 0; i < headers.size(); i++)
        add_pieces(pieces, *model.files[i], 0, headers[i], 1);
    return pieces;
}

}  // namespace

std::string weights_name(const ModelFile& model) {
    const std::string_view source = model.gguf.string("powerinfer.bundle.weights_hash", "");
    if (!source.empty()) return std::string(source);
    const std::vector<Chunk> pieces = pieces_of(model);
    std::vector<uint32_t> checksums(pieces.size());
    ggml::Threads threads(ggml::default_threads());
    std::vector<std::vector<uint8_t>> buffers(size_t(threads.size()));
    threads.run(int64_t(pieces.size()), 16, [&](int64_t begin, int64_t end, int thread) {
        std::vector<uint8_t>& bytes = buffers[size_t(thread)];
        bytes.resize(kPiece);
        for (int64_t i = begin; i < end; i++) {
            const Chunk& piece = pieces[size_t(i)];
            piece.file->read(piece.offset, bytes.data(), size_t(piece.bytes));
            checksums[size_t(i)] = ggml::crc32c(bytes.data(), size_t(piece.bytes));
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
