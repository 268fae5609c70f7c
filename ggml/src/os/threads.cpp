#include "ggml/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ggml/status.h"
#include "os/os.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ggml {

namespace {

// Tells the processor that this thread only waits.
inline void pause_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");  // `yield` is no pause on most of these processors
#else
    std::this_thread::yield();
#endif
}

using Clock = std::chrono::steady_clock;

// How long a worker spins before it sleeps, and the caller before it offers its core to others.
// Within a token the next region follows after some microseconds; between tokens of a small model,
// sampling and Python take 0.2 ms. An idle server does not keep a core busy. In time, because
// processors' pauses take from 10 to 150 ns.
constexpr std::chrono::microseconds kSpin{300};
constexpr int kPauses = 16;  // between two looks at the clock

// Pauses until done() holds, for at most `limit`; returns whether it does.
template <typename F>
bool spin(Clock::duration limit, const F& done) {
    if (done()) return true;
    if (limit == limit.zero()) return false;
    Clock::time_point end = Clock::time_point::max();
    for (;;) {
        for (int i = 0; i < kPauses; i++) {
            pause_cpu();
            if (done()) return true;
        }
        const Clock::time_point now = Clock::now();
        if (now >= end) return false;
        if (end == Clock::time_point::max()) end = now + limit;
    }
}

// Counted because getpid() is a system call, and a child in a new PID namespace may have the same
// pid as its parent.
std::atomic<unsigned> forks{0};

}  // namespace

unsigned process_generation() {
    static const bool registered = [] {
        os::at_fork([] { forks.fetch_add(1, std::memory_order_relaxed); });
        return true;
    }();
    (void)registered;
    return forks.load(std::memory_order_relaxed);
}

namespace {

int within_quota(int n, const std::string& root) {
    const int quota = int(std::ceil(std::min(os::cpu_quota(root), 512.0)));
    return std::max(1, std::min(n, quota));
}

}  // namespace

int default_threads(const std::string& root) {
    const os::Fast fast = os::fast_processors(root);
    return within_quota(std::max(fast.cores, std::min(2, fast.processors)), root);
}

int threads_used(int n, const std::string& root) {
    if (n <= 0) return default_threads(root);
    return std::min(n, within_quota(os::usable_processors(root), root));
}

double cpu_seconds() {
    return os::cpu_seconds();
}

// A region is one call of run(); there is one at a time. The caller sets fn, arg, n and grain and
// opens the region. Workers enter it, take pieces from `next` until none is left, and leave. When
// the caller finds no more pieces, it closes the region and waits for the workers inside. A worker
// that has not been scheduled yet finds the region closed, and nobody waits for it. So on a busy
// machine a token is slowed down only by the work that this worker would have done, not by its wait
// for a time slice.
//
// A child of fork() has a copy of this struct but no workers, and a worker may have held the mutex
// at the fork. The child does not touch it: see abandon().
struct Threads::Pool {
    // Region number << 17 | closed << 16 | workers inside. All in one word, so that no worker
    // enters a closed region or reads the fields below while the caller changes them.
    static constexpr uint64_t kInside = 0xffff, kClosed = 1 << 16;
    static constexpr int kRegion = 17;
    // What a worker reads of a region comes with the line in which it sees that it is open.
    alignas(64) std::atomic<uint64_t> state{kClosed};
    Raw fn = nullptr;
    void* arg = nullptr;
    int64_t n = 0, grain = 1;
    alignas(64) std::atomic<int64_t> next{0};
    // Seldom written.
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<int> active{1};
    std::atomic<bool> stop{false};
    // The first exception that fn threw in this region.
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    Clock::duration limit = kSpin;
    alignas(64) std::vector<std::thread> workers;
    std::mutex mutex;
    std::condition_variable wake;
    // Workers with numbers >= active wait here, so that opening a region does not wake them.
    std::condition_variable enlist;

    const unsigned made_in = process_generation();
    Pool* abandoned_before = nullptr;

    void take(int thread) {
        try {
            for (;;) {
                const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
                if (begin >= n) return;
                fn(arg, begin, std::min(begin + grain, n), thread);
            }
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
            next.store(n, std::memory_order_relaxed);  // skip the remaining pieces
        }
    }

    void rethrow() {
        if (!failed.load(std::memory_order_relaxed)) return;
        failed = false;
        std::rethrow_exception(std::exchange(error, nullptr));
    }

