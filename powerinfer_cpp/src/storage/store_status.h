// What callers are told of a store while a session computes with it.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "storage/store_counts.h"

namespace powerinfer {

// See pi_storage_report. Of experts, which are whole or not there, the first numbers count.
struct StoreStatus {
    int64_t first_slots = 0, rest_slots = 0;
    int64_t first_used = 0, rest_used = 0;
    uint8_t* resident = nullptr;  // [bytes(n)], a bit for each neuron or expert: memory has it

    static int64_t bytes(int64_t n) { return (n + 7) / 8; }
    bool has(int64_t i) const { return resident[i / 8] >> i % 8 & 1; }
};

// A session locks a store for a whole call, which may take minutes. So callers of read() do not
// wait for it: they get a copy that was made when the call began.
//
// A copy takes about a millisecond for a million neurons, while some models compute a token in 20
// ms. So it is made once a second at most, and what callers see may be a second older than the
// call. Between calls they see what is so.
class StatusBoard {
 public:
    // look: enters what the store has now. It may not throw.
    explicit StatusBoard(std::function<void(StoreStatus&)> look) : look_(std::move(look)) {}

    // For a session's call (std::unique_lock).
    void lock() {
        call_.lock();
        const std::lock_guard<std::mutex> alone(mutex_);
        const double now = now_s();
        if (seen_at_ == 0 || now - seen_at_ > kSeconds) refresh(now);
        computes_ = true;
    }
    void unlock() {
        {
            const std::lock_guard<std::mutex> alone(mutex_);
            computes_ = false;
            changed_ = true;
        }
        call_.unlock();
    }
    // Calls use(const StoreStatus&), which may not call the store. Also for a session's callbacks.
    template <typename F>
    void read(const F& use) {
        const std::lock_guard<std::mutex> alone(mutex_);
        if (!computes_) refresh(now_s());
        use(status_);
    }

 private:
    static constexpr double kSeconds = 1;

    void refresh(double now) {
        if (changed_) look_(status_);
        changed_ = false;
        seen_at_ = now;
    }

    const std::function<void(StoreStatus&)> look_;
    std::mutex call_;   // held while a session computes
    std::mutex mutex_;  // of what follows, and held for a moment
    StoreStatus status_;
    double seen_at_ = 0;  // 0: never
    bool computes_ = false, changed_ = true;
};

}  // namespace powerinfer
