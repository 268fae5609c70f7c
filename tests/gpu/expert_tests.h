// Tests of the operators of a mixture.
#pragma once

#include <atomic>
#include <thread>

#include "gpu/twins.h"

namespace gpu_test {

// ---- the router ---------------------------------------------------------------------------------

struct Chosen {
    Chosen(int rows, int n_used, int n_expert)
        : expert(size_t(rows * n_used)),
          weight(size_t(rows * n_used)),
          first(size_t(n_expert + 1)),
          pair(size_t(rows * n_used)),
          view{expert.get(), weight.get(), first.get(), pair.get(), rows, n_used, n_expert} {}
    Array<int32_t> expert;
    Array<float> weight;
    Array<int32_t> first, pair;
    DeviceChoice view;
};

inline bool same_number(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, 4) == 0;
}

// Scores of n rows, with ties, and what is no number in some rows.
inline Floats scores_of(const Routing& how, int rows) {
    const int n = int(how.n_expert);
    Floats score = normal(rows * n, 2);
    for (int t = 1; t < rows; t += 3) {  // ties
        for (int e = 0; e < n; e++) {
            float& s = score[size_t(t * n + e)];
            s = std::round(s);
        }
    }
    const auto at = [&](int t, int e) -> float& { return score[size_t(t * n + e)]; };
    if (rows > 2) at(2, n / 2) = -INFINITY;
    if (rows > 5) at(5, n - 1) = NAN;
    if (rows > 6) at(6, 0) = NAN;
    if (rows > 8) std::fill_n(&at(8, 0), n, -INFINITY);
    if (rows > 9) at(9, n / 3) = INFINITY;
    if (rows > 11) std::fill_n(&at(11, 0), n, 0.0f);
    if (rows > 12) at(12, 1) = 300;  // what is behind it rounds to 0
    return score;
}

inline void test_routing(Routing how, int rows) {
    const int n = int(how.n_expert), used = int(how.n_used);
    Floats score = scores_of(how, rows);
    const Array<float> device_score(score);
    const Floats bias = normal(n), scales = normal(n, 0.1f, 1);
    const Array<float> device_bias(bias), device_scales(scales);
    const Chosen chosen(rows, used, n);
    Routing device = how;
    if (how.choice_bias) device.choice_bias = device_bias.get(), how.choice_bias = bias.data();
    if (how.expert_scale)
        device.expert_scale = device_scales.get(), how.expert_scale = scales.data();
    ops.route(stream(), device, device_score.get(), chosen.view);
    std::vector<int32_t> first(size_t(n + 1)), row(size_t(rows * used));
    Floats weight(size_t(rows * used));
    Carved<RouteScratch> scratch("scratch", rows, n, used);
    route(context, how, score.data(), rows, *scratch, {first.data(), row.data(), weight.data()});

    const std::vector<int32_t> expert = noted(chosen.expert.read());
    const std::vector<int32_t> pair = noted(chosen.pair.read());
    const Floats got = noted(chosen.weight.read());
    CHECK(same_bits(noted(chosen.first.read()), first));
    bool same = true;
    for (int e = 0; e < n; e++) {
        for (size_t i = size_t(first[size_t(e)]); i < size_t(first[size_t(e + 1)]); i++) {
            const auto p = size_t(pair[i]);
            same = same && pair[i] >= 0 && p < pair.size() && pair[i] / used == row[i] &&
                   expert[p] == e && same_number(got[p], weight[i]);
        }
    }
    for (size_t i = 1; i < expert.size(); i++) {
        same = same && (i % size_t(used) == 0 || expert[i - 1] < expert[i]);
    }
    CHECK(same);
}

// One kind of router after the other.
inline void test_routers(int rows, int n, int used) {
    const float some = 1;  // says that there is one of these
    Routing how;
    how.n_expert = n;
    how.n_used = used;
    for (bool normalise : {false, true}) {
        how.normalise = normalise;
        for (Gating gating :
             {Gating::softmax, Gating::sigmoid, Gating::of_chosen, Gating::sqrt_softplus}) {
            how.gating = gating;
            test_routing(how, rows);
        }
        how.gating = Gating::softmax;
        how.choice_bias = &some;
        how.scale = 2.5f;
        test_routing(how, rows);
        how.gating = Gating::sigmoid;
        how.expert_scale = &some;
        test_routing(how, rows);
        how.choice_bias = how.expert_scale = nullptr;
        how.scale = 1;
        for (int groups : {2, 8, 64}) {
            const int used_groups = (groups + 1) / 2;
            if (n % groups || n / groups * used_groups < used) continue;
            how.n_group = groups;
            how.n_group_used = used_groups;
            for (bool by_two : {false, true}) {
                how.by_two = by_two;
                how.choice_bias = by_two ? &some : nullptr;
                test_routing(how, rows);
            }
        }
        how.choice_bias = nullptr;
        how.n_group = how.n_group_used = 1;
    }
    how.gating = Gating::softmax;
    how.mixer = 0.02f;
    test_routing(how, rows);
}

