// The neurons of a model that runs from storage: a cache of their parts in RAM, and reads for the
// parts that are missing. The store knows bytes, slots and reads; forward/parts/neurons.cpp
// computes.
//
// One arena holds everything. First comes the cache, with a slot for each part that is kept: gates,
// or up and down rows (residency.h). Then comes the staging area, where reads arrive; it is divided
// into lanes. Positions in the arena are counted in sectors of 512 bytes, because kernels find the
// row of a neuron at data + row_at[id] * stride.
//
// A part that is worth keeping is copied from its lane to a slot only after its block has been
// computed. So a read that fails never damages the cache, and nothing is replaced while it is
// being used.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ggml/carver.h"
#include "ggml/file_io.h"
#include "ggml/neurons.h"
#include "ggml/reader.h"
#include "ggml/threads.h"
#include "storage/cache/residency.h"
#include "storage/experts/expert_pages.h"
#include "storage/neurons/store_shape.h"
#include "storage/page_reads.h"
#include "storage/store_counts.h"
#include "storage/store_status.h"
#include "weights/neuron_layout.h"

namespace powerinfer {

// Which parts of a neuron are meant.
struct NeuronParts {
    int32_t id;
    bool gate, up_down;
};

class NeuronStore final : PageReads::Policy {
 public:
    // The tables, which the memory plan counts beside the arena and the reader.
    struct Tables {
        Tables() = default;
        Tables(ggml::Carver& carver, const StoreShape& shape);

        Residency residency;
        uint32_t* crc = nullptr;  // [parts, 2]
        int32_t* row = nullptr;   // [parts], see rows_in_file()
        int32_t* row_at[2] = {nullptr,
                              nullptr};  // [n], of the open block: sectors, kAbsent or kComing
        struct Entry* entries[StoreShape::kLanes] = {};  // [n]
        struct Run* runs[StoreShape::kLanes] = {};       // [n]
        int32_t* arrived[StoreShape::kLanes] = {};       // [n]
        struct Copy* copies = nullptr;                   // [2 n], from a lane to slots
        uint8_t* resident = nullptr;                     // of StoreStatus
    };

    // blocks: the position of each block in the reader's file. predictors: those that are read from
    // the same file; null if all are in memory. The caller then fills in checksums() and
    // rows_in_file().
    NeuronStore(std::unique_ptr<ggml::Reader> reader, const StoreShape& shape,
                std::vector<StoredNeurons> blocks,
                std::unique_ptr<ExpertPages> predictors = nullptr);

    // [neurons of the block, 2]: the CRC-32C of each part.
    uint32_t* checksums(int32_t block) { return tables_.crc + blocks().first(block) * 2; }
    // [neurons of the block], ascending: the index of each neuron in the file. Null if every block
    // has all neurons of the file.
    int32_t* rows_in_file(int32_t block) {
        return tables_.row ? tables_.row + blocks().first(block) : nullptr;
    }
    // row_of: from the neuron of a block to its index in the file. find_row: back, or -1 if the
    // block does not have it.
    int32_t row_of(int32_t block, int32_t id) const {
        return tables_.row ? tables_.row[blocks().first(block) + id] : id;
    }
    int32_t find_row(int32_t block, int32_t row) const;

    // Fills the cache with the parts that residency() ranks highest. progress(fraction) may throw.
    template <typename F>
    void fill(const F& progress) {
        fill_blocks([](void* f, float fraction) { (*static_cast<const F*>(f))(fraction); },
                    const_cast<F*>(&progress));
    }

    // Divides the cache between gates and up and down rows by what tokens have needed so far.
    void adapt();
    int64_t tokens() const { return tokens_; }  // how many have been computed

    // Lends memory of the cache to the caller until take_back(), at most shape().lendable() bytes.
    // The parts that are worth least lose their slots.
    ggml::Carver lend(uint64_t bytes);
    void take_back() noexcept;

    // Begin and end the work on a block. Between them its parts keep their slots.
    void open(int32_t block);
    void close();
    // The weights of the open block, as operators take them. Only rows in memory may be read.
    ggml::Neurons rows(ggml::Neurons w) const;
    bool has(Half half, int32_t id) const { return tables_.row_at[int(half)][id] >= 0; }
    // Is the part neither in memory nor requested?
    bool absent(Half half, int32_t id) const { return tables_.row_at[int(half)][id] == kAbsent; }
    // Is the part in a lane, since the disk brought it, and not in a slot?
    bool staged(Half half, int32_t id) const {
        return tables_.row_at[int(half)][id] >= lane_begin(0);
    }

