#include "simt/block.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "simt/fiber.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace shim {

thread_local Index threadIdx, blockIdx;
thread_local Extent blockDim, gridDim;

namespace {

std::atomic<Order> chosen_order{Order::ascending};

std::string text(Place place) {
    const char* file = std::strrchr(place.file_name(), '/');
    return std::string(file ? file + 1 : place.file_name()) + ":" + std::to_string(place.line()) +
           ":" + std::to_string(place.column());
}

bool same(Place a, Place b) {
    return a.line() == b.line() && a.column() == b.column() &&
           (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

// One thread of the block that runs.
struct Thread {
    enum class State { ready, at_warp, at_barrier, ended } state = State::ready;
    Fiber fiber;
    Index index;
    // What it waits for.
    Place place;
    Collective what = Collective::sync;
    unsigned mask = 0;
    uint64_t value = 0, result = 0;
    int lane = 0, width = int(kWarp);
    bool yes = false;
};

// What a lane brings to a product of fragments, and takes from it.
struct Fragments {
    unsigned a[2], b;
    int* c;
};

int dot_bytes(unsigned a, unsigned b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8) sum += int(int8_t(a >> i)) * int(int8_t(b >> i));
    return sum;
}

// Ends a fiber's function from inside.
struct Unwind {};

class Block {
 public:
    void run(Extent grid, Extent block, const std::function<void()>& kernel);

    Thread& current() { return *current_; }
    void wait(Thread& thread);
    void wait_for_all(Thread& thread) {
        at_barrier_++;
        wait(thread);
    }
    void* shared_memory(size_t bytes, Place place);
    void failed(const std::string& what) {
        if (failure_.empty()) failure_ = what;
    }

 private:
    static void enter(void* block);
    void one(Index index);
    void round(const std::vector<unsigned>& order);
    void pass(const unsigned* begin, const unsigned* end);
    Thread* next_ready();
    bool finish_warp(unsigned warp);
    bool finish_barrier();
    void exchange(unsigned first, unsigned mask);
    void multiply(unsigned first, unsigned group);
    [[noreturn]] void deadlock();
    std::vector<unsigned> order_of_threads();
    void clear_shared();

    std::vector<std::unique_ptr<Thread>> threads_;
    unsigned n_ = 0, alive_ = 0, at_barrier_ = 0;
    Thread* current_ = nullptr;
    const unsigned *next_ = nullptr, *end_ = nullptr;  // threads that this pass has not come to
    const std::function<void()>* kernel_ = nullptr;
    Extent extent_;
    Order order_ = Order::ascending;
    std::mt19937 rng_;
    std::string failure_;

    // Shared memory: arrays in the order in which threads first came to them, with room between.
    struct Shared {
        Place place;
        size_t begin, bytes;
    };
    static constexpr size_t kGap = 64;
    std::vector<Shared> shared_;
    static constexpr size_t kArena = 2 * kSharedBytes;
    struct alignas(64) Arena {
        uint8_t bytes[kArena];
    };
    std::unique_ptr<Arena> arena_;
    size_t used_ = 0, taken_ = 0;
};

// Owned by `owned`. A plain pointer, since threads ask for it at every collective.
constinit thread_local Block* running = nullptr;
thread_local std::unique_ptr<Block> owned;

void* Block::shared_memory(size_t bytes, Place place) {
    for (const Shared& s : shared_) {
        if (same(s.place, place)) return arena_->bytes + s.begin;
    }
    taken_ += bytes;
    if (taken_ > kSharedBytes) {
        fail("more than " + std::to_string(kSharedBytes) + " bytes of shared memory", place);
    }
    const size_t begin = used_ + kGap;
    used_ = begin + (bytes + 63) / 64 * 64;
    if (used_ + kGap > kArena) fail("too many arrays in shared memory", place);
    ASAN_UNPOISON_MEMORY_REGION(arena_->bytes + begin, bytes);
    shared_.push_back({place, begin, bytes});
    return arena_->bytes + begin;
}

void Block::clear_shared() {
    if (!arena_) arena_ = std::make_unique<Arena>();
    ASAN_UNPOISON_MEMORY_REGION(arena_->bytes, kArena);
    // NaN as floats in half of the orders, a small number and a wild index in the others.
    std::memset(arena_->bytes,
                order_ == Order::ascending || order_ == Order::shuffled ? 0xff : 0xa5, kArena);
    ASAN_POISON_MEMORY_REGION(arena_->bytes, kArena);
    shared_.clear();
    used_ = taken_ = 0;
}

void Block::enter(void* block) {
    auto* self_block = static_cast<Block*>(block);
    try {
        (*self_block->kernel_)();
    } catch (const Unwind&) {
    } catch (const std::exception& error) {
        self_block->failed(error.what());
    }
    Thread& ended = self_block->current();
    ended.state = Thread::State::ended;
    self_block->alive_--;
    self_block->wait(ended);  // for good
}

// The first thread that can run of those that this pass has not come to; null: none, or the kernel
// failed. It is the current one then.
Thread* Block::next_ready() {
    while (failure_.empty() && next_ < end_) {
        Thread& t = *threads_[*next_++];
        if (t.state != Thread::State::ready) continue;
        current_ = &t;
        threadIdx = t.index;
        return &t;
    }
    return nullptr;
}

void Block::wait(Thread& thread) {
    Thread* next = Fiber::kHandsOver ? next_ready() : nullptr;
    if (next) {
        thread.fiber.hand_over(next->fiber);
    } else {
        thread.fiber.suspend();
    }
}

// Each of these threads, in turn, up to its next collective or its end.
void Block::pass(const unsigned* begin, const unsigned* end) {
    next_ = begin;
    end_ = end;
    while (Thread* t = next_ready()) t->fiber.resume();
    if (!failure_.empty()) throw Failure(failure_);
}

void Block::run(Extent grid, Extent block, const std::function<void()>& kernel) {
    gridDim = grid;
    blockDim = extent_ = block;
    kernel_ = &kernel;
    n_ = block.count();
    order_ = chosen_order;
    rng_.seed(unsigned(n_ + grid.x));
    failure_.clear();
    if (n_ == 0 || n_ > kMaxThreads || grid.count() == 0) {
        throw Failure(std::to_string(grid.count()) + " blocks of " + std::to_string(n_) +
                      " threads");
    }
    while (threads_.size() < n_) threads_.push_back(std::make_unique<Thread>());
    std::vector<unsigned> blocks(grid.count());
    std::iota(blocks.begin(), blocks.end(), 0u);
    if (order_ == Order::descending) std::reverse(blocks.begin(), blocks.end());
    if (order_ == Order::shuffled || order_ == Order::warps_first) {
        std::shuffle(blocks.begin(), blocks.end(), rng_);
    }
    for (unsigned b : blocks) one({b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y});
}

std::vector<unsigned> Block::order_of_threads() {
    std::vector<unsigned> order(n_);
    std::iota(order.begin(), order.end(), 0u);
    if (order_ == Order::descending) std::reverse(order.begin(), order.end());
    if (order_ == Order::shuffled || order_ == Order::warps_first) {
        std::shuffle(order.begin(), order.end(), rng_);
    }
    if (order_ == Order::warps_first) {
        std::vector<unsigned> rank((n_ + kWarp - 1) / kWarp);
        std::iota(rank.begin(), rank.end(), 0u);
        std::shuffle(rank.begin(), rank.end(), rng_);
        std::stable_sort(order.begin(), order.end(),
                         [&](unsigned a, unsigned b) { return rank[a / kWarp] < rank[b / kWarp]; });
    }
    return order;
}

void Block::one(Index index) {
    clear_shared();
    blockIdx = index;
    alive_ = n_;
    at_barrier_ = 0;
    for (unsigned i = 0; i < n_; i++) {
        Thread& t = *threads_[i];
        t.state = Thread::State::ready;
        t.index = {i % extent_.x, i / extent_.x % extent_.y, i / extent_.x / extent_.y};
        t.fiber.start(&Block::enter, this);
    }
    const std::vector<unsigned> order = order_of_threads();
    while (alive_ > 0) {
        const unsigned alive = alive_;
        round(order);
        // Warps whose last lane came in the middle of a round go on in the next one.
        bool moved = alive != alive_;
        for (unsigned w = 0; w * kWarp < n_; w++) moved |= finish_warp(w);
        moved |= finish_barrier();
        if (!moved && alive_ > 0) {
            const bool ready = std::any_of(threads_.begin(), threads_.begin() + n_, [](auto& t) {
                return t->state == Thread::State::ready;
            });
            if (!ready) deadlock();
        }
    }
}

void Block::round(const std::vector<unsigned>& order) {
    if (order_ != Order::warps_first) {
        pass(order.data(), order.data() + n_);
        return;
    }
    for (unsigned at = 0; at < n_;) {
        const unsigned warp = order[at] / kWarp;
        unsigned end = at;
        while (end < n_ && order[end] / kWarp == warp) end++;
        do {
            pass(&order[at], order.data() + end);
        } while (finish_warp(warp));
        at = end;
    }
}

// Lets lanes go on whose collective is complete. False where none is.
bool Block::finish_warp(unsigned warp) {
    const unsigned first = warp * kWarp, end = std::min(first + kWarp, n_);
    unsigned alive = 0, waiting = 0;
    for (unsigned i = first; i < end; i++) {
        const Thread& t = *threads_[i];
        if (t.state != Thread::State::ended) alive |= 1u << (i - first);
        if (t.state == Thread::State::at_warp) waiting |= 1u << (i - first);
    }
    bool moved = false;
    for (unsigned i = first; i < end; i++) {
        Thread& t = *threads_[i];
        const unsigned bit = 1u << (i - first), group = t.mask & alive;
        if (!(waiting & bit) || (group & waiting) != group) continue;
        for (unsigned j = first; j < end; j++) {
            if (!(group >> (j - first) & 1)) continue;
            const Thread& other = *threads_[j];
            if (!same(t.place, other.place) || t.what != other.what || t.mask != other.mask) {
                throw Failure(std::string("lanes of a warp are at different collectives: ") +
                              text(t.place) + " and " + text(other.place));
            }
        }
        exchange(first, group);
        waiting &= ~group;
        moved = true;
    }
    return moved;
}

// Adds the products of the fragments that a warp's values point to.
void Block::multiply(unsigned first, unsigned group) {
    if (group != ~0u) {
        throw Failure(text(threads_[first]->place) + ": a product of fragments takes a whole warp");
    }
    const auto lane = [&](unsigned i) {
        return reinterpret_cast<const Fragments*>(threads_[first + i]->value);
    };
    for (unsigned i = 0; i < kWarp; i++) {
        for (unsigned k = 0; k < 4; k++) {
            const unsigned row = i / 4 * 4, column = (i % 4 * 2 + k % 2) * 4;  // their first lanes
            for (unsigned q = 0; q < 4; q++) {
                lane(i)->c[k] += dot_bytes(lane(row + q)->a[k / 2], lane(column + q)->b);
            }
        }
    }
}

// The results of a collective whose lanes are `group`.
void Block::exchange(unsigned first, unsigned group) {
    if (threads_[first + unsigned(__builtin_ctz(group))]->what == Collective::multiply) {
        multiply(first, group);
    }
    unsigned votes = 0;
    for (unsigned lane = 0; lane < kWarp; lane++) {
        if (group >> lane & 1 && threads_[first + lane]->value) votes |= 1u << lane;
    }
    for (unsigned lane = 0; lane < kWarp; lane++) {
        if (!(group >> lane & 1)) continue;
        Thread& t = *threads_[first + lane];
        t.state = Thread::State::ready;
        const int width = t.width, base = int(lane) / width * width, at = int(lane) - base;
        int from = at;
        switch (t.what) {
            case Collective::sync:
            case Collective::multiply:
                continue;
            case Collective::ballot:
                t.result = votes;
                continue;
            case Collective::shuffle:
                from = t.lane & (width - 1);
                break;
            case Collective::shuffle_xor:
                from = at ^ t.lane;
                break;
            case Collective::shuffle_down:
                from = at + t.lane;
                break;
            case Collective::shuffle_up:
                from = at - t.lane;
                break;
        }
        if (from < 0 || from >= width) from = at;
        if (!(group >> (base + from) & 1)) {
            throw Failure(text(t.place) + ": lane " + std::to_string(lane) + " reads lane " +
                          std::to_string(base + from) + ", which takes no part");
        }
        t.result = threads_[first + unsigned(base + from)]->value;
    }
}

bool Block::finish_barrier() {
    if (alive_ == 0 || at_barrier_ != alive_) return false;
    const Thread* one = nullptr;
    unsigned votes = 0;
    for (unsigned i = 0; i < n_; i++) {
        Thread& t = *threads_[i];
        if (t.state != Thread::State::at_barrier) continue;
        if (one && !same(one->place, t.place)) {
            throw Failure(std::string("threads of a block are at different barriers: ") +
                          text(one->place) + " and " + text(t.place));
        }
        one = &t;
        votes += t.yes;
    }
    for (unsigned i = 0; i < n_; i++) {
        Thread& t = *threads_[i];
        if (t.state != Thread::State::at_barrier) continue;
        t.state = Thread::State::ready;
        t.result = votes;
    }
    at_barrier_ = 0;
    return true;
}

void Block::deadlock() {
    std::string places;
    for (unsigned i = 0; i < n_; i++) {
        const Thread& t = *threads_[i];
        if (t.state == Thread::State::ended) continue;
        const std::string at = text(t.place);
        if (places.find(at) == std::string::npos) {
            places += (places.empty() ? "" : ", ") + std::string("thread ") + std::to_string(i) +
                      " at " + at;
        }
    }
    throw Failure("threads wait for one another for ever: " + places);
}

}  // namespace

void set_order(Order order) {
    chosen_order = order;
}

void run(Extent grid, Extent block, const std::function<void()>& kernel) {
    if (!running) {
        owned = std::make_unique<Block>();
        running = owned.get();
    }
    running->run(grid, block, kernel);
}

uint64_t warp(Collective what, unsigned mask, uint64_t value, int lane, int width, Place place) {
    Thread& t = running->current();
    const unsigned id = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    if (!(mask >> id % kWarp & 1)) fail("a lane that its own mask leaves out", place);
    if (width < 1 || width > int(kWarp) || (width & (width - 1))) fail("a wrong width", place);
    t.state = Thread::State::at_warp;
    t.what = what;
    t.mask = mask;
    t.value = value;
    t.lane = lane;
    t.width = width;
    t.place = place;
    running->wait(t);
    return t.result;
}

void multiply_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned b, Place place) {
    const Fragments fragments = {{a0, a1}, b, c};
    warp(Collective::multiply, ~0u, reinterpret_cast<uint64_t>(&fragments), 0, int(kWarp), place);
}

unsigned barrier(bool yes, Place place) {
    Thread& t = running->current();
    t.state = Thread::State::at_barrier;
    t.yes = yes;
    t.place = place;
    running->wait_for_all(t);
    return unsigned(t.result);
}

void* shared_memory(size_t bytes, Place place) {
    return running->shared_memory(bytes, place);
}

void linger() {
    const Order order = chosen_order;
    if (order == Order::ascending || order == Order::warps_first) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

uint64_t clock_ns() {
    using std::chrono::nanoseconds, std::chrono::steady_clock;
    const steady_clock::duration now = steady_clock::now().time_since_epoch();
    return uint64_t(std::chrono::duration_cast<nanoseconds>(now).count());
}

void fail(const std::string& what, Place place) {
    running->failed(text(place) + ": " + what);
    throw Unwind();
}

}  // namespace shim
