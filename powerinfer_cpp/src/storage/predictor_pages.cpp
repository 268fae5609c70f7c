#include "storage/predictor_pages.h"

#include <algorithm>
#include <cstring>

#include "ggml/carver.h"
#include "ggml/crc32c.h"
#include "ggml/sizes.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

constexpr uint64_t kAlign = 4096;  // the most that a disk wants
constexpr uint64_t kRead = 256 << 10;

}  // namespace

uint64_t StoredMatrix::room() const {
    // What is read may begin and end within a unit of the disk.
    const uint64_t read = ggml::size_sum(bytes(), 2 * kAlign);
    return ggml::size_rounded_up(std::max(read, uint64_t(matrix.bytes())), kAlign);
}

uint64_t PredictorShape::bytes() const {
    if (!*this) return 0;
    const uint64_t frames = ggml::size_product(uint64_t(slots + in_use), page);
    const uint64_t block =
        sizeof(StoredPredictor) + 2 * sizeof(StoredMatrix) + sizeof(int32_t) + sizeof(int64_t);
    const uint64_t tables = ggml::size_product(uint64_t(n_blocks()), block);
    return ggml::size_sum(ggml::size_sum(frames, tables),
                          ggml::carved_bytes<Residency>(residency()));
}

ResidencyShape PredictorShape::residency() const {
    ResidencyShape shape;
    shape.n_blocks = int32_t(std::max<size_t>(1, before.size())) - 1;
    shape.gate_slots = slots;
    shape.before = before;
    for (int32_t part = 0; part < shape.n_blocks; part++) {
        shape.n = std::max(shape.n, shape.size(part));
    }
    return shape;
}

PredictorPages::PredictorPages(const PredictorShape& shape, std::vector<StoredPredictor> blocks,
                               uint32_t align)
    : shape_(shape),
      blocks_(std::move(blocks)),
      align_(align),
      memory_(ggml::size_product(uint64_t(shape.slots + shape.in_use), shape.page), "predictors"),
      tables_(ggml::carved_bytes<Residency>(shape.residency()), "tables of predictors"),
      frames_(size_t(shape.slots + shape.in_use)),
      where_(size_t(shape.n_blocks()), -1),
      at_slot_(size_t(shape.slots)),
      crc_(size_t(shape.n_blocks()), -1) {
    ggml::Carver carver(tables_);
    residency_ = Residency(carver, shape.residency());
    for (size_t i = 0; i < at_slot_.size(); i++) at_slot_[i] = frames_[i].slot = int32_t(i);
}

// Calls use(matrix, begin): where its room begins in the page.
template <typename F>
void PredictorPages::for_matrices(int32_t block, const F& use) const {
    uint64_t begin = 0;
    for (const StoredMatrix& m : blocks_[size_t(block)]) {
        use(m, begin);
        begin += m.room();
    }
}

bool PredictorPages::request(int32_t block) {
    // Its neighbours in the layer may be used next.
    residency_.pin(Half::gate, residency_.shape().block_of(block));
    if (requested(block)) return true;
    const auto free = std::find_if(frames_.begin(), frames_.end(), [](const Frame& frame) {
        return frame.slot < 0 && frame.block < 0;
    });
    if (free == frames_.end()) return false;
    where_[size_t(block)] = int32_t(free - frames_.begin());
    free->block = block;
    for_matrices(block, [&](const StoredMatrix& m, uint64_t) {
        const uint64_t bytes = ggml::size_rounded_up(lead(m) + m.bytes(), align_);
        free->n += int32_t((bytes + kRead - 1) / kRead);
    });
    return true;
}

