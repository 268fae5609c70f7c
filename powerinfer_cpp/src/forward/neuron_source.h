// Where the CPU's neurons and experts are: in RAM, or partly on the disk.
#pragma once

#include <mutex>

#include "model/model.h"
#include "storage/expert_store.h"
#include "storage/store.h"

namespace powerinfer {

// For one call of a session. What only the disk needs does nothing for RAM.
class NeuronSource {
 public:
    // store, experts: one of them has what RAM lacks; or null. Nobody else uses it until the end,
    // when `counts`, of each feed-forward part, get what it did.
    NeuronSource(NeuronStore* store, ExpertStore* experts, std::vector<StoreCounts>& counts)
        : store_(store), experts_(experts), counts_(counts) {
        if (!store && !experts) return;
        alone_ = std::unique_lock<std::mutex>(store ? store->mutex : experts->mutex);
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

    // Whole experts may be on the disk. Asks for one, if there is room; waits for it and gives its
    // matrices; and ends its use by n rows.
    bool pages_experts() const { return experts_ != nullptr; }
    bool request_expert(int32_t block) const { return experts_->request(block); }
    bool absent(int32_t block) const { return experts_->absent(block); }
    // Asks early for experts that the next layer may choose, the best first [n_used].
    bool guesses_experts() const { return experts_ && experts_->guesses(); }
    void guess_experts(const FeedForward& part, const int32_t* chosen) const {
        experts_->guess(part.number(0), chosen, int32_t(part.n_used));
    }
    // Can its matrices be had without waiting for the disk?
    bool ready(int32_t block) const { return !has_page(block) || !experts_->absent(block); }
    // The matrices of a block, of which it keeps those that the disk brought until its end.
    class Matrices {
     public:
        Matrices(Matrices&& o) noexcept
            : gate(o.gate),
              up(o.up),
              down(o.down),
              read(o.read),
              store_(o.store_),
              block_(o.block_),
              rows_(o.rows_) {
            o.store_ = nullptr;
        }
        ~Matrices() {
            if (store_) store_->keep(block_, rows_);
        }
        ggml::Matrix gate, up, down;  // no gate: an empty matrix
        bool read = false;            // memory lacked them, so the disk brought them
     private:
        friend class NeuronSource;
        Matrices(const Ffn& w) : gate(w.gate), up(w.up), down(w.down) {}
        Matrices& operator=(Matrices&& o) = delete;
        ExpertStore* store_ = nullptr;
        int32_t block_ = 0;
        int64_t rows_ = 0;
    };
    Matrices matrices(ggml::Context& context, int32_t block, const Ffn& w, int64_t rows) const {
        Matrices m(w);
        if (!has_page(block)) return m;
        m.read = experts_->absent(block);
        const std::vector<ggml::Matrix>& there = experts_->matrices(context, block);
        const bool gated = there.size() == 3;
        if (gated) m.gate = there[0];
        m.up = there[gated];
        m.down = there[gated + 1];
        m.store_ = experts_;
        m.block_ = block;
        m.rows_ = rows;
        return m;
    }

    // Predictors of experts may be on the disk, too. Asks for that of a block, as far as there is
    // room; waits for it and gives its matrices, signs or fc1 and fc2; and ends its use by n rows.
    bool pages_predictors() const { return store_ && store_->pages_predictors(); }
    void request_predictor(int32_t block) const { store_->request_predictor(block); }
    struct Predictor {
        const ggml::Matrix *signs, *fc1, *fc2;
    };
    Predictor predictor(ggml::Context& context, int32_t block, const Ffn& w) const {
        if (!pages_predictor(block)) return {&w.signs, &w.fc1, &w.fc2};
        const ggml::Matrix* const there = store_->predictor(context, block).data();
        return {there, there, there + 1};  // the first of them is either
    }
    void keep_predictor(int32_t block, int64_t n) const {
        if (pages_predictor(block)) store_->keep_predictor(block, n);
    }

 private:
    bool pages_predictor(int32_t block) const { return store_ && store_->pages_predictor(block); }
    bool has_page(int32_t block) const { return experts_ && experts_->has(block); }
    const std::vector<StoreCounts>& now() const {
        return store_ ? store_->counts : experts_->counts;
    }

    NeuronStore* const store_;
    ExpertStore* const experts_;
    std::vector<StoreCounts>& counts_;
    std::vector<StoreCounts> begun_;  // of the store, when the call began
    bool lent_ = false;
    std::unique_lock<std::mutex> alone_;
};

}  // namespace powerinfer
