// The table of this device's operators.
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

const DeviceOps& ops() {
    static const DeviceOps table = {embed_rows,    norm,       quantise,    add,      activation,
                                    matmul,        rope_table, place_heads, store_kv, attention,
                                    sketch_scores, select,     partial_ffn, merge,    publish,
                                    merge_answer,  flag_rounds};
    return table;
}

}  // namespace ggml::GGML_GPU
