// A pool of threads that is made once and parked between calls.
#pragma once

#include <cstdint>
#include <memory>

namespace ggml {

// Threads worth starting: cores of the affinity mask, at most the CPU quota of the cgroup, at
// least 1.
int default_threads();

class Threads {
 public:
    // n - 1 workers beside the caller; 1 <= n <= 512. Throws Error(memory) where the system has no
    // more.
    explicit Threads(int n);
    ~Threads();
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

    int size() const;
    // How many of the threads the next calls of run() use, 1..size(). In a child of fork(), which
    // has none of the workers, it starts new ones first: Error(memory) as of the constructor.
    void limit(int n);
    int active() const;

    // Calls fn(begin, end, thread) for pieces of [0, n) of at most `grain` until all is done, then
    // returns. Pieces start at multiples of grain and are handed out as threads come for them:
    // which thread does which is not fixed, so fn's results must not depend on it.
    // What fn throws, the first of it, is thrown here when no thread is inside any more; pieces
    // that nobody had come for are left out then. One caller at a time.
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
