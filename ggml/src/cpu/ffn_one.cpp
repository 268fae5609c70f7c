// One token. Each thread takes segments and computes gate, up and down in one pass over the
// candidates.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "cpu/ffn_parts.h"
#include "cpu/neuron_rows.h"
#include "ggml/math.h"

namespace ggml {

float cpu::activate_smooth(const Neurons& w, float v) {
    const float a = w.act == Activation::silu ? silu(v) : gelu(v);
    return std::fabs(a) < w.threshold ? 0 : a;
}

namespace {

// Candidates per tile. The rows of a tile are prefetched while the tile before is computed.
constexpr int64_t kTile = 8;
// Columns whose sums stay in the L1 cache while segments are added.
constexpr int64_t kColumns = 256;

constexpr int32_t kFirst[1] = {0};  // the only token
constexpr int32_t kInOrder[kTile] = {0, 1, 2, 3, 4, 5, 6, 7};

// Neurons of one segment whose gates fired, and the destination of their sum.
struct Batch {
    int32_t ids[kTile];
    float h[kTile];
    int64_t n = 0;
    float* sum;
};

// Adjacent segments of one token, computed by one thread.
class OneToken {
 public:
    OneToken(const Neurons& w, const cpu::RowProducts& rows, const Candidates& candidates,
             bool* computed, bool* fired)
        : w_(w), rows_(rows), candidates_(candidates), computed_(computed), fired_(fired) {}

    // Computes segments [s0, s1): tiles of candidates, then batches of neurons whose gates fired.
    // The rows of a tile or batch are prefetched while the one before is computed, also across
    // segments.
    void run(int64_t s0, int64_t s1, float* sums) {
        const NeuronRows& first = cpu::first_rows(w_);
        Batch ready, waiting;
        // Computes `ready` while the rows of `waiting` are prefetched; then `waiting` becomes
        // `ready`.
        const auto move_on = [&] {
            finish(ready, waiting);
            ready = waiting;
            waiting.n = 0;
        };
        for (int64_t s = s0; s < s1; s++) {
            waiting.sum = sums + s * w_.cols;
            std::fill_n(waiting.sum, w_.cols, 0.0f);
            const int32_t *ids = ids_of(s), *end = ids + candidates_.count[s];
            while (ids < end) {
                const int64_t n = std::min<int64_t>(kTile, end - ids);
                cpu::Ahead ahead =
                    ahead_of(first, ids + n, std::min<int64_t>(kTile, end - ids - n));
                if (ids + n == end && s + 1 < s1) {
                    ahead = ahead_of(first, ids_of(s + 1),
                                     std::min<int64_t>(kTile, candidates_.count[s + 1]));
                }
                float g[kTile];
                rows_.dot(first, cpu::first_bias(w_), ids, n, kFirst, 1, g, ahead);
                for (int64_t j = 0; j < n; j++) {
                    const float v = cpu::activate(w_, g[j]);
                    if (v == 0) continue;
                    waiting.ids[waiting.n] = ids[j];
                    waiting.h[waiting.n++] = v;
                    if (waiting.n == kTile) move_on();
                }
                ids += n;
            }
            if (waiting.n) move_on();
        }
        finish(ready, waiting);
    }

    int64_t computed = 0, fired = 0;

 private:
    const int32_t* ids_of(int64_t s) const { return candidates_.ids + segment_of(w_.n, s).begin; }

    static cpu::Ahead ahead_of(const NeuronRows& rows, const int32_t* ids, int64_t n) {
        return {rows.data, rows.stride, ids, n};
    }

    void finish(Batch& batch, const Batch& next) {
        if (!batch.n) return;
        computed += batch.n;
        for (int64_t i = 0; computed_ && i < batch.n; i++) computed_[batch.ids[i]] = true;
        int64_t m = batch.n;
        if (w_.gate) {
            float u[kTile];
            rows_.dot(w_.up, w_.up_bias, batch.ids, m, kFirst, 1, u,
                      ahead_of(w_.up, next.ids, next.n));
            m = 0;
            for (int64_t i = 0; i < batch.n; i++) {
                batch.ids[m] = batch.ids[i];
                batch.h[m] = cpu::value(w_, batch.h[i], u[i]);
                m += batch.h[m] != 0;
            }
        }
        fired += m;
        for (int64_t i = 0; fired_ && i < m; i++) fired_[batch.ids[i]] = true;
        const int32_t first[] = {0, int32_t(m)};
        rows_.add(batch.ids, m, 0, w_.cols,
                  {first, kInOrder, batch.h, ahead_of(w_.down, next.ids, next.n)}, 1, batch.sum, 0);
    }

    const Neurons& w_;
    const cpu::RowProducts& rows_;
    const Candidates& candidates_;
    bool *const computed_, *const fired_;  // [n] or null
};

}  // namespace

void partial_ffn(Context& context, const Neurons& w, const Input& x, const Candidates& candidates,
                 NeuronScratch& scratch, float* sums, NeuronCounts* counts, bool* fired) {
    OpTimer timer(context.profile, "partial_ffn");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 1);
    if (fired) std::fill_n(fired, w.n, false);
    std::atomic<int64_t> n_computed{0}, n_fired{0};
    // Several segments at a time, because prefetching does not cross the pieces of a thread.
    const int64_t grain = std::max<int64_t>(1, kSegments / (6 * context.threads.active()));
    context.threads.run(kSegments, grain, [&](int64_t begin, int64_t end, int) {
        OneToken token(w, rows, candidates, scratch.computed, fired);
        token.run(begin, end, sums);
        n_computed += token.computed;
        n_fired += token.fired;
    });
    const int64_t n_proposed =
        std::accumulate(std::begin(candidates.count), std::end(candidates.count), int64_t(0));
    timer.read(uint64_t(n_proposed) * cpu::row_bytes(w, cpu::first_rows(w)));
    if (w.gate) timer.read(uint64_t(n_computed) * cpu::row_bytes(w, w.up));
    timer.read(uint64_t(n_fired) * cpu::row_bytes(w, w.down));
    if (!counts) return;
    counts->rows++;
    counts->proposed += n_proposed;
    counts->computed += n_computed;
    counts->fired += n_fired;
}

void merge(Context& context, const Neurons& w, const float* sums, float* y) {
    const OpTimer timer(context.profile, "merge");
    context.threads.run(w.cols, kColumns, [&](int64_t begin, int64_t end, int) {
        float part[cpu::kSums * kColumns];
        cpu::add_segments(part, end - begin, [&](int64_t s, float* sum) {
            std::copy_n(sums + s * w.cols + begin, end - begin, sum);
        });
        cpu::place(w, part, begin, end - begin, y);
    });
}

}  // namespace ggml