// Every row chooses all experts.
inline void test_choose_all(int rows, int n) {
    const Chosen chosen(rows, n, n);
    ops.choose_all(stream(), chosen.view);
    std::vector<int32_t> expert, pair, first;
    for (int i = 0; i < rows * n; i++) expert.push_back(i % n);
    for (int e = 0; e < n; e++) {
        for (int t = 0; t < rows; t++) pair.push_back(t * n + e);
    }
    for (int e = 0; e <= n; e++) first.push_back(e * rows);
    CHECK(same_bits(noted(chosen.expert.read()), expert));
    CHECK(same_bits(noted(chosen.pair.read()), pair));
    CHECK(same_bits(noted(chosen.first.read()), first));
}

inline void test_route() {
    for (int rows : {1, 3, 40}) {
        for (int n : {1, 5, 128}) test_choose_all(rows, n);
    }
    test_routers(1, 4, 1);
    test_routers(3, 4, 4);
    test_routers(40, 8, 2);
    test_routers(14, 29, 3);
    test_routers(40, 64, 6);
    test_routers(14, 128, 8);
    test_routers(3, 160, 8);
    test_routers(14, 256, 8);
    test_routers(1, 512, 10);
}

// ---- both halves --------------------------------------------------------------------------------

// Memory of the host that the device sees.
template <typename T>
class Seen {
 public:
    explicit Seen(size_t n) : n_(n) {
        must(cudaHostAlloc(reinterpret_cast<void**>(&data_), n * sizeof(T), cudaHostAllocMapped));
        std::memset(static_cast<void*>(data_), 0xff, n * sizeof(T));  // floats: no numbers
    }
    ~Seen() { must(cudaFreeHost(data_)); }
    Seen(const Seen&) = delete;
    Seen& operator=(const Seen&) = delete;
    T* get() const { return data_; }
    size_t size() const { return n_; }

 private:
    T* data_ = nullptr;
    size_t n_;
};

