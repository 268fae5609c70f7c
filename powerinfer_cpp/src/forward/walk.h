// The walk over a layer's parts, in order: each reads the residual stream, or what the part before
// has read, and what it gives is added to the stream, at once or with that of the next part
// (model/layer.h).
//
// It calls the steps of the place that computes the layer. Rows are what a step reads and writes:
//   begin(part)                       before the other steps of a part
//   read(part)                        parts read the stream from now on, as this one says
//   room(waits)                       rows for a result, others while a result waits
//   route(router, experts, k)         chooses experts, which are of a later part
//   feed(ffn, y, beside, y_beside)    computes a feed-forward part, and the one beside it, if any
//   compute(op, y)                    computes any other part
//   norm(y, w), scale(y, f), add(to, y), stream(), scale_stream(f)
#pragma once

#include "model/layer.h"

namespace powerinfer {

template <typename Steps>
void walk(const Layer& layer, Steps& steps) {
    using Rows = typename Steps::Rows;
    Rows waiting{};                         // what parts gave, to be added with the next one's
    const FeedForward* computed = nullptr;  // a part that was computed beside the one before
    for (size_t k = 0; k < layer.parts.size(); k++) {
        const LayerPart& part = layer.parts[k];
        steps.begin(part);
        if (part.input == LayerPart::Input::stream) steps.read(part);
        if (const auto* router = std::get_if<Router>(&part.op)) {
            steps.route(*router, experts_after(layer, k), k);
            continue;
        }
        const bool waits = part.add == LayerPart::Add::with_next;
        const Rows y = steps.room(bool(waiting));
        std::visit(ByKind{[](const Router&) {},
                          [&](const FeedForward& f) {
                              if (&f == computed) return;
                              computed = waits && !waiting ? part_beside(layer, k) : nullptr;
                              steps.feed(f, y, computed, steps.room(true));
                          },
                          [&](const auto& op) { steps.compute(op, y); }},
                   part.op);
        if (part.norms_sum) steps.add(y, steps.stream());
        if (part.post_norm) steps.norm(y, *part.post_norm);
        if (part.scale != 1) steps.scale(y, part.scale);
        if (!waiting) {
            if (waits) waiting = y;
            if (!waits) steps.add(steps.stream(), y);
            if (part.stream_norm) steps.norm(steps.stream(), *part.stream_norm);
            continue;
        }
        if (waits || part.sum_norm) steps.add(waiting, y);
        if (waits) continue;
        if (part.sum_norm) steps.norm(waiting, *part.sum_norm);
        steps.add(steps.stream(), waiting);
        if (!part.sum_norm) steps.add(steps.stream(), y);
        waiting = {};
    }
    if (layer.scale) steps.scale_stream(layer.scale);
}

}  // namespace powerinfer
