// The device that takes a card's time: the time of its operators, what it counts, and models that
// it shares with the CPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "device/device_model.h"
#include "engine/sessions.h"
#include "ggml/device.h"
#include "ggml/device_ops.h"
#include "timed/device.h"

using namespace sessions;
using ggml::DeviceStream;

namespace {

double seconds_of(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void test_ids() {
    for (const char* id : {"timed:bandwith=1", "timed:node", "timed:node=", "timed:node=1x",
                           "timed:node=-1", "timed:node=nan", "timed:fired=2"}) {
        CHECK_THROWS(device, ggml::open_device(id));
    }
    CHECK_THROWS(io, ggml::open_device("timed:rates=/nowhere"));
    const auto device = ggml::open_device("timed:memory=1e9,level=-0.5");
    CHECK(device->info().total_bytes == 1000000000);
    CHECK_THROWS(memory, device->allocate(2000000000, "weights"));
    for (const ggml::DeviceInfo& d : ggml::devices()) CHECK(d.id.rfind("timed", 0) != 0);
}

// 20 products of 1 MB at 100 MB/s and 1 ms each take 0.22 s, as a graph and one by one.
void test_time() {
    const auto device = ggml::open_device("timed:bandwidth=1e8,node=1e-3,launch=5e-3,link=1e9");
    DeviceStream* stream = device->new_stream();
    ggml::DeviceRows w;
    const auto memory = static_cast<uint8_t*>(device->allocate(1 << 30, "weights"));
    w.data = memory;  // an address without memory
    w.rows = 1000, w.cols = 1000, w.stride = 1000;
    const ggml::DeviceProduct product{w, nullptr, nullptr};
    const auto work = [&] {
        for (int i = 0; i < 20; i++) device->ops().matmul(stream, {}, &product, 1);
    };
    // Never less; on a busy machine not much more in one of a few tries.
    const auto takes = [](double expected, const std::function<void()>& some) {
        double least = 1e9;
        for (int i = 0; i < 10 && least > expected + 0.1; i++) {
            least = std::min(least, seconds_of(some));
        }
        if (least < expected || least > expected + 0.1) {
            std::fprintf(stderr, "%g instead of %g s\n", least, expected);
        }
        return least >= expected && least <= expected + 0.1;
    };
    CHECK(takes(0.22, [&] {
        work();
        device->wait(stream);
    }));
    const double before = ggml::timed::of(stream).bytes();
    device->begin_capture(stream);
    work();
    ggml::DeviceGraph* graph = device->end_capture(stream);
    CHECK(device->nodes(graph) == 20);
    const double bytes = ggml::timed::of(stream).bytes() - before;
    CHECK(bytes == 0);
    device->launch(graph, stream);
    device->wait(stream);
    CHECK(ggml::timed::of(stream).bytes() - before == 20e6);
    CHECK(takes(0.225, [&] {
        device->launch(graph, stream);
        CHECK(!device->idle(stream));
        device->wait(stream);
        CHECK(device->idle(stream));
    }));
    std::vector<uint8_t> host(10000000);
    CHECK(takes(0.022, [&] {
        device->copy_in(stream, memory, host.data(), host.size());
        device->copy_out(stream, host.data(), w.data, host.size());
        device->wait(stream);
    }));
    device->release(graph);
    device->release(memory);
    CHECK(device->allocated_bytes() == 0);
    device->release(stream);
}

// The neurons of a model that fire half as often as they are asked for: both halves get their
// share, and the waits are as long as the model says.
void test_split() {
    const std::string path = folder / "timed.gguf", rates = folder / "rates";
    Shape shape;
    shape.activation = "relu", shape.down_t = true, shape.predictor_rank = 32, shape.n_layer = 3;
    shape.n_ff = 960;
    tiny::write(tiny::describe(shape), path);
    const std::vector<float> rate(size_t(shape.n_layer * shape.n_ff), 0.25f);
    std::ofstream(rates, std::ios::binary)
        .write(reinterpret_cast<const char*>(rate.data()), ptrdiff_t(rate.size() * sizeof(float)));
    pi_session_params session = session_params();
    session.sparse = PI_SPARSE_PREDICTOR;
    pi_model_params params = pi_model_default_params();
    const std::string id = "timed:node=1e-3,proposed=2,fired=0.5,rates=" + rates;
    params.device = id.c_str();
    params.session = &session;
    const uint64_t most = total(make_plan(*Model::load(path, params), session).parts, Tier::gpu);
    const Tokens tokens = random_tokens(4, 3);
    for (const uint64_t budget : {most, most - 1000000}) {
        params.vram_budget = budget;
        const auto model = Model::load(path, params);
        const DeviceSplit& split = model->device->split;
        CHECK(split.first_layer == 0 && split.splits(1) == (budget < most));
        {
            Session s(model, session);
            logits(s, tokens, 1, 0);
            // At least 15 kernels a layer. Several tries, for a busy machine.
            double kernels = 1e9;
            for (int i = 0; i < 3 || (i < 10 && kernels > 100); i++) {
                s.truncate(0, 0);
                const double seconds = seconds_of([&] { logits(s, tokens, 1, 0); });
                kernels = std::min(kernels, seconds / double(tokens.size()) / 1e-3);
            }
            if (!(kernels > 45 && kernels < 200)) std::fprintf(stderr, "%g kernels\n", kernels);
            CHECK(kernels > 45 && kernels < 200);
            for (const ggml::NeuronCounts& n : s.counts.neurons) {
                const double asked = double(n.proposed) / double(n.rows) / double(shape.n_ff);
                CHECK(asked > 0.45 && asked < 0.55);
                if (budget == most) CHECK(n.fired * 2 <= n.proposed + n.rows);
            }
        }
        // A stop in the middle leaves nobody waiting.
        static int left;
        left = 3;
        pi_session_params stopped = session;
        stopped.should_stop = [](void*) { return --left == 0; };
        Session other(model, stopped);
        CHECK_THROWS(cancelled, logits(other, tokens, 1, 0));
    }
}

// A layer of a mixture: the host computes experts that have no frame, and nobody waits without any.
void test_experts() {
    constexpr int kExperts = 16, kUsed = 4, kCols = 64, kTokens = 400;
    const auto device = ggml::open_device("timed:skew=1");
    DeviceStream* stream = device->new_stream();
    const auto array = [&](size_t n) {
        return static_cast<int32_t*>(device->allocate(n * sizeof(int32_t), "test"));
    };
    ggml::DeviceChoice choice;
    choice.expert = array(kUsed);
    choice.weight = reinterpret_cast<float*>(array(kUsed));
    choice.rows = 1, choice.n_used = kUsed, choice.n_expert = kExperts;
    int32_t* const frame = array(kExperts);
    ggml::DeviceExchange e;
    std::vector<float> x(kCols), sums(kUsed * kCols);
    std::vector<int32_t> ids(kUsed), count(1);
    uint32_t published = 0, answered = 0, epoch = 0;
    e.x = x.data(), e.sums = sums.data(), e.ids = ids.data(), e.count = count.data();
    e.published = &published, e.answered = &answered, e.epoch = &epoch;
    ggml::DeviceInput input;
    input.rows = 1, input.cols = kCols;
    ggml::DeviceRows w;
    w.rows = 10, w.cols = kCols, w.stride = 100;
    const ggml::DeviceProduct product{w, nullptr, nullptr};
    const ggml::DeviceFrames frames{frame, 0};
    device->begin_capture(stream);
    device->ops().route(stream, {}, nullptr, choice);
    device->ops().publish_experts(stream, input, choice, frames, e);
    device->ops().matmul_experts(stream, input, choice, frames, &product, 1);
    device->ops().merge_experts(stream, choice, frames, nullptr, e, kCols, nullptr);
    ggml::DeviceGraph* graph = device->end_capture(stream);
    CHECK(device->nodes(graph) == 5);
    std::vector<int> used(kExperts);
    for (const bool all_here : {true, false}) {
        for (int i = 0; i < kExperts; i++) frame[i] = all_here || i % 2 ? i : -1;
        const double before = ggml::timed::of(stream).bytes();
        int here = 0;
        for (int t = 0; t < kTokens; t++) {
            epoch++;
            device->launch(graph, stream);
            while (__atomic_load_n(&published, __ATOMIC_ACQUIRE) != epoch)
                std::this_thread::yield();
            int cold = 0;
            for (int k = 0; k < kUsed; k++) {
                CHECK(ids[size_t(k)] >= 0 && ids[size_t(k)] < kExperts);
                CHECK(k == 0 || ids[size_t(k)] > ids[size_t(k - 1)]);
                used[size_t(ids[size_t(k)])]++;
                cold += frame[ids[size_t(k)]] < 0;
            }
            CHECK(count[0] == cold);
            here += kUsed - cold;
            if (cold > 0) __atomic_store_n(&answered, epoch, __ATOMIC_RELEASE);
            device->wait(stream);
        }
        CHECK(ggml::timed::of(stream).bytes() - before == here * 1000.0);
        CHECK((here == kUsed * kTokens) == all_here);
    }
    std::sort(used.begin(), used.end());
    CHECK(used[0] > 0 && used[kExperts - 1] > 4 * used[0]);
    device->release(graph);
    for (void* memory : {static_cast<void*>(frame), static_cast<void*>(choice.weight),
                         static_cast<void*>(choice.expert)}) {
        device->release(memory);
    }
    device->release(stream);
}

}  // namespace

int main() {
    test_ids();
    test_time();
    test_split();
    test_experts();
    return check::summary("test_timed");
}
