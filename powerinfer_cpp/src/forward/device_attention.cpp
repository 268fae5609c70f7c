// Attention on a device: parts/attention.cpp and parts/latent.cpp are the same for the CPU.
#include <algorithm>

#include "forward/device_forward.h"
#include "forward/parts/latent.h"
#include "ggml/status.h"

namespace powerinfer {

using ggml::Code;
using ggml::DeviceHeads;
using ggml::DeviceInput;
using ggml::DeviceProduct;
using ggml::DeviceRows;
using ggml::Error;

// y = Wo . attention(Wq . x, Wk . x, Wv . x)
void DeviceForward::launch_attention(int64_t i, const Attention& a, const DeviceInput& x, float* y,
                                     const Kind& kind) {
    const int64_t owner = a.kv_of >= 0 ? a.kv_of : i;
    const ggml::KvLayer kv = kv_layout_.layer(kv_.get(), owner);
    const ggml::KvSlot* const slots = scratch_.step.slot + kv_layout_.kind(owner) * kind.rows;
    const DeviceHeads heads = a.latent ? latent_heads(a, x) : own_heads(a, x);
    ops_.heads(stream_.get(), heads, kv, slots);
    if (a.latent) {
        const DeviceInput apart = scratch_.by_head.as(kind.rows * a.n_head, a.latent->nope);
        ops_.quantise(stream_.get(), apart);
        launch_by_head(apart, a.latent->k_b, a.head_dim, scratch_.q, kind);
    }
    if (a.growth != 0) {
        ops_.grow(stream_.get(), scratch_.q, kind.rows, int(a.q_dim()), scratch_.step.position,
                  a.growth, a.growth_ctx);
    }
    launch_products(attended(i, a, kv, kind), {product(a.o, y, a.o_bias)});
}

// The products of x that attention reads, and how they get there.
DeviceHeads DeviceForward::own_heads(const Attention& a, const DeviceInput& x) {
    DeviceScratch& s = scratch_;
    float* const q = a.gated ? s.by_head.x : s.q;
    const DeviceProduct of_q = product(a.q, q, a.q_bias);
    const DeviceProduct of_k = product(a.k, s.k, a.k_bias);
    const bool values = on_.matrix(&a.v).data;
    if (a.kv_of >= 0) {
        launch_products(x, {of_q});
    } else if (values) {
        launch_products(x, {of_q, of_k, product(a.v, s.v, a.v_bias)});
    } else {
        launch_products(x, {of_q, of_k});
    }
    launch_gate(a, x);
    DeviceHeads h;
    h.rows = x.rows;
    h.n_head = int(a.n_head);
    const int64_t wide = a.gated ? 2 * a.head_dim : a.head_dim;
    const auto dim = int(a.head_dim);
    h.q = {q, a.n_head * wide, wide, dim, on_.vector(&a.q_norm), dim, 0};
    h.out = {s.q, a.q_dim(), a.head_dim};
    if (a.kv_of < 0) {
        h.k = {s.k, a.k_dim(), a.head_dim, dim, on_.vector(&a.k_norm), dim, 0};
        // Without a matrix of their own, values are the keys before their norm and rotation.
        h.v = {values ? s.v : s.k, a.v_dim(), a.v_head_dim, int(a.v_head_dim)};
    }
    if (a.norms == Attention::Norms::whole_row) {
        norm_rows(a, s.q, a.q_dim(), a.q_norm, x.rows);
        if (a.kv_of < 0) norm_rows(a, s.k, a.k_dim(), a.k_norm, x.rows);
        h.q.norm = h.k.norm = nullptr;
    }
    h.layer_norm = a.norm == Norm::layer;
    h.norm_last = a.norms == Attention::Norms::after_rope;
    h.v_norm = a.v_norm;
    h.eps = a.norm_eps;
    rotate(a, h);
    return h;
}

// The product of x that Attention::gate makes, if the part has one.
void DeviceForward::launch_gate(const Attention& a, const DeviceInput& x) {
    if (a.n_gate) launch_products(x, {product(a.gate, scratch_.gate)});
}

// Norms over whole rows of queries or keys.
void DeviceForward::norm_rows(const Attention& a, float* x, int64_t cols,
                              const float* const& weight, int rows) {
    if (!on_.vector(&weight)) return;
    rms_norm_in_place(weight, a.norm_eps, {x, nullptr, nullptr, rows, int(cols)});
}

void DeviceForward::rotate(const Attention& a, DeviceHeads& heads) const {
    if (a.rope < 0) return;
    const Rope& rope = model_.config.ropes[size_t(a.rope)];
    heads.cos_sin = scratch_.cos_sin[size_t(a.rope)];
    heads.n_pairs = int(rope.n_rot / 2);
    heads.pairs = rope.pairs;
}

// The same over latents. What does not rotate of a query goes through k_b on its own.
DeviceHeads DeviceForward::latent_heads(const Attention& a, const DeviceInput& x) {
    const Latent& l = *a.latent;
    DeviceScratch& s = scratch_;
    const int64_t width = l.nope + a.rotating(), rank = a.v_head_dim;
    float* const q = s.attended.x;
    if (l.q_rank) {
        const DeviceInput low = s.by_head.as(x.rows, l.q_rank);
        launch_products(x, {product(a.k, s.k), product(l.q_a, low.x)});
        rms_norm_in_place(l.q_a_norm, kLatentEps, low);
        launch_products(low, {product(a.q, q)});
    } else {
        launch_products(x, {product(a.k, s.k), product(a.q, q)});
    }
    launch_gate(a, x);
    DeviceHeads h;
    h.rows = x.rows;
    h.n_head = int(a.n_head);
    h.q = {q, a.n_head * width, width, int(width), nullptr, 0, int(l.nope)};
    h.out = {s.q + rank, a.q_dim(), a.head_dim};
    h.apart = int(l.nope);
    h.out_apart = s.by_head.x;
    h.k = {s.k,       a.head_dim, a.head_dim, int(a.head_dim), on_.vector(&a.k_norm),
           int(rank), int(rank)};
    h.eps = kLatentEps;
    rotate(a, h);
    return h;
}

// y = w[h] . x for each head h of every row, x [rows * n_head, cols]: a mixture whose rows choose
// all experts.
void DeviceForward::launch_by_head(const DeviceInput& x, const std::vector<ggml::Matrix>& w,
                                   int64_t y_row, float* y, const Kind& kind) {
    DeviceScratch& s = scratch_;
    const auto n_head = int(w.size());
    s.all_heads.rows = kind.rows;
    s.all_heads.n_used = s.all_heads.n_expert = n_head;
    if (listed_heads_ != n_head) ops_.choose_all(stream_.get(), s.all_heads);
    listed_heads_ = n_head;
    const DeviceRows first = on_.matrix(&w[0]);
    const int64_t stride = n_head > 1 ? on_.matrix(&w[1]).data - first.data : 0;
    for (int h = 0; h < n_head; h++) {
        if (on_.matrix(&w[size_t(h)]).data == first.data + h * stride) continue;
        throw Error(Code::internal, "matrices of heads do not lie side by side");
    }
    // The first row's experts are all of them in order: each is in the frame of its number.
    const DeviceProduct product{first, y, nullptr, nullptr, y_row};
    ops_.matmul_experts(stream_.get(), x, s.all_heads, {s.all_heads.expert, stride}, &product, 1);
}

// What the heads give, [rows, out_dim], in 8 bits too.
DeviceInput DeviceForward::attended(int64_t i, const Attention& a, const ggml::KvLayer& kv,
                                    const Kind& kind) {
    DeviceScratch& s = scratch_;
    const DeviceInput y = s.attended.as(kind.rows, a.attended_dim());
    const bool changes = a.gated || a.n_gate || on_.vector(&a.out_norm);
    DeviceInput seen = y;
    if (changes) seen.q = nullptr;
    attend(i, a, kv, kind, seen);
    if (a.latent) {
        const DeviceInput out = s.by_head.as(kind.rows, a.out_dim());
        launch_by_head(y.as(kind.rows * a.n_head, a.v_head_dim), a.latent->v_b, a.latent->out,
                       out.x, kind);
        a.n_gate ? gate(a, out) : ops_.quantise(stream_.get(), out);
        return out;
    }
    if (a.gated) {
        const auto dim = int(a.head_dim);
        ops_.gate_by(stream_.get(), ggml::GateBy::sigmoid, y,
                     {s.by_head.x + dim, 2 * a.q_dim(), 2 * a.head_dim, dim});
    }
    if (a.n_gate) gate(a, y);
    if (on_.vector(&a.out_norm)) rms_norm_in_place(a.out_norm, a.norm_eps, y);
    return y;
}

// Multiplies what the heads give by Attention::gate.
void DeviceForward::gate(const Attention& a, const DeviceInput& y) {
    const int64_t dim = a.out_dim() / a.n_head, width = a.n_gate / a.n_head;
    ops_.gate_by(stream_.get(), a.gate_by, y,
                 {scratch_.gate, a.n_gate, width, int(dim), a.n_gate == a.n_head});
}

// What queries see: the rows of `to`, in 8 bits too where `to` has them.
void DeviceForward::attend(int64_t i, const Attention& a, const ggml::KvLayer& kv, const Kind& kind,
                           const DeviceInput& to) {
    DeviceScratch& s = scratch_;
    ggml::DeviceAttentionScratch sums = s.attention;
    if (kind.blocks > sums.blocks) throw Error(Code::internal, "no room for blocks of attention");
    sums.blocks = kind.blocks;
    const ggml::AttentionScores scores{a.scale, a.softcap, on_.vector(&a.sinks)};
    for (int64_t t = 0; t < kind.rows; t += s.attention_rows) {
        const auto n = int(std::min(s.attention_rows, kind.rows - t));
        ops_.attention(stream_.get(), kv, int(a.n_head), scores,
                       s.step.rows + (i - first_) * kind.rows + t, n, s.q + t * a.q_dim(), sums,
                       to.part(t, n));
    }
}

}  // namespace powerinfer
