// The flags between a device and the CPU, round after round, with everything that they guard
// checked: input and list on the CPU's side, its answer on the device's, which is the next input.
//
//   test_flags [rounds]      # 600; on a card 1,000,000: scripts/gpu.sh flags
#include <chrono>
#include <cstring>
#include <thread>

#include "ggml/check.h"
#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "gpu/device_arrays.h"

using namespace ggml;

namespace {

constexpr int kLayers = 4, kCols = 1024, kLine = 16;
constexpr float kThreshold = 0.5f;
constexpr double kMostSeconds = 10;  // for one flag

class Rounds {
 public:
    explicit Rounds(Device& device)
        : device_(device),
          x_(device, kCols, "x"),
          sums_(device, kDeviceParts * kCols, "sums"),
          slot_(device, kCols, "slot"),
          cold_(device, kCols, "ids"),
          hot_(device, kCols, "ids"),
          count_(device, 2, "count"),
          epoch_(device, 1, "epoch"),
          arrived_(device, kLayers, "arrived"),
          waited_(device, 1, "waited"),
          shared_x_(device, kLayers * kCols, "x"),
          shared_sums_(device, kLayers * kCols, "sums"),
          ids_(device, kLayers * kCols, "ids"),
          flags_(device, kLayers * 3 * kLine, "flags"),
          stream_(device, device.new_stream()),
          expected_(kCols) {
        for (int c = 0; c < kCols; c++) expected_[size_t(c)] = float(c % 13) / 13;
        std::vector<int32_t> elsewhere(kCols);
        for (int c = 0; c < kCols; c++) elsewhere[size_t(c)] = -1 - c;
        DeviceStream* const s = stream_.get();
        device.zero(s, arrived_.get(), kLayers * sizeof(uint32_t));
        device.zero(s, waited_.get(), sizeof(unsigned long long));
        device.zero(s, sums_.get(), kDeviceParts * kCols * sizeof(float));
        device.copy_in(s, x_.get(), expected_.data(), kCols * sizeof(float));
        device.copy_in(s, slot_.get(), elsewhere.data(), kCols * sizeof(int32_t));
        device.wait(s);
        device.begin_capture(s);
        const DeviceLists lists{hot_.get(), cold_.get(), count_.get(), 1, kCols};
        const DeviceInput x{x_.get(), nullptr, nullptr, 1, kCols};
        const DeviceSums sums{sums_.get(), kDeviceParts, 1, kCols};
        for (int i = 0; i < kLayers; i++) {
            device.ops().select(s, x_.get(), kThreshold, nullptr, slot_.get(), lists);
            device.ops().publish(s, x, lists, exchange(i));
            device.ops().merge_answer(s, sums, lists, exchange(i), nullptr, x_.get());
        }
        graph_ = Owned<DeviceGraph>(device, device.end_capture(s));
    }

    // One graph; false where something was wrong.
    bool token(uint32_t epoch) {
        device_.copy_in(stream_.get(), epoch_.get(), &epoch, sizeof epoch);
        device_.launch(graph_.get(), stream_.get());
        bool good = true;
        for (int i = 0; i < kLayers && good; i++) good = serve(epoch, i);
        if (!good) {
            for (int i = 0; i < kLayers; i++) {
                __atomic_store_n(exchange(i).answered, kReleased, __ATOMIC_RELEASE);
            }
        }
        device_.wait(stream_.get());
        return good;
    }

    // The last answer, as the device has it.
    bool ends_as_expected() {
        std::vector<float> got(kCols);
        device_.copy_out(stream_.get(), got.data(), x_.get(), kCols * sizeof(float));
        device_.wait(stream_.get());
        return gpu_test::same_bits(got, expected_);
    }

 private:
    DeviceExchange exchange(int layer) const {
        DeviceExchange e;
        uint32_t* const line = flags_.get() + layer * 3 * kLine;
        e.x = shared_x_.get() + layer * kCols;
        e.sums = shared_sums_.get() + layer * kCols;
        e.ids = ids_.get() + layer * kCols;
        e.published = line;
        e.answered = line + kLine;
        e.count = reinterpret_cast<int32_t*>(line + 2 * kLine);
        e.arrived = arrived_.get() + layer;
        e.epoch = epoch_.get();
        e.waited = waited_.get();
        return e;
    }

    // The CPU's turn: what was published is what the last answer makes it.
    bool serve(uint32_t epoch, int layer) {
        const DeviceExchange e = exchange(layer);
        const auto begin = std::chrono::steady_clock::now();
        for (uint32_t waited = 1; __atomic_load_n(e.published, __ATOMIC_ACQUIRE) != epoch;
             waited++) {
            if (waited % 4096) continue;
            const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin;
            if (gone.count() > kMostSeconds) {
                std::fprintf(stderr, "round %u, layer %d: no flag\n", epoch, layer);
                return false;
            }
            std::this_thread::yield();
        }
        std::vector<int32_t> ids;
        for (int c = 0; c < kCols; c++) {
            if (expected_[size_t(c)] >= kThreshold) ids.push_back(c);
        }
        const bool good = std::memcmp(e.x, expected_.data(), kCols * sizeof(float)) == 0 &&
                          *e.count == int32_t(ids.size()) &&
                          std::memcmp(e.ids, ids.data(), ids.size() * sizeof(int32_t)) == 0;
        if (!good) std::fprintf(stderr, "round %u, layer %d: stale payload\n", epoch, layer);
        // Every value is another one in every round.
        uint32_t state = epoch * kLayers + uint32_t(layer);
        for (int c = 0; c < kCols; c++) {
            state = state * 1664525 + 1013904223;
            expected_[size_t(c)] = float(state >> 8) * 0x1p-24f;
            e.sums[c] = expected_[size_t(c)];
        }
        __atomic_store_n(e.answered, epoch, __ATOMIC_RELEASE);
        return good;
    }

    Device& device_;
    DeviceArray<float> x_, sums_;
    DeviceArray<int32_t> slot_, cold_, hot_, count_;
    DeviceArray<uint32_t> epoch_, arrived_;
    DeviceArray<unsigned long long> waited_;
    SharedArray<float> shared_x_, shared_sums_;
    SharedArray<int32_t> ids_;
    SharedArray<uint32_t> flags_;
    Owned<DeviceStream> stream_;  // after the memory that its work uses
    Owned<DeviceGraph> graph_;
    std::vector<float> expected_;
};

}  // namespace

int main(int argc, char** argv) try {
    const long rounds = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 600;
    const auto device = open_device(gpu_test::kDevice);
    Rounds test(*device);
    const auto begin = std::chrono::steady_clock::now();
    long done = 0;
    for (uint32_t epoch = 1; done < rounds; epoch++, done += kLayers) {
        const bool good = test.token(epoch);
        CHECK(good);
        if (!good) break;
    }
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin;
    CHECK(done >= rounds && test.ends_as_expected());
    std::printf("%ld rounds, %.2f us each\n", done, 1e6 * gone.count() / double(done));
    return check::summary("test_flags");
} catch (const Error& e) {
    std::fprintf(stderr, "test_flags: %s\n", e.what());
    return 1;
}
