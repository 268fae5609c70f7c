// Rotary positions, and heads on their way to attention, against the CPU's norms, rotations and
// store_kv(): the same bits.
#pragma once

#include "gpu/twins.h"

namespace gpu_test {

// The rows of keys and values that a cache of the CPU's has: a device stores rows.
inline std::vector<uint8_t> as_rows(const KvLayer& layer, const std::vector<uint8_t>& pages) {
    std::vector<uint8_t> rows = pages;
    const auto at = [&](const uint8_t* run) { return rows.data() + (run - pages.data()); };
    for (int64_t page = 0; page * layer.page_stride < int64_t(pages.size()); page++) {
        for (int64_t head = 0; head < layer.n_head_kv; head++) {
            const uint8_t* k = layer.k + page * layer.page_stride + head * layer.key_run();
            keys_to_rows(layer.type, layer.head_dim, k, kKvPage, at(k));
            if (!layer.v) continue;
            const uint8_t* v = layer.v + page * layer.page_stride + head * layer.value_run();
            values_to_rows(layer.type, layer.v_head_dim, v, kKvPage, at(v));
        }
    }
    return rows;
}

// A layer in `pages` of memory, whose values lie behind its keys.
inline KvLayer kv_layer(DType type, int64_t n_kv, int64_t dim, int64_t v_dim, bool values) {
    KvLayer layer{type, n_kv, dim, v_dim, nullptr, nullptr, 0};
    layer.page_stride = n_kv * (layer.key_run() + (values ? layer.value_run() : 0));
    return layer;
}
inline KvLayer in_memory(KvLayer layer, uint8_t* memory, bool values) {
    layer.k = memory;
    if (values) layer.v = memory + layer.n_head_kv * layer.key_run();
    return layer;
}

inline DeviceHeads::Kind plain_heads(const float* x, int64_t n_head, int64_t dim) {
    return {x, n_head * dim, dim, int(dim), nullptr, 0, 0};
}

// Stores keys and values as they are. v null: the layer has none.
inline void store_rows(const KvLayer& layer, const KvSlot* slots, int n, const float* k,
                       const float* v) {
    DeviceHeads p;
    p.rows = n;
    p.k = plain_heads(k, layer.n_head_kv, layer.head_dim);
    if (v) p.v = plain_heads(v, layer.n_head_kv, layer.v_head_dim);
    ops.heads(stream(), p, layer, slots);
}

// What families do with heads.
struct HeadsCase {
    DType type = DType::F16;
    int64_t dim = 64, v_dim = 64;
    enum Norm { none, rms, layer } norm = none;
    bool norm_last = false, v_norm = false;
    bool gated = false;  // gates lie behind each query
    bool no_v = false;   // values are made of the product of keys
    bool own_kv = true;  // or another layer has keys and values
    RopePairs pairs = RopePairs::halves;
    int n_pairs = 16;
};

inline void test_heads(const HeadsCase& c, const Array<float>& table, const Floats& host_table,
                       int table_pairs) {
    const int n = 3, n_head = 4, n_kv = 2, pages = 2;
    const float eps = 1e-6f;
    const int64_t wide = c.gated ? 2 * c.dim : c.dim;
    const Floats products = normal(n * n_head * wide), k = normal(n * n_kv * c.dim);
    const Floats v = c.no_v ? k : normal(n * n_kv * c.v_dim);
    const Floats q_norm = normal(n_head * c.dim, 1, 1), k_norm = normal(n_kv * c.dim, 1, 1);
    const std::vector<KvSlot> slots = {{1, 5}, {0, 63}, {1, 0}};
    const bool rotates = c.n_pairs == table_pairs;

    const KvLayer shape = kv_layer(c.type, n_kv, c.dim, c.v_dim, true);
    std::vector<uint8_t> memory(size_t(pages * shape.page_stride), 0xff);
    const Array<uint8_t> device_memory(memory);
    const KvLayer host = in_memory(shape, memory.data(), true);

    // The CPU, as forward/parts/attention.cpp has it.
    Floats q(size_t(n * n_head * c.dim)), keys = k, values = v;
    for (int64_t h = 0; h < n * n_head; h++) {
        std::copy_n(&products[size_t(h * wide)], c.dim, &q[size_t(h * c.dim)]);
    }
    const auto finish = [&](Floats& x, int heads, const Floats& weight) {
        const auto normalise = [&] {
            if (c.norm == HeadsCase::rms) {
                rms_norm(context, x.data(), weight.data(), eps, n * heads, c.dim, x.data());
            } else if (c.norm == HeadsCase::layer) {
                layer_norm(context, x.data(), weight.data(), nullptr, eps, n * heads, c.dim,
                           x.data(), heads);
            }
        };
        if (!c.norm_last) normalise();
        if (rotates) {
            rope(context, x.data(), n, heads, c.dim, host_table.data(), c.n_pairs, c.pairs);
        }
        if (c.norm_last) normalise();
    };
    finish(q, n_head, q_norm);
    finish(keys, n_kv, k_norm);
    if (c.v_norm) {
        rms_norm(context, values.data(), nullptr, eps, n * n_kv, c.v_dim, values.data());
    }
    if (c.own_kv) store_kv(context, host, slots.data(), n, keys.data(), values.data());

    const Array<float> dq(products), dk(k), dv(v), dqn(q_norm), dkn(k_norm), out(q.size());
    const Array<KvSlot> device_slots(slots);
    DeviceHeads p;
    p.rows = n;
    p.n_head = n_head;
    const auto norm_of = [&](const Array<float>& weight) {
        return c.norm == HeadsCase::none ? nullptr : weight.get();
    };
    p.q = {dq.get(), n_head * wide, wide, int(c.dim), norm_of(dqn), int(c.dim), 0};
    if (c.own_kv) {
        p.k = {dk.get(), n_kv * c.dim, c.dim, int(c.dim), norm_of(dkn), int(c.dim), 0};
        p.v = plain_heads(c.no_v ? dk.get() : dv.get(), n_kv, c.v_dim);
    }
    p.layer_norm = c.norm == HeadsCase::layer;
    p.norm_last = c.norm_last;
    p.v_norm = c.v_norm;
    p.eps = eps;
    if (rotates) p.cos_sin = table.get(), p.n_pairs = c.n_pairs, p.pairs = c.pairs;
    // Queries that are not gated are changed in place.
    p.out = {c.gated ? out.get() : dq.get(), n_head * c.dim, c.dim};
    ops.heads(stream(), p, in_memory(shape, device_memory.get(), true), device_slots.get());
    CHECK(same_bits(noted((c.gated ? out : dq).read()), q));
    CHECK(same_bits(noted(device_memory.read()), as_rows(host, memory)));
    CHECK(same_bits(noted(dk.read()), k));
}

// Queries of latents in two parts, and keys whose norm and rotation are of different values.
inline void test_latent_heads(const Array<float>& table, const Floats& host_table, int n_pairs) {
    const int n = 3, n_head = 4, nope = 40, rotating = 2 * n_pairs, rank = 96;
    const int width = nope + rotating, dim = rank + rotating;
    const float eps = 1e-6f;
    const Floats q = normal(n * n_head * width), k = normal(n * dim), weight = normal(rank, 1, 1);
    const std::vector<KvSlot> slots = {{0, 5}, {0, 6}, {0, 63}};
    const KvLayer shape = kv_layer(DType::F32, 1, dim, rank, false);
    std::vector<uint8_t> memory(size_t(shape.page_stride), 0xff);
    const Array<uint8_t> device_memory(memory);
    const KvLayer host = in_memory(shape, memory.data(), false);

    Floats turned = q, keys = k;
    rms_norm(context, keys.data(), weight.data(), eps, n, rank, keys.data(), dim);
    const RopePairs pairs = RopePairs::adjacent;
    rope(context, turned.data() + nope, n, n_head, width, host_table.data(), n_pairs, pairs);
    rope(context, keys.data() + rank, n, 1, dim, host_table.data(), n_pairs, pairs);
    store_kv(context, host, slots.data(), n, keys.data(), nullptr);
    Floats apart, rest;
    for (int h = 0; h < n * n_head; h++) {
        const auto from = turned.begin() + h * width;
        apart.insert(apart.end(), from, from + nope);
        rest.insert(rest.end(), rank, 7.0f);
        rest.insert(rest.end(), from + nope, from + width);
    }

    const Array<float> dq(q), dk(k), dw(weight), out(Floats(rest.size(), 7.0f));
    const Array<float> out_apart(apart.size());
    const Array<KvSlot> device_slots(slots);
    DeviceHeads p;
    p.rows = n;
    p.n_head = n_head;
    p.q = {dq.get(), n_head * width, width, width, nullptr, 0, nope};
    p.k = {dk.get(), dim, dim, dim, dw.get(), rank, rank};
    p.eps = eps;
    p.cos_sin = table.get(), p.n_pairs = n_pairs, p.pairs = pairs;
    p.out = {out.get() + rank, n_head * dim, dim};
    p.apart = nope;
    p.out_apart = out_apart.get();
    ops.heads(stream(), p, in_memory(shape, device_memory.get(), false), device_slots.get());
    CHECK(same_bits(noted(out.read()), rest));
    CHECK(same_bits(noted(out_apart.read()), apart));
    CHECK(same_bits(noted(device_memory.read()), as_rows(host, memory)));
}

inline void test_positions() {
    const int n = 3, pairs = 12;
    std::vector<double> frequency;
    for (int i = 0; i < pairs; i++) frequency.push_back(std::pow(10000.0, -i / double(pairs)));
    const std::vector<int32_t> position = {0, 77, 131071};
    const Array<double> device_frequency(frequency);
    const Array<int32_t> device_position(position);
    const Array<float> table(size_t(n * pairs * 2));
    ops.rope_table(stream(), device_frequency.get(), pairs, 1.1, device_position.get(), n,
                   table.get());
    Floats expected(size_t(n * pairs * 2));
    rope_table(context, frequency.data(), pairs, 1.1, position.data(), n, expected.data());
    CHECK(same_bits(noted(table.read()), expected));

    using Case = HeadsCase;
    std::vector<Case> cases(12);
    cases[0].n_pairs = pairs, cases[0].norm = Case::rms, cases[0].norm_last = true;
    cases[1].n_pairs = pairs, cases[1].pairs = RopePairs::adjacent, cases[1].norm = Case::rms;
    cases[2].n_pairs = pairs;
    cases[3].n_pairs = pairs, cases[3].norm = Case::layer, cases[3].dim = 40;
    cases[4].n_pairs = pairs, cases[4].gated = true, cases[4].type = DType::Q8_0;
    cases[5].n_pairs = pairs, cases[5].no_v = cases[5].v_norm = true, cases[5].norm = Case::rms;
    cases[6].own_kv = false;
    cases[7].n_pairs = pairs, cases[7].own_kv = false, cases[7].norm = Case::layer;
    cases[8].dim = 24, cases[8].v_dim = 40, cases[8].type = DType::F32, cases[8].v_norm = true;
    cases[9].dim = 96, cases[9].v_dim = 32, cases[9].type = DType::Q8_0;
    cases[10].dim = kDeviceHeadDim, cases[10].v_dim = kDeviceHeadDim, cases[10].norm = Case::rms;
    cases[11].n_pairs = pairs, cases[11].norm = Case::layer, cases[11].norm_last = true;
    for (const Case& c : cases) test_heads(c, table, expected, pairs);
    test_latent_heads(table, expected, pairs);

    const int cols = 130;
    const Floats q = normal(n * cols);
    const Array<float> grown(q);
    ops.grow(stream(), grown.get(), n, cols, device_position.get(), 0.1, 50);
    Floats scaled = q;
    for (int t = 0; t < n; t++) {
        const double factor = 1 + 0.1 * log_f64(1 + double(position[size_t(t)] / 50));
        scale(context, scaled.data() + t * cols, float(factor), cols);
    }
    CHECK(same_bits(noted(grown.read()), scaled));
}

}  // namespace gpu_test
