#include "storage/neurons/store.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "ggml/crc32c.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;
using ggml::format;

// A neuron of a lane: what was asked for, and the sectors where it arrives.
struct Entry {
    int32_t id;
    int32_t sector[2];  // -1: not asked for
};

// Entries that one read brings.
struct Run {
    int32_t begin, end;
};

// A part that gets a slot.
struct Copy {
    int32_t entry;
    Half half;
    int32_t slot;
};

namespace {

// Parts of a thread's piece, to be checked or copied: about 10 microseconds of work.
constexpr int64_t kPiece = 8;
constexpr int64_t kSector = StoreShape::kSector;
// Longer gaps cost more than a read of their own: a read takes about as long as 12 KB.
constexpr int64_t kGap = 12 << 10;
constexpr int64_t kLongestRead = 256 << 10;

// Marks the tags of reads for predictors.
constexpr uint64_t kPredictors = uint64_t(1) << 63;

const StoreLayout::Range& range_of(const StoreLayout& layout, int half) {
    return half == 0 ? layout.gate_range : layout.up_down_range;
}

}  // namespace

NeuronStore::Tables::Tables(ggml::Carver& carver, const StoreShape& shape)
    : residency(carver, shape.residency()) {
    const int64_t parts = residency.shape().parts();
    carver.take(crc, {parts, 2});
    if (!shape.before.empty()) carver.take(row, {parts});
    for (int32_t*& p : row_at) carver.take(p, {shape.n});
    for (int i = 0; i < StoreShape::kLanes; i++) {
        carver.take(entries[i], {shape.n});
        carver.take(runs[i], {shape.n});
        carver.take(arrived[i], {shape.n});
    }
    carver.take(copies, {2, shape.n});
    carver.take(resident, {StoreStatus::bytes(parts)});
}

namespace {

std::vector<std::unique_ptr<ggml::Reader>> only(std::unique_ptr<ggml::Reader> reader) {
    std::vector<std::unique_ptr<ggml::Reader>> all;
    all.push_back(std::move(reader));
    return all;
}

}  // namespace

NeuronStore::NeuronStore(std::unique_ptr<ggml::Reader> reader, const StoreShape& shape,
                         std::vector<StoredNeurons> blocks, std::unique_ptr<ExpertPages> predictors)
    : shape_(shape),
      blocks_(std::move(blocks)),
      arena_(std::make_shared<ggml::Memory>(shape.arena_bytes(), "neurons")),
      memory_(ggml::carved_bytes<Tables>(shape), "tables of neurons"),
      predictors_(std::move(predictors)),
      reads_(*this, only(std::move(reader)), {arena_, predictors_}) {
    ggml::Carver carver(memory_);
    tables_ = Tables(carver, shape);
    for (const StoredNeurons& block : blocks_) {
        counts.resize(std::max(counts.size(), size_t(block.part) + 1));
    }
}

int32_t NeuronStore::find_row(int32_t block, int32_t row) const {
    if (!tables_.row) return row;
    const int32_t* const begin = tables_.row + blocks().first(block);
    const int32_t* const end = tables_.row + blocks().first(block + 1);
    const int32_t* const found = std::lower_bound(begin, end, row);
    return found < end && *found == row ? int32_t(found - begin) : -1;
}

void NeuronStore::open(int32_t block) {
    block_ = block;
    const int32_t n = blocks().size(block);  // so that the compiler knows that it stays the same
    for (int half = 0; half < 2; half++) {
        const int32_t* const slot = tables_.residency.slots(Half(half), block);
        int32_t* const row_at = tables_.row_at[half];
        const auto first = int32_t(slot_at(half, 0)), step = int32_t(slot_at(half, 1)) - first;
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = first + slot[i] * step;
            row_at[i] = slot[i] < 0 ? kAbsent : at;
        }
        tables_.residency.pin(Half(half), block);
    }
    for (int lane = 0; lane < StoreShape::kLanes; lane++) {
        for (int32_t i = 0; lanes_[lane].block == block && i < lanes_[lane].n; i++) {
            expect(tables_.entries[lane][i]);
        }
    }
}

void NeuronStore::expect(const Entry& entry) {
    for (int half = 0; half < 2; half++) {
        int32_t& row_at = tables_.row_at[half][entry.id];
        if (entry.sector[half] >= 0 && row_at == kAbsent) row_at = kComing;
    }
}

void NeuronStore::close() {
    block_ = -1;
    for (Half half : {Half::gate, Half::up_down}) tables_.residency.unpin(half);
}

