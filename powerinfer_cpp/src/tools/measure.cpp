#include "tools/measure.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "ggml/ops.h"
#include "ggml/status.h"

namespace powerinfer {

namespace {

// Calls `work` for at least `seconds` and returns the shortest time of one call: other load on the
// machine can only make a call slower.
template <typename F>
double shortest(double seconds, const F& work) {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point t) {
        return std::chrono::duration<double>(Clock::now() - t).count();
    };
    const Clock::time_point start = Clock::now();
    double best = 1e30;
    do {
        const Clock::time_point t = Clock::now();
        work();
        best = std::min(best, since(t));
    } while (since(start) < seconds);
    return best;
}

}  // namespace

double measure_read(int n_threads, uint64_t n_bytes) {
    ggml::Context context(n_threads);
    const ggml::Memory memory(n_bytes, "the bandwidth test");
    std::fill_n(memory.data(), n_bytes, uint8_t(1));
    volatile uint64_t sink = 0;
    const double s = shortest(
        0.5, [&] { sink = sink + ggml::read_memory(context, memory.data(), int64_t(n_bytes)); });
    return double(n_bytes) / s;
}

double measure_product(const ggml::DTypeInfo& type, int n_threads, int64_t n_tokens) {
    constexpr int64_t kRows = 2048, kCols = 4096;
    ggml::Context context(n_threads);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(kCols), x(size_t(n_tokens * kCols)), y(size_t(n_tokens * kRows));
    for (float& v : x) v = normal(random);
    for (float& v : row) v = normal(random);
    // All rows are equal: the time of a product does not depend on the values.
    std::vector<uint8_t> stored(size_t(type.size(kCols * ggml::kStrip)));
    for (int64_t i = 0; type.encode && i < ggml::kStrip; i++) {
        type.encode(row.data(), stored.data() + i * type.size(kCols), kCols);
    }
    // Without an encoder: bytes of which every half is finite.
    for (uint8_t& byte : stored) byte = type.encode ? byte : uint8_t(random() & 63);
    ggml::Matrix w{type.type, ggml::Layout::rows, kRows, kCols, nullptr};
    if (ggml::has_strips(type.type)) w.layout = ggml::Layout::strips;
    const ggml::Memory memory(uint64_t(w.bytes()), "the product test");
    for (int64_t r = 0; r < kRows; r += ggml::kStrip) {
        uint8_t* to = memory.data() + r * w.row_bytes();
        if (w.layout == ggml::Layout::strips) {
            ggml::pack_strip(type.type, stored.data(), ggml::kStrip, kCols, to);
        } else {
            std::copy(stored.begin(), stored.end(), to);
        }
    }
    w.data = memory.data();
    ggml::Carved<ggml::InputBuffer> buffer("the product test", n_tokens, kCols);
    const ggml::Input input =
        buffer->prepare(context, x.data(), n_tokens, kCols, type.is_quantised());
    const double s = shortest(0.3, [&] { ggml::matmul(context, input, {{w, y.data()}}); });
    return double(kRows * kCols * n_tokens) / s;
}

}  // namespace powerinfer
