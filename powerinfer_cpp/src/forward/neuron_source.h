// Where the CPU's neurons and experts are: in RAM, or partly on the disk.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

#include "model/model.h"
#include "storage/experts/expert_store.h"
#include "storage/neurons/store.h"
#include "storage/store_status.h"

namespace powerinfer {

// The use of a page of a store by some rows, which ends with this. If an exception unwinds it the
// use has no end: then the store's reset() follows.
template <typename Store, void (Store::*End)(int32_t, int64_t) noexcept>
class PageUse {
 public:
    PageUse() = default;  // of none
    PageUse(Store& store, int32_t block, int64_t rows)
        : store_(&store), block_(block), rows_(rows) {}
    PageUse(PageUse&& other) noexcept
        : store_(std::exchange(other.store_, nullptr)),
          block_(other.block_),
          rows_(other.rows_),
          exceptions_(other.exceptions_) {}
    PageUse& operator=(PageUse&& other) = delete;
    ~PageUse() {
        if (store_ && std::uncaught_exceptions() == exceptions_) (store_->*End)(block_, rows_);
    }

 private:
    Store* store_ = nullptr;
    int32_t block_ = 0;
    int64_t rows_ = 0;
    int exceptions_ = std::uncaught_exceptions();
};

// For one call of a session. What only the disk needs does nothing for RAM.
class NeuronSource {
 public:
    // store, experts: one of them has what RAM lacks; or null. Nobody else uses it until the end,
    // when `counts`, of each feed-forward part, get what it did.
    NeuronSource(NeuronStore* store, ExpertStore* experts, std::vector<StoreCounts>& counts)
        : store_(store), experts_(experts), counts_(counts) {
        if (!store && !experts) return;
        alone_ = std::unique_lock<StatusBoard>(store ? store->status : experts->status);
        begun_ = now();
    }
    ~NeuronSource() {
        if (lent_) store_->take_back();
        for (size_t i = 0; i < begun_.size(); i++) counts_[i].add(begun_[i], now()[i]);
    }
    NeuronSource(const NeuronSource&) = delete;
    NeuronSource& operator=(const NeuronSource&) = delete;

    // May rows have to wait for neurons?
    bool waits() const { return store_ != nullptr; }
    NeuronStore& store() const { return *store_; }  // if they may

    // Memory of the cache, until the end of the call (see NeuronStore).
    ggml::Carver lend(uint64_t bytes) {
        lent_ = true;
        return store_->lend(bytes);
    }
    // Before n rows; after an error.
    void begin(int64_t n) const {
        if (store_) store_->begin(n);
        if (experts_) experts_->begin(n);
    }
    void reset() const {
        if (store_) store_->reset();
        if (experts_) experts_->reset();
    }

    // Whole experts may be on the disk. Asks for one, if there is room.
    bool pages_experts() const { return experts_ != nullptr; }
    bool request_expert(int32_t block) const { return experts_->request(block); }
    // Can its matrices be had without waiting for the disk?
    bool ready(int32_t block) const { return !experts_ || !experts_->absent(block); }
    // Asks early for experts that the next layer may choose, the best first [n_used].
    bool guesses_experts() const { return experts_ && experts_->guesses(); }
    void guess_experts(const FeedForward& part, const int32_t* chosen) const {
        experts_->guess(part.number(0), chosen, int32_t(part.n_used));
    }
    // The matrices of a block for n rows, whose data stays as long as this. May be moved.
    struct Matrices {
        ggml::Matrix gate, up, down;  // no gate: an empty matrix
        bool read = false;            // memory lacked them, so the disk brought them
        PageUse<ExpertStore, &ExpertStore::keep> use = {};
    };
    // Waits for them. Any number of blocks that are ready() may be open at once, besides one that
    // the disk brings; a second one of those throws Error(internal) if its frames are taken
    // (expert_pages.h).
    Matrices matrices(ggml::Context& context, int32_t block, const Ffn& w, int64_t n) const {
        if (!experts_ || !experts_->has(block)) return {w.gate, w.up, w.down};
        const bool absent = experts_->absent(block);
        const std::vector<ggml::Matrix>& there = experts_->matrices(context, block);
        const bool gated = there.size() == 3;
        Matrices all{gated ? there[0] : w.gate,
                     there[gated],
                     there[gated + 1],
                     absent,
                     {*experts_, block, n}};
        all.gate.scale = w.gate.scale;
        all.up.scale = w.up.scale;
        all.down.scale = w.down.scale;
        return all;
    }

    // Predictors of experts may be on the disk, too. Asks for that of a block, as far as there is
    // room; waits for it and gives its matrices, signs or fc1 and fc2, for n rows, one predictor at
    // a time.
    bool pages_predictors() const { return store_ && store_->pages_predictors(); }
    void request_predictor(int32_t block) const { store_->request_predictor(block); }
    struct Predictor {
        ggml::Matrix signs, fc1, fc2;
        PageUse<NeuronStore, &NeuronStore::keep_predictor> use = {};
    };
    Predictor predictor(ggml::Context& context, int32_t block, const Ffn& w, int64_t n) const {
        if (!store_ || !store_->pages_predictor(block)) return {w.signs, w.fc1, w.fc2};
        const std::vector<ggml::Matrix>& there = store_->predictor(context, block);
        // The first of them is either.
        return {there[0], there[0], there.back(), {*store_, block, n}};
    }

 private:
    const std::vector<StoreCounts>& now() const {
        return store_ ? store_->counts : experts_->counts;
    }

    NeuronStore* const store_;
    ExpertStore* const experts_;
    std::vector<StoreCounts>& counts_;
    std::vector<StoreCounts> begun_;  // of the store, when the call began
    bool lent_ = false;
    std::unique_lock<StatusBoard> alone_;
};

}  // namespace powerinfer
