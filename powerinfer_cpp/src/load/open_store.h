// The bundled file from which a model runs whose neurons stay on the disk, and its store.
#pragma once

#include <memory>
#include <string>

#include "ggml/reader.h"
#include "model/model.h"
#include "storage/store.h"

namespace powerinfer {

// Does the model's file have its neurons so that they can be read one by one?
bool is_bundled(const Model& model);
// The bundled file of the model at `path`, which is written if there is none (write_bundle.h).
// Throws Error(memory) if params.bundle forbids that.
std::string bundle_of(const std::string& path, const pi_model_params& params);

// Bytes of the bundled file that has to be written before the model runs from it; 0: there is one.
uint64_t bundle_to_write(const Model& model);

// Opens the store of a model whose weights are loaded, and fills it. reader: of its bundled file;
// null: the best one here.
std::unique_ptr<NeuronStore> open_store(const Model& model, const pi_model_params& params,
                                        std::unique_ptr<ggml::Reader> reader = nullptr);

// Writes what the store holds to a file beside the bundled one, from which open_store() fills the
// next one, if the model has no profile. Failing to do so is no error.
void save_store(const Model& model);

}  // namespace powerinfer
