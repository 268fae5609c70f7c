#include "forward/parts/neurons.h"

#include <algorithm>

#include "ggml/status.h"
#include "storage/neurons/stored_segments.h"

namespace powerinfer {

using ggml::Input;
using ggml::kSegments;
using ggml::kTogether;
using ggml::NeuronMask;
using ggml::Neurons;
using ggml::Segment;
using ggml::segment_of;

namespace {

// Fewer rows, unless predictors mask them, are computed one after the other: they read the neurons
// that fire, while many rows together need nearly all.
constexpr int64_t kOneByOne = 8;
// Neurons between two looks at the disk: some 0.1 ms of products with 4,096 columns in Q4_0.
constexpr int64_t kChunk = 512;
// Segments that are added together while others wait for the disk: enough for several threads.
constexpr int64_t kAddedTogether = 8;

Input prepare(const Pass& p, const Neurons& w, const float* x, int64_t n) {
    const bool q8 = w.gate.wants_q8() || w.up.wants_q8();
    return p.work.input.prepare(p.context, x, n, w.cols, q8);
}

// The neurons of a row that the mask allows, or those that are listed.
void list_candidates(const Pass& p, const NeuronBlock& in, const NeuronMask& mask) {
    if (in.listed) {
        ggml::select_listed(in.listed, in.n_listed, in.neurons.n, p.work.neurons.candidates);
    } else {
        ggml::select(p.context, mask, in.neurons.n, p.work.neurons.candidates);
    }
}

ggml::NeuronCounts& counts_of(const Pass& p, const FeedForward& part) {
    return p.counts.neurons[size_t(part.index)];
}

// Computes a segment of row t without the mask.
void audit_row(const Pass& p, const NeuronBlock& in, const Neurons& w, const Input& input,
               int64_t t, const NeuronMask& mask, int64_t segment) {
    p.audit.add(in.part.index,
                ggml::audit_segment(p.context, w, input, t, mask, segment, p.work.neurons.scratch));
}

// All neurons are in RAM.
void compute_all(const Pass& p, const NeuronBlock& in, float* y) {
    Workspace& b = p.work;
    const Input input = prepare(p, in.neurons, in.x, in.n);
    ggml::NeuronCounts& counts = counts_of(p, in.part);
    if (in.n == 1) {
        list_candidates(p, in, in.mask);
        b.neurons.scratch.computed = p.record.needs(in.part.index, in.expert, b.neurons.candidates);
        const int64_t n_sums =
            ggml::partial_ffn(p.context, in.neurons, input, b.neurons.candidates, b.neurons.scratch,
                              b.neurons.sums, &counts, p.flags());
        ggml::merge(p.context, in.neurons, b.neurons.sums, n_sums, y);
    } else {
        ggml::rows_ffn(p.context, in.neurons, input, in.mask, b.neurons.scratch, y, &counts,
                       p.flags());
    }
    for (int64_t t = 0; in.audited && t < in.n; t++) {
        if (in.audited[t] >= 0) audit_row(p, in, in.neurons, input, t, in.mask, in.audited[t]);
    }
}

// Names a segment of a block for a lane; of blocks with one row, which have whole lanes, the first.
int64_t tag(int32_t block, int64_t segment) {
    return int64_t(block) * kSegments + segment;
}

// Does a predictor mask every row? Then the rows need few neurons, tokens that follow each other
// nearly the same ones, and what one row has read may get no slot before the next row needs it.
// Together they read it once. A 1B with a cache for none of its neurons read 672,000 times for 96
// tokens alone, 693,000 times with drafts row by row, and 147,000 times with drafts together.
bool all_masked(const NeuronBlock& in) {
    for (int64_t t = 0; t < in.n; t++) {
        if (!in.mask.masks(t)) return false;
    }
    return true;
}

// May the only row compute the neuron?
bool may_compute(const NeuronBlock& in, int32_t id) {
    return !in.mask.masks(0) || in.mask.finds(0, in.neurons.n, id);
}

// One row: the gates that are in memory first, while the disk brings others; then the other rows of
// neurons that fire, as they arrive; and the sums, segment by segment in order, as soon as all
// values of a segment are there. What the row before read gets its slots while the disk works. If
// the staging area is too small for all neurons that are missing, a window of segments after the
// other.
class OneRow {
 public:
    OneRow(const Pass& p, const NeuronBlock& in, int64_t row)
        : p_(p),
          store_(p.source.store()),
          in_(in),
          mask_(in.mask),
          w_(store_.rows(in.neurons)),
          input_(prepare(p, w_, in.x + row * in.neurons.cols, 1)),
          scratch_(p.work.neurons.scratch),
          s_(p.work.neurons.stored),
          candidates_(p.work.neurons.candidates) {
        if (mask_.masked) mask_.masked += row;
        if (mask_.score) mask_.score += row * w_.n;
        list_candidates(p, in, mask_);
    }

