// Whether whole experts of a mixture, or the blocks of a dense model, stay in the file, and how the
// budget of RAM is divided then.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "plan/plan.h"
#include "storage/experts/expert_pages.h"

namespace powerinfer {

// Why its experts cannot stay on the disk; "" if they can.
std::string keeps_experts(const Model& model);
// The same for all feed-forward blocks.
std::string keeps_blocks(const Model& model);

// Divides the budget: what must be in RAM, the sessions (with smaller micro-batches where the
// experts of a row would have no room else, which changes no result), frames for the experts of a
// row, and all that is left for the cache. A budget that is too small is divided as the least one
// is. model.plan must be without the experts, or without the blocks.
StoragePlan plan_experts(const Model& model, const pi_model_params& params);

// The matrices of every block of the model, in the order of their numbers; of blocks that stay in
// RAM none. Files are numbered as in `files`.
std::vector<StoredPage> stored_experts(const Model& model, std::vector<int32_t>& files);

}  // namespace powerinfer
