// The steps of loading a Model; each is in a file of its own, and load.cpp calls them in order.
#pragma once

#include "model/model.h"

namespace powerinfer {

// ModelFile is in model_file.cpp; config and weights are in families/.

// Refuses tensors of layers beyond the number of layers (resolve.cpp): then the number is wrong,
// and the model would run without its last layers. Throws Error(format).
void refuse_further_layers(const Model& model);
// Finds every weight in the file (resolve.cpp). Throws Error(format) naming the tensor if it is
// missing or has another shape or type.
void resolve_weights(Model& model);
// Takes the memory that the plan has for the device (device_load.cpp). Throws Error(memory |
// device).
void allocate_device(Model& model);
// Uploads which neurons are where, and finds those that RAM has (device_load.cpp).
void load_device_tables(Model& model);
// Maps, reads or packs every weight to its place in the plan (loader.cpp).
void load_weights(Model& model, const pi_model_params& params);

}  // namespace powerinfer
