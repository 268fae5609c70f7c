// The softmax of a block of scores. Plain loops over sixteen lanes, which the compiler turns into
// registers of the instruction set that it compiles for.
#pragma once

#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

// largest_of(x, n): the largest of n values, a multiple of sixteen; NaN is none of them. GCC 12
// makes no vector code of such a loop.
template <float (*largest_of)(const float*, int64_t)>
void softmax(float* score, int64_t begin, int64_t end, float softcap, float* top, float* sum) {
    constexpr int64_t kLanes = 16;
    const int64_t first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
    // Whole registers: what is beside the range has no weight.
    for (int64_t i = first; i < begin; i++) score[i] = -INFINITY;
    for (int64_t i = end; i < last; i++) score[i] = -INFINITY;
    if (softcap != 0) {
        for (int64_t i = first; i < last; i++) score[i] = softcap * tanh_f32(score[i]);
        for (int64_t i = first; i < begin; i++) score[i] = -INFINITY;
        for (int64_t i = end; i < last; i++) score[i] = -INFINITY;
    }
    const float largest = largest_of(score + first, last - first);
    for (int64_t i = first; i < last; i++) score[i] = exp_of_negative(score[i] - largest);
    // Not among the values of other rows, if the largest is infinite and they are not numbers.
    for (int64_t i = first; i < begin; i++) score[i] = 0;
    for (int64_t i = end; i < last; i++) score[i] = 0;
    float sums[kLanes] = {};
    for (int64_t i = first; i < last; i += kLanes) {
        for (int j = 0; j < kLanes; j++) sums[j] += score[i + j];
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    }
    *top = largest;
    *sum = sums[0];
}

}  // namespace

}  // namespace ggml::cpu
