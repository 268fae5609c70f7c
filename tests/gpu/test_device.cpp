// An open device: memory, streams, events, graphs and what happens when it fails; and the exchange
// between the halves of a split layer, with a host thread as the CPU.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "cuda_runtime.h"
#include "ggml/check.h"
#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "gpu/device_arrays.h"

using namespace ggml;
using gpu_test::kThreadSanitizer;

namespace {

void test_opening() {
    CHECK_THROWS(device, open_device("simt7"));
    CHECK_THROWS(device, open_device("simtx"));
    CHECK_THROWS(device, open_device("opencl0"));
    CHECK_THROWS(device, open_device(""));
    shim::set_memory(0);
    CHECK_THROWS(device, open_device("simt"));
    shim::set_memory(1 << 20);
    const auto device = open_device("simt");
    CHECK(device->info().id == "simt0" && device->info().total_bytes == 1 << 20);
    // Test devices are not what a user's machine has.
    for (const DeviceInfo& info : devices()) CHECK(info.id.compare(0, 4, "simt") != 0);
}

std::string refused() {
    try {
        open_device("simt0");
    } catch (const Error& error) {
        CHECK(error.code() == Code::device);
        return error.what();
    }
    return "";
}

// A card or a driver that cannot be used: a sentence with what to do.
void test_cards() {
    shim::set_memory(1 << 20);
    shim::set_card(61, 13000);
    CHECK(refused() == "simt0 (CPU as a GPU) has compute capability 6.1; 7.5 is the least");
    shim::set_card(86, 13000, 90);
    CHECK(refused() ==
          "simt0 (CPU as a GPU) has compute capability 8.6, for which this build has no kernels: "
          "build with -DCMAKE_CUDA_ARCHITECTURES=86");
    shim::set_card(75, 12040);
    CHECK(refused() ==
          "simt0: the NVIDIA driver is for CUDA 12.4, and this build needs 13.0: update the "
          "driver, or build with an older nvcc");
    shim::set_card(75, 0);
    CHECK(refused() == "simt0: no NVIDIA driver is installed");
    shim::set_card(75, 13000);
    shim::set_memory(0);
    CHECK(refused() == "simt0: no CUDA-capable device is detected");
    shim::set_memory(1 << 20);
    CHECK(refused() == "" && shim::allocated() == 0);
}

// What the context takes is measured when the device is first opened, or else guessed. It grows
// later.
void test_context() {
    shim::set_memory(size_t(1) << 30);
    CHECK(open_device("simt0")->context_bytes() == 0);
    shim::set_context(300 << 20);
    const auto device = open_device("simt0");
    CHECK(device->context_bytes() == 308 << 20);
    CHECK(device->free_bytes() == size_t(724) << 20);
    CHECK(open_device("simt0")->context_bytes() == 308 << 20);
    shim::set_context(300 << 20, false);
    CHECK(open_device("simt0")->context_bytes() == 512 << 20);
    shim::set_context(0);
}

void test_memory() {
    shim::set_memory(1 << 20);
    const auto device = open_device("simt0");
    {
        const DeviceArray<float> a(*device, 1000, "test");
        CHECK(device->allocated_bytes() == 4096 && shim::allocated() == 4096);
        CHECK(device->free_bytes() == (1 << 20) - 4096);
        CHECK_THROWS(memory, DeviceArray<float>(*device, 1 << 20, "test"));
        CHECK(device->allocated_bytes() == 4096);
        DeviceArray<float> b(*device, 8, "test"), c;
        c = std::move(b);
        CHECK(c.get() && !b.get());
        const SharedArray<int> shared(*device, 100, "test");
        for (uint64_t i = 0; i < 100; i++) CHECK(shared[i] == 0);
    }
    CHECK(device->allocated_bytes() == 0 && shim::allocated() == 0);
}

// What a thread releases that has never used the device: Python's collector may do so in any.
void test_releases() {
    shim::set_memory(1 << 20);
    const auto device = open_device("simt0");
    auto memory = std::make_unique<DeviceArray<float>>(*device, 1000, "test");
    auto shared = std::make_unique<SharedArray<int>>(*device, 100, "test");
    auto event = std::make_unique<Owned<DeviceEvent>>(*device, device->new_event());
    auto stream = std::make_unique<Owned<DeviceStream>>(*device, device->new_stream());
    device->begin_capture(stream->get());
    device->zero(stream->get(), memory->get(), 400);
    auto graph = std::make_unique<Owned<DeviceGraph>>(*device, device->end_capture(stream->get()));
    std::thread other([&] {
        graph.reset();
        stream.reset();
        event.reset();
        shared.reset();
        memory.reset();
    });
    other.join();
    CHECK(shim::allocated() == 0 && shim::releases_outside() == 0);
}

// Work of some rounds; how far it came where the device failed on the way.
int work(Device& device) {
    std::vector<float> host(500, 2.0f);
    const DeviceArray<float> x(device, 500, "x"), y(device, 500, "y");
    const Owned<DeviceEvent> event(device, device.new_event());
    const Owned<DeviceStream> stream(device, device.new_stream());
    device.copy_in(stream.get(), x.get(), host.data(), 2000);
    device.zero(stream.get(), y.get(), 2000);
    int rounds = 0;
    for (; rounds < 5; rounds++) {
        device.ops().add(stream.get(), y.get(), x.get(), 500);
        device.record(event.get(), stream.get());
        device.wait(event.get());
    }
    device.begin_capture(stream.get());
    device.ops().add(stream.get(), y.get(), x.get(), 500);
    device.ops().add(stream.get(), x.get(), x.get(), 500);
    const Owned<DeviceGraph> graph(device, device.end_capture(stream.get()));
    CHECK(device.nodes(graph.get()) == 2);
    device.launch(graph.get(), stream.get());
    device.launch(graph.get(), stream.get());
    device.copy_out(stream.get(), host.data(), y.get(), 2000);
    device.wait(stream.get());
    CHECK(host[0] == 16 && host[499] == 16);  // 5 * 2 + 2 + 4
    return rounds;
}

// Every call that can fail does so in turn: an Error, nothing leaks, and the next device works.
void test_failures() {
    shim::set_memory(1 << 20);
    int failed = 0;
    for (int n = 0; n < 200; n++) {
        const auto device = open_device("simt0");
        shim::fail_after(n);
        bool threw = false;
        try {
            work(*device);
        } catch (const Error& error) {
            threw = true;
            CHECK(error.code() == Code::device || error.code() == Code::memory);
        }
        shim::fail_after(-1);
        shim::clear_failure();
        CHECK(shim::allocated() == 0 && device->allocated_bytes() == 0);
        failed += threw;
        if (!threw) break;
    }
    CHECK(failed > 10 && failed < 200);
}

// A few split layers, as one graph: publish, the CPU's turn, merge. What the CPU computes depends
// on all that it was given, and the next layer on its answer.
class Layers {
 public:
    static constexpr int kLayers = 3, kCols = 320, kNeurons = 1500;

