// Keys and values of every position, per layer and sequence.
#pragma once

#include <vector>

#include "ggml/file_io.h"
#include "ggml/ops.h"
#include "model.h"

namespace powerinfer {

class KvCache {
 public:
    KvCache() = default;
    KvCache(const Config& config, const pi_session_params& params);
    static uint64_t bytes(const Config& config, const pi_session_params& params);

    int64_t n_ctx() const { return n_ctx_; }
    int32_t n_seq() const { return int32_t(lengths_.size()); }
    int64_t length(int32_t seq) const { return lengths_[seq]; }
    void set_length(int32_t seq, int64_t n) { lengths_[seq] = n; }

    // Stores a row's keys and values, [n_head_kv * head_dim] each, at a position.
    void store(int64_t layer, int32_t seq, int64_t pos, const float* k, const float* v);
    // What attention of a row at `pos` reads: the last `window` positions, or all where that is 0.
    ggml::AttentionRow row(int64_t layer, int32_t seq, int64_t pos, int64_t window) const;
    // The first n positions of keys or values of one head of one sequence, as they lie in memory.
    uint8_t* positions(int64_t layer, int32_t seq, int which, int64_t head) const {
        return at(layer, seq, which) + head * head_stride();
    }
    int64_t position_bytes() const { return head_bytes_; }
    ggml::DType type() const { return type_; }
    int64_t head_stride() const { return n_ctx_ * head_bytes_; }

 private:
    uint8_t* at(int64_t layer, int32_t seq, int which) const;  // which: 0 keys, 1 values
    ggml::Memory memory_;  // [n_layer][n_seq][keys, values][n_head_kv][n_ctx][head_dim]
    ggml::DType type_ = ggml::DType::F16;
    int64_t n_ctx_ = 0, n_head_kv_ = 0, head_dim_ = 0, head_bytes_ = 0;
    std::vector<int64_t> lengths_;  // positions held, per sequence
};

}  // namespace powerinfer