ggml::Neurons NeuronStore::rows(ggml::Neurons w) const {
    const StoreLayout& layout = blocks_[size_t(block_)].layout;
    const auto view = [&](const StoreLayout::Row& row, int half) {
        return ggml::NeuronRows{row.type, ggml::can_fold(row.type, layout.cols),
                                arena_->data() + row.offset - range_of(layout, half).offset,
                                kSector, tables_.row_at[half]};
    };
    if (layout.gated()) w.gate = view(layout.gate(), 0);
    w.up = view(layout.up(), layout.gated() ? 1 : 0);
    w.down = view(layout.down(), 1);
    return w;
}

int64_t NeuronStore::bytes(const NeuronParts& parts) const {
    return (parts.gate * shape_.gate_sectors + parts.up_down * shape_.up_down_sectors) * kSector;
}

int64_t NeuronStore::lane_begin(int lane) const {
    return (int64_t(shape_.arena_bytes()) - (StoreShape::kLanes - lane) * shape_.lanes) / kSector;
}

int64_t NeuronStore::room(int lane) const {
    int next = lane + 1;
    while (next < StoreShape::kLanes && holds_nothing(next)) next++;
    return (next - lane) * shape_.lanes - lanes_[lane].used * kSector;
}

int NeuronStore::roomiest_lane() const {
    int best = -1;
    int64_t free = 0;  // sector where the lanes before end
    for (int i = 0; i < StoreShape::kLanes; i++) {
        if (!holds_nothing(i)) {
            free = lane_begin(i) + lanes_[i].used;
        } else if (lane_begin(i) >= free && (best < 0 || room(i) > room(best))) {
            best = i;
        }
    }
    return best;
}

int NeuronStore::lane_of(int64_t tag) const {
    for (int i = 0; i < StoreShape::kLanes; i++) {
        if (lanes_[i].tag == tag) return i;
    }
    return -1;
}

int NeuronStore::free_lane() const {
    for (int i = 0; i < StoreShape::kLanes; i++) {
        if (holds_nothing(i)) return i;
    }
    return -1;
}

int NeuronStore::unkept(int except) const {
    for (int i = 0; i < StoreShape::kLanes; i++) {
        if (i != except && lanes_[i].tag < 0 && lanes_[i].n > 0) return i;
    }
    return -1;
}

void NeuronStore::keep_unkept(ggml::Threads& threads) {
    const int lane = unkept();
    if (lane >= 0) keep(threads, lane);
}

int32_t NeuronStore::unkept_block() const {
    const int lane = unkept();
    return lane < 0 ? -1 : lanes_[lane].block;
}

void NeuronStore::request(int lane, int32_t block, const NeuronParts* parts, int64_t n) {
    Lane& l = lanes_[lane];
    l.block = block;
    const StoreLayout& layout = blocks_[size_t(block)].layout;
    Entry* const entries = tables_.entries[lane];
    Run* const runs = tables_.runs[lane];
    int64_t end = -1, length = 0;  // of the last run, in the file and in bytes
    int pieces = 0;
    for (int64_t i = 0; i < n; i++) {
        const NeuronParts& want = parts[i];
        if (!want.gate && !want.up_down) continue;
        if (bytes(want) > room(lane) || l.n == shape_.n) {
            throw Error(Code::internal, "a lane was asked for more than it takes");
        }
        const auto neuron = int64_t(offset_of(block, want.id));
        const int64_t from =
            neuron + (want.gate ? layout.gate_range.offset : layout.up_down_range.offset);
        const int64_t to =
            neuron + (want.up_down ? layout.up_down_range.end() : layout.gate_range.end());
        const int64_t gap = from - end;
        // A gap within the neuron cannot be: its two ranges follow each other.
        const bool joins = end >= 0 && gap >= 0 && gap <= kGap &&
                           length + gap + (to - from) <= kLongestRead &&
                           pieces + 2 <= ggml::kReadPieces;
        if (joins) {
            pieces += gap ? 2 : 0;
            length += gap + (to - from);
        } else {
            runs[l.n_runs++] = {l.n, l.n};
            pieces = 1;
            length = to - from;
        }
        end = to;
        runs[l.n_runs - 1].end = l.n + 1;
        Entry& entry = entries[l.n++];
        entry = {want.id, {-1, -1}};
        for (int half = 0; half < 2; half++) {
            if (!(half == 0 ? want.gate : want.up_down)) continue;
            entry.sector[half] = int32_t(lane_begin(lane) + l.used);
            l.used += range_of(layout, half).bytes / kSector;
        }
        if (block == block_) expect(entry);
    }
    send();
}

