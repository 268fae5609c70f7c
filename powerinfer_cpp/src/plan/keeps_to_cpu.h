// What a device cannot compute.
#pragma once

#include <string>

#include "model/model.h"

namespace powerinfer {

// Why a layer's operators cannot run on a device; "" if they can.
std::string keeps_to_cpu(const Model& model, int64_t layer);
// Does the head stay on the CPU, whatever would fit? The device does not cap logits, for example.
bool keeps_head_to_cpu(const Model& model);

}  // namespace powerinfer
