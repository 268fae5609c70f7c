// Interactive mode: the model and the user continue a text in turns.
#pragma once

#include "options/options.h"

class Generation;

// Runs until the input or the context ends. Throws Interrupted.
void interact(Generation& generation, const Options& options);
