// Attention against formulas in double precision, with pages in any order, windows, groups of heads
// and every type of keys and values, for every instruction set of this machine.
#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "ggml/attention.h"
#include "ggml/dtype.h"
#include "operators.h"

namespace {

// Keys and values of two sequences on unordered pages, stored by store_kv, and their decoded
// values.
struct Pages {
    static constexpr int64_t kPositions = 900, kPages = (kPositions + kKvPage - 1) / kKvPage;

    Pages(DType type, int64_t n_head_kv, int64_t head_dim, int64_t v_head_dim)
        : width(n_head_kv * head_dim),
          v_width(n_head_kv * v_head_dim),
          k{type, n_head_kv, head_dim, v_head_dim, nullptr, nullptr, 0} {
        const int64_t keys = n_head_kv * k.key_run();
        // A gap, as for another layer.
        k.page_stride = keys + n_head_kv * k.value_run() + 64;
        bytes.resize(size_t(2 * kPages * k.page_stride));
        k.k = bytes.data();
        k.v = bytes.data() + keys;
        for (int32_t s = 0; s < 2; s++) {
            for (int32_t i = 0; i < kPages; i++) pages[s][i] = 2 * (kPages - 1 - i) + s;
            key[s] = rounded(random_floats(kPositions * width, 2), type);
            value[s] = rounded(random_floats(kPositions * v_width, 2), type);
            std::vector<KvSlot> slots;
            for (int64_t p = 0; p < kPositions; p++) {
                slots.push_back({pages[s][p / kKvPage], int32_t(p % kKvPage)});
            }
            Context context(1 + s);
            store_kv(context, k, slots.data(), 70, key[s].data(), value[s].data());
            store_kv(context, k, slots.data() + 70, kPositions - 70, key[s].data() + 70 * width,
                     value[s].data() + 70 * v_width);
        }
    }
    // Values after encoding and decoding; encoding these again is exact.
    static Floats rounded(Floats values, DType type) {
        std::vector<uint8_t> stored(size_t(info(type).size(int64_t(values.size()))));
        info(type).encode(values.data(), stored.data(), int64_t(values.size()));
        info(type).decode(stored.data(), values.data(), int64_t(values.size()));
        return values;
    }

