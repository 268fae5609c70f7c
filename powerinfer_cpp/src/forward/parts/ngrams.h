// What the last tokens say to the streams (NGrams in model/layer.h). The other functions of this
// part are in recurrent.h.
#pragma once

#include "forward/pass.h"

namespace powerinfer {

// Asks for the rows of the table that the tokens of a pass choose, which project() waits for.
void ask_for_grams(const Pass& p, const NGrams& grams);

}  // namespace powerinfer
