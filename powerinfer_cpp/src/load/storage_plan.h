// Whether the neurons of a model stay on the disk, and how the budget of RAM is divided then.
#pragma once

#include <memory>

#include "load/plan.h"
#include "model/model.h"
#include "storage/store.h"

namespace powerinfer {

// Bytes of RAM that the model and the sessions that it keeps room for take, if all is there.
uint64_t all_in_ram(const Model& model, const pi_model_params& params);

// Why its neurons (that are not on a device) cannot stay on the disk; "" if they can.
std::string keeps_to_ram(const Model& model);

// Divides the budget: what must be in RAM, the sessions (with smaller micro-batches, which changes
// no result), the staging area, and all that is left for the cache of neurons. A budget that is too
// small is divided as the least one is. model.plan must be without the neurons.
StoragePlan plan_storage(const Model& model, const pi_model_params& params);
// Throws Error(memory) naming the least budget, if the model's is smaller.
void require_least(const Model& model);

// The parts of a memory plan that it stands for.
std::vector<PlanPart> storage_parts(const StoragePlan& plan);

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