    int64_t width, v_width;
    KvLayer k;
    std::vector<uint8_t> bytes;
    int32_t pages[2][kPages];
    Floats key[2], value[2];  // [positions, n_head_kv, head_dim | v_head_dim]
};

// Values as 8-bit activations have them.
Floats quantised(const Floats& x) {
    const int64_t n = int64_t(x.size());
    std::vector<uint8_t> room(size_t(4 * n + 4096));
    Carver carver(room.data(), room.size());
    Q8Rows q8 = Q8Rows::carve(carver, 1, n);
    q8.cols = n;
    contexts[0]->kernels.quantize[int(DType::F32)](x.data(), 0, 1, q8);
    Floats y;
    for (int64_t i = 0; i < n; i++) y.push_back(q8.d[i / kQ] * float(q8.q[i]));
    return y;
}

// Also the rows in other parts: those that share a tile, and few rows, whose blocks are computed
// apart.
Floats steady_in_parts(const std::function<Floats(Context&, int64_t, int64_t)>& op, int64_t rows) {
    const Floats all = steady(op, rows);
    const int64_t width = int64_t(all.size()) / rows;
    for (int64_t part : {3, 4, 7, 50}) {
        for (int64_t t = 0; t < rows; t += part) {
            const int64_t n = std::min(part, rows - t);
            const auto from = all.begin() + t * width;
            CHECK(same(op(*contexts[size_t(t) % 3], t, n), Floats(from, from + n * width)));
        }
    }
    return all;
}

constexpr double kLimit = 2e-5;

// The most by which rounded weights of positions from `first` on change the values of a block of
// columns: in every page, half of 1 / 16,383 of the largest weight times the largest scale, for
// each code.
double rounded_weights(const Floats& value, int64_t width, int64_t column, int64_t first,
                       const Doubles& weight) {
    double all = 0;
    const int64_t end = first + int64_t(weight.size());
    for (int64_t page = first / kKvPage * kKvPage; page < end; page += kKvPage) {
        double top = 0, largest = 0;
        const int64_t from = std::max(first, page), to = std::min(end, page + kKvPage);
        for (int64_t p = from; p < to; p++) {
            top = std::max(top, weight[size_t(p - first)]);
            for (int64_t c = column; c < column + int64_t(kQ); c++) {
                largest = std::max(largest, double(std::fabs(value[size_t(p * width + c)])));
            }
        }
        all += double(to - from) * top * largest * 0.5 / 16383;
    }
    return all;
}

// v_head_dim: 0 for that of keys.
void test_attention(DType type, int64_t n_head, int64_t n_head_kv, int64_t head_dim,
                    int64_t window = 0, float softcap = 0, bool with_sinks = false,
                    int64_t v_head_dim = 0) {
    if (v_head_dim == 0) v_head_dim = head_dim;
    const Pages kv(type, n_head_kv, head_dim, v_head_dim);
    // The first position, positions around the ends of pages and blocks, several pages, of both
    // sequences in turn; then rows that follow each other, as in prompts: within a block, across
    // blocks, and a few.
    std::vector<int64_t> positions = {1,   2,   63,  64,  65,  128, 256,
                                      257, 129, 200, 511, 512, 513, 900};
    const int64_t apart = int64_t(positions.size());
    for (int64_t p = 126; p <= 131; p++) positions.push_back(p);
    for (int64_t p = 505; p <= 600; p++) positions.push_back(p);
    for (int64_t p = 897; p <= 900; p++) positions.push_back(p);
    const auto sequence = [&](int64_t t) { return t < apart ? t % 2 : 0; };
    const int64_t rows = int64_t(positions.size()), width = n_head * head_dim;
    const int64_t out_width = n_head * v_head_dim;
    const Floats q = random_floats(rows * width, 2);
    // Some larger than all scores, some smaller.
    const Floats sinks = random_floats(with_sinks ? n_head : 0, 10);
    std::vector<AttentionRow> table;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t end = positions[size_t(t)];
        table.push_back(
            {kv.pages[sequence(t)], window ? std::max<int64_t>(0, end - window) : 0, end});
    }
    const float scale = float(1 / std::sqrt(double(head_dim)));
    // Blocks meet queries in 8 bits.
    Floats seen = q;
    if (type == DType::Q8_0) {
        for (float& v : seen) v *= scale;
        seen = quantised(seen);
        for (float& v : seen) v /= scale;
    }
    const auto op = [&](Context& context, int64_t first, int64_t n) {
        Floats out(size_t(n * out_width), NAN);
        const AttentionSizes most = {n_head, head_dim, v_head_dim, out_width};
        Carved<AttentionScratch> scratch("scratch", context.threads.size(), rows, Pages::kPositions,
                                         most);
        attention(context, kv.k, n_head, {scale, softcap, with_sinks ? sinks.data() : nullptr},
                  table.data() + first, n, q.data() + first * width, *scratch, out.data());
        return out;
    };
    // Computed for the first instruction set; the others have the same inputs.
    static std::map<std::tuple<DType, int64_t, int64_t, int64_t, int64_t, float, bool, int64_t>,
                    std::pair<Doubles, Doubles>>
        known;
    auto& [expected, size] =
        known[{type, n_head, n_head_kv, head_dim, window, softcap, with_sinks, v_head_dim}];
    for (int64_t t = 0; expected.size() < size_t(rows * out_width); t++) {
        const Floats &key = kv.key[sequence(t)], &value = kv.value[sequence(t)];
        const int64_t first = table[size_t(t)].first, n = table[size_t(t)].end;
        for (int64_t h = 0; h < n_head; h++) {
            const int64_t kv_head = h / (n_head / n_head_kv), base = kv_head * head_dim;
            const int64_t v_base = kv_head * v_head_dim;
            Doubles weight;
            double top = -INFINITY, sum = 0;
            for (int64_t p = first; p < n; p++) {
                double dot = 0;
                for (int64_t i = 0; i < head_dim; i++) {
                    dot += double(seen[size_t(t * width + h * head_dim + i)]) *
                           key[size_t(base + p * kv.width + i)];
                }
                dot /= std::sqrt(double(head_dim));
                weight.push_back(softcap ? softcap * std::tanh(dot / softcap) : dot);
                top = std::max(top, weight.back());
            }
            if (with_sinks) {
                top = std::max(top, double(sinks[size_t(h)]));
                sum = std::exp(double(sinks[size_t(h)]) - top);
            }
            for (double& w : weight) sum += w = std::exp(w - top);
            for (int64_t i = 0; i < v_head_dim; i++) {
                double y = 0, total = 0;
                for (int64_t p = first; p < n; p++) {
                    const double term = weight[size_t(p - first)] / sum *
                                        value[size_t(v_base + p * kv.v_width + i)];
                    y += term;
                    total += std::fabs(term);
                }
                if (type == DType::Q8_0) {
                    const int64_t block = v_base + i / int64_t(kQ) * int64_t(kQ);
                    total +=
                        rounded_weights(value, kv.v_width, block, first, weight) / sum / kLimit;
                }
                expected.push_back(y);
                size.push_back(total);
            }
        }
    }
    // Scores have magnitudes of about ten and go through exp(): a relative error of 1e-7 in a score
    // is one of about 1e-6 in its weight.
    CHECK(close(steady_in_parts(op, rows), expected, size, kLimit));
}

