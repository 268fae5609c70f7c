// Quantises activations to 8 bits, with the same bits as generic.
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

namespace {

void quantize(const float* x, int64_t t0, int64_t nt, const Q8Rows& out) {
    const int64_t n_blocks = out.cols / kQ;
    for (int64_t b = t0 * n_blocks; b < (t0 + nt) * n_blocks; b++) {
        f32x8 v[4], largest = splat(0);
        for (int i = 0; i < 4; i++) {
            v[i] = load_f32(x + b * kQ + 8 * i);
            // With this operand order max ignores a NaN in v, as generic does.
            largest = max(abs(v[i]), largest);
        }
        const float d = horizontal_max(largest) / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
        i256 q[4];
        for (int i = 0; i < 4; i++) q[i] = clamp32(to_int(mul(v[i], splat(inverse))), 127);
        const i256 bytes = pack(q);
        std::memcpy(out.q + b * kQ, &bytes, sizeof(bytes));
        int32_t sum[2];  // of columns 0..15 and 16..31
        two_sums(add32(q[0], q[1]), add32(q[2], q[3]), sum);
        const float scale = any_nan(v) ? NAN : d;
        out.d[b] = scale;
        out.s8[b] = 8 * (sum[0] + sum[1]);
        out.ds[b] = scale * float(sum[0] + sum[1]);
        out.s16[2 * b] = int16_t(sum[0]);
        out.s16[2 * b + 1] = int16_t(sum[1]);
    }
}

}  // namespace

const quantize_fn quantize__f32_q8 = quantize;

}  // namespace ggml::cpu::GGML_ISA
