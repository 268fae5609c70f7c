// The memory that a model would take, and what to do where that is too much.
#pragma once

#include <string>

#include "options/options.h"

// Prints the plan. false: it does not fit.
bool print_plan(Options& options);

// After an error for want of memory: lines with what helps, or "".
std::string ways_out(Options& options);
