// The steps from a path to a Model, a file each; load.cpp takes them one after the other.
#pragma once

#include "model.h"

namespace powerinfer {

// model_file.cpp has ModelFile, families/ config and weights.

// A layer beyond the number of layers: the number is wrong, and the model would run without its
// end (resolve.cpp). Throws Error(format).
void refuse_further_layers(const Model& model);
// Finds every weight in the file (resolve.cpp). Throws Error(format) naming the tensor that is
// missing, or has another shape or type.
void resolve_weights(Model& model);
// Maps, reads or packs every weight to the place that the plan gave it (loader.cpp).
void load_weights(Model& model, const pi_model_params& params);

}  // namespace powerinfer
