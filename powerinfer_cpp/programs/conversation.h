// A conversation in the terminal: the model answers each line of stdin.
#pragma once

#include <string>

#include "chat.h"
#include "options.h"

class Generation;

// The chat format that the options name, or else the model's. Throws Failure if it is not
// supported.
ChatFormat read_chat_format(const Options& options);
// Runs until the input or the context ends. Throws Interrupted.
void converse(Generation& generation, const ChatFormat& format, const Options& options);
