// llama.cpp's --override-tensor, as far as it moves experts to the CPU.
#pragma once

#include "options/options.h"

// Reads -ot: sets n_cpu_moe and says what was made of it. Throws UsageError for patterns that ask
// for anything else than the CPU for the experts of the first layers.
void settle_moved_experts(Options& options);
