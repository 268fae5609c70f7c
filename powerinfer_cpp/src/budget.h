// The one ledger of memory: whoever takes some for a model or its sessions asks here first.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace powerinfer {

class Budget;

// Bytes taken from a budget, given back when it goes away. Keeps the budget alive.
class Reservation {
 public:
    Reservation() = default;  // of nothing
    ~Reservation();
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;

    uint64_t bytes() const { return bytes_; }

 private:
    friend class Budget;
    Reservation(std::shared_ptr<Budget> budget, uint64_t bytes);
    std::shared_ptr<Budget> budget_;
    uint64_t bytes_ = 0;
};

// Bytes of RAM that a model and everything that belongs to it may take. Threads may share it.
class Budget : public std::enable_shared_from_this<Budget> {
 public:
    // `asked` bytes; 0: what is free now, less a margin for everything that no plan counts (code,
    // stacks, the vocabulary).
    static std::shared_ptr<Budget> make(uint64_t asked);

    // Throws Error(memory) saying how much `what` needs and how much there is.
    Reservation reserve(const std::string& what, uint64_t bytes);

    uint64_t limit() const { return limit_; }
    uint64_t reserved() const;

 private:
    explicit Budget(uint64_t asked);
    friend class Reservation;
    void give_back(uint64_t bytes);

    const bool asked_;  // the limit was given by the user, not measured
    const uint64_t limit_;
    mutable std::mutex mutex_;
    uint64_t reserved_ = 0;  // at most limit_
};

}  // namespace powerinfer
