// The memory budget of a model. Everything that takes memory for a model or its sessions reserves
// it here first.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace powerinfer {

class Budget;

// Bytes reserved in a budget; the destructor gives them back. Keeps the budget alive.
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

// The memory of one kind that a model and everything that belongs to it may take. Safe to share
// among threads.
class Budget : public std::enable_shared_from_this<Budget> {
 public:
    // `kind` is the memory's name in messages. given: the limit is the user's, not what is free.
    Budget(const char* kind, uint64_t limit, bool given)
        : kind_(kind), given_(given), limit_(limit) {}

    // A budget of RAM.
    // A budget of `asked` bytes. 0: the memory that is free now, less a margin of 128 MiB for what
    // plans do not count (code, stacks, the vocabulary).
    static std::shared_ptr<Budget> make(uint64_t asked);

    // Throws Error(memory) with the bytes that `what` needs and the bytes that are left.
    Reservation reserve(const std::string& what, uint64_t bytes);

    uint64_t limit() const { return limit_; }
    bool given() const { return given_; }
    uint64_t reserved() const;

 private:
    friend class Reservation;
    void give_back(uint64_t bytes);

    const char* const kind_;
    const bool given_;
    const uint64_t limit_;
    mutable std::mutex mutex_;
    uint64_t reserved_ = 0;  // at most limit_
};

}  // namespace powerinfer
