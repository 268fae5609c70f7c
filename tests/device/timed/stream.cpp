#include "timed/stream.h"

namespace ggml::timed {

namespace {

using Clock = std::chrono::steady_clock;
// Longer than the host needs between two tokens, so that the thread is awake when work comes.
constexpr std::chrono::milliseconds kAwake(20);
constexpr std::chrono::microseconds kSpin(200);

inline void pause() {
#ifdef GGML_X86
    __builtin_ia32_pause();
#endif
}

}  // namespace

void Timeline::reach() const {
    // A sleep ends up to 100 us late.
    for (double left = due_ - now(); left > 0; left = due_ - now()) {
        if (left > 2e-3) {
            std::this_thread::sleep_for(std::chrono::duration<double>(left - 1e-3));
        } else {
            pause();
        }
    }
}

Stream::Stream(const Config& config) : timeline_(config), thread_([this] { run(); }) {}

Stream::~Stream() {
    wait(put_);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ends_ = true;
    }
    more_.notify_one();
    thread_.join();
}

void Stream::put(int nodes, Work work) {
    if (recorded_) {
        recorded_->nodes += nodes;
        recorded_->work.push_back(std::move(work));
    } else {
        enqueue(std::move(work));
    }
}

void Stream::launch(const Graph* graph) {
    enqueue([graph](Timeline& t) {
        t.launches++;
        t.wait_for(t.config().launch);
        for (const Work& work : graph->work) work(t);
    });
}

void Stream::enqueue(Work work) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back(std::move(work));
        waiting_.store(++put_, std::memory_order_release);
    }
    more_.notify_one();
}

void Stream::wait(uint64_t work) const {
    const Clock::time_point start = Clock::now();
    while (!done(work)) {
        if (Clock::now() - start > kSpin) {
            std::this_thread::yield();
        } else {
            pause();
        }
    }
}

void Stream::run() {
    uint64_t done = 0;
    for (;;) {
        for (const Clock::time_point start = Clock::now();
             waiting_.load(std::memory_order_acquire) == done && Clock::now() - start < kAwake;) {
            pause();
        }
        Work work;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            more_.wait(lock, [&] { return !queue_.empty() || ends_; });
            if (queue_.empty()) return;
            work = std::move(queue_.front());
            queue_.pop_front();
        }
        timeline_.rest();
        work(timeline_);
        timeline_.reach();
        done_.store(++done, std::memory_order_release);
    }
}

}  // namespace ggml::timed
