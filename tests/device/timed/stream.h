// A stream of a device that only takes time: a thread that goes through work in order. Work moves
// the time at which the device would be done, and does nothing else, until something becomes
// visible to the host: then the thread waits until that time has come.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "timed/config.h"

namespace ggml::timed {

// The time of a device.
class Timeline {
 public:
    explicit Timeline(const Config& config) : config_(config) {}

    const Config& config() const { return config_; }
    // Kernels that read so many bytes.
    void spend(int kernels, double bytes) {
        due_ += kernels * config_.node + (config_.bandwidth > 0 ? bytes / config_.bandwidth : 0);
        bytes_ += bytes;
    }
    void wait_for(double seconds) { due_ += seconds; }
    void transfer(double bytes) { due_ += config_.link > 0 ? bytes / config_.link : 0; }
    // The device has nothing to do before now.
    void rest() {
        if (const double t = now(); t > due_) due_ = t;
    }
    // Waits until the device would be done.
    void reach() const;
    double bytes() const { return bytes_; }

    uint64_t launches = 0;  // of graphs

 private:
    static double now() {
        using Clock = std::chrono::steady_clock;
        return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    }

    const Config& config_;
    double due_ = 0, bytes_ = 0;
};

using Work = std::function<void(Timeline&)>;

struct Graph {
    std::vector<Work> work;
    int nodes = 0;
    // Selections of neurons in it, which are those of the last layers of the model.
    std::shared_ptr<int> selections = std::make_shared<int>(0);
    int routers = 0;  // in it
};

class Stream {
 public:
    explicit Stream(const Config& config);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Puts work into the stream, or into the graph that is being recorded. nodes: kernels and
    // copies.
    void put(int nodes, Work work);
    void begin_capture() { recorded_ = std::make_unique<Graph>(); }
    std::unique_ptr<Graph> end_capture() { return std::move(recorded_); }
    // Null unless a graph is being recorded.
    Graph* recorded() { return recorded_.get(); }
    void launch(const Graph* graph);

    // Work that was put in so far, and what is done of it.
    uint64_t put_so_far() const { return put_; }
    bool done(uint64_t work) const { return done_.load(std::memory_order_acquire) >= work; }
    // Returns when work that was put in so far is done.
    void wait(uint64_t work) const;
    // Bytes that kernels have read; asked of a stream at rest.
    double bytes() const { return timeline_.bytes(); }

 private:
    void run();
    void enqueue(Work work);

    Timeline timeline_;
    std::unique_ptr<Graph> recorded_;
    std::mutex mutex_;
    std::condition_variable more_;
    std::deque<Work> queue_;
    uint64_t put_ = 0;
    std::atomic<uint64_t> waiting_{0};  // put_, for the thread
    std::atomic<uint64_t> done_{0};
    std::atomic<bool> ends_{false};
    std::thread thread_;
};

}  // namespace ggml::timed
