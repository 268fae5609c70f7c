// Neurons that stay on the disk: which of their parts are in memory, and where; and reading the
// others. It knows bytes, slots and reads, and nothing of what is computed (neurons.cpp).
//
// One arena holds everything: the cache, with slots of gates and of up and down rows
// (neuron_layout.h), then the staging area, where reads arrive. Places in it count sectors of 512
// bytes, because the kernels find a row at data + row_at * stride. A part that is worth keeping
// (residency.h) is copied from staging to a slot when the block that read it has been computed: so
// a read that fails never damages what is kept, and nothing that is being computed is replaced.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ggml/carver.h"
#include "ggml/file_io.h"
#include "ggml/neurons.h"
#include "ggml/reader.h"
#include "ggml/threads.h"
#include "storage/predictor_pages.h"
#include "storage/residency.h"
#include "storage/store_shape.h"
#include "weights/neuron_layout.h"

namespace powerinfer {

// Parts of a neuron.
struct NeuronParts {
    int32_t id;
    bool gate, up_down;
};

// What a store has done since it was opened.
struct StoreCounts {
    // Parts that rows needed, by half; of these, those that were not in memory. Where many rows are
    // computed together, only the parts of neurons that fired.
    uint64_t needed[2] = {0, 0}, missed[2] = {0, 0};
    uint64_t reads = 0, bytes = 0;  // from the disk; gaps included
    uint64_t predictors = 0;        // of experts, that were read
    uint64_t admitted = 0;          // parts that got a slot after a read
    double waited_s = 0;            // with nothing left to compute

    // Adds what was done between two moments.
    void add(const StoreCounts& begin, const StoreCounts& end);
};

class NeuronStore {
 public:
    // What the plan counts besides the arena and the reader.
    struct Tables {
        Tables() = default;
        Tables(ggml::Carver& carver, const StoreShape& shape);

        Residency residency;
        uint32_t* crc = nullptr;                         // [parts, 2]
        int32_t* row = nullptr;                          // [parts]: see rows_in_file
        int32_t* row_at[2] = {nullptr, nullptr};         // [n], by half; or kAbsent, kComing
        struct Entry* entries[StoreShape::kLanes] = {};  // [n]
        struct Run* runs[StoreShape::kLanes] = {};       // [n]
        int32_t* arrived[StoreShape::kLanes] = {};       // [n]
        struct Copy* copies = nullptr;                   // [2 n], from a lane to slots
    };

    // blocks: where the reader's file has each block. Checksums are still to be filled in, and
    // which neurons of the file a block has. predictors: those that the same file has; or null: all
    // are in memory.
    NeuronStore(std::unique_ptr<ggml::Reader> reader, const StoreShape& shape,
                std::vector<StoredNeurons> blocks,
                std::unique_ptr<PredictorPages> predictors = nullptr);
    ~NeuronStore();

    // [size, 2], by half.
    uint32_t* checksums(int32_t block) { return tables_.crc + blocks().first(block) * 2; }
    // [size], to be filled in, too: which of the file's neurons a block has, ascending. Null if
    // every block has all of its neurons.
    int32_t* rows_in_file(int32_t block) {
        return tables_.row ? tables_.row + blocks().first(block) : nullptr;
    }
    // Which of the file's neurons a block's neuron is; and the block's neuron that is this one of
    // the file, or -1.
    int32_t row_of(int32_t block, int32_t id) const {
        return tables_.row ? tables_.row[blocks().first(block) + id] : id;
    }
    int32_t find_row(int32_t block, int32_t row) const;

    // Reads the parts that residency wants to have. progress(fraction) may throw.
    template <typename F>
    void fill(const F& progress) {
        fill_blocks([](void* f, float fraction) { (*static_cast<const F*>(f))(fraction); },
                    const_cast<F*>(&progress));
    }

    // Divides the cache between both kinds of parts according to what has been needed.
    void adapt();
    int64_t tokens() const { return tokens_; }  // that have been computed

    // Memory of the cache for something else, until take_back(): at most shape().lendable() bytes.
    // The parts that are worth least lose their slots.
    ggml::Carver lend(uint64_t bytes);
    void take_back() noexcept;

    // Begins and ends the work on a block. Until close() no slot of its neurons is given away.
    void open(int32_t block);
    void close();
    // The rows of the open block, for the operators; only those in memory exist.
    ggml::Neurons rows(ggml::Neurons w) const;
    bool has(Half half, int32_t id) const { return tables_.row_at[int(half)][id] >= 0; }
    // Is the part neither in memory nor asked for?
    bool absent(Half half, int32_t id) const { return tables_.row_at[int(half)][id] == kAbsent; }
    // Did the disk bring the part, which has no slot yet?
    bool staged(Half half, int32_t id) const {
        return tables_.row_at[int(half)][id] >= lane_begin(0);
    }

