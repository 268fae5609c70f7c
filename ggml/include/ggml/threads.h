// A thread pool, created once and parked between calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ggml {

// Default number of threads, 1..512: the physical cores of the affinity mask, without a phone's
// small ones, limited by the CPU quota of the cgroup. A core's second processor adds little
// arithmetic. But two of two processors: small virtual machines show them as one core. root: of the
// file system, for tests.
int default_threads(const std::string& root = "");
// How many compute where n are asked for, 0: the default. More than the processors that this
// process may use at a time would compete for them.
int threads_used(int n, const std::string& root = "");
// Seconds that the threads of this process have computed, together.
double cpu_seconds();

// The number of forks between this process and the first one. What has threads remembers it, to
// notice that it is a copy in a child, where they do not exist.
unsigned process_generation();

class Threads {
 public:
    // Starts n - 1 workers; the caller is the n-th thread. Throws Error(argument) unless 1 <= n <=
    // 512, Error(memory) if the system cannot start that many.
    explicit Threads(int n);
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    int size() const;
    // Sets how many threads the next calls of run() use; n is clamped to 1..size(). In a child of
    // fork(), where no worker exists, it starts new ones first: Error(memory) as in the
    // constructor.
    void limit(int n);
    int active() const;

    // Calls fn(begin, end, thread) for pieces of [0, n) of at most `grain` and returns when all are
    // done. Pieces start at multiples of grain. Threads take them as they become free, so fn's
    // results must not depend on which thread computes which piece. If fn throws, the first
    // exception is rethrown here after all threads have stopped; pieces not yet taken are skipped.
    // Only one caller at a time.
    template <typename F>
    void run(int64_t n, int64_t grain, const F& fn) {
        run_raw(
            n, grain,
            [](void* f, int64_t b, int64_t e, int t) { (*static_cast<const F*>(f))(b, e, t); },
            const_cast<F*>(&fn));
    }

 private:
    using Raw = void (*)(void*, int64_t, int64_t, int);
    void run_raw(int64_t n, int64_t grain, Raw fn, void* arg);
    struct Pool;
    std::unique_ptr<Pool> pool_;
};

}  // namespace ggml
