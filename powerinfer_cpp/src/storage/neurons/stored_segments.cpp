#include "storage/neurons/stored_segments.h"

namespace powerinfer {

using ggml::kSegments;
using ggml::Segment;
using ggml::segment_of;

StoredSegments::StoredSegments(ggml::Threads& threads, NeuronStore& store, int32_t block,
                               int32_t next, std::function<bool(int32_t)> needed,
                               NeuronParts* parts)
    : threads_(threads),
      store_(store),
      block_(block),
      next_(next),
      needed_(std::move(needed)),
      parts_(parts) {
    // They find what was read for the rows before.
    store.keep_unkept(threads);
    store.open(block);
}

void StoredSegments::bring(int64_t begin, int64_t end) {
    const auto lane = [&](int64_t s) -> int& { return lanes_[s % StoreShape::kLanes]; };
    for (; begin_ < begin; begin_++) {
        if (end_ == begin_) lane(end_++) = await(begin_);  // left out by the caller
        store_.keep(threads_, lane(begin_));
    }
    for (; end_ < end; end_++) lane(end_) = await(end_);
}

// Asks for what a segment of the open block lacks. Returns whether that is anything.
bool StoredSegments::request(int lane, int64_t s) {
    const Segment segment = segment_of(store_.blocks().size(block_), s);
    int64_t n = 0;
    for (auto id = int32_t(segment.begin); id < segment.end; id++) {
        NeuronParts& m = parts_[n];
        m = {id, !store_.has(Half::gate, id), !store_.has(Half::up_down, id)};
        n += (m.gate || m.up_down) && needed_(id);
    }
    store_.label(lane, tag(block_, s));
    store_.request(lane, block_, parts_, n);
    return n > 0;
}

// Asks for what a segment of the next block lacks. Which neurons its rows need is not known.
void StoredSegments::request_next(int lane, int64_t s) {
    const Segment segment = segment_of(store_.blocks().size(next_), s);
    const int32_t* const slot[2] = {store_.residency().slots(Half::gate, next_),
                                    store_.residency().slots(Half::up_down, next_)};
    int64_t n = 0;
    for (auto id = int32_t(segment.begin); id < segment.end; id++) {
        NeuronParts& m = parts_[n];
        m = {id, slot[0][id] < 0, slot[1][id] < 0};
        n += m.gate || m.up_down;
    }
    store_.label(lane, tag(next_, s));
    store_.request(lane, next_, parts_, n);
}

// Keeps the disk busy with the segments that come next, and waits for segment s. Returns its lane.
int StoredSegments::await(int64_t s) {
    int lane = store_.lane_of(tag(block_, s));
    if (lane < 0) request(lane = store_.free_lane(), s);
    for (int64_t ahead = s + 1; ahead < s + StoreShape::kLanes; ahead++) {
        const bool here = ahead < kSegments;
        if (!here && next_ < 0) break;
        const int32_t block = here ? block_ : next_;
        const int free = store_.free_lane();
        if (store_.lane_of(tag(block, ahead % kSegments)) >= 0 || free < 0) continue;
        if (here) {
            request(free, ahead);
        } else {
            request_next(free, ahead % kSegments);
        }
    }
    store_.finish(threads_, lane);
    // What was in memory when the segment was requested for the block before may be gone.
    if (request(lane, s)) store_.finish(threads_, lane);
    return lane;
}

}  // namespace powerinfer