    void run(float* y) {
        ggml::prepare_steps(p_.context, w_, input_, scratch_);
        choose_lane();
        request_gates(window(0, false));
        keep_earlier();
        compute_resident_gates();
        for (int64_t begin = 0, end = 0; begin < kSegments; begin = end) {
            end = std::max(requested_, window(begin, true));
            used_ = segment_of(w_.n, end - 1).end;
            request_gates(end);
            request_up_downs(begin, end);
            for (int64_t i = 0; i < n_ready_; i += kChunk) {
                gated_values(s_.ready + i, std::min(kChunk, n_ready_ - i));
                compute_arrived(false);
            }
            add(begin, end);
            learn(begin, end);
            if (end < kSegments) {
                // Neurons that were asked for beforehand, and found no room now, are read again.
                while (!store_.complete(lane_)) compute_arrived(true);
                store_.keep(p_.context.threads, lane_, segment_of(w_.n, end).begin);
            }
        }
        ggml::merge(p_.context, w_, p_.work.neurons.sums, ggml::kSegments, y);
    }

    // After run(). Reads what memory lacks of the segment; without room for that, finds nothing.
    void audit(int64_t segment) {
        store_.keep(p_.context.threads, lane_);
        lane_ = store_.roomiest_lane();
        const Segment all = segment_of(w_.n, segment);
        int64_t n = 0, bytes = 0;
        for (auto id = int32_t(all.begin); id < all.end; id++) {
            const NeuronParts& m = s_.parts[n] = missing(id, false);
            bytes += store_.bytes(m);
            n += m.gate || m.up_down;
        }
        if (lane_ < 0 || bytes > store_.room(lane_)) return;
        store_.request(lane_, in_.number(), s_.parts, n);
        store_.finish(p_.context.threads, lane_);
        audit_row(p_, in_, w_, input_, 0, mask_, segment);
    }

    // values [n]: what the row's neurons gave, 0 for those that did not fire.
    void keep_values(float* values) const {
        std::fill_n(values, w_.n, 0.0f);
        for_candidates(0, kSegments, [&](int32_t id) { values[id] = s_.values[id]; });
    }

    // fired: [n] or null.
    void count(bool* fired) const {
        ggml::NeuronCounts& counts = counts_of(p_, in_.part);
        counts.rows++;
        p_.counts.from_disk[size_t(in_.part.index)] += n_arrived_;
        counts.proposed += n_gates_;
        counts.computed += n_gates_fired_;
        counts.fired += n_fired_;
        if (!fired) return;
        std::fill_n(fired, w_.n, false);
        for_candidates(0, kSegments, [&](int32_t id) { fired[id] = s_.values[id] != 0; });
    }

 private:
    template <typename F>
    void for_candidates(int64_t begin, int64_t end, const F& use) const {
        for (int64_t s = begin; s < end; s++) {
            const int32_t* const ids = candidates_.ids + segment_of(w_.n, s).begin;
            for (int32_t i = 0; i < candidates_.count[s]; i++) use(ids[i]);
        }
    }

    // Takes the lane that was filled beforehand; or one beside that with what the row before
    // read, if it has room for all that is missing.
    void choose_lane() {
        lane_ = store_.lane_of(tag(in_.number(), 0));
        if (lane_ >= 0) {
            store_.label(lane_, -1);
            const int64_t n = store_.requested(lane_, s_.arrived);
            for (int64_t i = 0; i < n; i++) awaited_[segment_with(s_.arrived[i])]++;
            return;
        }
        lane_ = store_.roomiest_lane();
        if (lane_ >= 0 && window(0, false) == kSegments) return;
        keep_earlier();
        lane_ = store_.roomiest_lane();
        if (lane_ < 0) throw ggml::Error(ggml::Code::internal, "all lanes are in use");
    }

    void keep_earlier() {
        const int earlier = store_.unkept(lane_);
        if (earlier >= 0) store_.keep(p_.context.threads, earlier);
    }

    // What a candidate needs from the disk and has not been asked for. Before its gate is
    // computed (known: false) it is assumed to fire.
    NeuronParts missing(int32_t id, bool known) const {
        const bool gate = store_.absent(Half::gate, id);
        const bool fires = gate || !known || s_.values[id] != 0;
        return {id, gate, fires && store_.absent(Half::up_down, id)};
    }

