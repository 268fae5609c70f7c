// Scores and softmax of attention in plain C++: the specification of scores__* and softmax__*.
#include <algorithm>
#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu::generic {

namespace {

template <DType type>
void scores(const uint8_t* keys, const uint8_t*, int64_t head_dim, int64_t n, const float* q,
            int64_t nt, float* y, int64_t ldy) {
    for (int64_t t = 0; t < nt; t++) std::fill_n(y + t * ldy, n, 0.0f);
    for (int64_t c = 0; c < head_dim; c++) {
        float key[kKvPage];  // column c of each
        info(type).decode(keys + c * info(type).size(kKvPage), key, kKvPage);
        for (int64_t t = 0; t < nt; t++) {
            for (int64_t p = 0; p < n; p++) y[t * ldy + p] += q[t * head_dim + c] * key[p];
        }
    }
}

void softmax(float* score, int64_t begin, int64_t end, float softcap, float* top, float* sum) {
    *top = -INFINITY;
    float lanes[16] = {};
    for (int64_t i = begin; i < end; i++) {
        if (softcap != 0) score[i] = softcap * tanh_f32(score[i]);
        if (score[i] > *top) *top = score[i];
    }
    for (int64_t i = begin; i < end; i++) {
        score[i] = exp_of_negative(score[i] - *top);
        lanes[i % 16] += score[i];
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    *sum = lanes[0];
}

}  // namespace

const scores_fn scores__f32_f32 = scores<DType::F32>;
const scores_fn scores__f16_f32 = scores<DType::F16>;
const softmax_fn softmax__f32 = softmax;

}  // namespace ggml::cpu::generic
