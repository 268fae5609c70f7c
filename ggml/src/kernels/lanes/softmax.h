// The softmax of a block of scores. Plain loops over sixteen lanes, which the compiler turns into
// registers of the instruction set that it compiles for.
#pragma once

#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

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
    float tops[kLanes], sums[kLanes];
    for (int j = 0; j < kLanes; j++) {
        tops[j] = -INFINITY;
        sums[j] = 0;
    }
    for (int64_t i = first; i < last; i += kLanes) {
        for (int j = 0; j < kLanes; j++) tops[j] = score[i + j] > tops[j] ? score[i + j] : tops[j];
    }
    float largest = tops[0];
    for (int j = 1; j < kLanes; j++) largest = tops[j] > largest ? tops[j] : largest;
    for (int64_t i = first; i < last; i++) score[i] = exp_f32(score[i] - largest);
    // Not among the values of other rows, if the largest is infinite and they are not numbers.
    for (int64_t i = first; i < begin; i++) score[i] = 0;
    for (int64_t i = end; i < last; i++) score[i] = 0;
    for (int64_t i = first; i < last; i += kLanes) {
        for (int j = 0; j < kLanes; j++) sums[j] += score[i + j];
    }
    *top = largest;
    *sum = 0;
    for (float lane : sums) *sum += lane;
}

}  // namespace

}  // namespace ggml::cpu
