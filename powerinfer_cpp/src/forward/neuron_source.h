// Where the CPU's neurons are: in RAM, or partly on the disk.
#pragma once

#include <mutex>

#include "model/model.h"
#include "storage/store.h"

namespace powerinfer {

// For one call of a session. What only the disk needs does nothing for RAM.
class NeuronSource {
 public:
    // store: has them; or null: RAM has all. Nobody else uses it until the end, when `counts` gets
    // what it did.
    NeuronSource(NeuronStore* store, StoreCounts& counts) : store_(store), counts_(counts) {
        if (!store) return;
        alone_ = std::unique_lock<std::mutex>(store->mutex);
        begun_ = store->counts;
    }
    ~NeuronSource() {
        if (lent_) store_->take_back();
        if (store_) counts_.add(begun_, store_->counts);
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
    }
    void reset() const {
        if (store_) store_->reset();
    }

    // Predictors may be on the disk, too. Asks for that of a block, as far as there is room; waits
    // for it and gives its matrices, signs or fc1 and fc2; and ends its use by n rows.
    bool pages_predictors() const { return store_ && store_->pages_predictors(); }
    void request_predictor(int32_t block) const { store_->request_predictor(block); }
    struct Predictor {
        const ggml::Matrix *signs, *fc1, *fc2;
    };
    Predictor predictor(ggml::Context& context, int32_t block, const Ffn& w) const {
        if (!pages_predictors()) return {&w.signs, &w.fc1, &w.fc2};
        const ggml::Matrix* const there = store_->predictor(context, block).data();
        return {there, there, there + 1};  // the first of them is either
    }
    void keep_predictor(int32_t block, int64_t n) const {
        if (pages_predictors()) store_->keep_predictor(block, n);
    }

 private:
    NeuronStore* const store_;
    StoreCounts& counts_;
    StoreCounts begun_;  // of the store, when the call began
    bool lent_ = false;
    std::unique_lock<std::mutex> alone_;
};

}  // namespace powerinfer
