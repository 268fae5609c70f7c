#include "device/expert_frames.h"

#include <algorithm>
#include <cstring>

#include "ggml/sizes.h"

namespace powerinfer {

using ggml::size_product;
using ggml::size_sum;

namespace {

// Bytes per second of PCIe 4, and the time that no step is expected to take longer than: between
// two of them somebody may have been asked for input.
constexpr double kBus = 25e9, kLongStep = 0.2;

constexpr uint64_t kAligned = 16;  // what a lane reads at once

uint64_t array_bytes(uint64_t bytes) {
    return ggml::size_rounded_up(bytes, ggml::kDeviceGranule);
}

}  // namespace

uint64_t FrameShape::Matrix::ram_bytes() const {
    const auto layout = ggml::has_strips(type) ? ggml::Layout::strips : ggml::Layout::rows;
    return uint64_t(ggml::Matrix{type, layout, rows, cols, nullptr}.bytes());
}

uint64_t FrameShape::Matrix::landing_bytes() const {
    return ggml::size_rounded_up(ram_bytes(), kAligned);
}

FrameShape FrameShape::without_rows() const {
    FrameShape shape = *this;
    for (size_t i = 0; i < in_rows.size(); i++) {
        if (in_rows[i]) shape.card.class_of[i] = -1;
    }
    for (size_t c = 0; c < card.classes.size(); c++) {
        if (shape.experts(int32_t(c)) == 0) shape.card.classes[c].frames = 0;
    }
    if (shape.experts() > 0) return shape;
    shape.card.classes.clear();
    shape.staged = 0;
    shape.visits = false;
    return shape;
}

int64_t FrameShape::experts() const {
    int64_t n = 0;
    for (size_t i = 0; i < card.class_of.size(); i++) {
        if (card.class_of[i] >= 0) n += card.before[i + 1] - card.before[i];
    }
    return n;
}

int64_t FrameShape::experts(int32_t of_class) const {
    int64_t n = 0;
    for (size_t i = 0; i < card.class_of.size(); i++) {
        if (card.class_of[i] == of_class) n += card.before[i + 1] - card.before[i];
    }
    return n;
}

int64_t FrameShape::most_experts() const {
    int64_t most = 0;
    for (size_t i = 0; i < card.class_of.size(); i++) {
        if (card.class_of[i] >= 0) most = std::max(most, card.before[i + 1] - card.before[i]);
    }
    return most;
}

uint64_t FrameShape::largest_frame() const {
    uint64_t most = 0;
    for (const CardShape::Class& c : card.classes) most = std::max(most, c.bytes);
    return most;
}

uint64_t FrameShape::frames_bytes() const {
    uint64_t sum = 0;
    for (const CardShape::Class& c : card.classes) {
        sum = size_sum(sum, size_product(uint64_t(c.frames), c.bytes));
    }
    return sum;
}

uint64_t FrameShape::device_bytes() const {
    if (!needed) return 0;
    const uint64_t table = size_product(uint64_t(card.n_blocks()), sizeof(int32_t));
    uint64_t sum = size_sum(array_bytes(frames_bytes()), array_bytes(table));
    sum = size_sum(sum, array_bytes(staged));
    if (!visits) return sum;
    const uint64_t of_part = array_bytes(uint64_t(most_experts()) * sizeof(int32_t));
    sum = size_sum(sum, array_bytes(size_product(2 * kVisitors, largest_frame())));
    return size_sum(sum, 2 * of_part);
}

uint64_t FrameShape::shared_bytes(bool changes) const {
    // Each kVisitors experts of a part have a table of their own.
    const auto n = uint64_t(most_experts());
    const uint64_t turns = visits ? size_product((n + kVisitors - 1) / kVisitors, n) : 0;
    return size_sum(size_product(size_sum(uint64_t(card.n_blocks()), turns), sizeof(int32_t)),
                    changes ? size_product(kStagedExperts, staged) : 0);
}

ExpertFrames::ExpertFrames(ggml::Device& device, const FrameShape& shape, bool changes)
    : device_(device),
      shape_(shape),
      memory_(device, shape.frames_bytes(), "experts"),
      there_(device, uint64_t(shape.card.n_blocks()), "the table of experts"),
      sent_(device, uint64_t(shape.card.n_blocks()), "the table of experts"),
      landing_(device, shape.staged, "an expert on its way"),
      changes_(changes),
      table_(size_t(shape.card.n_blocks()), -1),
      tables_(ggml::carved_bytes<CardExperts>(shape.card), "which experts a device has"),
      copies_(device, device.new_stream()) {
    if (changes) staging_ = {device, kStagedExperts * shape.staged, "experts on their way"};
    if (shape.visits) {
        most_experts_ = int32_t(shape.most_experts());
        const auto n = uint64_t(most_experts_);
        visitors_ = {device, 2 * kVisitors * shape.largest_frame(), "experts of prompts"};
        visiting_ = {device, n, "a table of experts"};
        everywhere_ = {device, n, "a table of experts"};
        turns_ = {device, (n + kVisitors - 1) / kVisitors * n, "tables of experts"};
        device.zero(copies_.get(), everywhere_.get(), n * sizeof(int32_t));
        for (int half = 0; half < 2; half++) {
            came_[half] = {device, device.new_event()};
            used_[half] = {device, device.new_event()};
        }
    }
    uint64_t begin = 0;
    for (const CardShape::Class& c : shape.card.classes) {
        begins_.push_back(begin);
        begin += uint64_t(c.frames) * c.bytes;
    }
    ggml::Carver carver(tables_);
    experts_ = CardExperts(carver, shape_.card);
    publish_table(copies_.get());
    device_.wait(copies_.get());
}

ExpertFrames::~ExpertFrames() {
    try {
        device_.wait(copies_.get());
    } catch (const ggml::Error&) {
        // A device that has failed copies nothing.
    }
}

bool ExpertFrames::any(int64_t part) const {
    const int32_t c = class_of(part);
    return c >= 0 && shape_.card.classes[size_t(c)].frames > 0;
}

bool ExpertFrames::all(int64_t part) const {
    const int32_t c = class_of(part);
    return c >= 0 && !changes_ && shape_.card.classes[size_t(c)].frames >= shape_.experts(c);
}

ggml::DeviceFrames ExpertFrames::frames(int64_t part) const {
    const int32_t c = class_of(part);
    const uint64_t stride = c < 0 ? 0 : shape_.card.classes[size_t(c)].bytes;
    return {there_.get() + first_block(part), int64_t(stride)};
}

uint8_t* ExpertFrames::frame_at(int64_t part, int32_t frame) const {
    const auto c = size_t(class_of(part));
    return memory_.get() + begins_[c] + uint64_t(frame) * shape_.card.classes[c].bytes;
}

ggml::DeviceRows ExpertFrames::rows(int64_t part, size_t which, uint8_t* frame) const {
    const FrameShape::Matrix& m = shape_.matrices[size_t(part)][which];
    const int64_t stride = ggml::device_row_bytes(m.type, m.cols);
    return {m.type, frame + m.offset, stride, int(m.rows), int(m.cols)};
}

ggml::DeviceProduct ExpertFrames::product(int64_t part, size_t which, float* y,
                                          bool visitors) const {
    uint8_t* const frame = visitors ? visitors_.get() : frame_at(part, 0);
    const size_t n = shape_.matrices[size_t(part)].size() / 2;
    const ggml::DeviceRows bias = rows(part, n + which, frame);
    const auto* const values = reinterpret_cast<const float*>(bias.data);
    ggml::DeviceProduct product{rows(part, which, frame), y, bias.rows ? values : nullptr};
    product.of_neurons = in_rows(part);
    return product;
}

int64_t ExpertFrames::n_here() const {
    int64_t n = 0;
    for (size_t block = 0; block < table_.size(); block++) n += has(int32_t(block));
    return n;
}

int64_t ExpertFrames::n_here(int64_t part) const {
    int64_t n = 0;
    for (int64_t e = 0; e < n_blocks(part); e++) n += has(first_block(part) + int32_t(e));
    return n;
}

int64_t ExpertFrames::part_of(int32_t block) const {
    const auto& before = shape_.card.before;
    const auto next = std::upper_bound(before.begin(), before.end(), int64_t(block));
    return next - before.begin() - 1;
}

void ExpertFrames::publish_table(ggml::DeviceStream* stream) {
    std::copy(table_.begin(), table_.end(), sent_.get());
    device_.copy_in(stream, there_.get(), sent_.get(), table_.size() * sizeof(table_[0]));
}

void ExpertFrames::begin(ggml::DeviceStream* stream, int64_t n, bool generated) {
    // What crosses the bus in the time of a step, of one text's rows or of many texts'.
    const auto now = std::chrono::steady_clock::now();
    if (was_generated_) {
        const double seconds = std::chrono::duration<double>(now - begun_).count();
        experts_.set_bytes_per_step(copies_per_step(kBus, std::min(seconds, kLongStep)));
    }
    begun_ = now;
    was_generated_ = generated;
    if (generated) {
        experts_.begin(int32_t(n));
    } else {
        experts_.begin_prompt(int32_t(n));
    }
    bool changed = false;
    if (!on_the_way_.empty() && device_.idle(copies_.get())) {
        for (int32_t block : on_the_way_) {
            experts_.arrived(block);
            enter(block, experts_.frame(block));
        }
        on_the_way_.clear();
        changed = true;
    }
    for (const CardExperts::Move& move : moves_) {
        changed = changed || move.evicted >= 0;
        if (move.evicted >= 0) enter(move.evicted, -1);
    }
    moves_.clear();
    if (changed) publish_table(stream);
}

void ExpertFrames::used(int64_t part, const int32_t* experts, int64_t pairs) {
    blocks_.resize(size_t(pairs));
    for (int64_t i = 0; i < pairs; i++) blocks_[size_t(i)] = first_block(part) + experts[i];
    experts_.used(blocks_.data(), pairs);
}

// One expert on its way: its parts land one after the other.
class ExpertFrames::Sending {
 public:
    Sending(ExpertFrames& to, int32_t block, uint8_t* frame, uint8_t* staged)
        : to_(to),
          part_(to.part_of(block)),
          all_(to.shape_.matrices[size_t(part_)]),
          frame_(frame),
          staged_(staged) {}

