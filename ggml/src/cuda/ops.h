// The operators of this device (device_ops.h), one .cu file per kind.
#pragma once

#include "ggml/device_ops.h"

namespace ggml::GGML_GPU {

void embed_rows(DeviceStream* stream, const DeviceRows& w, const int32_t* ids, int offset, int n,
                float* y);
void norm(DeviceStream* stream, const DeviceNorm&);
void quantise(DeviceStream* stream, const DeviceInput& x);
void add(DeviceStream* stream, float* x, const float* y, int64_t n);
void activation(DeviceStream* stream, Activation, const DeviceInput& x, const float* up);
void matmul(DeviceStream* stream, const DeviceInput& x, const DeviceProduct* products, int n);
void rope_table(DeviceStream* stream, const double* frequency, int n_pairs, double magnitude,
                const int32_t* position, int n, float* cos_sin);
void place_heads(DeviceStream* stream, float* x, int rows, int n_head, int head_dim,
                 const float* head_norm, float eps, const float* cos_sin, int n_pairs,
                 RopePairs pairs);
void store_kv(DeviceStream* stream, const KvLayer&, const KvSlot* slots, int n, const float* k,
              const float* v);
void attention(DeviceStream* stream, const KvLayer&, int n_head, float scale,
               const DeviceAttentionRow* rows, int n, const float* q, const DeviceAttentionScratch&,
               float* out);
void sketch_scores(DeviceStream* stream, const DeviceSketch& w, const float* x, int n,
                   const DeviceSketchScratch&, float* score);
void select(DeviceStream* stream, const float* score, float threshold, const uint8_t* unpredicted,
            const int32_t* slot, const DeviceLists&);
void partial_ffn(DeviceStream* stream, const DeviceNeurons&, const DeviceInput& x,
                 const DeviceLists&, const DeviceFfnScratch&);
void merge(DeviceStream* stream, const DeviceSums&, const float* other, const float* bias,
           float* y);
void publish(DeviceStream* stream, const DeviceInput& x, const DeviceLists&, const DeviceExchange&);
void merge_answer(DeviceStream* stream, const DeviceSums&, const DeviceLists&,
                  const DeviceExchange&, const float* bias, float* y);
void flag_rounds(DeviceStream* stream, const DeviceExchange&, uint32_t rounds);

// All of them.
const DeviceOps& ops();

}  // namespace ggml::GGML_GPU
