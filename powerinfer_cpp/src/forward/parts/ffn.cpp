#include "forward/parts/ffn.h"

#include "forward/parts/blocks.h"
#include "forward/parts/neuron_ffn.h"

namespace powerinfer {

namespace {

// Computes every neuron of a block of matrices.
void dense_ffn(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y) {
    std::vector<FfnBlock> block;
    block.emplace_back(p, part, 0, x.rows());
    block[0].x = x.get(p.context, block[0].wants_q8());
    block[0].y = y;
    compute_blocks(p, block);
}

// y[t] = widen . mixture(narrow . x[t])
void narrow_mixture(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y,
                    const Beside& beside) {
    MixtureRows& b = p.work.mixture;
    const int64_t n = x.rows();
    p.multiply(x.get(p.context, part.narrow.quantised()), {{part.narrow, b.narrow}});
    if (p.model.config.predict_from_normed) p.record.inputs(part.index, b.narrow, n);
    b.narrow_input.set(b.narrow, n, part.width);
    mixture(p, part, b.narrow_input, b.narrow_sum, beside);
    const ggml::Input sum =
        p.work.input.prepare(p.context, b.narrow_sum, n, part.width, part.widen.quantised());
    p.multiply(sum, {{part.widen, y}});
}

}  // namespace

void feed_forward(const Pass& p, const FeedForward& part, ggml::SharedInput& x, float* y,
                  const Beside& beside) {
    const float* const residual = p.work.x;
    const int64_t n = x.rows();
    const bool normed = p.model.config.predict_from_normed;
    const bool narrow = part.routed() && part.width;
    if (!(narrow && normed)) p.record.inputs(part.index, normed ? x.x() : residual, n);
    if (beside.part) p.record.inputs(beside.part->index, normed ? x.x() : residual, n);
    if (narrow) return narrow_mixture(p, part, x, y, beside);
    if (part.routed()) return mixture(p, part, x, y, beside);
    if (!part.blocks[0].neurons.n) return dense_ffn(p, part, x, y);
    neuron_ffn(p, {part, 0, x.x(), residual, nullptr, n}, y);
    if (!part.share) return;
    float* const share = p.work.ffn.share;
    p.multiply(x.get(p.context, part.share.quantised()), {{part.share, share}});
    weigh(p, share, n, x.cols(), y);
}

}  // namespace powerinfer
