// The slots of a store: how the cache is divided between gates and up and down rows, what it lends,
// and what it holds at first.
#include <algorithm>
#include <cstring>

#include "ggml/status.h"
#include "storage/cache/split_pools.h"
#include "storage/neurons/store.h"

namespace powerinfer {

using ggml::Code;
using ggml::Error;

namespace {

constexpr int64_t kSector = StoreShape::kSector;

}  // namespace

int64_t StoreShape::least_lane() const {
    const int64_t neurons = ggml::segment_of(n, 0).end;
    return neurons * (gate_sectors + up_down_sectors) * kSector;
}

uint64_t StoreShape::arena_bytes() const {
    return uint64_t(cache_sectors * kSector + kLanes * lanes);
}

uint64_t StoreShape::lendable() const {
    // Where all gates are in memory, each has a slot of its own.
    const int64_t sectors = adapts ? cache_sectors : up_down_slots * up_down_sectors;
    const bool all = up_down_slots == residency().parts();
    return !adapts && all ? 0 : uint64_t(sectors / 2 * kSector);
}

ResidencyShape StoreShape::residency() const {
    ResidencyShape shape{n_blocks, n, gate_slots, up_down_slots, 0, 0, before};
    if (!adapts) {
        if (up_down_slots < shape.parts()) shape.most_up_down = up_down_slots;  // they are lent
        return shape;
    }
    shape.most_gate = std::min(shape.parts(), cache_sectors / gate_sectors);
    shape.most_up_down = std::min(shape.parts(), cache_sectors / up_down_sectors);
    return shape;
}

int64_t NeuronStore::slot_at(int half, int64_t slot) const {
    return half == 0 ? slot * shape_.gate_sectors
                     : shape_.cache_sectors - (slot + 1) * shape_.up_down_sectors;
}

int64_t NeuronStore::resident(int32_t block) const {
    const int32_t* const gate = tables_.residency.slots(Half::gate, block);
    const int32_t* const up_down = tables_.residency.slots(Half::up_down, block);
    int64_t n = 0;
    for (int32_t i = 0; i < blocks().size(block); i++) n += gate[i] >= 0 && up_down[i] >= 0;
    return n;
}

void NeuronStore::look(StoreStatus& to) const {
    const Residency& residency = tables_.residency;
    const ResidencyShape& shape = residency.shape();
    to.first_slots = shape.gate_slots, to.rest_slots = shape.up_down_slots;
    to.first_used = residency.used(Half::gate), to.rest_used = residency.used(Half::up_down);
    to.resident = tables_.resident;
    std::fill_n(to.resident, StoreStatus::bytes(shape.parts()), uint8_t(0));
    for (int32_t b = 0; b < shape.n_blocks; b++) {
        const int32_t* const gate = residency.slots(Half::gate, b);
        const int32_t* const up_down = residency.slots(Half::up_down, b);
        int64_t bit = shape.first(b);
        for (int32_t i = 0; i < shape.size(b); i++, bit++) {
            to.resident[bit / 8] |= uint8_t((gate[i] >= 0 && up_down[i] >= 0) << bit % 8);
        }
    }
}

// The best division of so many sectors, by what tokens have needed; and by what was expected of
// them, while they are few.
PoolSlots NeuronStore::best_slots(int64_t sectors) const {
    constexpr int64_t kEntries = 1 << 16;  // neurons that stand for all
    constexpr float kExpected = 8;         // tokens that the expectation weighs
    const Residency& residency = tables_.residency;
    const int64_t n_parts = blocks().parts();
    const int64_t step = std::max<int64_t>(1, n_parts / kEntries);
    std::vector<float> rates[2];
    for (Half half : {Half::gate, Half::up_down}) {
        const float expected = half == Half::gate ? shape_.gate_rate : shape_.up_down_rate;
        const float share = kExpected / (kExpected + float(residency.tokens()));
        rates[int(half)] = residency.rates(half, step);
        for (float& rate : rates[int(half)]) rate += share * (expected - rate);
    }
    const auto n = int64_t(rates[0].size());
    return split_pools(
        uint64_t(sectors * kSector),
        {uint64_t(shape_.gate_sectors * kSector), uint64_t(shape_.up_down_sectors * kSector)},
        rates[0].data(), rates[1].data(), n, kDisk, double(n_parts) / double(n),
        double(shape_.chosen));
}

void NeuronStore::adapt() {
    constexpr double kWorthIt = 0.03;  // of the cache
    // The plan knows as much as the expectation.
    if (!shape_.adapts || tables_.residency.tokens() == 0) return;
    const PoolSlots best = best_slots(shape_.cache_sectors);
    const ResidencyShape& now = tables_.residency.shape();
    const int64_t moved = std::abs(best.up_down - now.up_down_slots);
    if (double(moved * shape_.up_down_sectors) < kWorthIt * double(shape_.cache_sectors)) return;
    // The pool that shrinks comes first: it lies where the other one will grow.
    const bool gate_shrinks = best.gate < now.gate_slots;
    resize(gate_shrinks ? Half::gate : Half::up_down, best);
    resize(gate_shrinks ? Half::up_down : Half::gate, best);
}

void NeuronStore::resize(Half half, const PoolSlots& wanted) {
    Residency& residency = tables_.residency;
    const ResidencyShape& now = residency.shape();
    const bool gate = half == Half::gate;
    const int64_t size = gate ? shape_.gate_sectors : shape_.up_down_sectors;
    const int64_t other =
        gate ? now.up_down_slots * shape_.up_down_sectors : now.gate_slots * shape_.gate_sectors;
    const int64_t fits = (shape_.cache_sectors - other) / size;
    std::vector<Residency::Move> moves;
    residency.resize(half, std::min({gate ? wanted.gate : wanted.up_down, fits, now.most(half)}),
                     moves);
    for (const Residency::Move& m : moves) {
        std::memcpy(at(slot_at(int(half), m.to)), at(slot_at(int(half), m.from)),
                    size_t(size * kSector));
    }
}

ggml::Carver NeuronStore::lend(uint64_t bytes) {
    const ResidencyShape now = tables_.residency.shape();
    const auto sectors = int64_t((bytes + kSector - 1) / kSector);
    slots_[0] = now.gate_slots, slots_[1] = now.up_down_slots;
    lent_ = true;
    PoolSlots left{now.gate_slots, now.up_down_slots};
    if (shape_.adapts) {
        // What the best division of a smaller cache has less.
        const int64_t room = shape_.cache_sectors - sectors;
        const PoolSlots best = best_slots(room);
        left.gate = std::min(left.gate, best.gate);
        left.up_down = std::min(left.up_down,
                                (room - left.gate * shape_.gate_sectors) / shape_.up_down_sectors);
        resize(Half::gate, left);
    } else {
        left.up_down -= (sectors + shape_.up_down_sectors - 1) / shape_.up_down_sectors;
    }
    resize(Half::up_down, left);
    const int64_t begin = slot_at(0, left.gate), end = slot_at(1, left.up_down - 1);
    if (end - begin < sectors) throw Error(Code::internal, "the cache lends more than it has");
    return ggml::Carver(at(begin), bytes);
}

void NeuronStore::take_back() noexcept {
    if (shape_.adapts) tables_.residency.grow(Half::gate, slots_[0]);
    tables_.residency.grow(Half::up_down, slots_[1]);
    lent_ = false;
}

void NeuronStore::fill_blocks(void (*progress)(void*, float), void* data) {
    // Slots first, in order of worth; then the blocks one after the other, as the disk likes it.
    Residency& residency = tables_.residency;
    for (const RankedPart& part : residency.wanted())
        residency.admit(part.half, part.block, part.id);
    ggml::Threads threads(1);  // the disk is slower
    std::vector<NeuronParts> wanted;
    for (int32_t b = 0; b < shape_.n_blocks; b++) {
        const int32_t* const slot[2] = {residency.slots(Half::gate, b),
                                        residency.slots(Half::up_down, b)};
        const int32_t n = blocks().size(b);
        int32_t id = 0;
        while (id < n) {
            wanted.clear();
            int64_t left = room(0);
            for (; id < n; id++) {
                const NeuronParts parts{id, slot[0][id] >= 0, slot[1][id] >= 0};
                if (bytes(parts) > left) break;
                left -= bytes(parts);
                if (parts.gate || parts.up_down) wanted.push_back(parts);
            }
            request(0, b, wanted.data(), int64_t(wanted.size()));
            finish(threads, 0);
            keep(threads, 0);
        }
        progress(data, float(b + 1) / float(shape_.n_blocks));
    }
}

}  // namespace powerinfer
