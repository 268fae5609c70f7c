// Mamba-2 and the gated delta rule: a register for sixteen columns of a state.
#include <immintrin.h>

#include "kernels/avx512/isa.h"

namespace ggml::cpu::avx512 {

using f32x16 = __m512;

inline f32x16 load16(const float* p) {
    return _mm512_loadu_ps(p);
}
inline void store(float* p, f32x16 v) {
    _mm512_storeu_ps(p, v);
}
inline void stream(float* p, f32x16 v) {
    _mm512_stream_ps(p, v);
}
inline void end_streams() {
    _mm_sfence();
}
inline f32x16 spread(float v) {
    return _mm512_set1_ps(v);
}
inline f32x16 mul(f32x16 a, f32x16 b) {
    return _mm512_mul_ps(a, b);
}
inline f32x16 add_product(f32x16 sum, f32x16 a, f32x16 b) {
    return _mm512_fmadd_ps(a, b, sum);
}
inline f32x16 sub_product(f32x16 sum, f32x16 a, f32x16 b) {
    return _mm512_fnmadd_ps(a, b, sum);
}

constexpr int kTileRows = 8;  // of Mamba-2's state in registers, beside what positions bring
// Words of the delta rule's state that are loaded before one of them is stored.
constexpr int kLoaded = 2;

}  // namespace ggml::cpu::avx512

#include "kernels/lanes/recurrence.h"
