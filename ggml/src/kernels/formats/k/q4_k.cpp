// Kernels of Q4_K. Its bits are described in ggml/blocks.h.
#include "kernels/formats/k/k_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct Q4_K : KFormat<Q4_K> {
    using Block = BlockQ4_K;
    static constexpr int bits = 4, tokens = 6;
    static GroupBytes groups(const uint8_t* w) { return strip_groups<Block>(w); }
    static i256 weights(const uint8_t* w, int j, int v) { return strip_nibbles<Block>(w, j, v); }
};

struct StoredQ4_K : KFormat<StoredQ4_K, Stored> {
    using Block = BlockQ4_K;
    static constexpr int bits = 4;
    static GroupBytes groups(const uint8_t* w) { return stored_groups<Block>(w); }
    static i256 weights(const uint8_t* w, int, int v) { return stored_nibbles<Block>(w, v); }
};

}  // namespace

FREQUENT_BLOCK_KERNELS(Q4_K, strip__q4_k_q8, dot__q4_k, add__q4_k)
FREQUENT_STORED_KERNELS(StoredQ4_K, stored_dot__q4_k, stored_add__q4_k)

}  // namespace ggml::cpu::GGML_ISA
