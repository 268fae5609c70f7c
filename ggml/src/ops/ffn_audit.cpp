// Measures what a predictor misses, one segment at a time.
#include <algorithm>
#include <atomic>

#include "ops/neuron_rows.h"

namespace ggml {

AuditCounts audit_segment(Context& context, const Neurons& w, const Input& x, int64_t row,
                          const NeuronMask& mask, int64_t segment, NeuronScratch& scratch) {
    OpTimer timer(context.profile, "audit_segment");
    const cpu::RowProducts rows(context, w, x, scratch, row, row + 1);
    const auto token = int32_t(row);
    const Segment all = segment_of(w.n, segment);
    std::atomic<int64_t> computed{0}, fired{0}, found{0};
    context.threads.run(all.end - all.begin, cpu::kMostRows, [&](int64_t begin, int64_t end, int) {
        cpu::NeuronBatch batch;
        for (; begin < end; begin++) batch.push(int32_t(all.begin + begin), 0, nullptr);
        rows.gates(batch.ids, batch.n, &token, 1, batch.h);
        batch.drop_zeros();
        computed += batch.n;
        rows.values(batch.ids, batch.n, token, batch.h);
        batch.drop_zeros();
        fired += batch.n;
        found += std::count_if(batch.ids, batch.ids + batch.n,
                               [&](int32_t id) { return mask.finds(row, w.n, id); });
    });
    timer.read(uint64_t(all.end - all.begin) * cpu::row_bytes(w, cpu::first_rows(w)));
    if (w.gate) timer.read(uint64_t(computed) * cpu::row_bytes(w, w.up));
    return {fired, found};
}

}  // namespace ggml