ggml::Read NeuronStore::read_of(int lane, int32_t run) const {
    const Lane& l = lanes_[lane];
    const StoredNeurons& block = blocks_[size_t(l.block)];
    const Run& of = tables_.runs[lane][run];
    ggml::Read read;
    read.tag = uint64_t(lane) << 32 | uint32_t(run);
    uint64_t end = 0;  // in the file
    for (int32_t i = of.begin; i < of.end; i++) {
        const Entry& e = tables_.entries[lane][i];
        for (int half = 0; half < 2; half++) {
            if (e.sector[half] < 0) continue;
            const StoreLayout::Range& range = range_of(block.layout, half);
            const uint64_t from = offset_of(l.block, e.id) + uint64_t(range.offset);
            uint8_t* const to = at(e.sector[half]);
            if (read.n_pieces == 0) {
                read.offset = from;
            } else if (from > end) {
                read.pieces[read.n_pieces++] = {nullptr, uint32_t(from - end)};
            }
            ggml::ReadPiece* const last = read.n_pieces ? &read.pieces[read.n_pieces - 1] : nullptr;
            if (last && last->to && last->to + last->bytes == to) {
                last->bytes += uint32_t(range.bytes);
            } else {
                read.pieces[read.n_pieces++] = {to, uint32_t(range.bytes)};
            }
            end = from + uint64_t(range.bytes);
        }
    }
    return read;
}

void NeuronStore::send() {
    constexpr int kAtOnce = 32;
    ggml::Read reads[kAtOnce];
    // Which neurons are needed is known when the predictor has come.
    int32_t file = 0;  // its own
    while (predictors_ && !reads_.failed() && predictors_->next(reads[0], file)) {
        const ggml::Read of_page = reads[0];
        reads[0].tag |= kPredictors;
        if (reads_.submit(0, reads, 1) == 0) return;
        StoreCounts& done = counts_of(predictors_->block_of(of_page.tag));
        predictors_->sent(of_page);
        done.bytes += of_page.bytes();
        done.reads++;
    }
    for (int lane = 0; lane < StoreShape::kLanes; lane++) {
        Lane& l = lanes_[lane];
        while (l.sent < l.n_runs && !reads_.failed()) {
            const int n = std::min(kAtOnce, l.n_runs - l.sent);
            for (int i = 0; i < n; i++) reads[i] = read_of(lane, l.sent + i);
            const int taken = reads_.submit(0, reads, n);
            StoreCounts& done = counts_of(l.block);
            for (int i = 0; i < taken; i++) done.bytes += reads[i].bytes();
            done.reads += uint64_t(taken);
            l.sent += taken;
            if (taken < n) return;
        }
    }
}

bool NeuronStore::intact(int lane, const Entry& e) const {
    const int32_t block = lanes_[lane].block;
    const StoreLayout& layout = blocks_[size_t(block)].layout;
    for (int half = 0; half < 2; half++) {
        if (e.sector[half] < 0) continue;
        const uint32_t expected = tables_.crc[(blocks().first(block) + e.id) * 2 + half];
        const auto size = size_t(range_of(layout, half).bytes);
        if (ggml::crc32c(at(e.sector[half]), size) != expected) return false;
    }
    return true;
}

void NeuronStore::read_done(int32_t file, const ggml::ReadDone& done) {
    const auto failed = [&](const char* what, int32_t block) {
        if (!done.error) return false;
        reads_.fail(Code::io, file,
                    done.error == ggml::kShortRead
                        ? format("the file ends before the %s that it had when it was opened", what)
                        : format("reading %s of block %d failed: %s", what, block,
                                 std::strerror(done.error)));
        return true;
    };
    if (done.tag & kPredictors) {
        failed("predictor", predictors_->done(done.tag & ~kPredictors, done.error != 0));
        return;
    }
    const auto lane = int(done.tag >> 32);
    Lane& l = lanes_[lane];
    const Run& run = tables_.runs[lane][uint32_t(done.tag)];
    if (failed("neurons", l.block)) return;
    for (int32_t k = run.begin; k < run.end; k++) tables_.arrived[lane][l.n_arrived++] = k;
}

// Compares the checksums of what arrived and has not been given to the caller, up to `end`.
void NeuronStore::check(ggml::Threads& threads, int lane, int32_t end) {
    const Lane& l = lanes_[lane];
    const int32_t* const arrived = tables_.arrived[lane];
    std::atomic<int32_t> damaged{-1};
    threads.run(end - l.given, kPiece, [&](int64_t first, int64_t last, int) {
        for (int64_t i = l.given + first; i < l.given + last; i++) {
            const Entry& e = tables_.entries[lane][arrived[i]];
            if (!intact(lane, e)) damaged.store(e.id, std::memory_order_relaxed);
        }
    });
    if (damaged < 0) return;
    reads_.fail(Code::format, 0,
                format("neuron %d of block %d does not match its checksum: the file is damaged or "
                       "was changed while it was open",
                       row_of(l.block, damaged.load()), l.block));
}

int64_t NeuronStore::requested(int lane, int32_t* ids) const {
    for (int32_t i = 0; i < lanes_[lane].n; i++) ids[i] = tables_.entries[lane][i].id;
    return lanes_[lane].n;
}

