#include "bundle.h"

#include <cstring>

namespace powerinfer {

int64_t BundleLayout::offset(size_t part) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < part; i++) bytes += ggml::info(parts[i]).size(cols);
    return bytes;
}

ggml::NeuronRows BundleLayout::rows(size_t part, const uint8_t* data) const {
    const ggml::DType type = parts[part];
    return {type, ggml::can_fold(type, cols), data ? data + offset(part) : nullptr, stride()};
}

void BundleLayout::put(size_t part, const uint8_t* stored, int64_t n, uint8_t* bundles) const {
    const ggml::DType type = parts[part];
    const int64_t row = ggml::info(type).size(cols), step = stride();
    const bool folded = ggml::can_fold(type, cols);
    uint8_t* to = bundles + offset(part);
    for (int64_t i = 0; i < n; i++, stored += row, to += step) {
        if (folded) {
            ggml::fold_row(type, stored, cols, to);
        } else {
            std::memcpy(to, stored, size_t(row));
        }
    }
}

void BundleLayout::take(size_t part, const uint8_t* bundles, int64_t n, uint8_t* stored) const {
    const ggml::DType type = parts[part];
    const int64_t row = ggml::info(type).size(cols), step = stride();
    const bool folded = ggml::can_fold(type, cols);
    const uint8_t* from = bundles + offset(part);
    for (int64_t i = 0; i < n; i++, stored += row, from += step) {
        if (folded) {
            ggml::unfold_row(type, from, cols, stored);
        } else {
            std::memcpy(stored, from, size_t(row));
        }
    }
}

}  // namespace powerinfer