    // The end of the segments from `begin` on whose missing parts fit the staging area, which takes
    // any one segment.
    int64_t window(int64_t begin, bool known) const {
        int64_t left = store_.room(lane_);
        for (int64_t end = begin; end < kSegments; end++) {
            for_candidates(end, end + 1,
                           [&](int32_t id) { left -= store_.bytes(missing(id, known)); });
            if (left < 0) return end;
        }
        return kSegments;
    }

    // Asks for the candidates up to segment `end` whose gates are missing, and for their up and
    // down rows.
    void request_gates(int64_t end) {
        if (end <= requested_) return;
        int64_t n = 0;
        for_candidates(requested_, end, [&](int32_t id) {
            s_.parts[n] = missing(id, false);
            n += s_.parts[n].gate;
        });
        requested_ = end;
        request(n);
    }

    // Asks for the n neurons in s_.parts.
    void request(int64_t n) {
        for (int64_t i = 0; i < n; i++) awaited_[segment_with(s_.parts[i].id)]++;
        store_.request(lane_, in_.number(), s_.parts, n);
    }

    int64_t segment_with(int32_t id) const { return id / segment_of(w_.n, 0).end; }

    // Computes the gates that are in memory, for all segments.
    void compute_resident_gates() {
        for_candidates(0, kSegments, [&](int32_t id) {
            s_.here[n_here_] = id;
            n_here_ += store_.has(Half::gate, id);
            n_gates_++;
        });
        for (int64_t i = 0; i < n_here_; i += kChunk) {
            first_values(s_.here + i, std::min(kChunk, n_here_ - i));
            if (requested_ == kSegments) compute_arrived(false);
        }
    }

    // Of the neurons with a resident gate that fire: lists those whose up and down rows are here,
    // too, and asks for the others'.
    void request_up_downs(int64_t begin, int64_t end) {
        const auto at = [&](int64_t s) {
            return std::lower_bound(s_.here, s_.here + n_here_, segment_of(w_.n, s).begin);
        };
        int64_t n = 0;
        n_ready_ = 0;
        for (const int32_t* id = at(begin); id < at(end); id++) {
            if (s_.values[*id] == 0) continue;
            if (store_.has(Half::up_down, *id)) {
                s_.ready[n_ready_++] = *id;
            } else {
                s_.parts[n++] = {*id, false, true};
            }
        }
        request(n);
    }

    // Adds up segments, each when nothing of it is awaited any more.
    void add(int64_t begin, int64_t end) {
        while (begin < end) {
            int64_t known = begin;
            while (known < end && awaited_[known] == 0) known++;
            if (known < std::min(end, begin + kAddedTogether)) {
                compute_arrived(true);
                continue;
            }
            ggml::sum_values(p_.context, w_, input_, scratch_, candidates_, s_.values, begin, known,
                             p_.work.neurons.sums);
            begin = known;
        }
    }

    // Computes what has arrived of the segments that are added next. The others were asked for
    // beforehand, and are read again.
    void compute_arrived(bool wait) {
        const int64_t n_arrived = store_.arrived(p_.context.threads, lane_, wait, s_.parts, w_.n);
        int32_t* const arrived = s_.arrived;
        int64_t n = 0, n_gates = 0, n_fire = 0;
        for (int64_t i = 0; i < n_arrived; i++) {
            const NeuronParts part = s_.parts[i];
            awaited_[segment_with(part.id)]--;
            if (part.id >= used_) continue;
            if (part.gate) arrived[n_gates++] = part.id;
            s_.parts[n++] = part;
        }
        n_missed_[0] += n_gates;
        first_values(arrived, n_gates);
        for (int64_t i = 0; i < n; i++) {
            n_missed_[1] += s_.parts[i].up_down && s_.values[s_.parts[i].id] != 0;
        }
        for (int64_t i = 0; i < n_gates; i++) {
            if (s_.values[arrived[i]] == 0) continue;
            if (store_.absent(Half::up_down, arrived[i])) {
                throw ggml::Error(ggml::Code::internal,
                                  "up and down rows of a neuron were not asked for");
            }
            arrived[n_fire++] = arrived[i];
        }
        for (int64_t i = 0; i < n; i++) {
            if (!s_.parts[i].gate) arrived[n_fire++] = s_.parts[i].id;
        }
        n_arrived_ += n_fire;
        gated_values(arrived, n_fire);
    }

    void first_values(const int32_t* ids, int64_t n) {
        if (n) ggml::first_values(p_.context, w_, input_, scratch_, ids, n, s_.values);
    }