// Rows that see both sides: the whole text, or so many positions before and behind them; with
// biases of the scores by distance.
void test_both_sides(DType type, int64_t n_head, int64_t n_head_kv, int64_t head_dim, int64_t n,
                     int64_t radius, bool biased) {
    const Pages kv(type, n_head_kv, head_dim, head_dim);
    const int64_t width = n_head * head_dim, farthest = n + 2;
    const Floats q = random_floats(n * width, 2);
    const Floats bias = random_floats(n_head * (2 * farthest + 1), 3);
    std::vector<AttentionRow> table;
    for (int64_t t = 0; t < n; t++) {
        table.push_back(
            {kv.pages[0], std::max<int64_t>(0, t - radius), std::min(t + radius + 1, n), t});
    }
    AttentionScores how{float(1 / std::sqrt(double(head_dim)))};
    if (biased) how.bias = bias.data(), how.farthest = farthest;
    const auto op = [&](Context& context, int64_t first, int64_t some) {
        Floats out(size_t(some * width), NAN);
        Carved<AttentionScratch> scratch("scratch", context.threads.size(), n, Pages::kPositions,
                                         AttentionSizes{n_head, head_dim, head_dim, width});
        attention(context, kv.k, n_head, how, table.data() + first, some, q.data() + first * width,
                  *scratch, out.data());
        return out;
    };
    static std::map<std::tuple<DType, int64_t, int64_t, int64_t, int64_t, int64_t, bool>,
                    std::pair<Doubles, Doubles>>
        known;
    auto& [expected, size] = known[{type, n_head, n_head_kv, head_dim, n, radius, biased}];
    for (int64_t t = 0; expected.size() < size_t(n * width); t++) {
        for (int64_t h = 0; h < n_head; h++) {
            const int64_t base = h / (n_head / n_head_kv) * head_dim;
            Doubles weight;
            double sum = 0;
            for (int64_t p = 0; p < n; p++) {
                if (std::abs(p - t) > radius) continue;
                double dot = 0;
                for (int64_t i = 0; i < head_dim; i++) {
                    dot += double(q[size_t(t * width + h * head_dim + i)]) *
                           kv.key[0][size_t(base + p * kv.width + i)];
                }
                dot /= std::sqrt(double(head_dim));
                if (biased) dot += bias[size_t(h * (2 * farthest + 1) + farthest + p - t)];
                weight.push_back(std::exp(dot));
                sum += weight.back();
            }
            const int64_t first = std::max<int64_t>(0, t - radius);
            for (int64_t i = 0; i < head_dim; i++) {
                double y = 0, total = 0;
                for (size_t p = 0; p < weight.size(); p++) {
                    const int64_t at = base + (first + int64_t(p)) * kv.width + i;
                    const double term = weight[p] / sum * kv.value[0][size_t(at)];
                    y += term;
                    total += std::fabs(term);
                }
                expected.push_back(y);
                size.push_back(total);
            }
        }
    }
    CHECK(close(steady_in_parts(op, n), expected, size, kLimit));
}

