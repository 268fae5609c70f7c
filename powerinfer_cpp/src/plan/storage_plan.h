// Whether the neurons of a model stay on the disk, and how the budget of RAM is divided then.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "plan/plan.h"

namespace powerinfer {

// Rows of a micro-batch that sessions get at least.
inline constexpr int32_t kLeastRows = 16;

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

// What callers want to keep of results; and what the process takes besides all that is planned:
// code, stacks, vocabulary.
uint64_t rows_kept_bytes(const Model& model, const pi_model_params& params);
uint64_t process_bytes(const Model& model, uint64_t planned);

// The parts of a memory plan that it stands for.
std::vector<PlanPart> storage_parts(const StoragePlan& plan);

}  // namespace powerinfer
