// The bundled file from which a model runs whose neurons stay on the disk, and its store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ggml/reader.h"
#include "model/model.h"
#include "storage/experts/expert_store.h"
#include "storage/neurons/store.h"

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

// Opens the store of a model whose experts stay in its own files. Its cache is empty, unless
// save_store() has left a list. readers: of the files, in the order of stored_experts(); none: the
// best ones here.
std::unique_ptr<ExpertStore> open_experts(const Model& model, const pi_model_params& params,
                                          std::vector<std::unique_ptr<ggml::Reader>> readers = {});

// Writes what the store holds to a file beside the model's, from which the next one is filled, if
// the model has no profile. Failing to do so is no error.
void save_store(const Model& model);

}  // namespace powerinfer
