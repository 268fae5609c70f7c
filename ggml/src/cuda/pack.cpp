#include "cuda/pack.h"

#include <cstring>

#include "ggml/device_ops.h"
#include "ggml/dtype.h"

namespace ggml {

namespace {

template <DType type>
void pack_row(const uint8_t* row, int64_t cols, uint8_t* out) {
    using Of = BlockOf<type>;
    constexpr PlaneBytes bytes = plane_bytes(type);
    constexpr int groups = Of::weights / kQ;  // of a block
    const PlaneOffsets at(bytes, cols);
    std::memset(out, 0, size_t(at.end));
    for (int64_t i = 0; i < cols / kQ; i++) {
        const StoredBlock block{row + i / groups * int64_t(sizeof(typename Of::Block))};
        const PackedGroup group = pack_group<type>(block, int(i % groups));
        std::memcpy(out + i * bytes.low, group.low, bytes.low);
        std::memcpy(out + at.high + i * bytes.high, group.high, bytes.high);
        std::memcpy(out + at.scale + i * bytes.scale, &group.scale, bytes.scale);
        if (i % groups) continue;
        std::memcpy(out + at.super + i / groups * bytes.super, &group.super, bytes.super);
    }
}

}  // namespace

int64_t device_row_bytes(DType type, int64_t cols) {
    if (!info(type).is_quantised()) return PlaneOffsets::padded(info(type).size(cols));
    return PlaneOffsets(plane_bytes(type), cols).end;
}

bool has_device_rows(DType type, int64_t cols) {
    const DTypeInfo& format = info(type);
    if (!format.is_quantised()) return format.is_float() && cols % 8 == 0;
    return plane_bytes(type).low > 0 && cols % format.block == 0;
}

bool has_neuron_experts(DType type, int64_t cols) {
    if (!has_device_rows(type, cols)) return false;
    return info(type).block < kQK || can_fold(type, cols);
}

void pack_device_row(DType type, const uint8_t* row, int64_t cols, uint8_t* out) {
#define PACK(name, ...) \
    if (type == DType::name) return pack_row<DType::name>(row, cols, out);
    GGML_PLAIN_FORMATS(PACK)
    GGML_K_FORMATS(PACK)
#undef PACK
    std::memcpy(out, row, size_t(info(type).size(cols)));  // whole groups of 8: no padding
}

}  // namespace ggml
