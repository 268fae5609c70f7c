// Attention of a device against the CPU's.
#pragma once

#include "gpu/heads_tests.h"

namespace gpu_test {

// Keys and values of a layer on both sides, with what a sequence of `length` positions has there.
struct AttentionCase {
    DType type;
    int dim, v_dim, n_kv, group;
    bool latent = false;  // values are those of keys
    bool few = false;     // rows are enough
};

// A row: which of two sequences, and what it sees.
struct SeenBy {
    int sequence, first, end;
};

class AttentionTest {
 public:
    explicit AttentionTest(const AttentionCase& of)
        : of_(of),
          n_head_(of.n_kv * of.group),
          host_{of.type, of.n_kv, of.dim, of.v_dim, nullptr, nullptr, 0},
          values_at_(of.n_kv * host_.key_run()),
          stride_(values_at_ + (of.latent ? 0 : of.n_kv * host_.value_run())),
          // What has not been stored is not a number, in every type.
          memory_(size_t(kPages * stride_), 0xff),
          device_memory_(memory_) {
        host_.page_stride = stride_;
        host_.k = memory_.data();
        host_.v = of.latent ? nullptr : host_.k + values_at_;
        device_ = host_;
        device_.k = device_memory_.get();
        device_.v = of.latent ? nullptr : device_.k + values_at_;
        // Pages in no order; the second sequence has those of the first in another one.
        for (int i = 0; i < kLength / kKvPage; i++) tables_[0].push_back((5 * i + 3) % kPages);
        tables_[1].assign(tables_[0].rbegin(), tables_[0].rend());
        for (const auto& table : tables_) {
            device_tables_.push_back(std::make_unique<Array<int32_t>>(table));
        }
        store();
    }

    // Rows from the first-th on, n at once: the CPU's bits whatever rows are beside them.
    void run(const std::vector<SeenBy>& seen) {
        const int n = int(seen.size()), out_dim = n_head_ * of_.v_dim;
        std::vector<AttentionRow> rows;
        std::vector<DeviceAttentionRow> device_rows;
        for (const SeenBy& s : seen) {
            rows.push_back({tables_[s.sequence].data(), s.first, s.end});
            device_rows.push_back({device_tables_[size_t(s.sequence)]->get(), s.first, s.end});
        }
        const Floats q = normal(n * n_head_ * of_.dim);
        const Array<float> device_q(q);
        const Array<DeviceAttentionRow> device_ranges(device_rows);
        DeviceAttentionScratch scratch;
        scratch.blocks = int(device_attention_blocks(kLength)) + 1;  // more than are needed
        const Array<float> sums(size_t(n * n_head_ * scratch.blocks * (of_.v_dim + 2)));
        scratch.sums = sums.get();
        AttentionSizes most = {n_head_, of_.dim, of_.v_dim, out_dim};
        if (of_.latent) most.value_run = host_.value_run();
        Carved<AttentionScratch> room("scratch", context.threads.size(), n, kLength, most);
        const Floats sinks = normal(n_head_, 3);
        const Array<float> device_sinks(sinks);
        for (bool more : {false, true}) {  // capped scores, and sinks
            AttentionScores how{0.125f, more ? 20.0f : 0.0f, more ? sinks.data() : nullptr};
            Floats expected(size_t(n * out_dim));
            attention(context, host_, n_head_, how, rows.data(), n, q.data(), *room,
                      expected.data());
            if (more) how.sinks = device_sinks.get();
            // A part of the rows at a time: bits do not depend on it.
            for (int step : more ? std::vector<int>{n} : std::vector<int>{1, 4}) {
                Floats got;
                for (int t = 0; t < n; t += step) {
                    const int some = std::min(step, n - t);
                    Activations out(Floats(size_t(some * out_dim)), some);
                    // In 8 bits, too, where rows are whole groups of 32.
                    const bool to8 = out_dim % kQ == 0;
                    if (!to8) out.device.q = nullptr;
                    ops.attention(stream(), device_, n_head_, how, device_ranges.get() + t, some,
                                  device_q.get() + t * n_head_ * of_.dim, scratch, out.device);
                    const Floats part = noted(out.x.read());
                    if (to8) CHECK(out.quantised_as(part));
                    got.insert(got.end(), part.begin(), part.end());
                }
                // Where the CPU's weights differ in their last bits, integers of 14 bits may differ
                // by 1.
                CHECK(like_the_cpus(got, expected, of_.type == DType::Q8_0 ? 2e-4 : kRounding));
            }
        }
    }

