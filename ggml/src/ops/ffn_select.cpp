// Lists the neurons that may fire.
#include <numeric>

#include "ggml/neurons.h"

namespace ggml {

namespace {

// Neurons per thread; smaller lists are not worth a second thread.
constexpr int64_t kPiece = 2048;

}  // namespace

Candidates::Candidates(Carver& carver, int64_t n) {
    carver.take(all, {n});
    carver.take(chosen, {n});
    if (all) std::iota(all, all + n, 0);
}

void select(Context& context, const NeuronMask& mask, int64_t n, Candidates& candidates) {
    const OpTimer timer(context.profile, "select");
    if (!mask.masks(0)) {
        candidates.ids = candidates.all;
        for (int64_t s = 0; s < kSegments; s++) {
            const Segment segment = segment_of(n, s);
            candidates.count[s] = int32_t(segment.end - segment.begin);
        }
        return;
    }
    candidates.ids = candidates.chosen;
    const int64_t grain = std::max<int64_t>(1, kPiece / segment_of(n, 0).end);
    context.threads.run(kSegments, grain, [&](int64_t begin, int64_t end, int) {
        for (int64_t s = begin; s < end; s++) {
            const Segment segment = segment_of(n, s);
            candidates.count[s] =
                mask.list(0, n, segment.begin, segment.end, candidates.chosen + segment.begin);
        }
    });
}

void select_listed(const int32_t* ids, int64_t count, int64_t n, Candidates& candidates) {
    candidates.ids = candidates.chosen;
    const int32_t* const end = ids + count;
    for (int64_t s = 0; s < kSegments; s++) {
        const Segment segment = segment_of(n, s);
        const int32_t* const next = std::lower_bound(ids, end, int32_t(segment.end));
        std::copy(ids, next, candidates.chosen + segment.begin);
        candidates.count[s] = int32_t(next - ids);
        ids = next;
    }
}

}  // namespace ggml
