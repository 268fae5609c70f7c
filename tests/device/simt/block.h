// Runs kernels on the CPU as a GPU would: the threads of a block are fibers, a warp is 32 of them,
// and what one thread may see of another goes through collectives, shared memory and barriers
// alone. A misuse that hardware answers with wrong numbers or a hang is an error here: lanes of a
// warp at different collectives, a shuffle from a lane that takes no part, a barrier that not all
// reach.
//
// Errors are shim::Failure, with the place in the kernel's source.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

namespace shim {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
// Shared memory of a block that every supported GPU has without asking.
constexpr size_t kSharedBytes = 48 << 10;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

using Place = std::source_location;

// In which order the threads of a block run while nothing else decides it. Results may not depend
// on it; a missing barrier shows in some of them.
enum class Order {
    ascending,    // every thread up to its next collective, from the first to the last
    descending,   // from the last to the first
    warps_first,  // a warp runs to the next barrier of the block before another begins; shuffled
    shuffled,
};
constexpr Order kOrders[] = {Order::ascending, Order::descending, Order::warps_first,
                             Order::shuffled};
void set_order(Order order);  // of launches from now on

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
struct Extent {
    unsigned x = 1, y = 1, z = 1;
    unsigned count() const { return x * y * z; }
};

// Runs all blocks of a grid, one after the other, on this thread. Throws Failure.
void run(Extent grid, Extent block, const std::function<void()>& kernel);

// What follows is called by kernels.

// The thread that runs. constinit: without it GCC 12 reads them through a function that may be
// null, and its undefined behaviour sanitizer objects.
extern constinit thread_local Index threadIdx, blockIdx;
extern constinit thread_local Extent blockDim, gridDim;

enum class Collective { sync, shuffle, shuffle_xor, shuffle_down, shuffle_up, ballot, multiply };
// Lanes of `mask` meet; the value of the lane that `lane` chooses, or the ballot.
uint64_t warp(Collective what, unsigned mask, uint64_t value, int lane, int width, Place place);
// c += a . b of signed bytes by a whole warp, whose lanes hold fragments (cuda/card.h).
void multiply_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b,
                    Place place = Place::current());
// All threads of the block that have not ended meet; how many of them said `yes`.
unsigned barrier(bool yes, Place place);

// `bytes` of the block's shared memory, which are the same for all threads at this place.
void* shared_memory(size_t bytes, Place place);

// After a store that other threads of the machine wait for: gives them time to come before the rest
// of the kernel runs, in two of the four orders. What should have been written before the store is
// missed then.
void linger();

// Nanoseconds of a steady clock.
uint64_t clock_ns();

// Ends the kernel with a Failure.
[[noreturn]] void fail(const std::string& what, Place place);

}  // namespace shim