    // Bytes that these parts take in a lane.
    int64_t bytes(const NeuronParts& parts) const;
    // Bytes that a lane can still take. A lane may grow into the empty lanes behind it.
    int64_t room(int lane) const;
    // The empty lane with most room into which no other lane has grown, or -1.
    int roomiest_lane() const;
    // The lane with this tag, or -1. Callers choose tags, which are not negative.
    int lane_of(int64_t tag) const;
    int free_lane() const;  // an empty lane, or -1
    void label(int lane, int64_t tag) { lanes_[lane].tag = tag; }
    // A lane other than `except` that has no tag, but parts which keep() has not handled; or -1.
    int unkept(int except = -1) const;
    int32_t unkept_block() const;  // the block of these parts, or -1
    // Requests parts of a block, ascending, which must fit the lane. Neighbours in the file are
    // read together.
    void request(int lane, int32_t block, const NeuronParts* parts, int64_t n);
    // Writes the ids of all neurons that were requested in a lane, and returns their number.
    int64_t requested(int lane, int32_t* ids) const;
    // Submits reads, takes finished ones, and writes to `out` the parts that arrived in the lane
    // since the last call, at most n. rows() has them from now on. wait: until at least one
    // arrives, if any is missing. Throws Error(io | format) if a read failed or brought damaged
    // bytes.
    int64_t arrived(ggml::Threads& threads, int lane, bool wait, NeuronParts* out, int64_t n);
    // Waits until all parts of the lane have arrived.
    void finish(ggml::Threads& threads, int lane);
    bool complete(int lane) const;
    // Empties a lane whose parts have all arrived and are no longer used. Those that are worth it
    // are copied to slots, except for neurons from `end` on. The others are lost.
    void keep(ggml::Threads& threads, int lane, int64_t end = INT32_MAX);
    // keep() for the lane that unkept() names, if there is one.
    void keep_unkept(ggml::Threads& threads);
    // Do predictors stay on the disk, and that of this block? If so: request_predictor() requests
    // that of a block, if there is room; predictor() waits for it and returns its matrices;
    // keep_predictor() ends its use by so many rows.
    bool pages_predictors() const { return predictors_ != nullptr; }
    bool pages_predictor(int32_t block) const {
        return predictors_ && !predictors_->page(block).empty();
    }
    void request_predictor(int32_t block);
    const std::vector<ggml::Matrix>& predictor(ggml::Context& context, int32_t block);
    void keep_predictor(int32_t block, int64_t rows) noexcept { predictors_->keep(block, rows); }
    // begin() announces n tokens. It throws Error(io) if reads of an earlier call are still in
    // flight. reset() is for errors: it waits for reads in flight and empties all lanes.
    void begin(int64_t n_tokens);
    void reset();

    // How many neurons of a block have slots for both parts?
    int64_t resident(int32_t block) const;
    Residency& residency() { return tables_.residency; }
    const ResidencyShape& blocks() const {
        return tables_.residency.shape();
    }  // sizes of the blocks
    const ggml::Reader& reader() const { return reads_.reader(); }
    const StoreShape& shape() const { return shape_; }
    void set_patience(double seconds) { reads_.patience = seconds; }
    std::vector<StoreCounts> counts;  // of each feed-forward part
    // Locked by a session while it computes. Neuron `id` has the bit blocks().first(block) + id.
    StatusBoard status{[this](StoreStatus& s) { look(s); }};

 private:
    // In Tables::row_at: a part that is not in memory, and one that has been requested.
    static constexpr int32_t kAbsent = -1, kComing = -2;
    struct Lane {
        int64_t tag = -1;
        int32_t block = 0;
        int64_t used = 0;                  // sectors
        int32_t n = 0, n_runs = 0;         // entries; reads
        int32_t sent = 0;                  // reads
        int32_t n_arrived = 0, given = 0;  // entries that arrived; those given to the caller
    };

    uint8_t* at(int64_t sector) const { return arena_->data() + sector * StoreShape::kSector; }
    int64_t lane_begin(int lane) const;  // sector
    // The offset of a neuron in the file.
    uint64_t offset_of(int32_t block, int32_t id) const {
        return blocks_[size_t(block)].offset_of(row_of(block, id));
    }
    ggml::Read read_of(int lane, int32_t run) const;
    // The first sector of a slot. Slots of gates count from the beginning of the cache, the others
    // from its end, so that the border between them can move.
    int64_t slot_at(int half, int64_t slot) const;
    struct PoolSlots best_slots(int64_t sectors) const;
    void resize(Half half, const struct PoolSlots& wanted);
    void expect(const struct Entry& entry);
    void send() override;
    void read_done(int32_t file, const ggml::ReadDone& done) override;
    template <typename F>
    void wait_until(int32_t block, const F& done);
    void look(StoreStatus& to) const;
    StoreCounts& counts_of(int32_t block) { return counts[size_t(blocks_[size_t(block)].part)]; }
    bool holds_nothing(int lane) const { return lanes_[lane].tag < 0 && lanes_[lane].n == 0; }
    bool intact(int lane, const struct Entry& entry) const;
    void check(ggml::Threads& threads, int lane, int32_t end);
    void fill_blocks(void (*progress)(void*, float), void* data);

    const StoreShape shape_;
    const std::vector<StoredNeurons> blocks_;
    std::shared_ptr<ggml::Memory> arena_;  // shared with the reads
    ggml::Memory memory_;
    Tables tables_;
    Lane lanes_[StoreShape::kLanes];
    int32_t block_ = -1;  // the open one
    int64_t tokens_ = 0, adapt_at_ = 8;
    int64_t slots_[2] = {0, 0};  // numbers of slots before memory was lent
    bool lent_ = false;
    std::shared_ptr<ExpertPages> predictors_;
    PageReads reads_;
};

}  // namespace powerinfer
