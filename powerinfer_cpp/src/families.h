// The model families: what their files say and which tensors they hold. One place per family.
#pragma once

#include "model.h"

namespace powerinfer {

// Reads {arch}.* and powerinfer.*; throws Error(unsupported) for a family or feature that is not
// known.
Config read_config(const ggml::Gguf& gguf, int64_t n_vocab);

// The tensors of the model, pointing at the members of `model` that they fill. model.layers must
// have its final size.
std::vector<WeightSpec> weight_specs(Model& model);

}  // namespace powerinfer
