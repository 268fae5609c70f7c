// How the inputs of a sketch (ggml/sketch.h) become signs and levels: on the CPU and on a device by
// the same functions, so that scores have the same bits.
#pragma once

#include "ggml/math.h"

namespace ggml {

// The unit of levels, relative to the mean magnitude. The largest level, 7, is 3.15 times the mean;
// larger values are clipped to it. Values from 0.3 to 0.5 hardly differ in quality.
constexpr double kSketchUnit = 0.45;
constexpr int kSketchTop = 7;

// The magnitudes are added in the order of a device's threads: value i to sum i % kSketchSums; then
// sum k + half to sum k, half after half.
constexpr int kSketchSums = 256;

GGML_BOTH inline float sketch_unit(double sum, int64_t n) {
    return float(kSketchUnit * sum / double(n));
}
// What magnitudes are multiplied with.
GGML_BOTH inline float sketch_inverse(float unit) {
    return unit > 0 ? 1 / unit : 0.0f;
}
// Bit 0: the sign of x; bits 1 to 3: its level.
GGML_BOTH inline int sketch_bits(float x, float inverse) {
    const uint32_t bits = math::bits_as<uint32_t>(x);
    const float size = math::bits_as<float>(bits & 0x7fffffff) * inverse + 0.5f;
    const int level = size < kSketchTop ? int(size) : kSketchTop;  // kSketchTop for NaN, too
    return int(bits >> 31) | level << 1;
}

}  // namespace ggml
