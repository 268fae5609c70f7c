#include "forward/parts/predictor.h"

#include <algorithm>
#include <cmath>

#include "ggml/math.h"

namespace powerinfer {

using ggml::Input;

namespace {

// Computes the scores of one row in four parts. As soon as a part is known, its neurons are
// requested, so the disk reads them while the next part is computed. With four parts a third of the
// waiting remains; with eight it would be less, but the calls would take longer.
void scores_by_part(const Pass& p, const BlockRows& in, const ggml::NeuronMask& mask,
                    const ggml::Matrix& fc2, const Input& hidden, float* score) {
    constexpr int64_t kParts = 4, kSegmentsOfPart = ggml::kSegments / kParts;
    for (int64_t i = 0; i < kParts; i++) {
        const ggml::Segment rows = {ggml::segment_of(fc2.rows, i * kSegmentsOfPart).begin,
                                    ggml::segment_of(fc2.rows, (i + 1) * kSegmentsOfPart - 1).end};
        if (rows.begin == rows.end) break;  // a narrow model has fewer segments
        ggml::Matrix part = fc2;
        part.rows = rows.end - rows.begin;
        part.data += rows.begin * fc2.row_bytes();
        ggml::matmul(p.context, hidden, {{part, score + rows.begin}});
        if (i + 1 < kParts) request_scored(p, neurons_of(in, in.w().neurons, mask), rows);
    }
}

// Computes the predictor's scores for n rows from `first` on. A predictor is a small network, score
// = fc2 . relu(fc1 . x) without a bias, as in PowerInfer, or a sketch (ggml/sketch.h).
void predict(const Pass& p, const BlockRows& in, const ggml::NeuronMask& mask, int64_t first,
             int64_t n, float* score) {
    const Config& c = p.model.config;
    Workspace& b = p.work;
    p.context.profile.part = name(Part::predictor);
    const int64_t cols = c.predict_from_normed ? in.part.columns(c.n_embd) : c.n_embd;
    const float* const x = (c.predict_from_normed ? in.x : in.residual) + first * cols;
    const NeuronSource::Predictor w = p.source.predictor(p.context, in.number(), in.w(), n);
    if (in.w().signs) {
        const ggml::Sketch sketch{in.part.n_ff, cols, w.signs.data, in.w().sketch_offset};
        ggml::sketch_scores(p.context, sketch, x, n, b.predictor.sketch, score);
    } else {
        const ggml::Matrix &fc1 = w.fc1, &fc2 = w.fc2;
        const Input input = b.input.prepare(p.context, x, n, cols, fc1.quantised());
        ggml::matmul(p.context, input, {{fc1, b.predictor.hidden}});
        ggml::activation(p.context, ggml::Activation::relu, b.predictor.hidden, n * fc1.rows);
        const Input hidden =
            b.input.prepare(p.context, b.predictor.hidden, n, fc1.rows, fc2.quantised());
        if (p.source.waits() && in.n == 1 && !in.part.routed()) {
            scores_by_part(p, in, mask, fc2, hidden, score);
        } else {
            ggml::matmul(p.context, hidden, {{fc2, score}});
        }
    }
    p.context.profile.part = name(Part::ffn);
}

}  // namespace

float score_threshold(const FeedForward& part, const pi_session_params& params) {
    const float asked = params.sparse_threshold;
    return std::isnan(asked) ? part.sparse_threshold : asked;
}

int64_t n_masked(const Pass& p, const BlockRows& in) {
    if (!is_predicted(in.part, in.w(), p.params.sparse)) return 0;
    int64_t n = 0;
    for (int64_t t = 0; t < in.n; t++) n += p.work.batch.masked[in.row(t)];
    return n;
}

ggml::NeuronMask mask_of(const Pass& p, const BlockRows& in) {
    Workspace& b = p.work;
    ggml::NeuronMask mask;
    const int64_t masked = n_masked(p, in);
    if (masked == 0) return mask;
    bool* const flags = b.predictor.masked + in.scored;
    float* const score = b.predictor.score + in.scored * in.part.n_ff;
    mask.masked = flags;
    mask.score = score;
    mask.threshold = score_threshold(in.part, p.params);
    if (p.params.sparse == PI_SPARSE_AUTO && !in.w().unpredicted.empty()) {
        mask.unpredicted = in.w().unpredicted.data();
    }
    if (!in.predicted) {
        for (int64_t t = 0; t < in.n; t++) flags[t] = b.batch.masked[in.row(t)];
        p.counts.predicted[size_t(in.part.index)] += masked;
        // Scores are computed from the first masked row to the last one: rows of prompts before and
        // after these need none.
        const int64_t first = std::find(flags, flags + in.n, true) - flags;
        int64_t end = in.n;
        while (!flags[end - 1]) end--;
        predict(p, in, mask, first, end - first, score + first * in.part.n_ff);
    }
    return mask;
}

const int32_t* choose_audits(const Pass& p, const BlockRows& in, const ggml::NeuronMask& mask) {
    constexpr int64_t kStored = 4;  // audits are rarer where they may have to read from the disk
    const int64_t every = p.source.waits() ? kStored : 1;
    const Batch& batch = p.work.batch;
    bool any = false;
    for (int64_t t = 0; mask.masked && t < in.n; t++) {
        const int64_t row = in.row(t);
        const bool can = mask.masked[t] && batch.generated[row];
        int32_t& segment = p.work.predictor.audited[t];
        segment = can ? p.audit.segment(in.part.index, batch.position[row], every) : -1;
        any = any || segment >= 0;
    }
    return any ? p.work.predictor.audited : nullptr;
}

}  // namespace powerinfer
