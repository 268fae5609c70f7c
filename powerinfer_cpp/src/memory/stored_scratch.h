// Scratch memory of blocks whose neurons are partly on the disk (neurons.h).
#pragma once

#include "ggml/carver.h"
#include "ggml/neurons.h"
#include "storage/neurons/store.h"

namespace powerinfer {

// For up to `rows` rows, beside ggml::NeuronScratch.
struct StoredScratch {
    StoredScratch() = default;
    StoredScratch(ggml::Carver& carver, int64_t rows, int64_t n_ff, int64_t n_embd) {
        carver.take(values, {n_ff});
        carver.take(partial, {ggml::kPartials, rows, n_embd});
        carver.take(fires, {n_ff});
        for (int32_t** list : {&here, &ready, &arrived}) carver.take(*list, {n_ff});
        carver.take(parts, {n_ff + 1});
    }

    float* values = nullptr;                                        // [n_ff]
    float* partial = nullptr;                                       // [kPartials, rows, n_embd]
    int32_t* fires = nullptr;                                       // [n_ff]
    int32_t *here = nullptr, *ready = nullptr, *arrived = nullptr;  // [n_ff]: lists of neurons
    NeuronParts* parts = nullptr;                                   // [n_ff]
};

}  // namespace powerinfer