    // Waits for a region with another number than `seen` and returns its state.
    uint64_t wait_for_region(uint64_t seen) {
        uint64_t now = 0;
        const auto opened = [&] {
            now = state.load(std::memory_order_acquire);
            return now >> kRegion != seen;
        };
        if (spin(limit, opened)) return now;
        std::unique_lock<std::mutex> lock(mutex);
        sleepers.fetch_add(1);  // before reading `state`; open() reads after its change
        wake.wait(lock, [&] { return state.load() >> kRegion != seen; });
        sleepers.fetch_sub(1);
        return state.load();
    }

    void work(int thread) {
        uint64_t seen = 0;
        for (;;) {
            if (thread >= active.load()) {
                std::unique_lock<std::mutex> lock(mutex);
                enlist.wait(lock, [&] { return stop.load() || thread < active.load(); });
            }
            uint64_t now = wait_for_region(seen);
            seen = now >> kRegion;
            if (stop.load()) return;
            bool entered = false;
            while (!entered && now >> kRegion == seen && !(now & kClosed)) {
                entered = state.compare_exchange_weak(now, now + 1, std::memory_order_acquire);
            }
            if (!entered) continue;
            if (thread < active) take(thread);
            state.fetch_sub(1, std::memory_order_release);
        }
    }

    void set_active(int n) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            active = n;
        }
        enlist.notify_all();
    }

    // Either a worker that is about to sleep sees the new region, or open() sees it in `sleepers`.
    void open() {
        state.store(((state.load(std::memory_order_relaxed) >> kRegion) + 1) << kRegion);
        if (sleepers.load() == 0) return;
        { std::lock_guard<std::mutex> lock(mutex); }
        wake.notify_all();
    }

    void close() {
        state.fetch_or(kClosed, std::memory_order_relaxed);
        const auto empty = [&] { return !(state.load(std::memory_order_acquire) & kInside); };
        if (spin(limit, empty)) return;
        while (!empty()) std::this_thread::yield();
    }

    void join() {
        stop = true;
        set_active(active.load());
        open();
        for (std::thread& t : workers) t.join();
    }

    static std::unique_ptr<Pool> start(int n) {
        auto pool = std::make_unique<Pool>();
        // With more threads than cores, a spinning thread would delay the one that it waits for.
        if (n > os::usable_processors("")) pool->limit = Clock::duration::zero();
        pool->active = n;
        try {
            for (int i = 1; i < n; i++) {
                pool->workers.emplace_back([p = pool.get(), i] { p->work(i); });
            }
        } catch (const std::system_error&) {
            const size_t started = pool->workers.size();
            pool->join();
            throw Error(Code::memory,
                        format("the system refused thread %zu of %d", started + 2, n));
        }
        return pool;
    }

    bool without_workers() const { return made_in != process_generation() && !workers.empty(); }

    // Keeps a pool whose workers belong to the parent process: destroying or freeing it would wait
    // for them. The list lets leak checkers find it.
    static void abandon(std::unique_ptr<Pool> pool) {
        static std::atomic<Pool*> abandoned{nullptr};
        Pool* p = pool.release();
        p->abandoned_before = abandoned.load();
        while (!abandoned.compare_exchange_weak(p->abandoned_before, p)) {
        }
    }
};

Threads::Threads(int n) {
    if (n < 1 || n > 512) {
        throw Error(Code::argument, format("threads must be between 1 and 512, not %d", n));
    }
    pool_ = Pool::start(n);
}

Threads::~Threads() {
    if (pool_->without_workers()) {
        Pool::abandon(std::move(pool_));
    } else {
        pool_->join();
    }
}

int Threads::size() const {
    return int(pool_->workers.size()) + 1;
}

int Threads::active() const {
    return pool_->active;
}

void Threads::limit(int n) {
    if (pool_->without_workers()) {
        Pool::abandon(std::exchange(pool_, Pool::start(size())));
    }
    n = std::max(1, std::min(n, size()));
    if (n != pool_->active) pool_->set_active(n);
}

void Threads::run_raw(int64_t n, int64_t grain, Raw fn, void* arg) {
    Pool& p = *pool_;
    if (n <= 0) return;
    if (p.active == 1 || n <= grain) {
        for (int64_t begin = 0; begin < n; begin += grain)
            fn(arg, begin, std::min(begin + grain, n), 0);
        return;
    }
    p.fn = fn;
    p.arg = arg;
    p.n = n;
    p.grain = grain;
    p.next.store(0, std::memory_order_relaxed);
    p.open();
    p.take(0);
    p.close();
    p.rethrow();
}

}  // namespace ggml