// Reads of keys and values are counted once for all rows and heads that share them.
void test_attention_bytes() {
    const auto read = [](int64_t n_head, int64_t n_head_kv,
                         const std::vector<std::pair<int, int64_t>>& seen) {
        const int64_t head_dim = 8;
        const Pages kv(DType::F16, n_head_kv, head_dim, head_dim);
        std::vector<AttentionRow> rows;
        for (const auto& [sequence, end] : seen) rows.push_back({kv.pages[sequence], 0, end});
        const int64_t n = int64_t(rows.size());
        Floats q(size_t(n * n_head * head_dim)), out(q.size());
        Context context(2);
        context.profile.on = true;
        const AttentionSizes most = {n_head, head_dim, head_dim, n_head * head_dim};
        Carved<AttentionScratch> scratch("scratch", 2, n, Pages::kPositions, most);
        attention(context, kv.k, n_head, {1}, rows.data(), n, q.data(), *scratch, out.data());
        // Positions read per KV head.
        return int64_t(context.profile.entries[0].bytes) / (n_head_kv * 2 * head_dim * 2);
    };
    std::vector<std::pair<int, int64_t>> prompt;
    for (int64_t end = 101; end <= 120; end++) prompt.emplace_back(0, end);
    CHECK(read(3, 3, {{0, 100}}) == 100);
    // Two threads: at least two tiles of each KV head.
    CHECK(read(3, 3, prompt) == 110 + 120);  // 10 rows each
    CHECK(read(8, 2, prompt) == 110 + 120);
    CHECK(read(36, 2, {{0, 101}, {0, 102}}) == 101 + 102);  // 18 heads each
    CHECK(read(150, 2, {{0, 101}}) == 2 * 101);             // 75 heads: 37, then 38
    CHECK(read(3, 3, {{0, 50}, {0, 51}, {1, 60}, {0, 52}, {0, 52}, {0, 9}}) == 51 + 60 + 52 + 9);
}

// Values that are the beginnings of keys: the same bits as with values beside the keys.
void test_values_in_keys(DType type, int64_t head_dim, int64_t v_head_dim) {
    const int64_t n_head = 5, n = 4, width = n_head * head_dim;
    const Pages once(type, 2, head_dim, v_head_dim);
    KvLayer both = once.k, alone = once.k;
    alone.v = nullptr;
    Floats value;
    for (int64_t i = 0; i < 2 * Pages::kPositions; i++) {
        const auto key = once.key[0].begin() + i * head_dim;
        value.insert(value.end(), key, key + v_head_dim);
    }
    std::vector<KvSlot> slots;
    for (int64_t p = 0; p < Pages::kPositions; p++) {
        slots.push_back({once.pages[0][p / kKvPage], int32_t(p % kKvPage)});
    }
    store_kv(*contexts[0], both, slots.data(), Pages::kPositions, once.key[0].data(), value.data());
    const Floats q = random_floats(n * 2 * width);
    std::vector<AttentionRow> rows;
    for (int64_t end : {1, 300, 301, 899}) rows.push_back({once.pages[0], end > 300 ? 70 : 0, end});
    const auto run = [&](Context& context, const KvLayer& layer) {
        const int64_t out_width = 2 * n_head * v_head_dim;
        Floats out(size_t(n * out_width));
        const AttentionSizes most = {2 * n_head, head_dim, v_head_dim, out_width,
                                     layer.v ? 0 : layer.value_run()};
        Carved<AttentionScratch> scratch("scratch", context.threads.size(), n, Pages::kPositions,
                                         most);
        attention(context, layer, 2 * n_head, {0.1f}, rows.data(), n, q.data(), *scratch,
                  out.data());
        return out;
    };
    const Floats expected = run(*contexts[0], both);
    for (Context* context : contexts) CHECK(same(run(*context, alone), expected));
}

