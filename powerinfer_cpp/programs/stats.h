// The figures of a run as JSON: main --json-stats FILE.
#pragma once

#include "options.h"
#include "powerinfer.h"
#include "timing.h"

// Writes the keys that llm.stats() has in Python. Throws Failure where the file cannot be written.
void write_stats(Options& options, const pi_model* model, const Timing& timing);
