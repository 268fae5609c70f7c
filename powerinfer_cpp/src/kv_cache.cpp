#include "kv_cache.h"

#include "ggml/sizes.h"

namespace powerinfer {

KvCache::KvCache(const Config& config, const pi_session_params& params)
    : memory_(bytes(config, params), "the KV cache"),
      type_(ggml::DType(params.type_k)),
      n_ctx_(params.n_ctx),
      n_head_kv_(config.n_head_kv),
      head_dim_(config.head_dim),
      head_bytes_(ggml::info(type_).size(config.head_dim)),
      lengths_(size_t(params.n_seq), 0) {}

uint64_t KvCache::bytes(const Config& config, const pi_session_params& params) {
    const int64_t head = ggml::info(ggml::DType(params.type_k)).size(config.head_dim);
    return ggml::size_product(2, config.n_head_kv, head, config.n_layer, params.n_ctx,
                              params.n_seq);
}

uint8_t* KvCache::at(int64_t layer, int32_t seq, int which) const {
    return memory_.data() + ((layer * n_seq() + seq) * 2 + which) * n_head_kv_ * head_stride();
}

void KvCache::store(int64_t layer, int32_t seq, int64_t pos, const float* k, const float* v) {
    const auto encode = ggml::info(type_).encode;
    uint8_t* keys = at(layer, seq, 0) + pos * head_bytes_;
    uint8_t* values = at(layer, seq, 1) + pos * head_bytes_;
    for (int64_t h = 0; h < n_head_kv_; h++) {
        encode(k + h * head_dim_, keys + h * head_stride(), head_dim_);
        encode(v + h * head_dim_, values + h * head_stride(), head_dim_);
    }
}

ggml::AttentionRow KvCache::row(int64_t layer, int32_t seq, int64_t pos, int64_t window) const {
    const int64_t first = window > 0 && pos >= window ? pos - window + 1 : 0;
    return {at(layer, seq, 0) + first * head_bytes_, at(layer, seq, 1) + first * head_bytes_,
            pos + 1 - first};
}

}  // namespace powerinfer
