#include "device_scratch.h"

#include "ggml/sizes.h"
#include "kv_pages.h"

namespace powerinfer {

using ggml::Carver;

namespace {

// Takes room for the values and their 8-bit form, or for that alone if the values are given.
ggml::DeviceInput input(Carver& carver, int64_t cols, float* values = nullptr) {
    ggml::DeviceInput x{values, nullptr, nullptr, 1, int(cols)};
    if (!values) carver.take(x.x, {cols});
    carver.take(x.q, {cols});
    carver.take(x.s, {(cols + ggml::kQ - 1) / ggml::kQ});
    return x;
}

}  // namespace

DeviceStep::DeviceStep(Carver& carver, const Config& c, const pi_session_params& p,
                       int64_t n_layers) {
    carver.take(x, {c.n_embd});
    carver.take(position, {1});
    carver.take(epoch, {1});
    carver.take(slot, {1});
    carver.take(rows, {n_layers});
    carver.take(pages, {pages_of(p.n_ctx)});
}

DeviceScratch::DeviceScratch(Carver& carver, const Config& c, const pi_session_params& p,
                             int64_t n_layers)
    : step(carver, c, p, n_layers) {
    // A Carver that counts gives no address, but the room is the same.
    static float counted;
    residual = input(carver, c.n_embd, step.x ? step.x : &counted);
    normed = input(carver, c.n_embd);
    ffn_normed = input(carver, c.n_embd);
    attended = input(carver, c.q_dim());
    hidden = input(carver, c.predictor_rank);
    fired = input(carver, c.n_ff);
    for (float** to : {&out, &ffn_out}) carver.take(*to, {c.n_embd});
    carver.take(q, {c.q_dim()});
    for (float** to : {&k, &v}) carver.take(*to, {c.kv_dim()});
    for (float** to : {&up, &score}) carver.take(*to, {c.n_ff});
    if (c.sketches) {
        carver.take(sketch.planes, {4, ggml::device_sketch_words(int(c.n_embd))});
        carver.take(sketch.unit, {1});
        carver.take(sketch.total, {1});
    }
    carver.take(cos_sin, {c.n_rot});
    carver.take(frequency, {c.n_rot / 2});
    carver.take(logits, {c.n_vocab});
    carver.take(attention.sums, {c.n_head, ggml::device_attention_blocks(p.n_ctx), c.head_dim + 2});
    for (int32_t** to : {&lists.hot, &lists.cold}) carver.take(*to, {c.n_ff});
    carver.take(lists.count, {2});
    carver.take(ffn.h, {c.n_ff});
    carver.take(ffn.sums, {ggml::kDeviceParts, c.n_embd});
    carver.take(arrived, {n_layers});
    carver.take(counts, {n_layers * 3 + 1});
    waited = counts + n_layers * 3;
}

uint64_t device_kv_bytes(const Config& c, const pi_session_params& p, int64_t n_layers) {
    const int64_t run = kKvPage * ggml::info(ggml::DType(p.type_k)).size(c.head_dim);
    return ggml::size_product(kv_pages(p) * n_layers * 2 * c.n_head_kv, run);
}

DeviceShared::DeviceShared(Carver& carver, const Config& c, const pi_session_params& p,
                           int64_t n_layers)
    : step(carver, c, p, n_layers), exchange(size_t(n_layers)) {
    for (ggml::DeviceExchange& e : exchange) {
        carver.take(e.x, {c.n_embd});
        carver.take(e.ids, {c.n_ff});
        carver.take(e.count, {1});
        carver.take(e.published, {1});
        carver.take(e.sums, {c.n_embd});
        carver.take(e.answered, {1});
    }
}

}  // namespace powerinfer