// A mixture whose experts are in part on the device. Values that nobody may read are no numbers.
struct HalfMixture {
    // Expert e is here if is_here(e).
    template <typename F>
    HalfMixture(int n_rows, int n_used, int n_cols, const F& is_here)
        : rows(n_rows),
          used(n_used),
          cols(n_cols),
          x(normal(rows * cols)),
          given(normal(rows * used * cols)),
          weights(normal(rows * used)),
          chosen(rows, used, kExperts),
          input(x),
          y(size_t(rows * cols)),
          to_x(x.size()),
          sums(given.size()),
          ids(size_t(rows * used)),
          count(1),
          published(1),
          answered(1),
          arrived(std::vector<uint32_t>{0}),
          epoch(std::vector<uint32_t>{kEpoch}),
          waited(std::vector<unsigned long long>{0}),
          late(std::vector<unsigned long long>{0}) {
        std::vector<int32_t> frames;
        for (int e = 0; e < kExperts; e++) frames.push_back(is_here(e) ? int(frames.size()) : -1);
        Floats of_device = given;
        for (int t = 0; t < rows; t++) {
            std::vector<int32_t> all(kExperts);
            std::iota(all.begin(), all.end(), 0);
            std::shuffle(all.begin(), all.end(), rng);
            std::sort(all.begin(), all.begin() + used);
            experts.insert(experts.end(), all.begin(), all.begin() + used);
        }
        for (size_t p = 0; p < experts.size(); p++) {
            cold.push_back(frames[size_t(experts[p])] < 0);
            if (cold[p]) std::fill_n(of_device.begin() + int64_t(p) * cols, cols, NAN);
        }
        copy(chosen.expert, experts);
        copy(chosen.weight, weights);
        here = std::make_unique<Array<float>>(of_device);
        frame = std::make_unique<Array<int32_t>>(frames);
        *answered.get() = 0;
        *published.get() = 0;
    }
    template <typename T>
    static void copy(const Array<T>& to, const std::vector<T>& from) {
        must(cudaMemcpyAsync(to.get(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                             raw_stream()));
        must(cudaStreamSynchronize(raw_stream()));
    }

    int n_cold() const { return int(std::count(cold.begin(), cold.end(), true)); }
    DeviceFrames frames() const { return {frame->get(), 0}; }
    DeviceExchange exchange(unsigned long long limit = 0) const {
        DeviceExchange e;
        e.x = to_x.get();
        e.ids = ids.get();
        e.count = count.get();
        e.published = published.get();
        e.sums = sums.get();
        e.answered = answered.get();
        e.arrived = arrived.get();
        e.epoch = epoch.get();
        e.waited = waited.get();
        e.limit = limit;
        e.late = late.get();
        return e;
    }
    void start(unsigned long long limit = 0) {
        DeviceInput in;
        in.x = input.get();
        in.rows = rows;
        in.cols = cols;
        ops.publish_experts(stream(), in, chosen.view, frames(), exchange(limit));
        ops.merge_experts(stream(), chosen.view, frames(), here->get(), exchange(limit), cols,
                          y.get());
    }
    // The CPU's half, beside the stream.
    bool answer() {
        while (__atomic_load_n(published.get(), __ATOMIC_ACQUIRE) != kEpoch) {
            std::this_thread::yield();
        }
        const bool seen = count.get()[0] == n_cold() &&
                          std::equal(experts.begin(), experts.end(), ids.get()) &&
                          std::memcmp(to_x.get(), x.data(), x.size() * sizeof(float)) == 0;
        for (size_t p = 0; p < cold.size(); p++) {
            if (cold[p])
                std::copy_n(given.begin() + int64_t(p) * cols, cols,
                            sums.get() + int64_t(p) * cols);
        }
        __atomic_store_n(answered.get(), kEpoch, __ATOMIC_RELEASE);
        return seen;
    }
    Floats expected() const {
        Floats all(size_t(rows * cols));
        std::vector<int32_t> row;
        for (int p = 0; p < rows * used; p++) row.push_back(p / used);
        scatter_add(context, given.data(), row.data(), weights.data(), rows * used, cols,
                    all.data());
        return all;
    }

    static constexpr int kExperts = 24;
    static constexpr uint32_t kEpoch = 7;
    int rows, used, cols;
    Floats x, given, weights;
    std::vector<int32_t> experts;
    std::vector<bool> cold;
    Chosen chosen;
    Array<float> input, y;
    std::unique_ptr<Array<float>> here;
    std::unique_ptr<Array<int32_t>> frame;
    Seen<float> to_x, sums;
    Seen<int32_t> ids, count;
    Seen<uint32_t> published, answered;
    Array<uint32_t> arrived, epoch;
    Array<unsigned long long> waited, late;
};

inline void test_merge_experts() {
    for (auto [rows, cols] :
         std::vector<std::pair<int, int>>{{1, 32}, {1, 1312}, {3, 256}, {40, 1056}}) {
        for (int part : {0, 1, 2}) {  // of three experts are on the CPU: none, one, all
            HalfMixture m(rows, 4, cols, [&](int e) { return part == 0 || (part == 1 && e % 3); });
            const bool waits = m.n_cold() > 0;
            std::atomic<bool> seen{true};
            std::thread cpu;
            if (waits) cpu = std::thread([&] { seen = m.answer(); });
            m.start();
            CHECK(same_bits(noted(m.y.read()), m.expected()));
            if (waits) cpu.join();
            CHECK(seen);
            CHECK(*m.published.get() == m.kEpoch && m.arrived.read()[0] == 0);
            CHECK(*m.count.get() == m.n_cold());
            CHECK(std::equal(m.experts.begin(), m.experts.end(), m.ids.get()));
            if (!waits) {  // and the CPU gets no more than that
                CHECK(m.waited.read()[0] == 0);
                CHECK(std::all_of(m.to_x.get(), m.to_x.get() + m.to_x.size(),
                                  [](float v) { return std::isnan(v); }));
            }
        }
    }
    const auto nowhere = [](int) { return false; };
    {
        HalfMixture m(2, 3, 64, nowhere);  // stopped: the wait ends, what comes of it is worthless
        *m.answered.get() = kReleased;
        m.start();
        m.y.read();
        CHECK(m.late.read()[0] == 0);
    }
    {
        HalfMixture m(1, 3, 64, nowhere);  // no answer: it is late, and nothing waits after that
        constexpr unsigned long long limit = 2000000;
        m.start(limit);
        CHECK(m.late.read()[0] == 1);
        const unsigned long long waited = m.waited.read()[0];
        CHECK(waited >= limit);
        m.start(limit);
        CHECK(m.waited.read()[0] == waited);
    }
}

// ---- an expert's way to the device --------------------------------------------------------------

// Rows of any bits at all, as strips where the type has them.
inline void test_unfold() {
    for (DType type : kTypes) {
        for (int64_t rows : {1, 8, 21}) {
            for (int64_t cols : {256, 288, 320, 1280}) {
                if (!has_device_rows(type, cols)) continue;
                Weights w(type, rows, cols);
                for (uint8_t& byte : w.stored) byte = uint8_t(rng());
                w.pack(type, rows, cols);
                std::vector<uint8_t> from = w.stored;
                if (has_strips(type)) {
                    from.resize(size_t((rows + kStrip - 1) / kStrip * kStrip * w.bytes));
                    for (int64_t r = 0; r < rows; r += kStrip) {
                        pack_strip(type, w.stored.data() + r * w.bytes, std::min(kStrip, rows - r),
                                   cols, from.data() + r * w.bytes);
                    }
                }
                const Array<uint8_t> strips(from), got(size_t(rows * w.device.stride));
                DeviceRows to = w.device;
                to.data = got.get();
                ops.unfold(stream(), strips.get(), to);
                CHECK(same_bits(noted(got.read()), w.planes->read()));
            }
        }
    }
}

}  // namespace gpu_test
