#include "model/adapters.h"

#include <algorithm>
#include <cstdlib>

#include "base/sha256.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

// Floats of the products B (A x) that exist at the same time, unless one row has more: they stay in
// a core's cache until they are added.
constexpr int64_t kPiece = 1 << 18;

}  // namespace

Adapters::Scratch::Scratch(ggml::Carver& carver, int64_t max_rows, int64_t rank, int64_t piece,
                           int64_t n_values) {
    carver.take(down, {max_rows, rank});
    carver.take(up, {piece});
    carver.take(values, {max_rows, n_values});
}

Adapters::Adapters(const Model& model, std::vector<ScaledAdapter> used, int64_t max_rows)
    : used_(std::move(used)) {
    if (used_.empty()) return;
    int64_t rank = 0, widest = 0;
    Sha256 hash;
    for (const ScaledAdapter& u : used_) {
        hash.add(u.adapter->hash());
        hash.add(&u.scale, sizeof(u.scale));
        for (const auto& [weight, low] : u.adapter->terms()) {
            terms_[weight].push_back({low.a, low.b, u.scale * low.scale});
            rank = std::max(rank, low.b.cols);
            widest = std::max(widest, low.b.rows);
            in_layers_ = in_layers_ || weight != &model.output;
        }
    }
    id_ = std::max<uint64_t>(1, std::strtoull(hash.hex().substr(0, 16).c_str(), nullptr, 16));
    piece_ = std::max(widest, std::min(kPiece, max_rows * widest));
    int64_t n_values = 0;
    for (const FeedForward* part : model.ffns) {
        if (change(&part->blocks[0].neurons.down)) n_values = std::max(n_values, part->n_ff);
    }
    const uint64_t bytes = ggml::carved_bytes<Scratch>(max_rows, rank, piece_, n_values);
    reserved_ = model.budget->reserve("the session's adapters", bytes);
    memory_ = ggml::Memory(bytes, "adapters");
    ggml::Carver carver(memory_);
    scratch_ = Scratch(carver, max_rows, rank, piece_, n_values);
}

void Adapters::add(ggml::Context& context, const ggml::Input& x, const void* weight,
                   float* y) const {
    const auto found = terms_.find(weight);
    if (found == terms_.end()) return;
    for (const Term& term : found->second) {
        ggml::matmul(context, {x.x, x.rows, x.cols, {}}, {{term.a, scratch_.down}});
        add_up(context, term, x.rows, y);
    }
}

void Adapters::add_rows(ggml::Context& context, const int32_t* ids, int64_t n, const void* table,
                        float* y) const {
    const auto found = terms_.find(table);
    if (found == terms_.end()) return;
    for (const Term& term : found->second) {
        ggml::embed_rows(context, term.a, ids, 0, n, scratch_.down);
        add_up(context, term, n, y);
    }
}

void Adapters::add_up(ggml::Context& context, const Term& term, int64_t n, float* y) const {
    const int64_t rank = term.b.cols, width = term.b.rows, together = piece_ / width;
    for (int64_t t = 0; t < n; t += together) {
        const int64_t some = std::min(together, n - t);
        const ggml::Input low{scratch_.down + t * rank, some, rank, {}};
        ggml::matmul(context, low, {{term.b, scratch_.up}});
        ggml::add_scaled(context, y + t * width, term.scale, scratch_.up, some * width);
    }
}

}  // namespace powerinfer