    // Of neurons whose gate is not 0.
    void gated_values(const int32_t* ids, int64_t n) {
        n_gates_fired_ += n;
        if (w_.gate && n) ggml::gated_values(p_.context, w_, input_, scratch_, ids, n, s_.values);
    }

    // Tells what the row needed.
    void learn(int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; s++) {
            const int32_t* const ids = candidates_.ids + segment_of(w_.n, s).begin;
            const int64_t n = candidates_.count[s];
            store_.residency().count(Half::gate, in_.number(), ids, n);
            int64_t n_fired = 0;
            for (int64_t i = 0; i < n; i++) {
                s_.arrived[n_fired] = ids[i];
                n_fired += s_.values[ids[i]] != 0;
            }
            store_.residency().count(Half::up_down, in_.number(), s_.arrived, n_fired);
            n_fired_ += n_fired;
        }
        if (end < kSegments) return;
        StoreCounts& counts = store_.counts[size_t(in_.part.index)];
        counts.needed[0] += uint64_t(n_gates_);
        counts.needed[1] += uint64_t(n_gates_fired_);
        for (int half = 0; half < 2; half++) counts.missed[half] += uint64_t(n_missed_[half]);
    }

    const Pass& p_;
    NeuronStore& store_;
    const NeuronBlock& in_;
    NeuronMask mask_;
    const Neurons w_;
    const Input input_;
    ggml::NeuronScratch& scratch_;
    StoredScratch& s_;
    ggml::Candidates& candidates_;
    int lane_ = -1;
    int32_t awaited_[kSegments] = {};  // neurons whose parts were asked for, and have not come
    int64_t requested_ = 0;     // segments up to here: their missing candidates have been requested
    int64_t used_ = INT64_MAX;  // the first neuron of the segments that are not added next
    int64_t n_here_ = 0, n_ready_ = 0;
    int64_t n_gates_ = 0, n_gates_fired_ = 0, n_fired_ = 0, n_missed_[2] = {0, 0};
    int64_t n_arrived_ = 0;  // computed neurons of which the disk brought a part
};

// Many rows: all segments one after the other.
class ManyRows {
 public:
    ManyRows(const Pass& p, const NeuronBlock& in)
        : p_(p),
          store_(p.source.store()),
          in_(in),
          s_(p.work.neurons.stored),
          segments_(
              p.context.threads, store_, in.number(), in.mask.masked ? -1 : in.next,
              [this](int32_t id) { return needed(id); }, s_.parts),
          w_(store_.rows(in.neurons)),
          input_(prepare(p, w_, in.x, in.n)) {}

    void run(float* y) {
        for (int64_t s = 0; s < kSegments; s += kTogether) {
            segments_.bring(s, s + kTogether);
            ggml::rows_ffn_segments(p_.context, w_, input_, in_.mask, p_.work.neurons.scratch, s,
                                    s_.partial, y, &counts_of(p_, in_.part), p_.flags(), s_.fires);
            learn({segment_of(w_.n, s).begin, segment_of(w_.n, s + kTogether - 1).end});
            for (int64_t t = 0; in_.audited && t < in_.n; t++) {
                const int64_t segment = in_.audited[t];
                if (segment < s || segment >= s + kTogether) continue;
                audit_row(p_, in_, w_, input_, t, in_.mask, segment);
            }
        }
        segments_.end();
    }

 private:
    // May any row compute the neuron?
    bool needed(int32_t id) const {
        const int64_t segment = id / segment_of(w_.n, 0).end;
        for (int64_t t = 0; t < in_.n; t++) {
            if (!in_.mask.masks(t) || in_.mask.finds(t, w_.n, id)) return true;
            if (in_.audited && in_.audited[t] == segment) return true;
        }
        return false;
    }

    // Tells what the rows needed. Counts for how many of them the disk brought a neuron that fired.
    void learn(Segment ids) {
        int64_t& from_disk = p_.counts.from_disk[size_t(in_.part.index)];
        StoreCounts& counts = store_.counts[size_t(in_.part.index)];
        for (auto id = int32_t(ids.begin); id < ids.end; id++) {
            const int64_t fires = s_.fires[id];
            if (fires == 0) continue;
            bool staged = false;
            for (Half half : {Half::gate, Half::up_down}) {
                store_.residency().count(half, in_.number(), &id, 1, float(fires));
                counts.needed[int(half)] += uint64_t(fires);
                if (!store_.staged(half, id)) continue;
                counts.missed[int(half)] += uint64_t(fires);
                staged = true;
            }
            from_disk += staged ? fires : 0;
        }
    }

