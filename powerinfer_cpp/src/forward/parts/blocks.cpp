#include "forward/parts/blocks.h"

#include "ggml/math.h"

namespace powerinfer {

using ggml::Input;

namespace {

// What a block computes of the values that all blocks have side by side.
struct Values {
    int64_t first, n_ff, rows;
    int64_t n() const { return rows * n_ff; }
};

template <typename F>
void for_blocks(const std::vector<FfnBlock>& blocks, const F& use) {
    int64_t first = 0;
    for (const FfnBlock& block : blocks) {
        const Values values{first, block.part.n_ff, block.x.rows};
        use(block, values);
        first += values.n();
    }
}

// Are the values of a block activated as soon as they are computed? Not with what adapters add to
// them.
bool activates_products(const Pass& p, const FfnBlock& block) {
    return !block.w.gate && !block.part.xielu && !p.adapters.in_layers();
}

// Adds the products with gate and up, and with the weight of what the block gives, to the list.
// Without gates the products with up are where those with gate would be.
void list_products(const Pass& p, const FfnBlock& block, const Values& values,
                   ggml::OwnProduct*& list) {
    const FfnRows& b = p.work.ffn;
    const Ffn& w = block.of_model();
    float* const gate = b.gate + values.first;
    float* const up = block.w.gate ? b.up + values.first : gate;
    if (block.w.gate) *list++ = {&block.w.gate, block.x, gate, w.gate_bias};
    *list = {&block.w.up, block.x, up, w.up_bias};
    if (activates_products(p, block)) list->act = block.part.activation;
    list++;
    if (block.part.share) *list++ = {&block.part.share, block.x, b.share, nullptr};
}

// The same for what adapters add.
void adapt(const Pass& p, const FfnBlock& block, const Values& values) {
    const FfnRows& b = p.work.ffn;
    const Ffn& w = block.of_model();
    float* const gate = b.gate + values.first;
    if (block.w.gate) p.adapters.add(p.context, block.x, &w.gate, gate);
    p.adapters.add(p.context, block.x, &w.up, block.w.gate ? b.up + values.first : gate);
    if (block.part.share) p.adapters.add(p.context, block.x, &block.part.share, b.share);
}

// Turns products with gate and up into the values that down reads. They take the place of those
// with gate. Neighbours with the same activation are computed in one call.
void activate(const Pass& p, const std::vector<FfnBlock>& blocks) {
    const FfnRows& b = p.work.ffn;
    int64_t first = 0, n = 0;
    for_blocks(blocks, [&](const FfnBlock& block, const Values& of) {
        n += of.n();
        const FfnBlock* const next = &block < &blocks.back() ? &block + 1 : nullptr;
        const bool same = next && bool(next->w.gate) == bool(block.w.gate) &&
                          next->part.activation == block.part.activation &&
                          next->part.limit == block.part.limit &&
                          (!block.part.xielu || &next->part == &block.part);
        if (same) return;
        const ggml::Activation act = block.part.activation;
        if (block.w.gate) {
            ggml::limited_activation(p.context, act, block.part.limit, b.gate + first, b.up + first,
                                     n);
        } else if (block.part.xielu) {
            ggml::xielu(p.context, *block.part.xielu, b.gate + first, n);
        } else if (!activates_products(p, block)) {
            ggml::activation(p.context, act, b.gate + first, n);
        }
        first += n;
        n = 0;
    });
}

void count(const Pass& p, const FfnBlock& block, int64_t rows, int64_t n) {
    const auto part = size_t(block.part.index);
    ggml::NeuronCounts& counts = p.counts.neurons[part];
    counts = {counts.rows + rows, counts.proposed + n, counts.computed + n, counts.fired + n};
    p.counts.from_disk[part] += block.w.read ? n : 0;
}

}  // namespace

FfnBlock::FfnBlock(const Pass& p, const FeedForward& of, int64_t e, int64_t n)
    : part(of), expert(e), w(p.source.matrices(p.context, of.number(e), of.blocks[size_t(e)], n)) {}

bool FfnBlock::wants_q8() const {
    return w.up.quantised() || w.gate.quantised() || part.share.quantised();
}

bool FfnBlock::wants_floats(const Pass& p) const {
    const auto floats = [](const ggml::Matrix& m) { return m && !m.quantised(); };
    return floats(w.up) || floats(w.gate) || floats(part.share) || p.adapters.in_layers() ||
           p.record.sums_squares();
}

void compute_blocks(const Pass& p, const std::vector<FfnBlock>& blocks) {
    const FfnRows& b = p.work.ffn;
    ggml::OwnProduct* end = b.products;
    int64_t all = 0;
    bool q8 = false;  // does down read 8 bits?
    for_blocks(blocks, [&](const FfnBlock& block, const Values& values) {
        p.record.squares(p.context, PI_INPUT_FFN, block.part.index, block.expert, block.x.x,
                         values.rows);
        list_products(p, block, values, end);
        q8 = q8 || block.w.down.quantised();
        all += values.n();
    });
    ggml::matmul_each(p.context, b.products, end - b.products);
    if (p.adapters.in_layers()) {
        for_blocks(blocks, [&](const FfnBlock& block, const Values& of) { adapt(p, block, of); });
    }
    activate(p, blocks);
    bool* const flags = p.flags();
    if (flags) ggml::nonzero(p.context, b.gate, all, flags);
    for_blocks(blocks, [&](const FfnBlock& block, const Values& of) {
        const FeedForward& part = block.part;
        float* const values = b.gate + of.first;
        if (part.norms_values) {
            ggml::rms_norm(p.context, values, block.of_model().value_norm, part.norm_eps, of.rows,
                           of.n_ff, values);
        }
        p.record.squares(p.context, PI_INPUT_FFN_DOWN, part.index, block.expert, values, of.rows);
    });

    // Blocks of 32 values become 8 bits in one way, whichever rows they belong to.
    Input fired{b.gate, 1, all, {}};
    if (q8) fired = p.work.input.prepare(p.context, b.gate, all / ggml::kQ, ggml::kQ, true);
    end = b.products;
    for_blocks(blocks, [&](const FfnBlock& block, const Values& of) {
        const Ffn& w = block.of_model();
        *end++ = {&block.w.down, fired.part(of.first, of.rows, of.n_ff), block.y, w.down_bias};
    });
    ggml::matmul_each(p.context, b.products, end - b.products);
    for_blocks(blocks, [&](const FfnBlock& block, const Values& of) {
        const FeedForward& part = block.part;
        p.adapters.add(p.context, fired.part(of.first, of.rows, of.n_ff), &block.of_model().down,
                       block.y);
        if (part.share) weigh(p, b.share, of.rows, block.x.cols, block.y);
        p.record.fired(p.context, part.index, block.expert, block.rows, of.rows,
                       flags ? flags + of.first : nullptr);
        count(p, block, of.rows, of.n());
    });
}

void weigh(const Pass& p, const float* score, int64_t n, int64_t cols, float* y) {
    for (int64_t t = 0; t < n; t++) {
        ggml::scale(p.context, y + t * cols, ggml::sigmoid(score[t]), cols);
    }
}

}  // namespace powerinfer