    explicit Layers(Device& device)
        : device_(device),
          x_(device, kCols, "x"),
          sums_(device, kDeviceParts * kCols, "sums"),
          cold_(device, kNeurons, "ids"),
          hot_(device, kNeurons, "ids"),
          count_(device, 2, "count"),
          epoch_(device, 1, "epoch"),
          arrived_(device, kLayers, "arrived"),
          waited_(device, 1, "waited"),
          late_(device, 1, "late"),
          shared_x_(device, kLayers * kCols, "x"),
          shared_sums_(device, kLayers * kCols, "sums"),
          ids_(device, kLayers * kNeurons, "ids"),
          flags_(device, kLayers * 3 * kLine, "flags"),
          stream_(device, device.new_stream()) {
        DeviceStream* s = stream_.get();
        device.zero(s, arrived_.get(), kLayers * 4);
        device.zero(s, waited_.get(), 8);
        device.zero(s, late_.get(), 8);
        device.zero(s, sums_.get(), kDeviceParts * kCols * 4);
        device.wait(s);
    }

    DeviceExchange exchange(int layer) {
        DeviceExchange e;
        e.x = shared_x_.get() + layer * kCols;
        e.sums = shared_sums_.get() + layer * kCols;
        e.ids = ids_.get() + layer * kNeurons;
        uint32_t* line = flags_.get() + layer * 3 * kLine;
        e.published = line;
        e.answered = line + kLine;
        e.count = reinterpret_cast<int32_t*>(line + 2 * kLine);
        e.arrived = arrived_.get() + layer;
        e.epoch = epoch_.get();
        e.waited = waited_.get();
        e.late = late_.get();
        e.limit = limit;
        return e;
    }

