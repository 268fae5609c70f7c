// Measures a device, for `powerinfer doctor`.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "ggml/status.h"
#include "tools/measure.h"

namespace powerinfer {

using ggml::Device;
using ggml::DeviceArray;
using ggml::DeviceGraph;
using ggml::DeviceStream;
using ggml::Owned;
using ggml::SharedArray;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Measurement {
 public:
    explicit Measurement(const std::string& id)
        : device_(ggml::open_device(id)), stream_(*device_, device_->new_stream()) {}

    DeviceReport report(uint64_t n_bytes) {
        const std::lock_guard<ggml::DeviceCard> alone(device_->card());
        DeviceReport found;
        found.info = device_->info();
        found.free_bytes = device_->free_bytes();
        found.context_bytes = device_->context_bytes();
        copies(n_bytes, found);
        found.flag_s = flag_round();
        const double one = graph(1), many = graph(1 + kNodes);
        found.launch_s = one;
        found.node_s = std::max(0.0, many - one) / kNodes;
        return found;
    }

 private:
    static constexpr int kNodes = 1000, kLine = 16;

    // Seconds of work until the stream is idle: the shortest of several, since other load can only
    // make it longer.
    template <typename F>
    double shortest(const F& work) {
        double best = 1e30;
        const Clock::time_point begin = Clock::now();
        for (int i = 0; i < 3 || (i < 100 && seconds_since(begin) < 0.1); i++) {
            const Clock::time_point start = Clock::now();
            work();
            device_->wait(stream_.get());
            best = std::min(best, seconds_since(start));
        }
        return best;
    }

    void copies(uint64_t n, DeviceReport& found) {
        const DeviceArray<uint8_t> a(*device_, n, "the copy test"), b(*device_, n, "the copy test");
        const SharedArray<uint8_t> host(*device_, n, "the copy test");
        DeviceStream* const s = stream_.get();
        device_->zero(s, a.get(), n);
        // Inside, every byte is read and written.
        found.copy_per_s = 2 * double(n) / shortest([&] { device_->copy(s, b.get(), a.get(), n); });
        found.in_per_s = double(n) / shortest([&] { device_->copy_in(s, a.get(), host.get(), n); });
        found.out_per_s =
            double(n) / shortest([&] { device_->copy_out(s, host.get(), a.get(), n); });
    }

    // The device sets a flag, this thread answers with another: seconds until the device may go on.
    double flag_round() {
        constexpr uint32_t kRounds = 2000;
        constexpr double kMostSeconds = 5;  // without an answer, not for all of them
        const SharedArray<uint32_t> flags(*device_, 2 * kLine, "the flag test");
        ggml::DeviceExchange with;
        with.published = flags.get();
        with.answered = flags.get() + kLine;
        device_->ops().flag_rounds(stream_.get(), with, kRounds);
        const Clock::time_point begin = Clock::now();
        Clock::time_point looked = begin;
        uint32_t round = 0, seen = 0;
        for (uint32_t waited = 0; round < kRounds;) {
            if (__atomic_load_n(with.published, __ATOMIC_ACQUIRE) == round + 1) {
                __atomic_store_n(with.answered, ++round, __ATOMIC_RELEASE);
                waited = 0;
            } else if (++waited % 4096 == 0) {
                if (round != seen) looked = Clock::now();
                seen = round;
                if (seconds_since(looked) > kMostSeconds) break;
                std::this_thread::yield();
            }
        }
        const double seconds = seconds_since(begin);
        if (round < kRounds) __atomic_store_n(with.answered, ggml::kReleased, __ATOMIC_RELEASE);
        device_->wait(stream_.get());
        if (round < kRounds) {
            throw ggml::Error(
                ggml::Code::device,
                ggml::format("%s answered %u of %u flags, and then none for %.0f s",
                             device_->info().id.c_str(), round, kRounds, kMostSeconds));
        }
        return seconds / kRounds;
    }

    // Launching a graph of n small kernels, until they are done.
    double graph(int n) {
        const DeviceArray<float> x(*device_, 32, "the graph test");
        DeviceStream* const s = stream_.get();
        device_->zero(s, x.get(), 32 * sizeof(float));
        device_->begin_capture(s);
        for (int i = 0; i < n; i++) device_->ops().add(s, x.get(), x.get(), 32);
        const Owned<DeviceGraph> recorded(*device_, device_->end_capture(s));
        return shortest([&] { device_->launch(recorded.get(), s); });
    }

    std::unique_ptr<Device> device_;
    Owned<DeviceStream> stream_;
};

}  // namespace

DeviceReport measure_device(const std::string& id, uint64_t n_bytes) {
    return Measurement(id).report(n_bytes);
}

}  // namespace powerinfer
