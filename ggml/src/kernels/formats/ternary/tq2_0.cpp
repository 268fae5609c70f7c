// Kernels of TQ2_0. Its bits are described in ggml/blocks.h.
#include "kernels/formats/ternary/ternary_format.h"

namespace ggml::cpu::GGML_ISA {

namespace {

struct TQ2_0 : TernaryFormat<TQ2_0> {
    using Block = BlockTQ2_0;
    static i256 weights(const uint8_t* w, int j, int v) {
        return two_bits(w + kStrip * offsetof(Block, qs), j, v);
    }
};

struct StoredTQ2_0 : TernaryFormat<StoredTQ2_0, Stored> {
    using Block = BlockTQ2_0;
    static i256 weights(const uint8_t* w, int, int v) {
        return stored_two_bits(w + offsetof(Block, qs), v);
    }
};

}  // namespace

BLOCK_KERNELS(TQ2_0, strip__tq2_0_q8, dot__tq2_0, add__tq2_0)
STORED_KERNELS(StoredTQ2_0, stored_dot__tq2_0, stored_add__tq2_0)

}  // namespace ggml::cpu::GGML_ISA