    void send(const ExpertWeights& w) {
        const float* biases[] = {w.gate_bias, w.up_bias, w.down_bias};
        if (w.neurons) {
            send_rows(*w.neurons);
            biases[0] = w.neurons->gate_bias;
            biases[1] = w.neurons->up_bias;
            biases[2] = w.neurons->down_bias;
        } else {
            for (const ggml::Matrix* m : {&w.gate, &w.up, &w.down}) {
                if (*m) unfold(m->data, uint64_t(m->bytes()));
            }
        }
        for (size_t k = 3 - which_; k < 3; k++) {
            if (all_[which_].rows) {
                unfold(biases[k], all_[which_].ram_bytes());
            } else {
                which_++;
            }
        }
    }
    uint64_t sent() const { return sent_; }

 private:
    // Where these bytes will be on the device.
    uint8_t* land(const void* from, uint64_t bytes) {
        if (staged_) from = std::memcpy(staged_ + at_, from, bytes);
        uint8_t* const to = to_.landing_.get() + at_;
        to_.device_.copy_in(to_.copies_.get(), to, from, bytes);
        at_ += ggml::size_rounded_up(bytes, kAligned);
        sent_ += bytes;
        return to;
    }
    ggml::DeviceRows next() { return to_.rows(part_, which_++, frame_); }
    void unfold(const void* from, uint64_t bytes) {
        uint8_t* const landed = land(from, bytes);
        to_.device_.ops().unfold(to_.copies_.get(), landed, next());
    }
    // Bundles come as they lie in RAM: rows of up and down that take turns cross once.
    void send_rows(const ggml::Neurons& w) {
        const uint8_t *from = nullptr, *landed = nullptr;
        uint64_t bytes = 0;
        for (const ggml::NeuronRows* rows : {&w.gate, &w.up, &w.down}) {
            if (!*rows) continue;
            const bool there = from && rows->data >= from && rows->data < from + bytes;
            if (!there) {
                from = rows->data;
                bytes = uint64_t(w.n * rows->stride);
                landed = land(from, bytes);
            }
            ggml::NeuronRows moved = *rows;
            moved.data = landed + (rows->data - from);
            to_.device_.ops().unfold_neurons(to_.copies_.get(), moved, next());
        }
    }

