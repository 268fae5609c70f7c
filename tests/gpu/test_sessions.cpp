// What sessions do to a device beside one another, and over a long time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "forward/device_forward.h"
#include "gpu/splits.h"

using namespace splits;

namespace {

// Rows of more kinds than a session keeps graphs for: the ones that were used last stay, and a kind
// that is recorded again computes the same.
void test_many_graphs() {
    Shape shape;
    shape.n_layer = 1;
    const std::string path = folder / "many.gguf";
    tiny::write(tiny::describe(shape), path);
    pi_session_params params = session_params();
    const auto model = load_on(path, 1 << 30, params);
    Session session(model, params);
    const Tokens tokens = random_tokens(16, 3);
    const std::vector<char> yes(16, 1);
    const auto flags = [](const std::vector<char>& v) {
        return reinterpret_cast<const bool*>(v.data());
    };
    // The last row of `rows` generated ones, of which so many are kept.
    const auto last = [&](size_t rows, size_t kept) {
        std::vector<char> keep(rows, 0);
        std::fill(keep.end() - ptrdiff_t(kept), keep.end(), 1);
        session.truncate(0, 0);
        eval(session, Tokens(tokens.begin(), tokens.begin() + ptrdiff_t(rows)),
             {nullptr, flags(keep), flags(yes)});
        Floats out;
        append_logits(session, int32_t(rows) - 1, out);
        return out;
    };
    const DeviceForward& device = *session.device();
    const Floats first = last(2, 1), second = last(2, 2);
    CHECK(device.n_recorded() == 2);
    size_t kinds = 0;
    for (size_t rows = 1; rows <= 12; rows++) {
        for (size_t kept = 1; kept <= rows; kept++, kinds++) {
            last(rows, kept);
            if (kinds % 8 == 0) CHECK(same(last(2, 2), second));  // it is used again and again
        }
    }
    CHECK(kinds > DeviceForward::kMostRecorded);
    CHECK(device.n_recorded() == DeviceForward::kMostRecorded);
    CHECK(same(last(2, 1), first) && same(last(2, 2), second));
    CHECK(device.n_recorded() == DeviceForward::kMostRecorded);
}

// What happens once in a call, at the check before the CPU's half of a layer: there the device
// waits.
std::function<void()> meanwhile;
int checks_before = -1;
bool disturb(void*) {
    if (checks_before-- == 0) meanwhile();
    return false;
}
void in_mid_token(Session& session, const Tokens& tokens, const std::function<void()>& what) {
    meanwhile = what;
    checks_before = 2;
    eval(session, tokens);
    CHECK(checks_before < 0);
}

// A session that ends while another one computes, by its thread or in a callback of the one that
// computes: nobody waits, and the driver gets its memory back when the device is at rest.
void test_closing() {
    Split split;
    split.params.should_stop = disturb;
    pi_model_params params = on_device(2 * split.budget, split.params);
    params.n_sessions = 2;
    const auto model = Model::load(split.path, params);
    CHECK(model->device->split.splits(model->config.n_layer - 1));
    Session session(model, split.params);
    const Tokens one = {random_tokens(1, 4)};
    const Floats expected = logits(session, one);
    std::optional<Session> other;
    for (const bool by_thread : {true, false}) {
        const size_t before = shim::allocated();
        other.emplace(model, split.params);
        const size_t both = shim::allocated();
        CHECK(both > before);
        session.truncate(0, 0);
        in_mid_token(session, one, [&] {
            const uint64_t known = model->device->device->allocated_bytes();
            by_thread ? std::thread([&] { other.reset(); }).join() : other.reset();
            CHECK(model->device->device->allocated_bytes() < known);
            CHECK(shim::allocated() == both);
        });
        CHECK(shim::allocated() == before);
        Floats got;
        append_logits(session, 0, got);
        CHECK(same(got, expected));
    }
}

// Models on the same card compute one after the other.
void test_two_models() {
    Split split;
    const auto model = load_on(split.path, split.budget, split.params);
    Session other(model, split.params);
    split.params.should_stop = disturb;
    Session session(split.model, split.params);
    const Tokens one = {random_tokens(1, 4)};
    const Floats expected = logits(other, one);
    other.truncate(0, 0);
    std::atomic<bool> done{false};
    std::thread thread;
    Floats got;
    in_mid_token(session, one, [&] {
        thread = std::thread([&] {
            got = logits(other, one);
            done = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK(!done);
    });
    thread.join();
    CHECK(same(got, expected));
}

// The CPU's half comes when the device does not wait any more: an error, and the next call is
// right.
void test_late() {
    shim::set_watchdog(true);
    Split split;
    shim::set_watchdog(false);
    split.params.should_stop = disturb;
    Session session(split.model, split.params);
    const Tokens tokens = random_tokens(4, 4);
    const Floats expected = logits(session, tokens);
    session.truncate(0, 3);
    const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); };
    CHECK_THROWS(device, in_mid_token(session, {tokens[3]}, sleep));
    CHECK(session.length(0) == 3);
    Floats got;
    eval(session, {tokens[3]});
    append_logits(session, 0, got);
    CHECK(same(got, Floats(expected.end() - split.model->config.n_vocab, expected.end())));
}

}  // namespace

int main() {
    test_many_graphs();
    test_closing();
    test_two_models();
    test_late();
    return check::summary("test_sessions");
}