bool PredictorPages::next(ggml::Read& read) const {
    for (size_t i = 0; i < frames_.size(); i++) {
        const Frame& frame = frames_[i];
        if (frame.n_sent == frame.n) continue;
        auto number = uint64_t(frame.n_sent);
        bool found = false;
        for_matrices(frame.block, [&](const StoredMatrix& m, uint64_t begin) {
            const uint64_t bytes = ggml::size_rounded_up(lead(m) + m.bytes(), align_);
            const uint64_t n = (bytes + kRead - 1) / kRead;
            if (!found && number < n) {
                const uint64_t from = number * kRead;
                found = true;
                read.offset = m.offset - lead(m) + from;
                read.n_pieces = 1;
                read.pieces[0] = {at(i) + begin + from, uint32_t(std::min(kRead, bytes - from))};
            }
            number -= std::min(number, n);
        });
        read.tag = uint64_t(i);
        return true;
    }
    return false;
}

void PredictorPages::sent(const ggml::Read& read) {
    frames_[size_t(read.tag)].n_sent++;
}

int32_t PredictorPages::done(uint64_t tag) {
    frames_[size_t(tag)].n_done++;
    return frames_[size_t(tag)].block;
}

bool PredictorPages::complete(int32_t block) const {
    if (!requested(block)) return false;
    const Frame& frame = frames_[frame_of(block)];
    return frame.n_done == frame.n;
}

const std::vector<ggml::Matrix>& PredictorPages::matrices(ggml::Context& context, int32_t block) {
    const size_t i = frame_of(block);
    Frame& frame = frames_[i];
    uint32_t crc = 0;
    matrices_.clear();
    for_matrices(block, [&](const StoredMatrix& m, uint64_t begin) {
        uint8_t* const data = at(i) + begin;
        if (!frame.packed) {
            crc = ggml::crc32c(data + lead(m), m.bytes(), crc);
            std::memmove(data, data + lead(m), m.bytes());
            if (m.matrix.layout == ggml::Layout::strips) pack(context, m.matrix, data);
        }
        matrices_.push_back(m.matrix);
        matrices_.back().data = data;
    });
    if (frame.packed) return matrices_;
    frame.packed = true;
    int64_t& known = crc_[size_t(block)];
    if (known < 0) known = crc;
    if (known == crc) return matrices_;
    throw ggml::Error(ggml::Code::format,
                      ggml::format("the predictor of block %d differs from what was read before: "
                                   "the file was damaged or changed while it was open",
                                   block));
}

// Packs stored rows where they lie.
void PredictorPages::pack(ggml::Context& context, const ggml::Matrix& m, uint8_t* data) const {
    const int64_t row = m.row_bytes(), strip = ggml::kStrip * row;
    context.threads.run((m.rows + ggml::kStrip - 1) / ggml::kStrip, 16,
                        [&](int64_t begin, int64_t end, int) {
                            std::vector<uint8_t> rows(static_cast<size_t>(strip));
                            for (int64_t s = begin; s < end; s++) {
                                const int64_t n = std::min(ggml::kStrip, m.rows - s * ggml::kStrip);
                                std::memcpy(rows.data(), data + s * strip, size_t(n * row));
                                ggml::pack_strip(m.type, rows.data(), n, m.cols, data + s * strip);
                            }
                        });
}

void PredictorPages::release(size_t i) {
    const int32_t block = frames_[i].block;
    if (block >= 0) where_[size_t(block)] = -1;
    frames_[i] = {};
}

void PredictorPages::keep(int32_t block, int64_t rows) {
    const int32_t part = residency_.shape().block_of(block);
    const auto expert = int32_t(block - residency_.shape().first(part));
    residency_.count(Half::gate, part, &expert, 1, float(rows));
    const size_t i = frame_of(block);
    if (frames_[i].slot >= 0) return;
    const int32_t slot = residency_.admit(Half::gate, part, expert);
    if (slot < 0) {
        release(i);
        return;
    }
    release(size_t(at_slot_[size_t(slot)]));
    at_slot_[size_t(slot)] = int32_t(i);
    frames_[i].slot = slot;
}

void PredictorPages::stop() {
    for (Frame& frame : frames_) frame.n = frame.n_sent;
}

void PredictorPages::forget() {
    for (size_t i = 0; i < frames_.size(); i++) {
        if (frames_[i].slot < 0) release(i);
    }
}

}  // namespace powerinfer
