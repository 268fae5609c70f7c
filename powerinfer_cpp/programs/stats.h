// Statistics of a run as JSON: main --json-stats FILE.
#pragma once

#include "options/options.h"
#include "powerinfer.h"
#include "timing.h"

// Writes the same keys as llm.stats() in Python. Throws Failure if the file cannot be written.
void write_stats(Options& options, const pi_model* model, const Timing& timing);