    const Pass& p_;
    NeuronStore& store_;
    const NeuronBlock& in_;
    StoredScratch& s_;
    StoredSegments segments_;  // opens the block
    const Neurons w_;
    const Input input_;
};

}  // namespace

void request_neurons(const Pass& p, const NeuronBlock& in) {
    NeuronStore& store = p.source.store();
    if (store.lane_of(tag(in.number(), 0)) >= 0) return;
    int lane = store.roomiest_lane();
    if (lane < 0 && store.unkept() >= 0) {
        store.keep(p.context.threads, store.unkept());
        lane = store.roomiest_lane();
    }
    if (lane < 0) return;
    const int32_t* const slot = store.residency().slots(Half::gate, in.number());
    store.label(lane, tag(in.number(), 0));
    int64_t n = 0, left = std::min(store.room(lane), store.shape().lanes);
    for (auto id = int32_t(0); id < int32_t(in.neurons.n); id++) {
        // With up and down even if they are in memory: they may be gone when the block is computed.
        const NeuronParts whole{id, true, true};
        if (slot[id] >= 0 || !may_compute(in, id) || store.bytes(whole) > left) continue;
        left -= store.bytes(whole);
        p.work.neurons.stored.parts[n++] = whole;
    }
    store.request(lane, in.number(), p.work.neurons.stored.parts, n);
}

void request_scored(const Pass& p, const NeuronBlock& in, ggml::Segment scored) {
    NeuronStore& store = p.source.store();
    // What the row before read of this block may still get slots, and take those of others.
    if (store.unkept_block() == in.number()) return;
    const int32_t* const slot[2] = {store.residency().slots(Half::gate, in.number()),
                                    store.residency().slots(Half::up_down, in.number())};
    NeuronParts* const parts = p.work.neurons.stored.parts;
    int64_t n = 0, bytes = 0;
    const auto list = [&] {
        n = bytes = 0;
        for (auto id = int32_t(scored.begin); id < int32_t(scored.end); id++) {
            if (slot[0][id] >= 0 || !may_compute(in, id)) continue;
            parts[n] = {id, true, slot[1][id] < 0};
            bytes += store.bytes(parts[n++]);
        }
    };
    list();
    int lane = store.lane_of(tag(in.number(), 0));
    if (lane < 0) {
        if (scored.begin > 0) return;
        lane = store.roomiest_lane();
        const auto has_room = [&] {
            // The others will need as much for each, and somewhat more.
            const int64_t all = bytes * in.neurons.n / scored.end;
            return lane >= 0 && store.room(lane) >= all + all / 8;
        };
        if (!has_room()) {
            store.keep_unkept(p.context.threads);
            lane = store.roomiest_lane();
            list();  // parts of this block may have lost their slots
        }
        if (!has_room()) return;
        store.label(lane, tag(in.number(), 0));
    }
    if (bytes <= store.room(lane)) store.request(lane, in.number(), parts, n);
}

void compute_whole(const Pass& p, const FeedForward& part, const Neurons* experts, int64_t n,
                   const float* x, float* y) {
    Workspace& b = p.work;
    b.neurons.scratch.computed = nullptr;
    b.neurons.scratch.values = nullptr;
    ggml::whole_ffns(p.context, experts, n, prepare(p, experts[0], x, 1), b.neurons.scratch,
                     b.neurons.sums, y, &counts_of(p, part));
}

void compute_neurons(const Pass& p, const NeuronBlock& in, float* y) {
    if (!p.source.waits()) return compute_all(p, in, y);
    if (in.n > kOneByOne || (in.n > 1 && all_masked(in))) return ManyRows(p, in).run(y);
    NeuronStore& store = p.source.store();
    ggml::Threads& threads = p.context.threads;
    // Several rows of a block, and blocks that come again, find what was read for the row before.
    if (in.n > 1 || store.unkept_block() == in.number()) store.keep_unkept(threads);
    store.open(in.number());
    for (int64_t t = 0; t < in.n; t++) {
        if (t > 0) store.keep_unkept(threads);
        OneRow row(p, in, t);
        row.run(y + t * in.neurons.cols);
        float* const values = p.work.neurons.scratch.values;
        if (values) row.keep_values(values + t * in.neurons.n);
        row.count(p.flags() ? p.flags() + t * in.neurons.n : nullptr);
        if (in.audited && in.audited[t] >= 0) row.audit(in.audited[t]);
    }
    store.close();
}

}  // namespace powerinfer
