// The softmax of a block of scores. Plain loops over sixteen lanes, which the compiler turns into
// registers of the instruction set that it compiles for.
#pragma once

#include <cmath>

#include "ggml/math.h"
#include "kernels/kernels.h"

namespace ggml::cpu {

namespace {

// What GCC 12 makes no good code of, for n values, a multiple of sixteen, is a member of Lanes:
//   largest(x, n)                  NaN is none of them
//   total(x, n)                    value i in lane i % 16, and these by halves
//   outside(x, n, begin, end, v)   makes those before `begin` and from `end` on v; these are in the
//                                  first and the last register
template <typename Lanes>
void softmax(float* score, int64_t begin, int64_t end, float softcap, float* top, float* sum) {
    constexpr int64_t kLanes = 16;
    const int64_t first = begin / kLanes * kLanes;
    const int64_t n = (end - first + kLanes - 1) / kLanes * kLanes;
    score += first;
    begin -= first;
    end -= first;
    // Whole registers: what is beside the range has no weight.
    Lanes::outside(score, n, begin, end, -INFINITY);
    if (softcap != 0) {
        for (int64_t i = 0; i < n; i++) score[i] = softcap * tanh_f32(score[i]);
        Lanes::outside(score, n, begin, end, -INFINITY);
    }
    const float largest = Lanes::largest(score, n);
    for (int64_t i = 0; i < n; i++) score[i] = exp_of_negative(score[i] - largest);
    // Not among the values of other rows, if the largest is infinite and they are not numbers.
    Lanes::outside(score, n, begin, end, 0);
    *top = largest;
    *sum = Lanes::total(score, n);
}

}  // namespace

}  // namespace ggml::cpu
