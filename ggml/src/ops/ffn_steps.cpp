// One token whose neuron rows arrive one after the other: products in any order, sums in ascending
// order. The bits are those of ffn_one.cpp, because the product of a row does not depend on the
// rows beside it.
#include <algorithm>

#include "ops/ffn_parts.h"
#include "ops/neuron_rows.h"

namespace ggml {

namespace {

constexpr int32_t kFirst[1] = {0};  // the only token
constexpr int64_t kTile = 8;        // neurons whose rows are prefetched together
// Neurons of a thread's piece, at most: about 20 microseconds of work with 4,096 columns in Q4_0.
// What just came from a disk are few rows, which several threads share nevertheless.
constexpr int64_t kPiece = cpu::kShared, kLeastPiece = 4;

// Neurons of one segment whose values are not 0, and the destination of their sum.
struct Batch {
    int32_t ids[kTile];
    float h[kTile];
    int64_t n = 0;
    float* sum = nullptr;
};

// Calls put(ids, products, number) for a few of n rows at a time, in parallel.
template <typename F>
void products(Context& context, const cpu::RowProducts& products, const NeuronRows& rows,
              const float* bias, const int32_t* ids, int64_t n, const F& put) {
    NeuronRows placed = rows;  // rows that are named by their places
    placed.place = nullptr;
    const int64_t threads = context.threads.active();
    const int64_t piece = std::clamp((n + threads - 1) / threads, kLeastPiece, kPiece);
    context.threads.run(n, piece, [&](int64_t begin, int64_t end, int) {
        int32_t room[kPiece];
        float out[kTile];
        const int32_t* const at = cpu::places(rows, ids + begin, end - begin, room);
        for (int64_t i = begin; i < end; i += kTile) {
            const int64_t m = std::min(kTile, end - i), next = std::min(i + m, end);
            const cpu::Ahead ahead{rows.data, rows.stride, at + (next - begin),
                                   std::min(kTile, end - next)};
            products.dot(placed, nullptr, at + (i - begin), m, kFirst, 1, out, ahead);
            for (int64_t j = 0; bias && j < m; j++) out[j] += bias[ids[i + j]];
            put(ids + i, out, m);
        }
    });
}

}  // namespace

void prepare_steps(Context& context, const Neurons& w, const Input& x, NeuronScratch& scratch) {
    cpu::RowProducts(context, w, x, scratch, 0, 1);
}

void first_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                  const int32_t* ids, int64_t n, float* h) {
    OpTimer timer(context.profile, "first_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    const NeuronRows& first = cpu::first_rows(w);
    products(context, rows, first, cpu::first_bias(w), ids, n,
             [&](const int32_t* of, float* product, int64_t m) {
                 cpu::activate(w, product, m);
                 for (int64_t j = 0; j < m; j++) h[of[j]] = product[j];
             });
    timer.read(uint64_t(n) * cpu::row_bytes(w, first));
}

void gated_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                  const int32_t* ids, int64_t n, float* h) {
    OpTimer timer(context.profile, "gated_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    products(context, rows, w.up, w.up_bias, ids, n,
             [&](const int32_t* of, float* product, int64_t m) {
                 float gate[kTile];
                 for (int64_t j = 0; j < m; j++) gate[j] = h[of[j]];
                 cpu::values(w, gate, product, m, product);
                 for (int64_t j = 0; j < m; j++) h[of[j]] = product[j];
             });
    timer.read(uint64_t(n) * cpu::row_bytes(w, w.up));
}

void sum_values(Context& context, const Neurons& w, const Input& x, const NeuronScratch& scratch,
                const Candidates& candidates, const float* h, int64_t begin, int64_t end,
                float* sums) {
    OpTimer timer(context.profile, "sum_values");
    const cpu::RowProducts rows(context, w, x, scratch, 0, 0);
    const int64_t grain = std::max<int64_t>(1, kSegments / (6 * context.threads.active()));
    context.threads.run(end - begin, grain, [&](int64_t first, int64_t last, int) {
        Batch ready, waiting;
        // Adds `ready` while the rows of `waiting` are prefetched; then `waiting` becomes `ready`.
        const auto move_on = [&] {
            int32_t room[kTile];
            const int32_t entries[] = {0, int32_t(ready.n)};
            const cpu::Ahead ahead{w.down.data, w.down.stride,
                                   cpu::places(w.down, waiting.ids, waiting.n, room), waiting.n};
            if (ready.n) {
                rows.add(ready.ids, ready.n, 0, w.cols,
                         {entries, cpu::kEach.data(), ready.h, ahead}, 1, ready.sum, 0);
            }
            ready = waiting;
            waiting.n = 0;
        };
        for (int64_t s = begin + first; s < begin + last; s++) {
            waiting.sum = sums + s * w.cols;
            std::fill_n(waiting.sum, w.cols, 0.0f);
            const int32_t* const ids = candidates.ids + segment_of(w.n, s).begin;
            for (int32_t i = 0; i < candidates.count[s]; i++) {
                if (h[ids[i]] == 0) continue;
                waiting.ids[waiting.n] = ids[i];
                waiting.h[waiting.n++] = h[ids[i]];
                if (waiting.n == kTile) move_on();
            }
            if (waiting.n) move_on();
        }
        move_on();
    });
}

}  // namespace ggml
