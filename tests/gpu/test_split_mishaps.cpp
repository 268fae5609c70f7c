// Whole models that a device and the CPU share, on a device that fails, waits for a late CPU, or
// has less memory than it seems: an error or the same bits, no hang, nothing lost. Only the shim
// can.
#include <algorithm>
#include <functional>
#include <thread>

#include "engine/sessions.h"
#include "gpu/device_arrays.h"
#include "gpu/splits.h"

using namespace splits;
using gpu_test::kThreadSanitizer;

namespace {

// The CPU comes seconds late: the same bits late. The device fails while the CPU computes its half
// of layer n, or the caller stops in the middle of a generated text: an error, no hang, and the
// text so far is kept.
void test_mishaps(const Shape& shape) {
    static std::function<void()> mishap;
    static int left, late;
    left = -1;
    Split split(0, shape);
    split.params.should_stop = [](void*) {
        if (left-- == 0) mishap();
        return false;
    };
    const Tokens tokens = random_tokens(6, 4);
    for (bool stepwise : {false, true}) {
        if (stepwise && kThreadSanitizer) continue;
        split.params.stepwise = stepwise;
        Session session(split.model, split.params);
        const Floats expected = logits(session, tokens);
        session.truncate(0, 0);
        mishap = [] {
            std::this_thread::sleep_for(std::chrono::milliseconds(250));
            left = late-- > 0 ? 0 : -1;
        };
        late = 6;  // calls in turn
        left = 0;
        CHECK(same(logits(session, tokens, 1), expected));
        CHECK(late < 0);
        // Under the sanitizer the device comes as late as the CPU.
        CHECK(stepwise || kThreadSanitizer || session.counts.waited_for_cpu > 200000000);

        mishap = [] {
            cudaStream_t stream = nullptr;
            CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
            cudaLaunchConfig_t config = {};
            config.stream = stream;
            config.blockDim = 32;
            CHECK(cudaLaunchKernelEx(
                      &config, +[](int) { shim::fail("broken", {}); }, 0) == cudaSuccess);
            CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
            CHECK(cudaStreamDestroy(stream) == cudaSuccess);
        };
        int failures = 0;
        for (int n = 0;; n += kThreadSanitizer ? 2 + n : 1) {
            session.truncate(0, 3);
            left = n;
            try {
                eval(session, {tokens[3], tokens[4], tokens[5]});
                break;
            } catch (const Error& e) {
                CHECK(e.code() == Code::device);
                CHECK(session.length(0) == 3 && left < 0);
            }
            failures++;
            shim::clear_failure();
        }
        CHECK(failures >= 3 && left >= 0);
        left = -1;
        Floats got;
        session.truncate(0, 3);
        eval(session, {tokens[3], tokens[4], tokens[5]});
        append_logits(session, 2, got);
        CHECK(same(got, Floats(expected.end() - split.model->config.n_vocab, expected.end())));
    }
}

// Call n of the run time fails, for every n: an error, no hang, nothing lost.
void test_failing_device(const Shape& shape) {
    Split split(0, shape);
    const Tokens tokens = random_tokens(4, 4);
    const Floats expected = logits(split.model, tokens, split.params);
    const ggml::Device& device = *split.model->device->device;
    const uint64_t before = device.allocated_bytes();
    for (bool stepwise : {false, true}) {
        split.params.stepwise = stepwise;
        int failures = 0, in_row = 0;
        // Memory that cannot be pinned is no error: two runs in a row are well at the end.
        for (int n = 0; in_row < 2; n += 1 + n / 20) {
            shim::fail_after(n);
            bool failed = false;
            try {
                CHECK(same(logits(split.model, tokens, split.params), expected));
            } catch (const Error& e) {
                CHECK(e.code() == Code::device || e.code() == Code::memory);
                failed = true;
                failures++;
            }
            shim::fail_after(-1);
            CHECK(device.allocated_bytes() == before);
            in_row = failed ? 0 : in_row + 1;
        }
        CHECK(failures > 20);
    }
    // While loading.
    int failures = 0;
    for (int n = 0;; n += 1 + n / 10) {
        shim::fail_after(n);
        try {
            load_on(split.path, split.budget, split.params);
            break;
        } catch (const Error& e) {
            CHECK(e.code() == Code::device || e.code() == Code::memory);
            failures++;
        }
    }
    shim::fail_after(-1);
    CHECK(failures > 10);
}

// What the driver takes on the device counts against the budget.
void test_context() {
    Split split;
    constexpr uint64_t kNow = 3 << 20, kLater = 8 << 20, kContext = kNow + kLater;
    shim::set_context(kNow);
    const uint64_t others = shim::allocated();
    const auto model = load_on(split.path, split.budget + kContext, split.params);
    const Plan plan = make_plan(*model, split.params);
    CHECK(std::any_of(plan.parts.begin(), plan.parts.end(), [](const PlanPart& p) {
        return p.tier == Tier::gpu && p.part == Part::context && p.bytes == kContext;
    }));
    CHECK(total(plan.parts, Tier::gpu) <= split.budget + kContext);
    CHECK(neurons_on_device(*model) == neurons_on_device(*split.model));
    CHECK_THROWS(memory, load_on(split.path, split.budget, split.params));
    {
        Session session(model, split.params);
        logits(session, random_tokens(2, 1));
        // Allocations are rounded up.
        CHECK(*shim::used() - others <= split.budget + kContext + (1 << 16));
    }
    shim::set_context(0);
}

// Rows of both kinds, a stop and a failing device, for the thread sanitizer.
void test_threads(const Shape& shape) {
    Split split(0, shape);
    split.params.n_threads = split.params.n_threads_batch = 3;
    const Tokens tokens = random_tokens(4, 4);
    static int left;
    left = -1;
    split.params.should_stop = [](void*) { return left-- == 0; };
    Session session(split.model, split.params);
    const Floats expected = logits(session, tokens, 96, 2);
    session.truncate(0, 0);
    left = 5;
    CHECK_THROWS(cancelled, logits(session, tokens, 96, 2));
    left = -1;
    shim::fail_after(3);
    CHECK_THROWS(device, logits(session, tokens, 96, 2));
    shim::fail_after(-1);
    CHECK(same(logits(session, tokens, 96, 2), expected));
}

}  // namespace

int main() {
    const Shape shapes[] = {by_neuron(DType::F32), mixture(DType::F32)};
    if (kThreadSanitizer) {
        for (const Shape& shape : shapes) {
            test_threads(shape);
            test_mishaps(shape);
        }
        return check::summary("test_split_mishaps");
    }
    for (const Shape& shape : shapes) test_failing_device(shape);
    CHECK(shim::unloaded_launches() == 0);
    for (const Shape& shape : shapes) test_mishaps(shape);  // they launch a kernel of their own
    test_context();  // last: the largest context of a process is remembered
    return check::summary("test_split_mishaps");
}
