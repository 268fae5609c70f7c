// Measures what a predictor misses, one segment at a time.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "ops/ffn_parts.h"
#include "ops/neuron_rows.h"

namespace ggml {

AuditCounts audit_segment(Context& context, const Neurons& w, const Input& x, int64_t row,
                          const NeuronMask& mask, int64_t segment, NeuronScratch& scratch) {
    constexpr int64_t kPiece = 64;  // neurons in a thread's piece
    OpTimer timer(context.profile, "audit_segment");
    const cpu::RowProducts rows(context, w, x, scratch, row, row + 1);
    const int32_t token[1] = {int32_t(row)};
    const Segment all = segment_of(w.n, segment);
    std::atomic<int64_t> computed{0}, fired{0}, found{0};
    context.threads.run(all.end - all.begin, kPiece, [&](int64_t begin, int64_t end, int) {
        int32_t ids[kPiece];
        float h[kPiece], up[kPiece];
        int64_t n = end - begin;
        const auto keep = [&] {  // keeps the neurons whose value is not 0
            int64_t m = 0;
            for (int64_t i = 0; i < n; i++) {
                ids[m] = ids[i];
                h[m] = h[i];
                m += h[m] != 0;
            }
            n = m;
        };
        std::iota(ids, ids + n, int32_t(all.begin + begin));
        rows.dot(cpu::first_rows(w), cpu::first_bias(w), ids, n, token, 1, h);
        cpu::activate(w, h, n);
        keep();
        if (w.gate && n) {
            computed += n;
            rows.dot(w.up, w.up_bias, ids, n, token, 1, up);
            cpu::values(w, h, up, n, h);
            keep();
        }
        fired += n;
        found += std::count_if(ids, ids + n, [&](int32_t id) { return mask.finds(row, w.n, id); });
    });
    timer.read(uint64_t(all.end - all.begin) * cpu::row_bytes(w, cpu::first_rows(w)));
    if (w.gate) timer.read(uint64_t(computed) * cpu::row_bytes(w, w.up));
    return {fired, found};
}

}  // namespace ggml
