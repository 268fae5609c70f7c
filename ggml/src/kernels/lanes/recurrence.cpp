// Mamba-2 and the gated delta rule, for instruction sets of eight lanes: two registers for sixteen
// columns of a state.
#include "kernels/simd.h"

namespace ggml::cpu::GGML_ISA {

struct f32x16 {
    f32x8 a, b;
};
inline f32x16 load16(const float* p) {
    return {load_f32(p), load_f32(p + 8)};
}
inline void store(float* p, f32x16 v) {
    store(p, v.a);
    store(p + 8, v.b);
}
// Stores past the caches; p is aligned.
inline void stream(float* p, f32x16 v) {
#ifdef __AVX__
    _mm256_stream_ps(p, v.a);
    _mm256_stream_ps(p + 8, v.b);
#else
    store(p, v);
#endif
}
// Other threads see what they read after this one has told them that it is done.
inline void end_streams() {
#ifdef __AVX__
    _mm_sfence();
#endif
}
inline f32x16 spread(float v) {
    return {splat(v), splat(v)};
}
inline f32x16 mul(f32x16 a, f32x16 b) {
    return {mul(a.a, b.a), mul(a.b, b.b)};
}
inline f32x16 add_product(f32x16 sum, f32x16 a, f32x16 b) {
    return {add_product(sum.a, a.a, b.a), add_product(sum.b, a.b, b.b)};
}
inline f32x16 sub_product(f32x16 sum, f32x16 a, f32x16 b) {
    return {sub_product(sum.a, a.a, b.a), sub_product(sum.b, a.b, b.b)};
}

constexpr int kTileRows = 4;  // of Mamba-2's state in registers, beside what positions bring
// Words of the delta rule's state that are loaded before one of them is stored.
constexpr int kLoaded = 1;

}  // namespace ggml::cpu::GGML_ISA

#include "kernels/lanes/recurrence.h"
