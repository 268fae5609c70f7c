// Estimates products from the signs of the weights, one bit per weight:
//
//   score_n = sum_i sign(w_ni) x_i + offset_n
//
// This equals (w_n . x + b_n) / mean |w_n| if all weights of a row have the same magnitude and
// offset_n is b_n / mean |w_n|. Inputs are reduced to their sign and a magnitude of 3 bits, so that
// the sum can be computed by counting the bits where signs differ. SparseInfer (arXiv 2411.12692)
// uses only the signs of the inputs. Magnitudes read no more weight bytes. On the four layers of
// the stories model, finding 97% of the neurons that fire takes proposing 76, 55, 52 and 64% of all
// neurons without them, and 57, 30, 31 and 41% with them.
#pragma once

#include <cstdint>

#include "ggml/carver.h"
#include "ggml/context.h"

namespace ggml {

struct Sketch {
    int64_t rows = 0, cols = 0;      // cols: a multiple of 8
    const uint8_t* signs = nullptr;  // [rows, cols / 8]; bit i % 8 of byte i / 8: is weight i < 0?
    const float* offset = nullptr;   // [rows], in units of the input, or null
};

// Room for the bits of at most max_rows inputs of `cols` values.
class SketchScratch {
 public:
    SketchScratch() = default;
    SketchScratch(Carver& carver, int64_t max_rows, int64_t cols);

 private:
    friend void sketch_scores(Context&, const Sketch&, const float*, int64_t, SketchScratch&,
                              float*);
    float* unit_ = nullptr;      // [rows]: x_i ~ sign * level * unit, level in 0..7
    int32_t* total_ = nullptr;   // [rows]: sum of the levels
    uint8_t* planes_ = nullptr;  // [rows, 4, plane]: signs, then bits 0, 1, 2 of the levels
};

// score[t][n] for the rows x [rows, w.cols]; score: [rows, w.rows]. The counts are integers, so the
// bits depend neither on threads nor on the instruction set.
void sketch_scores(Context& context, const Sketch& w, const float* x, int64_t rows,
                   SketchScratch& scratch, float* score);

}  // namespace ggml
