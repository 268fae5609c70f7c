#include "cuda/planes.h"

#include <cstring>

#include "cuda/pack.h"
#include "ggml/device_ops.h"

namespace ggml {

namespace {

struct CopyBytes {
    template <int n>
    static void put(uint8_t* to, const uint8_t* from) {
        std::memcpy(to, from, n);
    }
};

template <DType type, typename Block>
void pack_row(const uint8_t* row, int64_t cols, uint8_t* out) {
    const PlaneOffsets at(plane_bytes(type), cols);
    std::memset(out, 0, size_t(at.end));
    const auto* blocks = reinterpret_cast<const Block*>(row);
    for (int64_t i = 0; i < cols / BlockTraits<Block>::size; i++) {
        pack_block<type, CopyBytes>(blocks[i], i, at, out);
    }
}

}  // namespace

int64_t device_row_bytes(DType type, int64_t cols) {
    if (!info(type).is_quantised()) return PlaneOffsets::padded(info(type).size(cols));
    return PlaneOffsets(plane_bytes(type), cols).end;
}

bool has_device_rows(DType type, int64_t cols) {
    const DTypeInfo& format = info(type);
    const bool known = format.is_quantised() ? plane_bytes(type).low > 0 : format.is_float();
    return known && cols % kQ == 0 && cols % format.block == 0;
}

void pack_device_row(DType type, const uint8_t* row, int64_t cols, uint8_t* out) {
#define PACK(name, ...) \
    if (type == DType::name) return pack_row<DType::name, Block##name>(row, cols, out);
    GGML_PLAIN_FORMATS(PACK)
    GGML_K_FORMATS(PACK)
#undef PACK
    std::memcpy(out, row, size_t(info(type).size(cols)));  // cols % 32 == 0: no padding
}

}  // namespace ggml