    // The device's part of one token.
    void put(const int32_t* slot) {
        const DeviceOps& ops = device_.ops();
        for (int i = 0; i < kLayers; i++) {
            const DeviceLists lists{hot_.get(), cold_.get(), count_.get(), 1, kNeurons};
            ops.select(stream_.get(), nullptr, 0, nullptr, slot, lists);
            const DeviceInput x{x_.get(), nullptr, nullptr, 1, kCols};
            ops.publish(stream_.get(), x, lists, exchange(i));
            ops.merge_answer(stream_.get(), {sums_.get(), kDeviceParts, 1, kCols}, lists,
                             exchange(i), nullptr, x_.get());
        }
    }

    // What the CPU makes of what it was given.
    static float answer(const float* x, const int32_t* ids, int n, int layer, int c) {
        int64_t sum = 0;
        for (int i = 0; i < n; i++) sum += ids[i];
        return x[(c * 7 + 3) % kCols] * 0.5f + float(sum % 1001) * 0.01f + float(layer);
    }

    // The CPU's part of one token, if it has one; false when it was told to stop.
    bool serve(uint32_t epoch, const std::atomic<bool>& stop) {
        for (int i = 0; i < kLayers; i++) {
            const DeviceExchange e = exchange(i);
            while (__atomic_load_n(e.published, __ATOMIC_ACQUIRE) != epoch) {
                if (stop) return false;
                std::this_thread::yield();
            }
            if (*e.count == 0) continue;
            for (int c = 0; c < kCols; c++) e.sums[c] = answer(e.x, e.ids, *e.count, i, c);
            __atomic_store_n(e.answered, epoch, __ATOMIC_RELEASE);
        }
        return true;
    }

    // Ends all waits of the device, and when that has come to rest makes it wait again.
    void release() {
        for (int i = 0; i < kLayers; i++) {
            __atomic_store_n(exchange(i).answered, kReleased, __ATOMIC_RELEASE);
        }
        device_.wait(stream_.get());
        for (int i = 0; i < kLayers; i++) *exchange(i).answered = 0;
    }

    void set_epoch(const uint32_t* epoch) {
        device_.copy_in(stream_.get(), epoch_.get(), epoch, 4);
    }
    DeviceStream* stream() { return stream_.get(); }
    float* x() { return x_.get(); }
    float* sums() { return sums_.get(); }
    unsigned long long* waited() { return waited_.get(); }
    unsigned long long* late() { return late_.get(); }
    unsigned long long limit = 0;

 private:
    static constexpr int kLine = 16;  // words

