// Limits of both factors of a gated activation.
#pragma once

#include "ggml/math.h"
#include "ggml/ops.h"

namespace ggml {

// act(gate) is `most` at most, or gate itself is; and up is between -most and most. Not with drelu
// and swiglu_oai.
struct GateLimit {
    float most = 0;       // 0: no limit
    bool before = false;  // of gate before its activation

    bool operator==(const GateLimit& o) const { return most == o.most && before == o.before; }
};

// v, but `most` at most; and on both sides of 0. NaN stays NaN.
GGML_BOTH inline float at_most(float v, float most) {
    return math::choose(v > most, most, v);
}
GGML_BOTH inline float within(float v, float most) {
    return at_most(math::choose(v < -most, -most, v), most);
}

// gated_activation() with a limit, n floats.
void limited_activation(Context& context, Activation act, const GateLimit& limit, float* gate,
                        const float* up, int64_t n);

}  // namespace ggml