bool NeuronStore::complete(int lane) const {
    return lanes_[lane].given == lanes_[lane].n;
}

// Waits for something that the block needs.
template <typename F>
void NeuronStore::wait_until(int32_t block, const F& done) {
    counts_of(block).waited_s += reads_.wait_until(done, [] { return false; }, [] { return 0; });
    reads_.require();
}

int64_t NeuronStore::arrived(ggml::Threads& threads, int lane, bool wait, NeuronParts* out,
                             int64_t n) {
    Lane& l = lanes_[lane];
    wait_until(l.block, [&] { return !wait || l.given < l.n_arrived || l.given == l.n; });
    const auto end = int32_t(std::min<int64_t>(l.n_arrived, l.given + n));
    check(threads, lane, end);
    reads_.require();
    int64_t given = 0;
    while (l.given < end) {
        const Entry& e = tables_.entries[lane][tables_.arrived[lane][l.given++]];
        for (int half = 0; half < 2 && l.block == block_; half++) {
            if (e.sector[half] >= 0) tables_.row_at[half][e.id] = e.sector[half];
        }
        out[given++] = {e.id, e.sector[0] >= 0, e.sector[1] >= 0};
    }
    return given;
}

void NeuronStore::finish(ggml::Threads& threads, int lane) {
    constexpr int64_t kAtOnce = 64;
    NeuronParts out[kAtOnce];
    while (!complete(lane)) arrived(threads, lane, true, out, kAtOnce);
}

void NeuronStore::keep(ggml::Threads& threads, int lane, int64_t end) {
    Lane& l = lanes_[lane];
    const StoreLayout& layout = blocks_[size_t(l.block)].layout;
    Residency& residency = tables_.residency;
    const Entry* const entries = tables_.entries[lane];
    Copy* const copies = tables_.copies;
    int64_t n = 0;
    for (Half half : {Half::gate, Half::up_down}) {
        for (int32_t i = 0; i < l.n; i++) {
            if (entries[i].sector[int(half)] < 0 || entries[i].id >= end) continue;
            const int32_t slot = residency.admit(half, l.block, entries[i].id);
            if (slot >= 0) copies[n++] = {i, half, slot};
        }
    }
    threads.run(n, kPiece, [&](int64_t first, int64_t last, int) {
        for (int64_t i = first; i < last; i++) {
            const Copy& copy = copies[i];
            const Entry& e = entries[copy.entry];
            // A later part may have got the slot.
            if (residency.slots(copy.half, l.block)[e.id] != copy.slot) continue;
            std::memcpy(at(slot_at(int(copy.half), copy.slot)), at(e.sector[int(copy.half)]),
                        size_t(range_of(layout, int(copy.half)).bytes));
        }
    });
    counts_of(l.block).admitted += uint64_t(n);
    for (int32_t i = 0; i < l.n && l.block == block_; i++) {
        for (int half = 0; half < 2; half++) {
            if (entries[i].sector[half] < 0) continue;
            // Its room in the lane is about to be used for others.
            const int32_t slot = residency.slots(Half(half), l.block)[entries[i].id];
            tables_.row_at[half][entries[i].id] = slot < 0 ? kAbsent : int32_t(slot_at(half, slot));
        }
    }
    l = {};
}

void NeuronStore::request_predictor(int32_t block) {
    const bool before = predictors_->requested(block);
    if (!predictors_->request(block) || before) return;
    counts_of(block).predictors++;
    send();
}

const std::vector<ggml::Matrix>& NeuronStore::predictor(ggml::Context& context, int32_t block) {
    request_predictor(block);
    if (!predictors_->requested(block)) {
        throw Error(Code::internal, "all frames for predictors are in use");
    }
    wait_until(block, [&] { return predictors_->complete(block); });
    try {
        return predictors_->matrices(context, block);
    } catch (const Error& e) {
        reads_.fail(e.code(), 0, e.what());
        reads_.require();
        throw;
    }
}

void NeuronStore::begin(int64_t n_tokens) {
    if (reads_.unsettled()) reset();
    reads_.require();
    tables_.residency.begin(int32_t(n_tokens));
    if (predictors_) predictors_->begin(int32_t(n_tokens));
    tokens_ += n_tokens;
    if (tokens_ < adapt_at_ || lent_) return;
    adapt();
    adapt_at_ = 2 * tokens_;
}

void NeuronStore::reset() {
    for (Lane& l : lanes_) l.n_runs = l.sent;  // sends no more
    if (predictors_) predictors_->stop();
    close();
    if (!reads_.settle()) return;
    for (Lane& l : lanes_) l = {};
    if (predictors_) predictors_->forget();
}

}  // namespace powerinfer