    // Bytes that a part takes in the staging area.
    int64_t bytes(const NeuronParts& parts) const;
    // What a lane can still take: the area up to the next lane that is in use.
    int64_t room(int lane) const;
    // Of the lanes that hold nothing, and that no other one has grown into, the one with most room.
    int roomiest_lane() const;
    // The lane that holds what `tag` names, or -1; one that holds nothing, or -1. Tags are the
    // caller's, and not negative.
    int lane_of(int64_t tag) const;
    int free_lane() const;
    void label(int lane, int64_t tag) { lanes_[lane].tag = tag; }
    // A lane without a label, other than `except`, with parts that are not kept yet; or -1.
    int unkept(int except = -1) const;
    int32_t unkept_block() const;  // -1 if there is none
    // Asks for parts of a block, ascending, which must fit the lane. Neighbours are read together.
    void request(int lane, int32_t block, const NeuronParts* parts, int64_t n);
    // Writes the neurons that a lane was asked for, [n] at most; returns their number.
    int64_t requested(int lane, int32_t* ids) const;
    // Starts reads, takes those that are done, and writes parts of the lane that arrived since the
    // last call to `out`, at most n; the operators find them from now on. wait: for at least one,
    // unless none is missing. Throws Error(io | format) if a read failed or brought damaged bytes.
    int64_t arrived(ggml::Threads& threads, int lane, bool wait, NeuronParts* out, int64_t n);
    // Waits for all of them.
    void finish(ggml::Threads& threads, int lane);
    bool complete(int lane) const;
    // Empties a lane whose parts are all there, after the last use of these: those that are worth
    // it get slots, the others are gone, and so are neurons from `end` on.
    void keep(ggml::Threads& threads, int lane, int64_t end = INT32_MAX);
    // The same for the lane that is not kept yet, if there is one.
    void keep_unkept(ggml::Threads& threads);
    // Do predictors stay on the disk? Then: asks for that of a block, if there is room for it;
    // waits for it, and returns its matrices; and ends its use by so many rows.
    bool pages_predictors() const { return predictors_ != nullptr; }
    void request_predictor(int32_t block);
    const std::vector<ggml::Matrix>& predictor(ggml::Context& context, int32_t block);
    void keep_predictor(int32_t block, int64_t rows) { predictors_->keep(block, rows); }
    // Before n tokens: throws Error(io) if reads of an earlier call are still in flight. reset:
    // after an error, waits for reads in flight and empties all lanes.
    void begin(int64_t n_tokens);
    void reset();

    // Do both parts of a neuron have slots? Neurons of a block that have both.
    bool is_resident(int32_t block, int32_t id) const;
    int64_t resident(int32_t block) const;
    Residency& residency() { return tables_.residency; }
    const ResidencyShape& blocks() const { return tables_.residency.shape(); }  // their neurons
    const ggml::Reader& reader() const { return *reader_; }
    const StoreShape& shape() const { return shape_; }
    // A disk that answers nothing for so many seconds has failed. Throttled ones were seen to pause
    // for 60 ms.
    double patience = 10;
    StoreCounts counts;
    std::mutex mutex;  // held by a session while it computes

 private:
    // Of a part that is not in memory, and of one that a lane of the open block will have.
    static constexpr int32_t kAbsent = -1, kComing = -2;
    struct Lane {
        int64_t tag = -1;
        int32_t block = 0;
        int64_t used = 0;                  // sectors
        int32_t n = 0, n_runs = 0;         // entries; reads
        int32_t sent = 0;                  // reads
        int32_t n_arrived = 0, given = 0;  // entries that came; of these, given to the caller
    };

    uint8_t* at(int64_t sector) const { return arena_.data() + sector * StoreShape::kSector; }
    int64_t lane_begin(int lane) const;  // sector
    // Where a neuron begins in the file.
    uint64_t offset_of(int32_t block, int32_t id) const {
        return blocks_[size_t(block)].offset_of(row_of(block, id));
    }
    ggml::Read read_of(int lane, int32_t run) const;
    // Where a slot begins. Slots of gates count from the beginning of the cache, those of up
    // and down rows from its end, so that the border between them can move.
    int64_t slot_at(int half, int64_t slot) const;
    struct PoolSlots best_slots(int64_t sectors) const;
    void resize(Half half, const struct PoolSlots& wanted);
    void expect(const struct Entry& entry);
    void pump();
    void take(double wait_s);
    template <typename F>
    void wait_until(const F& done);
    bool holds_nothing(int lane) const { return lanes_[lane].tag < 0 && lanes_[lane].n == 0; }
    bool intact(int lane, const struct Entry& entry) const;
    void check(ggml::Threads& threads, int lane, int32_t end);
    void fail(ggml::Code code, const std::string& what);
    void fill_blocks(void (*progress)(void*, float), void* data);

    const StoreShape shape_;
    const std::vector<StoredNeurons> blocks_;
    ggml::Memory arena_, memory_;
    Tables tables_;
    Lane lanes_[StoreShape::kLanes];
    int32_t block_ = -1;  // the open one
    int64_t tokens_ = 0, adapt_at_ = 8;
    int64_t slots_[2] = {0, 0};  // of each half, before memory was lent
    bool lent_ = false;
    std::string failure_;
    ggml::Code failure_code_ = ggml::Code::io;
    std::unique_ptr<PredictorPages> predictors_;
    struct Landing;
    std::unique_ptr<Landing> landing_;  // empty: made while memory can be refused
    std::unique_ptr<ggml::Reader> reader_;
};

}  // namespace powerinfer