 private:
    static constexpr int kPages = 16, kLength = 960;

    void store() {
        std::vector<KvSlot> slots;
        for (int i = 0; i < kLength; i++) {
            slots.push_back({tables_[0][size_t(i / kKvPage)], i % int(kKvPage)});
        }
        const int keys = of_.n_kv * of_.dim, values = of_.n_kv * of_.v_dim;
        Floats k = normal(kLength * keys), v = normal(kLength * values);
        // The scores after the row that ends at 900 are huge, and so is the only one of another
        // row; and values that only some rows see.
        for (int i = 900 * keys; i < 912 * keys; i++) k[size_t(i)] *= 1000;
        for (int i = 950 * values; i < 960 * values; i++) v[size_t(i)] *= 1000;
        if (of_.type != DType::Q8_0) v[size_t(955 * values)] = v[size_t(100 * values)] = INFINITY;
        const Array<KvSlot> device_slots(slots);
        const Array<float> device_k(k), device_v(v);
        const bool latent = of_.latent;
        store_rows(device_, device_slots.get(), kLength, device_k.get(),
                   latent ? nullptr : device_v.get());
        store_kv(context, host_, slots.data(), kLength, k.data(), latent ? nullptr : v.data());
        std::vector<uint8_t> stored = memory_;
        for (int page = 0; page < kPages; page++) {  // as rows, which a device has
            for (int head = 0; head < of_.n_kv; head++) {
                const int64_t run = page * stride_ + head * host_.key_run();
                keys_to_rows(of_.type, of_.dim, memory_.data() + run, kKvPage, stored.data() + run);
                if (latent) continue;
                const int64_t of_values = page * stride_ + values_at_ + head * host_.value_run();
                values_to_rows(of_.type, of_.v_dim, memory_.data() + of_values, kKvPage,
                               stored.data() + of_values);
            }
        }
        CHECK(same_bits(noted(device_memory_.read()), stored));
    }

