// Products of a mixture's experts with the rows that chose them, by the kernels of matmul.
#include "cuda/ops.h"
#include "cuda/ops/tiles.h"

namespace ggml::GGML_GPU {

void matmul_experts(DeviceStream* stream, const DeviceInput& x, const DeviceChoice& choice,
                    const DeviceFrames& frames, const DeviceProduct* products, int n) {
    const int pairs = choice.pairs();
    Mixture mixture;
    mixture.expert = choice.expert;
    mixture.first = choice.first;
    mixture.pair = choice.pair;
    mixture.frame = frames.frame;
    mixture.stride = frames.stride;
    mixture.n_expert = choice.n_expert;
    mixture.per = x.rows == choice.rows ? choice.n_used : 1;
    // Where experts have two rows on average, reading each of them once pays for tiles.
    const auto launch_them = pairs >= 2 * choice.n_expert ? launch_tiles : launch_few;
    by_type(products, n, [&](const SameInput& same, int count) {
        launch_them(stream, x, same, count, mixture, pairs);
    });
}

}  // namespace ggml::GGML_GPU
