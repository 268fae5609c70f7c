// The experts of mixtures that are on a device: frames in its memory, each with the matrices of an
// expert, and copies from RAM. CardExperts decides which experts are there.
//
// An expert is copied while other rows are computed, as it lies in RAM, and a kernel lays its rows
// out; nobody waits for it. The table of frames changes between passes, when no row is being
// computed.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "ggml/file_io.h"
#include "ggml/neurons.h"
#include "ggml/tensor.h"
#include "storage/cache/card_experts.h"

namespace powerinfer {

// The frames of a plan.
struct FrameShape {
    struct Matrix {
        ggml::DType type;
        int64_t rows, cols;
        uint64_t offset = 0;  // in a frame

        uint64_t ram_bytes() const;      // as strips, or rows of floats
        uint64_t landing_bytes() const;  // what these take where they land
    };
    CardShape card;
    // [parts]: gate, if there is one, up and down; and then a row of biases for each of them, of no
    // rows where it has none.
    std::vector<std::vector<Matrix>> matrices;
    // [parts]: are its experts in neuron rows? Then each matrix has a row of n_embd for a neuron.
    std::vector<bool> in_rows;
    // Have layers on the device experts? None of them may have a frame if the device has no
    // products for their format.
    bool needed = false;
    uint64_t staged = 0;  // bytes of an expert in RAM, at most
    bool visits = false;  // is there room for experts that come for a prompt?

    // Without frames for experts in neuron rows: RAM does not have all of their neurons.
    FrameShape without_rows() const;
    int64_t experts() const;  // that may have a frame
    int64_t experts(int32_t of_class) const;
    int64_t most_experts() const;  // of a part, of these
    uint64_t largest_frame() const;
    uint64_t frames_bytes() const;  // of all frames
    // What it takes of a device, with the table and a landing for an expert, and of memory that
    // both sides see. changes: see ExpertFrames.
    uint64_t device_bytes() const;
    uint64_t shared_bytes(bool changes) const;
};
constexpr int kStagedExperts = 4;
constexpr int kVisitors = 2;  // experts that come together, while as many others are computed

// An expert in RAM: matrices, as strips or rows of floats, and biases; or rows of neurons with
// theirs; or none of them.
struct ExpertWeights {
    ggml::Matrix gate, up, down;
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    const ggml::Neurons* neurons = nullptr;
};

// Parts are feed-forward parts of the model by their index, and blocks are their experts, numbered
// through.
class ExpertFrames {
 public:
    // changes: RAM is a cache of the disk and may lose an expert while it is copied; so at most
    // kStagedExperts are on their way, as copies of their own. Throws Error(memory | device).
    ExpertFrames(ggml::Device& device, const FrameShape& shape, bool changes);
    // Waits for copies that still read RAM.
    ~ExpertFrames();

    // Has the device a frame for at least one expert of this part?
    bool any(int64_t part) const;
    // Has it frames for all of them, which they never leave? Graphs are recorded by this, so it
    // does not change while the model lives.
    bool all(int64_t part) const;
    ggml::DeviceFrames frames(int64_t part) const;
    // A product of the expert in frame 0: 0 for the gate or, without one, for up; and so on.
    // visitors: of those that visit().
    ggml::DeviceProduct product(int64_t part, size_t which, float* y, bool visitors = false) const;
    // Are the experts of this part in neuron rows, and do these have gates?
    bool in_rows(int64_t part) const { return shape_.in_rows[size_t(part)]; }
    bool gated(int64_t part) const { return shape_.matrices[size_t(part)].size() == 6; }
    // Is this block there for the rows that are being computed?
    bool here(int32_t block) const { return table_[size_t(block)] >= 0; }
    // These may be asked at any time, also while rows are computed.
    bool has(int32_t block) const {
        return __atomic_load_n(&table_[size_t(block)], __ATOMIC_RELAXED) >= 0;
    }
    int64_t n_here() const;
    int64_t n_here(int64_t part) const;
    // Experts that have been copied since fill(), and their bytes.
    uint64_t copies() const { return copies_made_; }
    uint64_t copied_bytes() const { return copied_bytes_; }
    int64_t part_of(int32_t block) const;