    ExpertFrames& to_;
    const int64_t part_;
    const std::vector<FrameShape::Matrix>& all_;
    uint8_t *const frame_, *const staged_;
    size_t which_ = 0;  // of all_, comes next
    uint64_t at_ = 0, sent_ = 0;
};

uint64_t ExpertFrames::send(int32_t block, uint8_t* frame, int slot, const Bring& bring) {
    uint8_t* const staged = changes_ ? staging_.get() + uint64_t(slot) * shape_.staged : nullptr;
    Sending sending(*this, block, frame, staged);
    return bring(block, [&](const ExpertWeights& w) { sending.send(w); }) ? sending.sent() : 0;
}

uint64_t ExpertFrames::move(const std::function<bool(int32_t)>& ready, const Bring& bring) {
    // The landing serves one copy after the other, and the table is changed by begin().
    if (!on_the_way_.empty()) return 0;
    experts_.choose(moves_, changes_ ? kStagedExperts : INT64_MAX, ready);
    uint64_t bytes = 0;
    for (const CardExperts::Move& move : moves_) {
        const auto slot = int(on_the_way_.size());
        uint8_t* const to = frame_at(part_of(move.block), move.frame);
        uint64_t sent = 0;
        try {
            sent = send(move.block, to, slot, bring);
        } catch (...) {
            experts_.drop();  // also those that have been sent: their frames are not used
            on_the_way_.clear();
            throw;
        }
        if (sent == 0) {
            experts_.dropped(move.block);
            continue;
        }
        on_the_way_.push_back(move.block);
        bytes += sent;
    }
    copies_made_ += on_the_way_.size();
    copied_bytes_ += bytes;
    return bytes;
}

uint64_t ExpertFrames::visit(ggml::DeviceStream* stream, int64_t part,
                             const std::vector<int32_t>& blocks, const Bring& bring,
                             const Use& use) {
    const uint64_t frame = shape_.card.classes[size_t(class_of(part))].bytes;
    const int64_t n = n_blocks(part);
    int32_t* turn = turns_.get();
    uint64_t bytes = 0;
    for (size_t i = 0, half = 0; i < blocks.size(); i += kVisitors, half = 1 - half, turn += n) {
        std::fill_n(turn, n, -1);
        if (i >= 2 * kVisitors) device_.wait(copies_.get(), used_[half].get());
        for (size_t k = i; k < std::min(blocks.size(), i + kVisitors); k++) {
            const auto at = int32_t(half * kVisitors + (k - i));
            turn[blocks[k] - first_block(part)] = at;
            bytes += send(blocks[k], visitors_.get() + uint64_t(at) * frame, 0, bring);
        }
        device_.record(came_[half].get(), copies_.get());
        device_.wait(stream, came_[half].get());
        device_.copy_in(stream, visiting_.get(), turn, uint64_t(n) * sizeof(int32_t));
        use({visiting_.get(), int64_t(frame)});
        device_.record(used_[half].get(), stream);
    }
    return bytes;
}

void ExpertFrames::fill(const std::vector<float>& rate, const Bring& bring) {
    experts_.profile(rate);
    for (int64_t block = 0, slot = 0; block < shape_.card.n_blocks(); block++) {
        const int32_t frame = experts_.frame(int32_t(block));
        if (frame < 0) continue;
        uint8_t* const to = frame_at(part_of(int32_t(block)), frame);
        if (send(int32_t(block), to, int(slot), bring) == 0) {
            experts_.dropped(int32_t(block));
            continue;
        }
        enter(int32_t(block), frame);
        slot = (slot + 1) % kStagedExperts;
        if (slot == 0) device_.wait(copies_.get());
    }
    publish_table(copies_.get());
    device_.wait(copies_.get());
}

}  // namespace powerinfer