// Keys and values become rows and come back, whole pages and parts of them.
void test_rows(decltype(&rows_to_keys) to_run, decltype(&keys_to_rows) to_rows,
               std::initializer_list<DType> moved) {
    for (DType type : {DType::F16, DType::F32, DType::Q8_0}) {
        const int64_t dim = 96, row = info(type).size(dim);
        const Floats values = random_floats(kKvPage * dim);
        std::vector<uint8_t> rows(size_t(kKvPage * row)), run(rows.size()), back(rows.size());
        info(type).encode(values.data(), rows.data(), kKvPage * dim);
        to_run(type, dim, rows.data(), kKvPage, run.data());
        to_rows(type, dim, run.data(), kKvPage, back.data());
        const bool moves = std::find(moved.begin(), moved.end(), type) != moved.end();
        CHECK((run != rows) == moves && back == rows);
        std::fill(run.begin(), run.end(), uint8_t(255));
        std::fill(back.begin(), back.end(), uint8_t(0));
        to_run(type, dim, rows.data(), 13, run.data());
        to_rows(type, dim, run.data(), 13, back.data());
        CHECK(std::equal(back.begin(), back.begin() + 13 * row, rows.begin()));
        CHECK(std::count(back.begin() + 13 * row, back.end(), 0) == (kKvPage - 13) * row);
    }
}

void test_all() {
    for (DType type : {DType::F16, DType::F32}) {
        test_attention(type, 3, 3, 8);
        test_attention(type, 8, 2, 20);
        test_attention(type, 8, 2, 20, 70);  // a window that begins inside a page
        test_attention(type, 8, 2, 20, 0, 0.5f);
        test_attention(type, 8, 2, 20, 0, 0, true);
        test_attention(type, 8, 2, 20, 0, 0, false, 13);  // values narrower than keys, and wider
        test_attention(type, 8, 1, 13, 70, 0, true, 20);
        test_attention(type, 36, 2, 16);  // 18 query heads per key head: two passes
    }
    test_attention(DType::F16, 150, 2, 12);  // a row's heads fill more than a tile
    test_attention(DType::Q8_0, 3, 3, 32);
    test_attention(DType::Q8_0, 8, 2, 96);
    test_attention(DType::Q8_0, 8, 2, 64, 300);
    test_attention(DType::Q8_0, 8, 2, 64, 300, 0, true);
    test_attention(DType::Q8_0, 8, 1, 96, 0, 0, false, 64);
    for (const bool biased : {false, true}) {
        test_both_sides(DType::F32, 4, 4, 16, 1, 300, biased);
        test_both_sides(DType::F32, 3, 3, 8, 65, 300, biased);
        test_both_sides(DType::F32, 8, 2, 20, 259, 300, biased);
        test_both_sides(DType::F32, 8, 2, 20, 259, 12, biased);
        test_both_sides(DType::F32, 6, 1, 13, 300, 70, biased);
        test_both_sides(DType::F16, 4, 2, 96, 130, 64, biased);
    }
    for (DType type : {DType::F16, DType::F32, DType::Q8_0}) test_values_in_keys(type, 96, 64);
    test_values_in_keys(DType::F16, 45, 37);
    test_attention_bytes();
    test_rows(rows_to_keys, keys_to_rows, {DType::F16, DType::F32, DType::Q8_0});
    test_rows(rows_to_values, values_to_rows, {DType::Q8_0});
}

}  // namespace

int main() {
    const std::mt19937 start = rng;
    for_each_isa([&](const char*) {
        rng = start;
        test_all();
    });
    return check::summary("test_attention");
}
