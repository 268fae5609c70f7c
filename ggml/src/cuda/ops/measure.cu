// What `powerinfer doctor` measures with a kernel.
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace ggml::GGML_GPU {

namespace {

// The flags of a split layer (merge.cu) without its payload.
__global__ void flag_rounds_kernel(uint32_t* published, const uint32_t* answered, uint32_t rounds) {
    for (uint32_t round = 1; round <= rounds; round++) {
        store_release_system(published, round);
        for (;;) {
            const uint32_t answer = load_acquire_system(answered);
            if (answer == kReleased) return;
            if (answer == round) break;
            __nanosleep(100);
        }
    }
}

}  // namespace

void flag_rounds(DeviceStream* stream, const DeviceExchange& with, uint32_t rounds) {
    launch<flag_rounds_kernel>(stream, 1, 1, with.published, with.answered, rounds);
}

}  // namespace ggml::GGML_GPU