    // Before n rows of a pass, which are generated or of a prompt: what has arrived is there.
    void begin(ggml::DeviceStream* stream, int64_t n, bool generated);
    // The experts that these pairs of rows and experts have chosen; in any order.
    void used(int64_t part, const int32_t* experts, int64_t pairs);
    // After the rows: sends experts that pay, of those that are ready (null: all) in RAM.
    // bring(block, take) calls take(weights) with those of a block, if RAM has them, and says
    // whether it has. Returns the bytes that cross.
    using Take = std::function<void(const ExpertWeights&)>;
    using Bring = std::function<bool(int32_t block, const Take& take)>;
    uint64_t move(const std::function<bool(int32_t)>& ready, const Bring& bring);
    // For rows of a prompt, the experts `blocks` come to the device one after the other, if RAM has
    // all of them: use(frames) launches what they compute, for each kVisitors of them. Returns the
    // bytes that cross. The pass before must have ended on the device.
    bool can_visit() const { return shape_.visits && !changes_; }
    bool can_visit(int64_t part) const { return can_visit() && class_of(part) >= 0; }
    using Use = std::function<void(const ggml::DeviceFrames&)>;
    uint64_t visit(ggml::DeviceStream* stream, int64_t part, const std::vector<int32_t>& blocks,
                   const Bring& bring, const Use& use);
    // Frames for merging when each expert is here or has been.
    ggml::DeviceFrames everywhere() const { return {everywhere_.get(), 0}; }
    // Before any row: fills the frames with the experts that are expected to be used most; rate:
    // uses per token of every block, or empty. Those that bring() does not have stay away.
    void fill(const std::vector<float>& rate, const Bring& bring);

    const CardExperts& policy() const { return experts_; }

 private:
    uint8_t* frame_at(int64_t part, int32_t frame) const;
    ggml::DeviceRows rows(int64_t part, size_t which, uint8_t* frame) const;
    class Sending;
    uint64_t send(int32_t block, uint8_t* frame, int slot, const Bring& bring);
    void publish_table(ggml::DeviceStream* stream);
    void enter(int32_t block, int32_t frame) {
        __atomic_store_n(&table_[size_t(block)], frame, __ATOMIC_RELAXED);
    }
    int32_t first_block(int64_t part) const { return int32_t(shape_.card.before[size_t(part)]); }
    int64_t n_blocks(int64_t part) const {
        return shape_.card.before[size_t(part) + 1] - first_block(part);
    }
    int32_t class_of(int64_t part) const { return shape_.card.class_of[size_t(part)]; }

    ggml::Device& device_;
    const FrameShape shape_;
    ggml::DeviceArray<uint8_t> memory_;   // the frames of all classes
    std::vector<uint64_t> begins_;        // of each class in it
    ggml::DeviceArray<int32_t> there_;    // [blocks]: the table
    ggml::SharedArray<int32_t> sent_;     // [blocks]: of which that is a copy
    ggml::DeviceArray<uint8_t> landing_;  // [staged]
    ggml::SharedArray<uint8_t> staging_;  // [kStagedExperts][staged], or nothing
    const bool changes_;
    // Of visit(): frames [2][kVisitors], a table [blocks of a part], and what it becomes in turn.
    ggml::DeviceArray<uint8_t> visitors_;
    ggml::DeviceArray<int32_t> visiting_, everywhere_;
    ggml::SharedArray<int32_t> turns_;
    int32_t most_experts_ = 0;  // of a part
    ggml::Owned<ggml::DeviceEvent> came_[2], used_[2];
    std::vector<int32_t> table_;       // [blocks]: frames that rows may use
    std::vector<int32_t> on_the_way_;  // blocks
    ggml::Memory tables_;              // of experts_
    CardExperts experts_;
    std::vector<CardExperts::Move> moves_;
    std::vector<int32_t> blocks_;                  // of used()
    std::chrono::steady_clock::time_point begun_;  // the last pass
    bool was_generated_ = false;                   // its rows were
    std::atomic<uint64_t> copies_made_{0}, copied_bytes_{0};
    ggml::Owned<ggml::DeviceStream> copies_;
};

}  // namespace powerinfer