    Device& device_;
    DeviceArray<float> x_, sums_;
    DeviceArray<int32_t> cold_, hot_, count_;
    DeviceArray<uint32_t> epoch_, arrived_;
    DeviceArray<unsigned long long> waited_, late_;
    SharedArray<float> shared_x_, shared_sums_;
    SharedArray<int32_t> ids_;
    SharedArray<uint32_t> flags_;
    Owned<DeviceStream> stream_;  // last: it ends before the memory that its work uses
};

void test_exchange(int tokens) {
    const auto device = open_device("simt0");
    Layers layers(*device);
    std::vector<int32_t> slot(Layers::kNeurons), cold;
    for (int i = 0; i < Layers::kNeurons; i++) {
        slot[size_t(i)] = i % 7 < 3 ? i : -1 - i;
        if (i % 7 >= 3) cold.push_back(i);
    }
    const DeviceArray<int32_t> device_slot(*device, slot.size(), "slot");
    std::vector<float> x(Layers::kCols), expected, got(Layers::kCols);
    for (int c = 0; c < Layers::kCols; c++) x[size_t(c)] = float(c % 13);
    expected = x;
    device->copy_in(layers.stream(), device_slot.get(), slot.data(), slot.size() * 4);
    device->copy_in(layers.stream(), layers.x(), x.data(), x.size() * 4);
    device->wait(layers.stream());

    device->begin_capture(layers.stream());
    layers.put(device_slot.get());
    const Owned<DeviceGraph> graph(*device, device->end_capture(layers.stream()));
    CHECK(device->nodes(graph.get()) == 3 * Layers::kLayers);

    const std::atomic<bool> never{false};
    for (uint32_t epoch = 1; epoch <= uint32_t(tokens); epoch++) {
        layers.set_epoch(&epoch);
        device->launch(graph.get(), layers.stream());
        CHECK(layers.serve(epoch, never));
        device->wait(layers.stream());
        for (int i = 0; i < Layers::kLayers; i++) {
            const std::vector<float> before = expected;
            for (int c = 0; c < Layers::kCols; c++) {
                expected[size_t(c)] =
                    Layers::answer(before.data(), cold.data(), int(cold.size()), i, c);
            }
        }
    }
    device->copy_out(layers.stream(), got.data(), layers.x(), got.size() * 4);
    device->wait(layers.stream());
    CHECK(got == expected);
}

// Nobody waits for a half without neurons, and what it would have sent down is not read.
void test_empty_halves() {
    const auto device = open_device("simt0");
    Layers layers(*device);
    std::vector<float> x(Layers::kCols, 1.0f), sums(kDeviceParts * x.size(), 0.25f), got(x.size());
    const DeviceArray<int32_t> all_cold(*device, Layers::kNeurons, "slot");
    std::vector<int32_t> slot(Layers::kNeurons);
    for (int i = 0; i < Layers::kNeurons; i++) slot[size_t(i)] = -1 - i;
    device->copy_in(layers.stream(), all_cold.get(), slot.data(), slot.size() * 4);
    device->copy_in(layers.stream(), layers.x(), x.data(), x.size() * 4);
    device->copy_in(layers.stream(), layers.sums(), sums.data(), sums.size() * 4);
    for (int i = 0; i < Layers::kLayers; i++) {
        std::fill_n(layers.exchange(i).x, x.size(), NAN);
        std::fill_n(layers.exchange(i).sums, x.size(), NAN);
    }
    uint32_t epoch = 1;
    layers.set_epoch(&epoch);
    layers.put(nullptr);
    device->copy_out(layers.stream(), got.data(), layers.x(), got.size() * 4);
    device->wait(layers.stream());
    CHECK(got == std::vector<float>(x.size(), kDeviceParts * 0.25f));
    for (int i = 0; i < Layers::kLayers; i++) {
        const DeviceExchange e = layers.exchange(i);
        CHECK(*e.published == epoch && *e.count == 0 && *e.answered == 0);
        CHECK(std::isnan(e.x[0]));
    }

    std::fill(sums.begin(), sums.end(), NAN);
    device->copy_in(layers.stream(), layers.x(), x.data(), x.size() * 4);
    device->copy_in(layers.stream(), layers.sums(), sums.data(), sums.size() * 4);
    epoch = 2;
    layers.set_epoch(&epoch);
    layers.put(all_cold.get());
    CHECK(layers.serve(epoch, std::atomic<bool>{false}));
    device->copy_out(layers.stream(), got.data(), layers.x(), got.size() * 4);
    device->wait(layers.stream());
    std::vector<int32_t> ids(Layers::kNeurons);
    for (int i = 0; i < Layers::kNeurons; i++) ids[size_t(i)] = i;
    for (int i = 0; i < Layers::kLayers; i++) {
        const std::vector<float> before = x;
        for (int c = 0; c < Layers::kCols; c++) {
            x[size_t(c)] = Layers::answer(before.data(), ids.data(), Layers::kNeurons, i, c);
        }
    }
    CHECK(got == x);
}

// The CPU gives up in the middle of a token, or comes late: no hang, and the next token is right.
void test_interruptions() {
    const auto device = open_device("simt0");
    Layers layers(*device);
    std::vector<float> x(Layers::kCols, 1.0f), got(x.size());
    const std::atomic<bool> never{false};
    const DeviceArray<int32_t> one_cold(*device, Layers::kNeurons, "slot");
    std::vector<int32_t> slot(Layers::kNeurons, 0);
    slot[5] = -1;  // row 0
    device->copy_in(layers.stream(), one_cold.get(), slot.data(), slot.size() * 4);
    uint32_t epoch = 1;
    layers.set_epoch(&epoch);
    layers.put(one_cold.get());
    layers.release();  // returns, although nobody answered

    // On a busy machine the device may be late, too: then the CPU comes later still.
    unsigned long long waited = 0;
    for (int late = 50; waited <= 20000000 && late <= 3200; late *= 4) {
        device->copy_in(layers.stream(), layers.x(), x.data(), x.size() * 4);
        epoch++;
        layers.set_epoch(&epoch);
        layers.put(one_cold.get());
        std::this_thread::sleep_for(std::chrono::milliseconds(late));
        CHECK(layers.serve(epoch, never));
        device->copy_out(layers.stream(), got.data(), layers.x(), got.size() * 4);
        device->copy_out(layers.stream(), &waited, layers.waited(), sizeof waited);
        device->wait(layers.stream());
        // The ids add up to 0: 1, then x / 2 + layer three times.
        CHECK(got[0] == ((0.5f + 0) * 0.5f + 1) * 0.5f + 2);
    }
    CHECK(waited > 20000000 && waited < 100000000000);

    // A device that fails while the CPU waits for it.
    epoch++;
    layers.set_epoch(&epoch);
    shim::fail_after(2);
    std::atomic<bool> stop{false};
    std::thread cpu([&] { CHECK(!layers.serve(epoch, stop)); });
    CHECK_THROWS(device, layers.put(one_cold.get()));
    stop = true;
    cpu.join();
    shim::fail_after(-1);
    layers.release();
}

// Nobody answers: the device gives up once, waits for nothing more, and says so. Then it waits
// again.
void test_limit() {
    const auto device = open_device("simt0");
    Layers layers(*device);
    const DeviceArray<int32_t> all_cold(*device, Layers::kNeurons, "slot");
    std::vector<int32_t> slot(Layers::kNeurons);
    for (int i = 0; i < Layers::kNeurons; i++) slot[size_t(i)] = -1 - i;
    const std::vector<float> x(Layers::kCols, 1.0f);
    unsigned long long late = 0, waited[2] = {0, 0};
    DeviceStream* const s = layers.stream();
    device->copy_in(s, all_cold.get(), slot.data(), slot.size() * 4);
    uint32_t epoch = 1;
    layers.limit = 300000000;
    for (int i = 0; i < 2; i++, epoch++) {
        device->copy_in(s, layers.x(), x.data(), x.size() * 4);
        layers.set_epoch(&epoch);
        layers.put(all_cold.get());
        device->copy_out(s, &late, layers.late(), 8);
        device->copy_out(s, &waited[i], layers.waited(), 8);
        device->wait(s);
        CHECK(late == 1);
    }
    CHECK(waited[0] > layers.limit && waited[1] == waited[0]);
    device->zero(s, layers.late(), 8);
    layers.limit = 60000000000;
    layers.set_epoch(&epoch);
    layers.put(all_cold.get());
    CHECK(layers.serve(epoch, std::atomic<bool>{false}));
    device->copy_out(s, &late, layers.late(), 8);
    device->wait(s);
    CHECK(late == 0);
}

}  // namespace

int main() {
    test_opening();
    test_cards();
    test_memory();
    test_releases();
    test_failures();
    shim::set_memory(1 << 24);
    for (shim::Order order : shim::kOrders) {
        shim::set_order(order);
        test_exchange(20);
        test_empty_halves();
        test_interruptions();
        if (kThreadSanitizer) break;
    }
    shim::set_order(shim::Order::ascending);
    test_exchange(kThreadSanitizer ? 20 : 300);
    test_limit();
    CHECK(shim::unloaded_launches() == 0);
    test_context();  // last: the largest context of a process is remembered
    return check::summary("test_device");
}
