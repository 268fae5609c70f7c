// A guess at products from the signs of the weights alone, one bit per weight:
//
//   score_n = sum_i sign(w_ni) x_i + offset_n
//
// which is (w_n . x + b_n) / mean |w_n| when all weights of a row are equally large and offset_n is
// b_n / mean |w_n|. Inputs enter with their signs and magnitudes in 3 bits, so that the sum is one
// of counted bits, where the signs disagree. SparseInfer (arXiv 2411.12692) takes the inputs' signs
// alone; magnitudes cost no further byte of weights, and on the four layers of the stories model
// they bring what must be proposed to find 97% of the firings from 76, 55, 52 and 64% of the
// neurons to 57, 30, 31 and 41%.
#pragma once

#include <cstdint>

#include "ggml/carver.h"
#include "ggml/context.h"

namespace ggml {

struct Sketch {
    int64_t rows = 0, cols = 0;      // cols: a multiple of 8
    const uint8_t* signs = nullptr;  // [rows, cols / 8]; weight i: bit i % 8 of byte i / 8, 1: < 0
    const float* offset = nullptr;   // [rows], in units of the input, or null
};

// Room for the bits of at most max_rows inputs of `cols`.
class SketchScratch {
 public:
    SketchScratch() = default;
    SketchScratch(Carver& carver, int64_t max_rows, int64_t cols);

 private:
    friend void sketch_scores(Context&, const Sketch&, const float*, int64_t, SketchScratch&,
                              float*);
    float* unit_ = nullptr;      // [rows]: x_i is about sign * level * unit, level in 0..7
    int32_t* total_ = nullptr;   // [rows]: sum of the levels
    uint8_t* planes_ = nullptr;  // [rows, 4, plane]: signs, then bits 0, 1, 2 of the levels
};

// score[t][n] for the rows x [rows, w.cols]; score: [rows, w.rows]. Counts are integers, so the
// bits depend neither on the threads nor on the kernels.
void sketch_scores(Context& context, const Sketch& w, const float* x, int64_t rows,
                   SketchScratch& scratch, float* score);

}  // namespace ggml
