// Several arrays in one block of memory. Each size is written down in one place only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "ggml/file_io.h"
#include "ggml/sizes.h"
#include "ggml/status.h"

namespace ggml {

// A structure takes its arrays from a Carver in its constructor. The constructor runs twice: first
// with a Carver that only counts bytes, then with one over memory of exactly that size.
class Carver {
 public:
    Carver() = default;  // counts: every pointer stays null
    explicit Carver(const Memory& memory) : Carver(memory.data(), memory.size()) {}
    // Memory may be a device's: it is not touched.
    Carver(void* memory, uint64_t bytes) : base_(static_cast<uint8_t*>(memory)), room_(bytes) {}

    // Takes room for the product of `counts` elements of T, starting at a cache line. `to` becomes
    // null if there are none, or if this Carver only counts. Throws Error(internal) if the memory
    // is too small.
    template <typename T>
    void take(T*& to, std::initializer_list<int64_t> counts) {
        uint64_t bytes = sizeof(T);
        for (int64_t n : counts) bytes = size_product(bytes, uint64_t(n));
        to = nullptr;
        if (bytes == 0) return;
        const uint64_t begin = at_;
        at_ = size_sum(begin, size_rounded_up(bytes, kLine));
        if (!base_) return;
        if (at_ > room_)
            throw Error(Code::internal, "memory was carved further than it was counted");
        to = reinterpret_cast<T*>(base_ + begin);
    }

    // Bytes taken so far; kMostBytes if they do not fit 64 bits.
    uint64_t bytes() const { return at_; }

 private:
    static constexpr uint64_t kLine = 64;

    uint8_t* base_ = nullptr;
    uint64_t room_ = 0, at_ = 0;
};

// Bytes that T's constructor takes from a Carver. `args` are its other arguments.
template <typename T, typename... Args>
uint64_t carved_bytes(const Args&... args) {
    Carver counter;
    T(counter, args...);
    return counter.bytes();
}

// A T with memory of its own.
template <typename T>
class Carved {
 public:
    template <typename... Args>
    explicit Carved(const char* what, const Args&... args)
        : memory_(carved_bytes<T>(args...), what), value_(carve(args...)) {}
    T* operator->() { return &value_; }
    T& operator*() { return value_; }

 private:
    template <typename... Args>
    T carve(const Args&... args) {
        Carver carver(memory_);
        return T(carver, args...);
    }
    Memory memory_;
    T value_;
};

}  // namespace ggml