    const AttentionCase of_;
    const int n_head_;
    KvLayer host_;
    KvLayer device_ = {};
    const int64_t values_at_, stride_;  // of a page: where values begin, and bytes
    std::vector<uint8_t> memory_;
    Array<uint8_t> device_memory_;
    std::vector<int32_t> tables_[2];
    std::vector<std::unique_ptr<Array<int32_t>>> device_tables_;
};

inline void test_attention() {
    const std::vector<SeenBy> all = {{0, 0, 1},     {0, 0, 64},   {0, 0, 255},   {0, 0, 256},
                                     {0, 0, 257},   {1, 0, 300},  {1, 100, 600}, {0, 300, 301},
                                     {0, 200, 700}, {0, 0, 900},  {0, 890, 900}, {0, 905, 906},
                                     {0, 950, 960}, {1, 950, 960}};
    const std::vector<SeenBy> few = {{0, 200, 700}, {0, 0, 257}, {1, 100, 300}, {0, 905, 906}};
    const std::vector<SeenBy> two = {{0, 100, 300}, {0, 0, 257}};
    for (const AttentionCase& of :
         std::vector<AttentionCase>{{DType::F16, 64, 64, 2, 3},
                                    {DType::F32, 64, 64, 2, 3, false, true},
                                    {DType::Q8_0, 64, 64, 2, 3},
                                    {DType::F16, 128, 128, 1, 4, false, true},
                                    {DType::Q8_0, 128, 128, 1, 8, false, true},
                                    {DType::F32, 136, 136, 1, 5, false, true},
                                    {DType::Q8_0, 96, 96, 2, 1, false, true},
                                    {DType::F16, 40, 24, 2, 4},
                                    {DType::F32, 24, 40, 4, 1},
                                    // Rows that are not made of whole 16 bytes.
                                    {DType::F32, 6, 6, 2, 3, false, true},
                                    {DType::F16, 250, 250, 2, 1, false, true},
                                    {DType::F16, 48, 20, 1, 2, true, true},
                                    // Several slabs of columns.
                                    {DType::F16, 256, 256, 2, 2, false, true},
                                    {DType::F16, 320, 320, 1, 1, false, true},
                                    {DType::Q8_0, 160, 192, 1, 9, false, true},
                                    {DType::F16, 576, 512, 1, 17, true, true},
                                    {DType::F32, 576, 512, 1, 9, true, true},
                                    {DType::Q8_0, 576, 512, 1, 17, true, true}}) {
        AttentionTest(of).run(of.dim > 500 ? two : of.few ? few : all);
    }
}

// More blocks than are merged at a time, of a few pages that come again and again; the largest
// scores are in the first block alone.
inline void test_long_attention() {
    const int dim = 8, pages = 6, length = 257 * int(kDeviceAttentionBlock) + 7;
    KvLayer host{DType::F32, 1, dim, dim, nullptr, nullptr, 0};
    host.page_stride = 2 * host.key_run();
    Floats k = normal(pages * kKvPage * dim);
    const Floats v = normal(pages * kKvPage * dim);
    for (int i = (pages - 1) * kKvPage * dim; i < int(k.size()); i++) k[size_t(i)] *= 2;
    std::vector<KvSlot> slots;
    for (int i = 0; i < pages * kKvPage; i++) slots.push_back({i / 64, i % 64});
    std::vector<uint8_t> memory(size_t(pages * host.page_stride));
    const Array<uint8_t> device_memory(memory);
    host.k = memory.data();
    host.v = host.k + host.key_run();
    KvLayer device = host;
    device.k = device_memory.get();
    device.v = device.k + device.key_run();
    const int n = int(slots.size());
    const Array<KvSlot> device_slots(slots);
    const Array<float> device_k(k), device_v(v);
    store_rows(device, device_slots.get(), n, device_k.get(), device_v.get());
    store_kv(context, host, slots.data(), n, k.data(), v.data());

    std::vector<int32_t> table;
    for (int i = 0; i <= length / kKvPage; i++) table.push_back(i * i % (pages - 1));
    table[1] = pages - 1;
    const Array<int32_t> device_table(table);
    const AttentionRow row{table.data(), 3, length};
    const Array<DeviceAttentionRow> device_row(
        std::vector<DeviceAttentionRow>{{device_table.get(), 3, length}});
    const Floats q = normal(dim);
    const Array<float> device_q(q), out(q.size());
    DeviceAttentionScratch scratch;
    scratch.blocks = int(device_attention_blocks(length));
    const Array<float> sums(size_t(scratch.blocks * (dim + 2)));
    scratch.sums = sums.get();
    const Floats sink = {5.0f};
    const Array<float> device_sink(sink);
    const AttentionScores how{1, 0, sink.data()}, device_how{1, 0, device_sink.get()};
    ops.attention(stream(), device, 1, device_how, device_row.get(), 1, device_q.get(), scratch,
                  {out.get(), nullptr, nullptr, 1, dim});
    Floats expected(q.size());
    Carved<AttentionScratch> room("scratch", context.threads.size(), 1, length,
                                  AttentionSizes{1, dim, dim, dim});
    attention(context, host, 1, how, &row, 1, q.data(), *room, expected.data());
    CHECK(like_the_cpus(noted(out.read()), expected));
}

}  // namespace gpu_test
