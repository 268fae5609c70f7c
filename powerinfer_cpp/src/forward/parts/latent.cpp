#include "forward/parts/latent.h"

namespace powerinfer {

using ggml::Input;

void latent_queries_and_keys(const Pass& p, const Attention& a, ggml::SharedInput& x) {
    const Latent& l = *a.latent;
    ggml::Context& context = p.context;
    Workspace& b = p.work;
    const int64_t n = b.batch.n, rank = a.v_head_dim, rotating = a.rotating();
    const int64_t width = l.nope + rotating;  // of a head's query before k_b
    float* const q = b.heads.attended;

    const ggml::Matrix& first = l.q_rank ? l.q_a : a.q;
    const bool q8 = a.k.quantised() || first.quantised() || a.gate.quantised();
    p.multiply(x.get(context, q8),
               {{a.k, b.heads.k}, {first, l.q_rank ? b.heads.by_head : q}, {a.gate, b.heads.gate}});
    if (l.q_rank) {
        ggml::rms_norm(context, b.heads.by_head, l.q_a_norm, kLatentEps, n, l.q_rank,
                       b.heads.by_head);
        const Input low = b.input.prepare(context, b.heads.by_head, n, l.q_rank, a.q.quantised());
        p.multiply(low, {{a.q, q}});
    }
    ggml::rms_norm(context, b.heads.k, a.k_norm, kLatentEps, n, rank, b.heads.k, a.head_dim);
    const auto rotate = [&](float* heads, int64_t n_head, int64_t head_dim) {
        if (a.rope < 0) return;
        const auto table = size_t(a.rope);
        ggml::rope(context, heads, n, n_head, head_dim, b.heads.cos_sin[table], rotating / 2,
                   p.model.config.ropes[table].pairs);
    };
    rotate(q + l.nope, a.n_head, width);
    rotate(b.heads.k + rank, 1, a.head_dim);

    // What rotates stays, the rest meets latents through k_b.
    const int64_t row = a.n_head * width;
    ggml::copy_heads(context, {q + l.nope, row, width}, n, a.n_head, rotating,
                     {b.heads.q + rank, a.q_dim(), a.head_dim});
    ggml::copy_heads(context, {q, row, width}, n, a.n_head, l.nope,
                     {b.heads.by_head, l.nope, n * l.nope});
    const Input apart =
        b.input.prepare(context, b.heads.by_head, a.n_head * n, l.nope, l.k_b[0].quantised());
    ggml::matmul_heads(context, apart, l.k_b.data(), a.n_head, {b.heads.q, a.q_dim(), a.head_dim});
}

void latent_results(const Pass& p, const Attention& a) {
    const Latent& l = *a.latent;
    Workspace& b = p.work;
    const int64_t n = b.batch.n, rank = a.v_head_dim;
    ggml::copy_heads(p.context, {b.heads.attended, a.attended_dim(), rank}, n, a.n_head, rank,
                     {b.heads.by_head, rank, n * rank});
    const Input weighed =
        b.input.prepare(p.context, b.heads.by_head, a.n_head * n, rank, l.v_b[0].quantised());
    ggml::matmul_heads(p.context, weighed, l.v_b.data(), a.n_head,
                       {b.heads.attended, a.out_dim(), l.out});
}

}  // namespace powerinfer
